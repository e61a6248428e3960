//! The failure that an ERROR event or a refused request carries.

/// Code, reason and message of a Status that upstream sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorStatus {
    /// HTTP status code; 0 if upstream gave none.
    pub code: i64,
    /// Machine-readable reason, for example `Expired`.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
}
