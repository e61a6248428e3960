//! The progress of a state that was not listed by this process.
use std::time::Duration;

use tokio::time::Instant;

use super::earlier_states::StateOrigin;

/// Time that the followed server has to tell how it prints the objects, once it continues them. Requests
/// are forwarded meanwhile, and a list needs no such proof.
const PRINT_LIMIT: Duration = Duration::from_secs(30);

/// The proofs of a restored state so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Restoring {
    pub(super) origin: StateOrigin,
    /// Upstream has the history that leads to the state.
    pub(super) is_followed: bool,
    /// The followed server prints the objects as they are held.
    pub(super) is_printed: bool,
    /// The state is given up at this moment, if it is followed.
    given_up_at: Option<Instant>,
}

impl Restoring {
    /// Returns the progress of a state of which nothing is proven.
    pub(super) fn of(origin: StateOrigin) -> Self {
        Self {
            origin,
            is_followed: false,
            is_printed: false,
            given_up_at: None,
        }
    }

    /// Notes that upstream has the history that leads to the state.
    pub(super) fn record_followed(&mut self) {
        self.is_followed = true;
        self.given_up_at
            .get_or_insert_with(|| Instant::now() + PRINT_LIMIT);
    }

    /// Returns the moment at which the state is given up, unless it is proven by then.
    pub(super) fn given_up_at(&self) -> Option<Instant> {
        self.given_up_at
    }
}
