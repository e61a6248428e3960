//! Estimates of what proofs and reads cost upstream.
//!
//! The unit is a byte of metadata in protobuf, which kube-apiserver encodes in some 7 ns. What a
//! comparison costs is measured for each type: the length of upstream's lists of metadata, and the
//! time they take. The weights of other forms were measured once (docs/benchmarks.md).
use std::collections::HashSet;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time;
use watershed_protocol::{Encoding, Representation};

/// Cost of any request, however small its answer.
pub(in crate::serve) const REQUEST: f64 = 75e3;
/// Comparisons up to this cost are not avoided: asking for the version alone costs a quarter.
const SMALL: f64 = 4.0 * REQUEST;
/// Comparisons up to this cost are as cheap as the question for the version.
const TINY: f64 = 1.1 * REQUEST;
/// Length of an object's metadata, before the first list of the type.
const METADATA: f64 = 1200.0;
/// Seconds that upstream needs for an object's metadata, before the first list of the type.
const SECONDS_PER_OBJECT: f64 = 15e-6;
/// The weight of a new measurement against the earlier ones.
const MEASUREMENT_WEIGHT: f64 = 0.25;
/// Time that a catch-up watch takes. Comparisons that take longer are worse.
pub(super) const CATCH_UP: Duration = Duration::from_millis(2500);
/// Shortest and longest wait for a comparison.
const MIN_COMPARISON_WAIT: Duration = Duration::from_secs(2);
pub(super) const MAX_COMPARISON_WAIT: Duration = Duration::from_secs(30);
/// Pause after a comparison that took too long.
const AFTER_LATE: Duration = Duration::from_secs(5);
/// Time for which comparisons of a type are avoided once they were slow. Then they are measured again.
const SLOW_FOR: Duration = Duration::from_mins(1);
/// Measured times are those of this many objects at least: most of the time of a small answer is
/// not spent on its objects.
const LEAST_MEASURED: usize = 500;
/// Time for which it is remembered that events did not bring the last proofs. Reads that cost less
/// than a comparison make none, so they would never learn that events do by now.
const LAG_REMEMBERED: Duration = Duration::from_secs(10);
/// Shortest period in which cheap reads are added up.
const MIN_PERIOD: Duration = Duration::from_millis(50);

/// The costs of one scope's proofs.
#[derive(Debug, Default)]
pub(in crate::serve) struct ProofCosts(Mutex<CostState>);

#[derive(Debug, Default)]
struct CostState {
    bytes_per_object: Option<f64>,
    /// The same of the objects that were compared as parts of the type.
    bytes_per_selected: Option<f64>,
    seconds_per_object: Option<f64>,
    /// Seconds that a comparison of few objects takes.
    seconds_at_least: f64,
    /// Mean time of the question for the version.
    seconds_of_version: Option<f64>,
    /// The moment of the last measurement of a comparison.
    measured: Option<Instant>,
    /// The share of the last answers that showed a version beyond the cache's.
    moved: Option<f64>,
    /// Events did not bring the last proofs, so comparing comes first. `None` before the first one.
    compares_first: Option<bool>,
    /// The moment at which that was learned.
    learned: Option<time::Instant>,
    paused_until: Option<Instant>,
    cheap_reads: CheapReads,
}

/// Cheap reads of one period. Each alone is left to upstream.
#[derive(Debug, Default)]
struct CheapReads {
    began: Option<Instant>,
    cost: f64,
    /// Identities of those that share requests with their like.
    seen: HashSet<u64>,
}

impl ProofCosts {
    /// Returns the cost of a comparison of so many objects.
    pub(in crate::serve) fn comparison(&self, objects: usize) -> f64 {
        REQUEST + self.metadata(objects)
    }

    /// Returns the length of the metadata of so many objects, in bytes.
    pub(in crate::serve) fn metadata(&self, objects: usize) -> f64 {
        self.0.lock().bytes_per_object.unwrap_or(METADATA) * objects as f64
    }

    /// Returns the length of the metadata of so many selected objects, in bytes.
    pub(super) fn selected_metadata(&self, objects: usize) -> f64 {
        let state = self.0.lock();
        let known = state.bytes_per_selected.or(state.bytes_per_object);
        known.unwrap_or(METADATA) * objects as f64
    }

