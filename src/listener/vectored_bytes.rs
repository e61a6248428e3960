//! A buffer of several parts that is written with one vectored write.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

/// Bytes in several parts, sent as one.
///
/// Invariant: no part is empty, unless all are.
#[derive(Debug, Default)]
pub(super) struct VectoredBytes {
    first: Bytes,
    more: VecDeque<Bytes>,
    remaining: usize,
}

impl VectoredBytes {
    pub(super) fn push(&mut self, part: Bytes) {
        self.remaining += part.len();
        if self.first.is_empty() {
            self.first = part;
        } else if !part.is_empty() {
            self.more.push_back(part);
        }
    }

    /// Takes off the last byte, if there is one.
    pub(super) fn split_last(&mut self) -> Option<u8> {
        let part = self.more.back_mut().unwrap_or(&mut self.first);
        let last = *part.last()?;
        part.truncate(part.len() - 1);
        self.remaining -= 1;
        self.more.pop_back_if(|part| part.is_empty());
        Some(last)
    }
}

impl From<Bytes> for VectoredBytes {
    fn from(first: Bytes) -> Self {
        Self {
            remaining: first.len(),
            first,
            more: VecDeque::new(),
        }
    }
}

impl Buf for VectoredBytes {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        &self.first
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let parts = std::iter::once(&self.first)
            .chain(&self.more)
            .filter(|part| !part.is_empty());
        let filled = into
            .iter_mut()
            .zip(parts)
            .map(|(slice, part)| *slice = IoSlice::new(part));
        filled.count()
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.remaining, "no further than to the end");
        self.remaining -= count;
        while count >= self.first.len() && !self.first.is_empty() {
            count -= self.first.len();
            self.first = self.more.pop_front().unwrap_or_default();
        }
        self.first.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_are_read_one_after_the_other(
            parts in proptest::collection::vec("[a-z]{0,5}", 0..6),
            steps in proptest::collection::vec(0usize..9, 0..12),
        ) {
            let all = parts.concat();
            let mut bytes = VectoredBytes::default();
            for part in &parts {
                bytes.push(Bytes::copy_from_slice(part.as_bytes()));
            }
            let mut rest = all.as_bytes();
            for step in steps {
                let mut slices = [IoSlice::new(b""); 8];
                let filled = bytes.chunks_vectored(&mut slices);
                let seen: Vec<u8> = slices[..filled]
                    .iter()
                    .flat_map(|slice| slice.iter().copied())
                    .collect();
                prop_assert_eq!(&seen, rest);
                let chunk = bytes.chunk();
                prop_assert!(rest.is_empty() || (!chunk.is_empty() && rest.starts_with(chunk)));
                prop_assert_eq!(bytes.remaining(), rest.len());
                let step = step.min(rest.len());
                bytes.advance(step);
                rest = &rest[step..];
            }
            prop_assert_eq!(bytes.copy_to_bytes(rest.len()), rest);
        }
    }
}
