//! Some members of one message.
use std::iter;

/// The members of a message that have something in common, by their positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberSet {
    /// A bit for each member.
    bits: u64,
}

impl MemberSet {
    /// Members that a message can have at most. The largest of today has 44.
    pub(crate) const CAPACITY: usize = u64::BITS as usize;

    /// Adds the member at a position below [`MemberSet::CAPACITY`]. Returns `false` if it was there.
    pub(crate) fn insert(&mut self, position: usize) -> bool {
        let is_new = !self.contains(position);
        self.bits |= 1 << position;
        is_new
    }

    /// Returns `true` if the member at a position is there.
    pub(crate) fn contains(self, position: usize) -> bool {
        self.bits & 1 << position != 0
    }

    /// Returns the members of both sets.
    pub(crate) fn union(self, other: Self) -> Self {
        Self {
            bits: self.bits | other.bits,
        }
    }

    /// Returns the last member.
    pub(crate) fn last(self) -> Option<usize> {
        self.bits.checked_ilog2().map(|position| position as usize)
    }

    /// Returns the members in their order.
    pub(crate) fn positions(self) -> impl Iterator<Item = usize> {
        let mut bits = self.bits;
        iter::from_fn(move || {
            let first = (bits != 0).then_some(bits.trailing_zeros() as usize)?;
            bits &= bits - 1;
            Some(first)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(positions: &[usize]) -> MemberSet {
        let mut set = MemberSet::default();
        for position in positions {
            set.insert(*position);
        }
        set
    }

    #[test]
    fn members_come_in_their_order_once() {
        let last = MemberSet::CAPACITY - 1;
        let both = set(&[last, 3]).union(set(&[3, 0]));
        assert_eq!(both.positions().collect::<Vec<_>>(), [0, 3, last]);
        assert_eq!(both.last(), Some(last));
        assert_eq!(set(&[]).last(), None);
        assert_eq!(set(&[]).positions().next(), None);
    }
}