    /// Returns `true` if a comparison costs little more than the question for the version.
    pub(in crate::serve) fn is_small(&self, objects: usize) -> bool {
        self.comparison(objects) <= SMALL
    }

    /// Returns `true` if a comparison costs as little as the question for the version.
    pub(in crate::serve) fn is_tiny(&self, objects: usize) -> bool {
        self.comparison(objects) <= TINY
    }

    /// Returns the cost of an answer with these objects.
    pub(in crate::serve) fn answer(
        &self,
        form: Representation,
        objects: usize,
        bytes: usize,
    ) -> f64 {
        let weighed = match form {
            Representation {
                metadata_only: true,
                ..
            } => self.0.lock().bytes_per_object.unwrap_or(METADATA) * objects as f64 * 0.9,
            Representation {
                encoding: Encoding::Json,
                ..
            } => bytes as f64 * 2.4,
            Representation {
                encoding: Encoding::Protobuf,
                ..
            } => bytes as f64 * 1.8,
        };
        REQUEST + weighed
    }

    /// Returns the expected time of a comparison.
    pub(in crate::serve) fn expected(&self, objects: usize) -> Duration {
        let state = self.0.lock();
        let each = state.seconds_per_object.unwrap_or(SECONDS_PER_OBJECT);
        Duration::from_secs_f64(state.seconds_at_least + each * objects as f64)
    }

    /// Returns the expected time of the question for the version; zero before the first one.
    pub(in crate::serve) fn expected_of_version(&self) -> Duration {
        Duration::from_secs_f64(self.0.lock().seconds_of_version.unwrap_or_default())
    }

    /// Notes the time of a question for the version.
    pub(in crate::serve) fn record_version_time(&self, took: Duration) {
        mix(&mut self.0.lock().seconds_of_version, took.as_secs_f64());
    }

    /// Returns the expected time of an answer that costs as much.
    pub(in crate::serve) fn expected_of_answer(&self, cost: f64, objects: usize) -> Duration {
        let comparisons = cost / self.comparison(objects);
        let seconds = self.expected(objects).as_secs_f64() * comparisons;
        Duration::from_secs_f64(seconds.clamp(0.0, MAX_COMPARISON_WAIT.as_secs_f64() / 2.0))
    }

    /// Returns the longest time that a reader waits for a comparison.
    pub(in crate::serve) fn patience(&self, objects: usize) -> Duration {
        (4 * self.expected(objects)).clamp(MIN_COMPARISON_WAIT, MAX_COMPARISON_WAIT)
    }

    /// Returns `true` if a catch-up watch is faster than a comparison, by a measurement that is not
    /// old.
    pub(in crate::serve) fn is_slow(&self, objects: usize) -> bool {
        let measured = self.0.lock().measured;
        let is_recent = measured.is_none_or(|measured| measured.elapsed() < SLOW_FOR);
        is_recent && !self.is_small(objects) && self.expected(objects) > CATCH_UP
    }

    /// Returns `true` if a proof begins with the question for the version: if events brought the
    /// last one, and before the first one unless the type is small. Tiny types are always compared:
    /// the version alone would often need a comparison after it.
    pub(in crate::serve) fn asks_version_first(&self, objects: usize) -> bool {
        if self.is_tiny(objects) {
            return false;
        }
        let compares_first = self.0.lock().compares_first;
        !compares_first.unwrap_or_else(|| self.is_small(objects))
    }

    /// Returns `true` if the question for the version of a small type costs less than a comparison,
    /// because nothing was written since the proof before. Where something was, the comparison
    /// follows.
    pub(in crate::serve) fn does_version_suffice(&self, objects: usize) -> bool {
        let comparison = self.comparison(objects);
        let suffices = |share: f64| REQUEST + share * comparison < comparison;
        let is_small_and_not_tiny = comparison > TINY && comparison <= SMALL;
        is_small_and_not_tiny && self.0.lock().moved.is_some_and(suffices)
    }

    /// Notes if an answer of upstream showed a version beyond the cache's.
    pub(in crate::serve) fn record_moved(&self, has_moved: bool) {
        mix(&mut self.0.lock().moved, f64::from(u8::from(has_moved)));
    }

