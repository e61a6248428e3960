//! Looking at the bytes that a client sends, before hyper reads them.
use std::task::{Context, Poll};

/// Follows what a client sends.
pub(crate) trait Inspect: Unpin {
    /// Looks at the next bytes. It may change some, but not their number.
    fn inspect(&mut self, bytes: &mut [u8]);

    /// Returns how many bytes may be read at once now, once any may.
    fn poll_allowed(&mut self, _: &mut Context<'_>) -> Poll<usize> {
        Poll::Ready(usize::MAX)
    }
}
