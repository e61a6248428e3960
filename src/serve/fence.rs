//! Consistent reads from memory: proves that a snapshot is no older than the request.
//!
//! Upstream is asked for its current version R, once for all waiting readers. The cache may answer
//! as soon as it is known to be at R or beyond. One of these proves it, whichever comes first:
//!
//! 1. The cache is there already. Nothing was written since, or the events were faster than the
//!    answer.
//! 2. An event or a bookmark of the scope's own watch brings it there. On a busy type that takes
//!    moments.
//! 3. Upstream lists all names and versions of a small type. If they are the cache's, the cache has
//!    the state at R. Names count as much as versions, because a deletion changes no other object's
//!    version.
//! 4. A short watch of metadata, opened from the cache's version, brings a bookmark. All earlier
//!    events were sent before it, and are compared with those that the cache has seen.
//!
//! On a quiet type, 4 takes two seconds. A few readers at a time that want little of a large type
//! are better off at upstream, and so is upstream.
//!
//! The proof does not depend on which API server answers. R of one server and a bookmark of
//! another, older one do not fit together, and the wait goes on. Versions are compared within a
//! type only.
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::timeout;

use super::metrics;
use super::singleflight::Singleflight;
use crate::scope::{Scope, ScopeKey, TimelineChanged};
use crate::store::Snapshot;
use crate::upstream::{
    AnswerError, CatchUp, ObjectVersions, Probe, ProbeEvent, ProbeList, UpstreamClient,
};
use watershed_protocol::ResourceVersion;

/// Longest wait of a reader. Then upstream answers, which waits as long for its own cache.
/// Source: `apiserver/pkg/storage/cacher/watch_cache.go` (blockTimeout).
const MAX_WAIT: Duration = Duration::from_secs(3);
/// Wait for events that are on their way from upstream.
const IN_TRANSIT: Duration = Duration::from_millis(100);
/// Shorter wait of a few readers that ask for little.
const BRIEF: Duration = Duration::from_millis(20);
/// Up to this many readers at a time cost upstream no more than the proof.
const FEW_READERS: usize = 3;
/// Largest type of which upstream lists all names and versions, in objects.
const SMALL_TYPE: usize = 250;
/// Timeout of a catch-up watch. Upstream sends a bookmark in its last two seconds, but often none
/// in shorter watches (measured: after 1.4 to 2.7 s; with 3 s seldom, with 2 never).
const CATCH_UP: Duration = Duration::from_secs(4);
/// Pause after two catch-up watches in a row that brought no bookmark.
const WITHOUT_BOOKMARKS: Duration = Duration::from_mins(1);
/// Pause after a catch-up watch that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The proof that a cache is fresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FreshnessProof {
    /// The cache was there already.
    Current,
    /// Upstream has the same objects.
    Validated,
    /// An event or bookmark of the scope's own watch.
    Followed,
    /// A bookmark of a catch-up watch.
    CaughtUp,
}

impl FreshnessProof {
    /// The metric label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::Validated => "validated",
            Self::Followed => "followed",
            Self::CaughtUp => "caught-up",
        }
    }
}

/// The reason why a cache was not proven fresh.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum FenceError {
    #[error("upstream did not report its version: {0}")]
    AnswerError(Arc<AnswerError>),
    #[error("upstream did not report its version")]
    Failed,
    #[error("the cache did not reach the version in time")]
    Late,
    #[error("upstream answers sooner than the cache reaches the version")]
    Cheap,
    #[error(transparent)]
    TimelineChanged(#[from] TimelineChanged),
    #[error("the watch that the cache follows was interrupted")]
    Interrupted,
}

impl FenceError {
    /// Returns the metric label in place of a proof's.
    fn as_str(&self) -> &'static str {
        match self {
            Self::Cheap => "cheaper-upstream",
            Self::AnswerError(_)
            | Self::Failed
            | Self::Late
            | Self::TimelineChanged(_)
            | Self::Interrupted => "failed",
        }
    }
}

/// The fences of all scopes.
pub(super) struct Fences {
    client: UpstreamClient,
    fences: Mutex<HashMap<ScopeKey, Arc<Fence>>>,
}

impl Fences {
    pub(super) fn new(client: UpstreamClient) -> Self {
        Self {
            client,
            fences: Mutex::default(),
        }
    }

