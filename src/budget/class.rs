//! Classes of memory.

/// A class of memory that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryClass {
    /// Objects of scopes, loaded or being loaded.
    Objects,
    /// Recent events of scopes.
    History,
    /// Compressed forms of lists.
    Derived,
    /// Discovery, OpenAPI and version documents.
    Documents,
    /// Answers that are being sent, and watches.
    Answers,
    /// Connections of clients.
    Connections,
}

impl MemoryClass {
    /// All classes, in the order of their declaration.
    pub const ALL: [Self; 6] = [
        Self::Objects,
        Self::History,
        Self::Derived,
        Self::Documents,
        Self::Answers,
        Self::Connections,
    ];

    /// Returns the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Objects => "objects",
            Self::History => "history",
            Self::Derived => "derived",
            Self::Documents => "documents",
            Self::Answers => "answers",
            Self::Connections => "connections",
        }
    }
}
