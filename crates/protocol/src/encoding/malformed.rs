//! The error of everything that reads upstream's bytes.

/// Upstream sent bytes that do not have the expected form.
///
/// The message never quotes the bytes, because they may be secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed answer from upstream: {0}")]
pub struct Malformed(pub(crate) &'static str);

impl Malformed {
    /// Returns what is wrong, without a word about where the bytes came from.
    pub fn reason(&self) -> &'static str {
        self.0
    }
}

/// Returns the offset in `outer` at which its slice `inner` starts.
pub(super) fn offset_in(outer: &[u8], inner: &[u8]) -> usize {
    inner.as_ptr().addr() - outer.as_ptr().addr()
}