    /// Waits until the scope's newest snapshot is proven no older than this call. Returns the
    /// minimum version of a snapshot that may answer: the scope may later be listed anew, from an
    /// older one.
    ///
    /// `is_cheap` returns `true` if the read costs upstream little.
    pub(super) async fn prove(
        &self,
        scope: &Arc<Scope>,
        is_cheap: impl Fn(&Snapshot) -> bool,
    ) -> Result<ResourceVersion, FenceError> {
        let started = Instant::now();
        let fence = self.of(scope);
        let passed = timeout(MAX_WAIT, fence.pass(scope, is_cheap))
            .await
            .unwrap_or(Err(FenceError::Late))
            .and_then(|passed| check(scope, passed));
        let step = passed
            .as_ref()
            .map_or_else(FenceError::as_str, |(step, _)| step.as_str());
        metrics::fenced(&scope.key.gvr, step, started.elapsed());
        Ok(passed?.1)
    }

    fn of(&self, scope: &Arc<Scope>) -> Arc<Fence> {
        let mut fences = self.fences.lock();
        let known = fences
            .get(&scope.key)
            .filter(|fence| Weak::ptr_eq(&fence.scope, &Arc::downgrade(scope)));
        if let Some(fence) = known {
            return Arc::clone(fence);
        }
        let fence = Arc::new(Fence::new(self.client.clone(), scope));
        // Scopes come and go by what clients ask for.
        fences.retain(|_, fence| fence.scope.strong_count() > 0);
        fences.insert(scope.key.clone(), Arc::clone(&fence));
        fence
    }
}

/// Checks that the cache still has the history that the proof is about.
///
/// While its watch is interrupted, nobody knows whether upstream goes on from what is cached, or
/// from a backup. Only a comparison of the objects proves something then.
fn check(
    scope: &Scope,
    passed: (FreshnessProof, ResourceVersion),
) -> Result<(FreshnessProof, ResourceVersion), FenceError> {
    if !scope.is_current() {
        return Err(TimelineChanged.into());
    }
    if passed.0 != FreshnessProof::Validated && !scope.is_following() {
        return Err(FenceError::Interrupted);
    }
    Ok(passed)
}

/// Upstream's version at some time after the request.
#[derive(Clone, Debug)]
struct UpstreamVersion {
    version: ResourceVersion,
    /// The cache has the state at that version.
    validated: bool,
}

struct Fence {
    /// The scope. A fence does not keep a closed one.
    scope: Weak<Scope>,
    probe: Probe,
    flight: Arc<Singleflight<Result<UpstreamVersion, FenceError>>>,
    /// Readers that wait for the cache to reach a version.
    waiting: AtomicUsize,
    /// Catch-up watches in a row that brought no bookmark.
    fruitless: AtomicUsize,
    catching_up: AtomicBool,
    /// End of the pause of catch-up watches.
    useless_until: Mutex<Option<Instant>>,
}

impl Fence {
    fn new(client: UpstreamClient, scope: &Arc<Scope>) -> Self {
        let probe = Probe::new(
            client,
            &scope.key.gvr,
            &scope.key.selection,
            scope.fields.namespaced(),
        );
        Self {
            scope: Arc::downgrade(scope),
            probe,
            flight: Arc::default(),
            waiting: AtomicUsize::new(0),
            fruitless: AtomicUsize::new(0),
            catching_up: AtomicBool::new(false),
            useless_until: Mutex::default(),
        }
    }

    async fn pass(
        self: &Arc<Self>,
        scope: &Arc<Scope>,
        is_cheap: impl Fn(&Snapshot) -> bool,
    ) -> Result<(FreshnessProof, ResourceVersion), FenceError> {
        let (fence, of) = (Arc::clone(self), Arc::clone(scope));
        let sighting = self
            .flight
            .join(move || async move { fence.ask_version(&of).await });
        let UpstreamVersion { version, validated } =
            sighting.await.unwrap_or(Err(FenceError::Failed))?;
        if scope.reader.version() >= version {
            return Ok((
                if validated {
                    FreshnessProof::Validated
                } else {
                    FreshnessProof::Current
                },
                version,
            ));
        }
        let _waiting = WaitingReader::new(&self.waiting);
        if scope.wait_until_version(version, BRIEF).await {
            return Ok((FreshnessProof::Followed, version));
        }
        if self.waiting.load(Ordering::SeqCst) <= FEW_READERS && is_cheap(&scope.reader.snapshot())
        {
            return Err(FenceError::Cheap);
        }
        if scope.wait_until_version(version, IN_TRANSIT).await {
            return Ok((FreshnessProof::Followed, version));
        }
        if !self.catch_up(scope) {
            return Err(FenceError::Late);
        }
        // The timeout of the caller ends before this one.
        if !scope.wait_until_version(version, MAX_WAIT).await {
            return Err(FenceError::Late);
        }
        let followed = scope.reader.event_version() >= version;
        Ok((
            if followed {
                FreshnessProof::Followed
            } else {
                FreshnessProof::CaughtUp
            },
            version,
        ))
    }

