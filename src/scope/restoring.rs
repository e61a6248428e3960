//! The progress of a state that was taken from a checkpoint.

/// The proofs of a restored state so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Restoring {
    /// Upstream has the history that leads to the state.
    pub(super) is_followed: bool,
    /// The followed server prints the objects as they are held.
    pub(super) is_printed: bool,
}