    /// Notes how the last proof came, or would have come.
    pub(in crate::serve) fn set_compare_first(&self, compares_first: bool) {
        let mut state = self.0.lock();
        state.compares_first = Some(compares_first);
        state.learned = Some(time::Instant::now());
    }

    /// Returns `true` if it was learned long ago how the last proof came.
    pub(in crate::serve) fn are_outdated(&self) -> bool {
        let learned = self.0.lock().learned;
        learned.is_some_and(|at| at.elapsed() >= LAG_REMEMBERED)
    }

    /// Notes the uncompressed length and the time of a comparison.
    pub(in crate::serve) fn record_comparison(&self, objects: usize, bytes: usize, took: Duration) {
        if objects == 0 {
            return;
        }
        let mut state = self.0.lock();
        let state = &mut *state;
        let count = objects as f64;
        mix(&mut state.bytes_per_object, bytes as f64 / count);
        let timed = objects.max(LEAST_MEASURED) as f64;
        mix(&mut state.seconds_per_object, took.as_secs_f64() / timed);
        state.seconds_at_least = if objects < LEAST_MEASURED {
            took.as_secs_f64()
        } else {
            0.0
        };
        state.measured = Some(Instant::now());
        state.paused_until = None;
    }

    /// Notes the uncompressed length of the metadata of a part of the type.
    pub(super) fn record_selection(&self, objects: usize, bytes: usize) {
        if objects > 0 {
            let measured = bytes as f64 / objects as f64;
            mix(&mut self.0.lock().bytes_per_selected, measured);
        }
    }

    /// Notes that a comparison took too long. Upstream is left alone for a while.
    pub(in crate::serve) fn pause_after_late(&self) {
        self.0.lock().paused_until = Some(Instant::now() + AFTER_LATE);
    }

    /// Returns `true` if no comparison should be asked for now.
    pub(in crate::serve) fn is_paused(&self) -> bool {
        let paused_until = self.0.lock().paused_until;
        paused_until.is_some_and(|until| Instant::now() < until)
    }

    /// Counts a read of this cost. Returns `true` if the reads that came lately cost upstream as much
    /// as `proof`. Reads of one `identity` share a request, so they count once.
    pub(in crate::serve) fn count_read(
        &self,
        proof: f64,
        cost: f64,
        identity: Option<u64>,
        objects: usize,
    ) -> bool {
        if cost >= proof {
            return true;
        }
        let period = self.expected(objects).max(MIN_PERIOD);
        let reads = &mut self.0.lock().cheap_reads;
        if reads.began.is_none_or(|began| began.elapsed() > period) {
            *reads = CheapReads {
                began: Some(Instant::now()),
                ..CheapReads::default()
            };
        }
        // Beyond the proof's cost nothing is added, which bounds the set.
        let is_new = reads.cost < proof && identity.is_none_or(|it| reads.seen.insert(it));
        if is_new {
            reads.cost += cost;
        }
        reads.cost >= proof
    }
}

