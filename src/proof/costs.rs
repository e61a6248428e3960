//! Estimates of what proofs and reads cost upstream.
//!
//! The unit is a byte of metadata in protobuf, which kube-apiserver encodes in some 7 ns. What a
//! comparison costs is measured for each type: the length of upstream's lists of metadata, and the
//! time they take. The weights of other forms were measured once (docs/benchmarks.md).
use std::collections::HashSet;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use watershed_protocol::{Encoding, Representation};

use super::route::VersionQuestion;

/// Cost of any request, however small its answer.
pub(super) const REQUEST: f64 = 75e3;
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
pub(super) struct ProofCosts(Mutex<CostState>);

#[derive(Debug, Default)]
struct CostState {
    measured: Measurements,
    cheap_reads: CheapReads,
}

/// The facts that earlier proofs have shown.
#[derive(Clone, Copy, Debug, Default)]
struct Measurements {
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
    learned: Option<Instant>,
    paused_until: Option<Instant>,
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
    /// Estimates the proofs of a scope with so many objects.
    pub(super) fn estimate(&self, objects: usize) -> ProofEstimate {
        ProofEstimate {
            objects,
            measured: self.0.lock().measured,
        }
    }

    /// Notes the time of a question for the version.
    pub(super) fn record_version_time(&self, took: Duration) {
        let known = &mut self.0.lock().measured.seconds_of_version;
        mix(known, took.as_secs_f64());
    }

    /// Notes if an answer of upstream showed a version beyond the cache's.
    pub(super) fn record_moved(&self, has_moved: bool) {
        let known = &mut self.0.lock().measured.moved;
        mix(known, f64::from(u8::from(has_moved)));
    }

    /// Notes how the last proof came, or would have come.
    pub(super) fn set_compare_first(&self, compares_first: bool) {
        let measured = &mut self.0.lock().measured;
        measured.compares_first = Some(compares_first);
        measured.learned = Some(Instant::now());
    }

    /// Notes the uncompressed length and the time of a comparison.
    pub(super) fn record_comparison(&self, objects: usize, bytes: usize, took: Duration) {
        if objects == 0 {
            return;
        }
        let measured = &mut self.0.lock().measured;
        let count = objects as f64;
        mix(&mut measured.bytes_per_object, bytes as f64 / count);
        let timed = objects.max(LEAST_MEASURED) as f64;
        mix(&mut measured.seconds_per_object, took.as_secs_f64() / timed);
        measured.seconds_at_least = if objects < LEAST_MEASURED {
            took.as_secs_f64()
        } else {
            0.0
        };
        measured.measured = Some(Instant::now());
        measured.paused_until = None;
    }

    /// Notes the uncompressed length of the metadata of a part of the type.
    pub(super) fn record_selection(&self, objects: usize, bytes: usize) {
        if objects > 0 {
            let known = &mut self.0.lock().measured.bytes_per_selected;
            mix(known, bytes as f64 / objects as f64);
        }
    }

    /// Notes that a comparison took too long. Upstream is left alone for a while.
    pub(super) fn pause_after_late(&self) {
        self.0.lock().measured.paused_until = Some(Instant::now() + AFTER_LATE);
    }

    /// Returns `true` if no comparison should be asked for now.
    pub(super) fn is_paused(&self) -> bool {
        let paused_until = self.0.lock().measured.paused_until;
        paused_until.is_some_and(|until| Instant::now() < until)
    }

    /// Counts a read whose answer costs upstream so much. Returns `true` if the reads that came
    /// lately cost as much as a comparison of all objects. Reads of one `identity` share a request,
    /// so they count once.
    pub(super) fn count_read(&self, objects: usize, answer: f64, identity: Option<u64>) -> bool {
        let mut state = self.0.lock();
        let measured = state.measured;
        let estimate = ProofEstimate { objects, measured };
        let comparison = estimate.comparison();
        if answer >= comparison {
            return true;
        }
        let period = estimate.expected().max(MIN_PERIOD);
        let reads = &mut state.cheap_reads;
        if reads.began.is_none_or(|began| began.elapsed() > period) {
            *reads = CheapReads {
                began: Some(Instant::now()),
                ..CheapReads::default()
            };
        }
        // Beyond the proof's cost nothing is added, which bounds the set.
        let is_new = reads.cost < comparison && identity.is_none_or(|it| reads.seen.insert(it));
        if is_new {
            reads.cost += answer;
        }
        reads.cost >= comparison
    }
}

/// Estimates of the proofs of a scope, by what was measured up to one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProofEstimate {
    objects: usize,
    measured: Measurements,
}

/// The size of a type, by what its comparison costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ComparisonSize {
    /// It costs as little as the question for the version.
    Tiny,
    /// It costs so little more that it is not avoided.
    Small,
    Large,
}

impl ProofEstimate {
    /// Returns the same estimates for another number of objects.
    pub(super) fn of_objects(self, objects: usize) -> Self {
        Self { objects, ..self }
    }

