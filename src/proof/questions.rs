//! The questions to upstream by which proofs are made: for its version, and for its objects.
use std::mem;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::{self, timeout};
use watershed_protocol::ResourceVersion;

use super::comparison::{Compared, ProvenSelection, ProvenState, compare};
use super::costs::ComparisonSize;
use super::metrics;
use super::outcome::{ComparedVersion, FreshnessProof, ProofError};
use super::{MAX_WAIT, Prover, WatchedObjects};
use crate::scope::Scope;
use crate::upstream::{AnswerError, MeasuredVersions, Probe};

/// Longest time of a comparison, as a multiple of the patience with it. Its result may come too
/// late for its readers, but it shows what comparisons cost.
const LATE_FACTOR: u32 = 2;
/// Up to this many readers of a comparison, the next one begins at once.
const FEW_READERS: usize = 3;
/// The same where upstream answers a reader as fast as it is compared.
const FEW_READERS_OF_TINY_TYPES: usize = 20;
/// Longest pause between two comparisons.
const MAX_REST: Duration = Duration::from_secs(1);
/// The same as a multiple of the time that they take.
const MAX_REST_FACTOR: f64 = 4.0;
/// Lengths of lists that cost fewer bytes as a watch. Upstream compresses longer ones, and of
/// shorter ones little would be saved.
/// Source: `apiserver/pkg/endpoints/handlers/responsewriters/writers.go` (defaultGzipThresholdBytes).
const STREAMED: RangeInclusive<f64> = 16e3..=131_072.0;
/// Most objects of a type of which a part is read by such a watch. Upstream looks at all of them, at
/// some microsecond each.
/// Source: `apiserver/pkg/storage/cacher/watch_cache.go` (getIntervalFromStoreLocked).
const STREAMED_OF: usize = 10_000;
/// Longest wait for such a watch. Then the objects are listed.
const STREAM_PATIENCE: Duration = Duration::from_secs(1);

impl Prover {
    /// Returns an error while upstream is not asked, as it refused a moment ago.
    pub(super) fn may_ask(&self) -> Result<(), ProofError> {
        if self.refusals.is_pausing() {
            return Err(ProofError::Refused);
        }
        Ok(())
    }

    /// Notes if upstream answered a question.
    fn noted<T>(&self, answer: Result<T, AnswerError>) -> Result<T, ProofError> {
        match answer {
            Ok(answer) => {
                self.refusals.answered();
                Ok(answer)
            }
            Err(error) => {
                self.refusals.failed(&error);
                Err(ProofError::AnswerError(Arc::new(error)))
            }
        }
    }

    /// Notes if upstream answered with a list, while the events had reached the version `followed`.
    fn noted_list(
        &self,
        scope: &Scope,
        followed: ResourceVersion,
        listed: Result<MeasuredVersions, AnswerError>,
    ) -> Result<MeasuredVersions, ProofError> {
        if matches!(listed, Err(AnswerError::TooManyObjects)) {
            // An answer all the same: of a state to which the events have not led.
            self.refusals.answered();
            scope.lacks_events_after(followed);
            return Err(ProofError::Late);
        }
        self.noted(listed)
    }

    /// Asks upstream for its version, together with others.
    pub(super) async fn version(
        self: &Arc<Self>,
        scope: &Arc<Scope>,
    ) -> Result<ResourceVersion, ProofError> {
        let (prover, scope) = (Arc::clone(self), Arc::clone(scope));
        let version = self
            .versions
            .join(move || async move { prover.ask_version(&scope).await });
        version.await.unwrap_or(Err(ProofError::Failed))
    }

    pub(super) async fn ask_version(&self, scope: &Scope) -> Result<ResourceVersion, ProofError> {
        // The question before may have been refused while this one waited for its turn.
        self.may_ask()?;
        metrics::asked(&scope.key.gvr, "list");
        let (question, started) = (scope.ask(), time::Instant::now());
        let Ok(version) = timeout(MAX_WAIT, self.probe.version()).await else {
            // Others would wait as long. Upstream may answer their own requests sooner.
            self.refusals.failed(&AnswerError::Late(MAX_WAIT));
            return Err(ProofError::Late);
        };
        let version = self.noted(version)?;
        let took = started.elapsed();
        metrics::answered("list", took);
        self.costs.record_version_time(took);
        self.costs.record_moved(scope.reader.version() < version);
        question.answered(version)?;
        Ok(version)
    }

    /// Compares upstream's objects with the cache, together with others.
    pub(super) async fn compare(
        self: &Arc<Self>,
        scope: &Arc<Scope>,
    ) -> Result<ComparedVersion, ProofError> {
        if self.costs.is_paused() {
            return Err(ProofError::Late);
        }
        self.readers.fetch_add(1, Ordering::Relaxed);
        let (prover, scope) = (Arc::clone(self), Arc::clone(scope));
        let comparison = self
            .comparisons
            .join(move || async move { prover.compare_for_readers(&scope).await });
        comparison.await.unwrap_or(Err(ProofError::Failed))
    }

    /// Compares upstream's objects with the cache for those who wait for it. If they are many,
    /// more come meanwhile, and the next comparison begins after a pause. Each of them would have
    /// waited longer for an answer of upstream.
    async fn compare_for_readers(&self, scope: &Scope) -> Result<ComparedVersion, ProofError> {
        let readers = self.readers.swap(0, Ordering::Relaxed);
        // The comparison before was late, while these readers waited for their turn.
        if self.costs.is_paused() {
            return Err(ProofError::Late);
        }
        let compared = self.ask_objects(scope).await?;
        // A slow one among fast ones does not hold up those who come after it.
        let before = mem::replace(&mut *self.last_comparison.lock(), compared.took);
        let size = self.costs.estimate(scope.reader.snapshot().len()).size();
        if let Some(rest) = rest_after(compared.took.min(before), readers, size) {
            self.comparisons.rest(rest);
        }
        Ok(compared)
    }