fn mix(known: &mut Option<f64>, measured: f64) {
    *known = Some(known.map_or(measured, |known| {
        known + MEASUREMENT_WEIGHT * (measured - known)
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: Representation = Representation::whole(Encoding::Json);

    #[test]
    fn whole_lists_outweigh_their_proof_and_single_objects_do_not() {
        let costs = ProofCosts::default();
        costs.record_comparison(10_000, 22 << 20, Duration::from_millis(100));
        let proof = costs.comparison(10_000);
        let all = costs.answer(JSON, 10_000, 44 << 20);
        assert!(costs.count_read(proof, all, Some(1), 10_000));
        let protobuf = Representation::whole(Encoding::Protobuf);
        assert!(costs.count_read(
            proof,
            costs.answer(protobuf, 10_000, 32 << 20),
            None,
            10_000
        ));
        let one_node = costs.answer(JSON, 20, 20 * 4400);
        assert!(!costs.count_read(proof, one_node, Some(2), 10_000));
        let metadata = Representation {
            metadata_only: true,
            ..protobuf
        };
        let alone = costs.answer(metadata, 10_000, 44 << 20);
        assert!(alone < proof, "upstream's own list is the proof");
    }

    #[test]
    fn the_length_of_parts_is_learned_from_parts_and_before_that_from_the_type() {
        let costs = ProofCosts::default();
        let is_about = |bytes: f64, wanted: f64| (bytes - wanted).abs() < 1.0;
        assert!(is_about(costs.selected_metadata(10), 10.0 * METADATA));
        costs.record_comparison(100, 100 * 700, Duration::from_millis(5));
        assert!(is_about(costs.selected_metadata(10), 7000.0));
        costs.record_selection(0, 40);
        costs.record_selection(20, 20 * 500);
        assert!(is_about(costs.selected_metadata(10), 5000.0));
        let whole = costs.metadata(10);
        assert!(is_about(whole, 7000.0), "parts may be unlike the rest");
    }

    #[test]
    fn many_cheap_reads_outweigh_a_proof_unless_they_are_the_same() {
        let costs = ProofCosts::default();
        // The period is longer than this test.
        costs.record_comparison(1000, 1 << 20, Duration::from_secs(1000));
        let (proof, one) = (costs.comparison(1000), REQUEST);
        assert!((0..1000).all(|_| !costs.count_read(proof, one, Some(7), 1000)));
        let needed = (8..1000).find(|it| costs.count_read(proof, one, Some(*it), 1000));
        let needed = needed.expect("the sum grows") - 7;
        let wanted = proof / one;
        assert!(
            (needed as f64 - wanted).abs() <= 1.0,
            "{needed} of {wanted}"
        );
    }

    #[test]
    fn a_comparison_is_waited_for_as_long_as_it_should_take() {
        let costs = ProofCosts::default();
        assert_eq!(costs.patience(10), MIN_COMPARISON_WAIT);
        costs.record_comparison(100_000, 220 << 20, Duration::from_secs(2));
        assert_eq!(costs.patience(100_000), Duration::from_secs(8));
        assert!(!costs.is_slow(100_000));
        assert!(costs.is_slow(200_000));
        costs.pause_after_late();
        assert!(costs.is_paused());
        costs.record_comparison(100_000, 220 << 20, Duration::from_secs(2));
        assert!(!costs.is_paused());
    }

    #[test]
    fn a_stall_or_a_small_answer_does_not_make_a_type_slow() {
        let costs = ProofCosts::default();
        costs.record_comparison(1, 300, Duration::from_millis(20));
        assert!(
            !costs.is_slow(5_000),
            "most of it was the way there and back"
        );
        let costs = ProofCosts::default();
        costs.record_comparison(1, 300, Duration::from_secs(3));
        assert!(
            !costs.is_slow(1),
            "a small type is compared, and measured, always"
        );
        costs.record_comparison(20_000, 6_000_000, Duration::from_mins(1));
        assert!(costs.is_slow(20_000));
    }

    #[test]
    fn events_that_are_faster_than_a_comparison_save_the_next_one() {
        let costs = ProofCosts::default();
        assert!(!costs.asks_version_first(10));
        assert!(costs.asks_version_first(100_000));
        costs.set_compare_first(false);
        assert!(costs.asks_version_first(100));
        assert!(!costs.asks_version_first(5), "a comparison costs as much");
        costs.set_compare_first(true);
        assert!(!costs.asks_version_first(100_000));
    }

    #[test]
    fn the_version_of_a_small_type_suffices_while_little_is_written() {
        let costs = ProofCosts::default();
        assert!(!costs.does_version_suffice(100), "nothing is known");
        costs.record_moved(true);
        assert!(!costs.does_version_suffice(100));
        for _ in 0..5 {
            costs.record_moved(false);
        }
        assert!(costs.does_version_suffice(100));
        assert!(!costs.does_version_suffice(5), "a comparison costs as much");
        assert!(!costs.does_version_suffice(100_000), "events are awaited");
        costs.record_moved(true);
        assert!(costs.does_version_suffice(100), "one write, many reads");
        for _ in 0..3 {
            costs.record_moved(true);
        }
        assert!(!costs.does_version_suffice(100), "others always write");
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_not_remembered_for_ever_that_events_were_late() {
        let costs = ProofCosts::default();
        assert!(!costs.are_outdated(), "nothing was learned");
        costs.set_compare_first(true);
        time::advance(LAG_REMEMBERED / 2).await;
        assert!(!costs.are_outdated());
        time::advance(LAG_REMEMBERED / 2).await;
        assert!(costs.are_outdated());
        costs.set_compare_first(true);
        assert!(!costs.are_outdated(), "it was learned anew");
    }
}
