//! Bytes that lie in several places and are sent as one.
use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

/// Bytes in pieces. None of them is empty, unless all are.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    first: Bytes,
    more: VecDeque<Bytes>,
    left: usize,
}

impl Pieces {
    pub(super) fn push(&mut self, piece: Bytes) {
        self.left += piece.len();
        if self.first.is_empty() {
            self.first = piece;
        } else if !piece.is_empty() {
            self.more.push_back(piece);
        }
    }
}

impl From<Bytes> for Pieces {
    fn from(first: Bytes) -> Self {
        Self {
            left: first.len(),
            first,
            more: VecDeque::new(),
        }
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.left
    }

    fn chunk(&self) -> &[u8] {
        &self.first
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let pieces = std::iter::once(&self.first)
            .chain(&self.more)
            .filter(|piece| !piece.is_empty());
        let filled = into
            .iter_mut()
            .zip(pieces)
            .map(|(slice, piece)| *slice = IoSlice::new(piece));
        filled.count()
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.left, "no further than to the end");
        self.left -= count;
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
        fn they_are_one_after_the_other(parts in proptest::collection::vec("[a-z]{0,5}", 0..6), steps in proptest::collection::vec(0usize..9, 0..12)) {
            let all = parts.concat();
            let mut pieces = Pieces::default();
            for part in &parts {
                pieces.push(Bytes::copy_from_slice(part.as_bytes()));
            }
            let mut rest = all.as_bytes();
            for step in steps {
                let mut slices = [IoSlice::new(b""); 8];
                let filled = pieces.chunks_vectored(&mut slices);
                let seen = slices[..filled].iter().map(|slice| &**slice).collect::<Vec<_>>().concat();
                prop_assert_eq!(&seen, rest);
                prop_assert!(rest.is_empty() || (!pieces.chunk().is_empty() && rest.starts_with(pieces.chunk())));
                prop_assert_eq!(pieces.remaining(), rest.len());
                let step = step.min(rest.len());
                pieces.advance(step);
                rest = &rest[step..];
            }
            prop_assert_eq!(pieces.copy_to_bytes(rest.len()), rest);
        }
    }
}
