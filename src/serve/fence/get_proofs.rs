//! Proofs that consistent gets of one type share.
use std::time::Duration;

use super::costs::{ProofCosts, REQUEST};
use crate::serve::singleflight::Gathering;

/// Longest wait of a get for others to share a proof with.
const LONGEST: Duration = Duration::from_millis(25);
/// Least and longest pause in the arrival of gets that ends this wait.
const LULL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(4));
/// Least number of gets that are expected to share a proof.
const MANY: f64 = 10.0;
/// Least number of gets that begin a proof before they have waited as long as they may. At 500 a
/// second that makes 83 proofs for a thousand.
const ENOUGH: usize = 12;

/// A proof that gets share.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProofForGets {
    /// The number of gets that cost upstream as much.
    cost: f64,
    /// Time that upstream needs for a comparison.
    takes: Duration,
}

impl ProofForGets {
    /// Estimates the next proof for so many objects. `None` while comparisons are slow.
    pub(super) fn new(costs: &ProofCosts, objects: usize) -> Option<Self> {
        if costs.is_slow(objects) {
            return None;
        }
        let (cost, takes) = if costs.asks_version_first(objects) {
            (REQUEST, Duration::ZERO)
        } else {
            (costs.comparison(objects), costs.expected(objects))
        };
        Some(Self {
            cost: cost / REQUEST,
            takes,
        })
    }

    /// Returns `true` if the proof costs upstream no more than these gets.
    pub(super) fn is_worth_for(self, gets: usize) -> bool {
        gets as f64 >= self.cost
    }

    /// Returns `true` if the gets that can wait for the proof cost upstream more, when `rate` of
    /// them come in a second.
    pub(super) fn is_worth(self, rate: f64) -> bool {
        rate * LONGEST.as_secs_f64() >= self.cost.max(MANY)
    }

    /// Returns the wait for more gets. A pause is short against the proof that it may save.
    #[expect(clippy::cast_sign_loss, reason = "costs are positive")]
    pub(super) fn gathering(self) -> Gathering {
        Gathering {
            enough: ENOUGH.max((2.0 * self.cost).ceil() as usize),
            lull: (self.takes / 8).clamp(LULL.0, LULL.1),
            longest: LONGEST,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the proof for an idle type with objects whose metadata has 800 bytes.
    fn proof(objects: usize) -> ProofForGets {
        let costs = ProofCosts::default();
        costs.measured(
            objects,
            objects * 800,
            Duration::from_micros(10) * objects as u32,
        );
        costs.compares_first(true);
        ProofForGets::new(&costs, objects).unwrap()
    }

    #[test]
    fn gets_share_a_proof_only_where_it_costs_less() {
        assert!(proof(300).is_worth(500.0));
        assert!(
            !proof(300).is_worth(300.0),
            "too few to wait for each other"
        );
        assert!(
            !proof(2000).is_worth(500.0),
            "comparing costs as much as 22"
        );
        assert!(proof(2000).is_worth(2000.0));
        assert!(
            !proof(10_000).is_worth(2000.0),
            "50 come while one waits, and comparing costs as much as 100"
        );
        assert!(proof(2000).is_worth_for(30));
        assert!(!proof(2000).is_worth_for(20), "the rest of a crowd");
    }

    #[test]
    fn more_gets_are_waited_for_where_the_proof_is_dear() {
        let (small, large) = (proof(300).gathering(), proof(2000).gathering());
        assert_eq!((small.enough, small.lull), (ENOUGH, LULL.0));
        assert!(large.enough > 40 && large.lull > 2 * LULL.0, "{large:?}");
    }
}
