//! Samples of a snapshot's objects, for estimates that cost the same however many objects there are.
use std::sync::Arc;

use super::objects::Snapshot;
use crate::store::object_run::ObjectRun;
use crate::store::subscribers::Interest;

/// Up to this many objects, a sample has all of them.
const ALL: usize = 1024;
/// Leaves that a larger sample looks into.
const LEAVES: usize = 128;
/// Objects of each of these leaves.
const OF_A_LEAF: usize = 16;

/// Objects that stand for others.
#[derive(Debug)]
pub struct ObjectSample {
    /// The objects, and possibly some that the interest does not concern.
    pub runs: Vec<ObjectRun>,
    /// Objects in the sample, and objects that they stand for.
    share: (usize, usize),
}

impl ObjectSample {
    /// Returns the estimate for all objects from a sum over the objects in the sample.
    pub fn scaled(&self, sum: usize) -> usize {
        let (sampled, all) = self.share;
        let scaled = sum as u128 * all as u128 / sampled.max(1) as u128;
        usize::try_from(scaled).unwrap_or(usize::MAX)
    }
}

impl Snapshot {
    /// Returns objects from which figures of those that `interest` can concern can be estimated.
    ///
    /// It has all of few objects, or if the interest leads to few. Otherwise it has objects of the
    /// whole snapshot, spread evenly: those of one namespace are often alike.
    pub fn sample(&self, interest: &Interest) -> ObjectSample {
        let (mut runs, mut sampled) = (Vec::new(), 0);
        for run in self.clone().into_runs(interest) {
            sampled += run.len();
            if sampled > ALL {
                return self.spread_sample();
            }
            runs.push(run);
        }
        ObjectSample {
            runs,
            share: (sampled, sampled),
        }
    }

    fn spread_sample(&self) -> ObjectSample {
        let step = self.leaves.len().div_ceil(LEAVES).max(1);
        let leaves = self.leaves.iter().step_by(step);
        let runs: Vec<_> = leaves
            .map(|leaf| ObjectRun {
                leaf: Arc::clone(leaf),
                range: 0..leaf.objects().len().min(OF_A_LEAF),
            })
            .collect();
        let sampled = runs.iter().map(ObjectRun::len).sum();
        ObjectSample {
            runs,
            share: (sampled, self.len),
        }
    }
}