    /// Asks upstream for its version, and compares the objects of a small type.
    async fn ask_version(&self, scope: &Scope) -> Result<UpstreamVersion, FenceError> {
        let small = scope.reader.snapshot().len() <= SMALL_TYPE;
        // A small type may have grown. Then the list is cut off, and nothing is compared.
        let limit = if small { 2 * SMALL_TYPE } else { 1 };
        metrics::fence_asked(&scope.key.gvr, if small { "validate" } else { "list" });
        let question = scope.ask();
        let listed = timeout(MAX_WAIT, self.probe.list(limit))
            .await
            .map_err(|_| FenceError::Late)?;
        let ProbeList {
            version,
            objects,
            is_complete,
        } = listed.map_err(|error| FenceError::AnswerError(Arc::new(error)))?;
        question.answered(version)?;
        let validated = is_complete && validate(scope, version, &objects).await;
        Ok(UpstreamVersion { version, validated })
    }

    /// Keeps a catch-up watch open while readers wait. Returns `false` during a pause.
    fn catch_up(self: &Arc<Self>, scope: &Arc<Scope>) -> bool {
        if self
            .useless_until
            .lock()
            .is_some_and(|until| Instant::now() < until)
        {
            return false;
        }
        if !self.catching_up.swap(true, Ordering::SeqCst) {
            tokio::spawn(
                CatchUpTask {
                    fence: Arc::clone(self),
                    scope: Arc::clone(scope),
                    is_counted: true,
                }
                .run(),
            );
        }
        true
    }

    /// Opens a catch-up watch that goes on from `version`.
    ///
    /// It begins before the last event, as upstream may have come to `version` in another way since
    /// (`upstream/reflect/resume.rs`). A server that does not show that event any more is asked for
    /// what follows.
    async fn open_watch(
        &self,
        scope: &Scope,
        version: ResourceVersion,
    ) -> Result<CatchUp, AnswerError> {
        if let Some(last_event) = scope.reader.last_event_version() {
            let question = scope.ask();
            let mut watch = self.probe.watch(last_event.before(), CATCH_UP).await?;
            match watch.next().await {
                Ok(Some(ProbeEvent::Event(first))) if first == last_event => return Ok(watch),
                Ok(Some(_)) => {
                    question.contradicted(last_event);
                    return Err(AnswerError::Unusable("another history".to_owned()));
                }
                Ok(None) | Err(_) => {}
            }
        }
        self.probe.watch(version, CATCH_UP).await
    }

