//! The progress of a state that was not listed by this process.
use super::earlier_states::StateOrigin;

/// The proofs of a restored state so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restoring {
    pub(super) origin: StateOrigin,
    /// Upstream has the history that leads to the state.
    pub(super) is_followed: bool,
    /// The followed server prints the objects as they are held.
    pub(super) is_printed: bool,
}

impl Restoring {
    /// Returns the progress of a state of which nothing is proven.
    pub(super) fn of(origin: StateOrigin) -> Self {
        Self {
            origin,
            is_followed: false,
            is_printed: false,
        }
    }
}
