//! The key that an object is stored by, among those of its type.

/// Returns the key of an object: its name, behind its namespace and a slash if it has one.
pub fn object_key(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// Returns `true` for a text that can be a name or a namespace in a key.
///
/// Source: `apimachinery/pkg/api/validation/path/name.go` (IsValidPathSegmentName), except for the empty
/// text: a path has no such part.
pub fn is_key_part(text: &str) -> bool {
    !matches!(text, "" | "." | "..") && !text.contains(['/', '%'])
}