    /// Compares upstream's objects with the cache.
    pub(super) async fn ask_objects(&self, scope: &Scope) -> Result<ComparedVersion, ProofError> {
        self.may_ask()?;
        let followed = scope.reader.event_version();
        let held = scope.reader.snapshot().len();
        metrics::asked(&scope.key.gvr, "validate");
        let question = scope.ask();
        let started = Instant::now();
        let longest = LATE_FACTOR * self.costs.estimate(held).patience();
        let listed = timeout(longest, self.probe.versions(most(held))).await;
        let took = started.elapsed();
        let Ok(listed) = listed else {
            self.costs.pause_after_late();
            return Err(ProofError::Late);
        };
        if matches!(listed, Err(AnswerError::TooManyObjects)) {
            // The next list would be as long, until the events are there.
            self.costs.pause_after_late();
        }
        let MeasuredVersions { list, bytes } = self.noted_list(scope, followed, listed)?;
        metrics::answered("validate", took);
        self.costs
            .record_comparison(list.objects.len(), bytes, took);
        question.answered(list.version)?;
        let version = list.version;
        self.costs.record_moved(scope.reader.version() < version);
        let compared = compare(scope, &list, None).await;
        if !matches!(compared, Compared::Known) {
            let is_passed = matches!(compared, Compared::Passed);
            self.costs.set_compare_first(!is_passed);
        }
        let is_same = matches!(compared, Compared::Same(_));
        if let Compared::Same(snapshot) = compared {
            scope.confirm(snapshot, version);
        }
        Ok(ComparedVersion {
            version,
            is_same,
            took,
        })
    }

    /// Compares the watched objects alone with the cache.
    pub(super) async fn compare_selection(
        self: &Arc<Self>,
        scope: &Arc<Scope>,
        watched: WatchedObjects<'_>,
    ) -> Result<ProvenSelection, ProofError> {
        self.may_ask()?;
        let WatchedObjects {
            selection,
            filter,
            count,
        } = watched;
        let namespaced = scope.fields.namespaced();
        let probe = Probe::new(self.client.clone(), &scope.key.gvr, selection, namespaced);
        metrics::asked(&scope.key.gvr, "validate-selection");
        let (question, started) = (scope.ask(), Instant::now());
        let followed = scope.reader.event_version();
        // Boxed: other reads need no room for it.
        let listed = Box::pin(self.list_selected(scope, &probe, count)).await;
        let MeasuredVersions { list, bytes } = self.noted_list(scope, followed, listed)?;
        metrics::answered("validate-selection", started.elapsed());
        self.costs.record_selection(list.objects.len(), bytes);
        question.answered(list.version)?;
        let version = list.version;
        match compare(scope, &list, Some(filter)).await {
            Compared::Same(snapshot) => {
                let state = ProvenState { snapshot, version };
                Ok(ProvenSelection {
                    proven: FreshnessProof::Selected.of(version),
                    state: Some(state),
                })
            }
            Compared::Passed | Compared::Known => Ok(ProvenSelection {
                proven: FreshnessProof::Followed.of(version),
                state: None,
            }),
            Compared::Behind => Ok(ProvenSelection {
                proven: self.catch_up(scope, version).await?,
                state: None,
            }),
        }
    }

    /// Lists the `count` objects of a probe. Where bytes from upstream are dear, a list that is too
    /// short to be compressed is replaced by a watch.
    async fn list_selected(
        &self,
        scope: &Scope,
        probe: &Probe,
        count: usize,
    ) -> Result<MeasuredVersions, AnswerError> {
        let held = scope.reader.snapshot().len();
        let length = self.costs.estimate(count).selected_metadata();
        let is_cheaper = STREAMED.contains(&length) && held <= STREAMED_OF;
        if scope.streams_compressed() && is_cheaper {
            let streamed = timeout(STREAM_PATIENCE, probe.streamed_versions(most(held))).await;
            if let Ok(Ok(measured)) = streamed {
                return Ok(measured);
            }
        }
        probe.versions(most(held)).await
    }
}

/// Returns the number of objects up to which a list is read, where so many are held. A type that has
/// grown to twice its size is not read to its end.
fn most(held: usize) -> usize {
    2 * held + 500
}

/// Returns the pause after a comparison for so many readers, if there should be one.
fn rest_after(took: Duration, readers: usize, size: ComparisonSize) -> Option<Duration> {
    let few = match size {
        ComparisonSize::Tiny => FEW_READERS_OF_TINY_TYPES,
        ComparisonSize::Small | ComparisonSize::Large => FEW_READERS,
    };
    let longer = (readers as f64 / few as f64).min(MAX_REST_FACTOR);
    (readers > few).then(|| took.mul_f64(longer).min(MAX_REST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_for_many_rest_for_longer_unless_upstream_answers_as_fast() {
        use ComparisonSize::{Small, Tiny};

        let took = Duration::from_millis(3);
        assert_eq!(rest_after(took, 3, Small), None);
        assert_eq!(rest_after(took, 6, Small), Some(2 * took));
        assert_eq!(rest_after(took, 20, Small), Some(4 * took));
        assert_eq!(rest_after(took, 20, Tiny), None);
        assert_eq!(rest_after(took, 200, Tiny), Some(4 * took));
        assert_eq!(rest_after(1000 * took, 200, Small), Some(MAX_REST));
    }
}