    /// Watches from the cache's version to the first bookmark. Returns `true` if there was one.
    async fn watch(&self, scope: &Scope) -> Result<bool, AnswerError> {
        let mut last = scope.reader.version();
        metrics::fence_asked(&scope.key.gvr, "watch");
        let mut watch = self.open_watch(scope, last).await?;
        while let Some(seen) = watch.next().await? {
            match seen {
                ProbeEvent::Event(version) => last = last.max(version),
                ProbeEvent::Bookmark(version) => {
                    // The scope's own watch brings the same events into the newest snapshot.
                    if scope.wait_until_version(last, MAX_WAIT).await {
                        let snapshot = scope.reader.snapshot();
                        if snapshot.version() >= last {
                            scope.confirm(snapshot, version);
                        }
                    }
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// Compares upstream's objects at `version` with the cache. Events that are on their way may make
/// the two equal, or carry the cache past the version.
async fn validate(scope: &Scope, version: ResourceVersion, all: &ObjectVersions) -> bool {
    let until = Instant::now() + IN_TRANSIT;
    loop {
        let snapshot = scope.reader.snapshot();
        if snapshot.version() >= version {
            return false;
        }
        // What the events have led to, as readers do not see an unfinished version.
        let followed = scope.reader.followed();
        if is_all_of(&followed, all) {
            scope.confirm(followed, version);
            return true;
        }
        let left = until.saturating_duration_since(Instant::now());
        let next = ResourceVersion(snapshot.version().0 + 1);
        if left.is_zero() || !scope.wait_until_version(next, left).await {
            return false;
        }
    }
}

/// Returns `true` if the snapshot has exactly these objects in these versions.
fn is_all_of(snapshot: &Snapshot, all: &ObjectVersions) -> bool {
    let same = |(key, version): &(String, ResourceVersion)| {
        snapshot
            .get(key)
            .is_some_and(|object| object.version == *version)
    };
    snapshot.len() == all.len() && all.iter().all(same)
}

/// The task that keeps a catch-up watch open.
struct CatchUpTask {
    fence: Arc<Fence>,
    scope: Arc<Scope>,
    /// The fence counts this task as its catch-up watch.
    is_counted: bool,
}

impl CatchUpTask {
    async fn run(mut self) {
        let (fence, scope) = (&Arc::clone(&self.fence), &Arc::clone(&self.scope));
        loop {
            while fence.waiting.load(Ordering::SeqCst) > 0 {
                // It runs to its end even without readers: the next reader profits from the result.
                let useless = match timeout(2 * CATCH_UP, fence.watch(scope)).await {
                    Ok(Ok(true)) => {
                        fence.fruitless.store(0, Ordering::SeqCst);
                        continue;
                    }
                    // A busy server may be late with one.
                    Ok(Ok(false)) if fence.fruitless.fetch_add(1, Ordering::SeqCst) == 0 => {
                        continue;
                    }
                    Ok(Ok(false)) => WITHOUT_BOOKMARKS,
                    Ok(Err(error)) => {
                        let resource = &scope.key.gvr;
                        tracing::debug!(%resource, %error, "a catch-up watch failed");
                        AFTER_FAILURE
                    }
                    Err(_) => AFTER_FAILURE,
                };
                *fence.useless_until.lock() = Some(Instant::now() + useless);
                return;
            }
            self.is_counted = false;
            fence.catching_up.store(false, Ordering::SeqCst);
            // A reader that began to wait in between found it running.
            if fence.waiting.load(Ordering::SeqCst) == 0
                || fence.catching_up.swap(true, Ordering::SeqCst)
            {
                return;
            }
            self.is_counted = true;
        }
    }
}

impl Drop for CatchUpTask {
    fn drop(&mut self) {
        if self.is_counted {
            self.fence.catching_up.store(false, Ordering::SeqCst);
        }
    }
}

/// A reader that waits, for as long as this lives.
struct WaitingReader<'a>(&'a AtomicUsize);

impl<'a> WaitingReader<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::SeqCst);
        Self(waiting)
    }
}

impl Drop for WaitingReader<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::{Retention, ScopeConfig, Scopes};
    use crate::test_support::{Api, HTTP2, Pki, eventually, text, upstream_of};
    use watershed_protocol::{FieldTable, GroupVersionResource, Representation, Selection};

    #[tokio::test]
    async fn fences_of_closed_scopes_are_dropped() {
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, |_, _| async { text("no list") }).await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let (scopes, fences) = (
            Scopes::new(client.clone(), ScopeConfig::default()),
            Fences::new(client),
        );
        let gvr = GroupVersionResource::new("", "v1", "pods");
        let fields = Arc::new(FieldTable::metadata_only(true));
        for name in 0..20 {
            let selection = Arc::new(Selection::named(None, &name.to_string()));
            let of = (
                &gvr,
                Representation::whole(watershed_protocol::Encoding::Json),
            );
            let lent = scopes
                .acquire(of, &"Pod".into(), &fields, |_| {
                    Some((selection, Retention::default()))
                })
                .unwrap();
            fences.of(&lent);
            let weak = Arc::downgrade(&*lent);
            drop(lent);
            scopes.close(&gvr, Duration::ZERO);
            eventually(|| weak.strong_count() == 0).await;
        }
        assert_eq!(fences.fences.lock().len(), 1);
    }
}
