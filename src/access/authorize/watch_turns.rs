//! Turns of the reviews for open watches, which bound their rate.
use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::access::identity::Identity;
use crate::fairness::{FairQueue, QueueTurn, Seats};

/// Concurrent reviews for open watches, of all users and of each. With [`PACE`] they make some two thousand
/// reviews a second at most, for any number of watches. A change that concerns thousands of watches of a
/// tenant delays no other's.
const TURNS: Seats = Seats { all: 16, each: 8 };
/// Those for watches of callers without credentials, of all addresses and of each. They come on top: anybody
/// can open such watches.
const TURNS_OF_STRANGERS: Seats = Seats { all: 4, each: 2 };
/// Shortest time for which a review takes a turn.
const PACE: Duration = Duration::from_millis(8);
/// Longest time after that: a review that hangs holds up the others for no longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Gives turns to the reviews for open watches.
pub(super) struct WatchTurns {
    known: FairQueue,
    strangers: FairQueue,
}

/// A turn, which no review has used yet.
pub(super) struct WatchTurn {
    turn: QueueTurn,
}

/// The use of a turn, until it is dropped.
pub(super) struct WatchReview {
    _ended: oneshot::Sender<()>,
}

impl Default for WatchTurns {
    fn default() -> Self {
        Self {
            known: FairQueue::new(TURNS),
            strangers: FairQueue::new(TURNS_OF_STRANGERS),
        }
    }
}

impl WatchTurns {
    /// Waits for the turn of a review for a watch of this caller.
    pub(super) async fn turn(&self, identity: &Identity, address: IpAddr) -> WatchTurn {
        let queue = if identity.is_anonymous() {
            &self.strangers
        } else {
            &self.known
        };
        let turn = queue.turn(identity.caller_key(address)).await;
        WatchTurn { turn }
    }
}

impl WatchTurn {
    /// Uses the turn for a review. It is free again when the review has ended, after [`PACE`] at the
    /// earliest.
    pub(super) fn begin(self) -> WatchReview {
        let (ended, end) = oneshot::channel();
        tokio::spawn(async move {
            sleep(PACE).await;
            let _ = timeout(PATIENCE, end).await;
            drop(self.turn);
        });
        WatchReview { _ended: ended }
    }
}
