//! Sums of bytes that several owners hold.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of bytes that its charges stand for.
#[derive(Clone, Debug, Default)]
pub(super) struct ByteTally(Arc<AtomicUsize>);

/// Bytes that count in a tally until this is dropped.
#[derive(Debug)]
pub(super) struct ByteCharge {
    tally: ByteTally,
    bytes: usize,
}

impl ByteTally {
    pub(super) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn charge(&self, bytes: usize) -> ByteCharge {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        ByteCharge {
            tally: self.clone(),
            bytes,
        }
    }
}

impl Drop for ByteCharge {
    fn drop(&mut self) {
        self.tally.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
