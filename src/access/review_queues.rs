//! The order in which callers' credentials and accesses are reviewed.
use std::net::IpAddr;
use std::sync::Arc;

use super::identity::Identity;
use crate::fairness::{CallerKey, FairQueue, QueueTurn};

/// Concurrent reviews of callers that upstream has accepted lately, of all and of each.
///
/// With two milliseconds for a review, a user gets 32,000 a second: the nodes of a fleet are often
/// one user.
const KNOWN: [usize; 2] = [128, 64];
/// Concurrent reviews of unknown tokens, of all addresses and of each.
const UNKNOWN: [usize; 2] = [64, 16];

/// Queues of reviews. Those of unknown callers delay none of known ones.
#[derive(Clone, Debug)]
pub(super) struct ReviewQueues {
    known: Arc<FairQueue>,
    unknown: Arc<FairQueue>,
}

impl Default for ReviewQueues {
    fn default() -> Self {
        let queue = |[all, each]: [usize; 2]| Arc::new(FairQueue::new(all, each));
        Self {
            known: queue(KNOWN),
            unknown: queue(UNKNOWN),
        }
    }
}

impl ReviewQueues {
    /// Waits until a review for a user may be sent.
    pub(super) async fn of_user(&self, identity: &Identity) -> QueueTurn {
        self.known.turn(CallerKey::user(&identity.user)).await
    }

    /// Waits until a review of a token may be sent that was accepted lately, from this address.
    pub(super) async fn of_known_token(&self, address: IpAddr) -> QueueTurn {
        self.known.turn(CallerKey::Address(address)).await
    }

    /// Waits until a review of an unknown token may be sent, from this address.
    pub(super) async fn of_unknown_token(&self, address: IpAddr) -> QueueTurn {
        self.unknown.turn(CallerKey::Address(address)).await
    }
}
