//! The error of a message that the table does not explain.
use std::fmt;

/// An error that names a field and why its JSON is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unexplained(Box<FieldFailure>);

/// The members that lead to a field, the innermost first, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldFailure {
    members: Vec<&'static str>,
    reason: Reason,
}

/// The reason why a message cannot be printed as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The table has no field of this number.
    #[error("field {0} is not in the table of types")]
    UnknownField(u32),
    /// A field has another wire type than the table says.
    #[error("field {0} has an unexpected wire type")]
    WrongWireType(u32),
    /// A field that occurs once occurs again, or a list is interrupted by another field.
    #[error("field {0} occurs again")]
    RepeatedField(u32),
    /// A tag, varint or length is not valid protobuf.
    #[error("malformed protobuf")]
    Malformed,
    /// Messages are nested deeper than this crate follows.
    #[error("messages are nested too deeply")]
    TooDeep,
    /// The entries of a map are not in ascending order.
    #[error("map entries are not sorted")]
    UnsortedMap,
    /// A value for which Go's JSON has no text.
    #[error("{0}")]
    Value(&'static str),
    /// A list or map is absent or empty, and protobuf does not tell which.
    #[error("an absent list and an empty one look the same")]
    AbsentOrEmpty,
}

impl Unexplained {
    /// Returns the reason.
    pub fn reason(&self) -> Reason {
        self.0.reason
    }

    /// Returns the path of the field: the JSON names of its members, joined by dots.
    pub fn path(&self) -> String {
        let names: Vec<_> = self.0.members.iter().rev().copied().collect();
        names.join(".")
    }

    /// Adds the member that encloses the field.
    pub(crate) fn within(mut self, member: &'static str) -> Self {
        self.0.members.push(member);
        self
    }
}

impl From<Reason> for Unexplained {
    fn from(reason: Reason) -> Self {
        Self(Box::new(FieldFailure {
            members: Vec::new(),
            reason,
        }))
    }
}

impl fmt::Display for Unexplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.members.is_empty() {
            write!(f, "{}: ", self.path())?;
        }
        self.0.reason.fmt(f)
    }
}

impl std::error::Error for Unexplained {}