    /// Returns the cost of a comparison.
    pub(super) fn comparison(&self) -> f64 {
        REQUEST + self.metadata()
    }

    /// Returns the length of the objects' metadata, in bytes.
    fn metadata(&self) -> f64 {
        self.measured.bytes_per_object.unwrap_or(METADATA) * self.objects as f64
    }

    /// Returns the length of the objects' metadata, in bytes, if they are a part of the type.
    pub(super) fn selected_metadata(&self) -> f64 {
        let measured = &self.measured;
        let known = measured.bytes_per_selected.or(measured.bytes_per_object);
        known.unwrap_or(METADATA) * self.objects as f64
    }

    /// Returns the size of a type with so many objects.
    pub(super) fn size(&self) -> ComparisonSize {
        let comparison = self.comparison();
        if comparison <= TINY {
            ComparisonSize::Tiny
        } else if comparison <= SMALL {
            ComparisonSize::Small
        } else {
            ComparisonSize::Large
        }
    }

    /// Returns `true` if a comparison costs little more than the question for the version.
    pub(super) fn is_small(&self) -> bool {
        self.size() <= ComparisonSize::Small
    }

    /// Returns the cost of an answer with the objects, which have so many bytes.
    pub(super) fn answer(&self, form: Representation, bytes: usize) -> f64 {
        let weighed = match form {
            Representation {
                metadata_only: true,
                ..
            } => self.metadata() * 0.9,
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
    pub(super) fn expected(&self) -> Duration {
        let measured = &self.measured;
        let each = measured.seconds_per_object.unwrap_or(SECONDS_PER_OBJECT);
        Duration::from_secs_f64(measured.seconds_at_least + each * self.objects as f64)
    }

    /// Returns the expected time of the question for the version; zero before the first one.
    pub(super) fn expected_of_version(&self) -> Duration {
        Duration::from_secs_f64(self.measured.seconds_of_version.unwrap_or_default())
    }

    /// Returns the expected time of an answer that costs as much.
    pub(super) fn expected_of_answer(&self, cost: f64) -> Duration {
        let comparisons = cost / self.comparison();
        let seconds = self.expected().as_secs_f64() * comparisons;
        Duration::from_secs_f64(seconds.clamp(0.0, MAX_COMPARISON_WAIT.as_secs_f64() / 2.0))
    }

    /// Returns the longest time that a reader waits for a comparison.
    pub(super) fn patience(&self) -> Duration {
        (4 * self.expected()).clamp(MIN_COMPARISON_WAIT, MAX_COMPARISON_WAIT)
    }

    /// Returns `true` if a catch-up watch is faster than a comparison, by a measurement that is not
    /// old.
    pub(super) fn is_slow(&self) -> bool {
        let measured = self.measured.measured;
        let is_recent = measured.is_none_or(|measured| measured.elapsed() < SLOW_FOR);
        is_recent && !self.is_small() && self.expected() > CATCH_UP
    }

    /// Returns `true` if a proof begins with the question for the version: if events brought the
    /// last one, and before the first one unless the type is small. Tiny types are always compared:
    /// the version alone would often need a comparison after it.
    pub(super) fn asks_version_first(&self) -> bool {
        let compares_first = self.measured.compares_first;
        match self.size() {
            ComparisonSize::Tiny => false,
            ComparisonSize::Small => compares_first == Some(false),
            ComparisonSize::Large => compares_first != Some(true),
        }
    }

    /// Returns `true` if the question for the version of a small type costs less than a comparison,
    /// because nothing was written since the proof before. Where something was, the comparison
    /// follows.
    fn does_version_suffice(&self) -> bool {
        let comparison = self.comparison();
        let suffices = |share: f64| REQUEST + share * comparison < comparison;
        self.size() == ComparisonSize::Small && self.measured.moved.is_some_and(suffices)
    }

    /// Returns `true` if it was learned long ago how the last proof came.
    fn is_outdated(&self) -> bool {
        let learned = self.measured.learned;
        learned.is_some_and(|at| at.elapsed() >= LAG_REMEMBERED)
    }

    /// Returns the use of asking for the version alone, for a scope whose events come now or not.
    pub(super) fn version_question(&self, is_busy: bool) -> VersionQuestion {
        if self.does_version_suffice() {
            VersionQuestion::Suffices
        } else if self.asks_version_first() {
            VersionQuestion::BroughtLast
        } else if is_busy || self.is_outdated() {
            // Events come now, or it is long ago that they were late.
            VersionQuestion::Possible
        } else {
            VersionQuestion::Useless
        }
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
        let whole = costs.estimate(10_000);
        let all = whole.answer(JSON, 44 << 20);
        assert!(costs.count_read(10_000, all, Some(1)));
        let protobuf = Representation::whole(Encoding::Protobuf);
        let all = whole.answer(protobuf, 32 << 20);
        assert!(costs.count_read(10_000, all, None));
        let one_node = whole.of_objects(20).answer(JSON, 20 * 4400);
        assert!(!costs.count_read(10_000, one_node, Some(2)));
        let metadata = Representation {
            metadata_only: true,
            ..protobuf
        };
        let alone = whole.answer(metadata, 44 << 20);
        assert!(
            alone < whole.comparison(),
            "upstream's own list is the proof"
        );
    }

    #[test]
    fn the_length_of_parts_is_learned_from_parts_and_before_that_from_the_type() {
        let costs = ProofCosts::default();
        let is_about = |bytes: f64, wanted: f64| (bytes - wanted).abs() < 1.0;
        let selected = || costs.estimate(10).selected_metadata();
        assert!(is_about(selected(), 10.0 * METADATA));
        costs.record_comparison(100, 100 * 700, Duration::from_millis(5));
        assert!(is_about(selected(), 7000.0));
        costs.record_selection(0, 40);
        costs.record_selection(20, 20 * 500);
        assert!(is_about(selected(), 5000.0));
        let whole = costs.estimate(10).metadata();
        assert!(is_about(whole, 7000.0), "parts may be unlike the rest");
    }

    #[test]
    fn many_cheap_reads_outweigh_a_proof_unless_they_are_the_same() {
        let costs = ProofCosts::default();
        // The period is longer than this test.
        costs.record_comparison(1000, 1 << 20, Duration::from_secs(1000));
        assert!((0..1000).all(|_| !costs.count_read(1000, REQUEST, Some(7))));
        let needed = (8..1000).find(|it| costs.count_read(1000, REQUEST, Some(*it)));
        let needed = needed.expect("the sum grows") - 7;
        let wanted = costs.estimate(1000).comparison() / REQUEST;
        assert!(
            (needed as f64 - wanted).abs() <= 1.0,
            "{needed} of {wanted}"
        );
    }

    #[test]
    fn a_comparison_is_waited_for_as_long_as_it_should_take() {
        let costs = ProofCosts::default();
        assert_eq!(costs.estimate(10).patience(), MIN_COMPARISON_WAIT);
        costs.record_comparison(100_000, 220 << 20, Duration::from_secs(2));
        assert_eq!(costs.estimate(100_000).patience(), Duration::from_secs(8));
        assert!(!costs.estimate(100_000).is_slow());
        assert!(costs.estimate(200_000).is_slow());
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
            !costs.estimate(5_000).is_slow(),
            "most of it was the way there and back"
        );
        let costs = ProofCosts::default();
        costs.record_comparison(1, 300, Duration::from_secs(3));
        assert!(
            !costs.estimate(1).is_slow(),
            "a small type is compared, and measured, always"
        );
        costs.record_comparison(20_000, 6_000_000, Duration::from_mins(1));
        assert!(costs.estimate(20_000).is_slow());
    }

    #[test]
    fn events_that_are_faster_than_a_comparison_save_the_next_one() {
        let costs = ProofCosts::default();
        assert!(!costs.estimate(10).asks_version_first());
        assert!(costs.estimate(100_000).asks_version_first());
        costs.set_compare_first(false);
        assert!(costs.estimate(100).asks_version_first());
        assert!(
            !costs.estimate(5).asks_version_first(),
            "a comparison costs as much"
        );
        costs.set_compare_first(true);
        assert!(!costs.estimate(100_000).asks_version_first());
    }

    #[test]
    fn the_version_of_a_small_type_suffices_while_little_is_written() {
        let costs = ProofCosts::default();
        assert!(
            !costs.estimate(100).does_version_suffice(),
            "nothing is known"
        );
        costs.record_moved(true);
        assert!(!costs.estimate(100).does_version_suffice());
        for _ in 0..5 {
            costs.record_moved(false);
        }
        assert!(costs.estimate(100).does_version_suffice());
        assert!(
            !costs.estimate(5).does_version_suffice(),
            "a comparison costs as much"
        );
        assert!(
            !costs.estimate(100_000).does_version_suffice(),
            "events are awaited"
        );
        costs.record_moved(true);
        assert!(
            costs.estimate(100).does_version_suffice(),
            "one write, many reads"
        );
        for _ in 0..3 {
            costs.record_moved(true);
        }
        assert!(
            !costs.estimate(100).does_version_suffice(),
            "others always write"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_not_remembered_for_ever_that_events_were_late() {
        let costs = ProofCosts::default();
        assert!(!costs.estimate(1).is_outdated(), "nothing was learned");
        costs.set_compare_first(true);
        tokio::time::advance(LAG_REMEMBERED / 2).await;
        assert!(!costs.estimate(1).is_outdated());
        tokio::time::advance(LAG_REMEMBERED / 2).await;
        assert!(costs.estimate(1).is_outdated());
        costs.set_compare_first(true);
        assert!(!costs.estimate(1).is_outdated(), "it was learned anew");
    }
}
