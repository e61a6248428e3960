//! Consistent reads from memory: a snapshot that is shown to be no older than the request.
//!
//! Upstream is asked for the version it is at, once for all readers that wait: R. The cache may
//! answer as soon as it is known to be at R or beyond. That is shown, whichever comes first:
//!
//! 1. it is there already: nothing was written since, or the events were faster than the answer;
//! 2. an event or a bookmark of the scope's own watch brings it there. On a busy type that takes
//!    moments;
//! 3. of a small type upstream lists all names and versions instead of one: if they are the
//!    cache's, it has the state at R. Names count as much as versions, as a deletion changes no
//!    other object's version;
//! 4. a short watch of metadata, opened from where the cache is, brings a bookmark: all that
//!    happened before it was said, to be compared with what the cache has seen.
//!
//! Where there is nothing to follow, 4 takes two seconds. A few readers at a time that want little
//! of a large type are better off at upstream, and so is upstream.
//!
//! Nothing of this relies on which API server answers: R of one and a bookmark of another, older
//! one do not fit together, and the wait goes on. Versions are only compared within a type.
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::timeout;

use super::metrics;
use super::singleflight::Singleflight;
use crate::scope::{Scope, ScopeKey};
use crate::store::Snapshot;
use crate::upstream::{AnswerError, ObjectVersions, Probe, ProbeEvent, ProbeList, UpstreamClient};
use watershed_protocol::ResourceVersion;

/// A reader waits this long at most; then upstream answers. It waits as long for its own cache.
/// Source: `apiserver/pkg/storage/cacher/watch_cache.go` (blockTimeout).
const MOST: Duration = Duration::from_secs(3);
/// What is on its way from upstream already is waited for this long.
const ON_ITS_WAY: Duration = Duration::from_millis(100);
/// And by a few readers for this long, if what they ask for is little.
const SOON: Duration = Duration::from_millis(20);
/// So many readers at a time are few: they cost upstream no more than the proof.
const FEW: usize = 3;
/// Of types with up to so many objects upstream lists all names and versions.
const SMALL: usize = 250;
/// How long a catch-up watch is asked to last. Upstream sends a bookmark in its last two seconds,
/// but of shorter watches often not (measured: after 1.4 to 2.7 s; with 3 s seldom, with 2 never).
const CATCH_UP: Duration = Duration::from_secs(4);
/// A type whose catch-up watches brought no bookmark twice in a row is not tried again for this
/// long.
const WITHOUT_BOOKMARKS: Duration = Duration::from_mins(1);
/// And one whose catch-up watch failed, for this long.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// What showed that a cache is new enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It was there already.
    Current,
    /// Upstream has the same objects.
    Validated,
    /// An event or bookmark of the scope's own watch.
    Followed,
    /// A bookmark of a catch-up watch.
    CaughtUp,
}

impl Step {
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

/// Why a cache was not shown to be new enough.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Unproven {
    #[error("upstream did not say where it is: {0}")]
    AnswerError(Arc<AnswerError>),
    #[error("upstream did not say where it is")]
    Failed,
    #[error("the cache did not get there in time")]
    Late,
    #[error("upstream answers it sooner than the cache gets there")]
    Cheap,
}

impl Unproven {
    /// The metric label, where a step would be.
    fn as_str(&self) -> &'static str {
        match self {
            Self::Cheap => "cheaper-upstream",
            Self::AnswerError(_) | Self::Failed | Self::Late => "failed",
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

    /// Waits until the scope's newest snapshot is shown to be no older than this call. Says which
    /// version a snapshot must have at least: that the scope has one does not mean that it keeps
    /// it.
    ///
    /// `is_cheap` tells whether upstream would have little to do for what is wanted of the
    /// snapshot.
    pub(super) async fn prove(
        &self,
        scope: &Arc<Scope>,
        is_cheap: impl Fn(&Snapshot) -> bool,
    ) -> Result<ResourceVersion, Unproven> {
        let started = Instant::now();
        let fence = self.of(scope);
        let passed = timeout(MOST, fence.pass(scope, is_cheap))
            .await
            .unwrap_or(Err(Unproven::Late));
        let step = passed
            .as_ref()
            .map_or_else(Unproven::as_str, |(step, _)| step.as_str());
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

/// Where upstream was, some time after the question.
#[derive(Clone, Debug)]
struct Sighting {
    version: ResourceVersion,
    /// The cache was found to have the state at that version.
    validated: bool,
}

struct Fence {
    /// What it belongs to. A scope that was closed is not kept for this.
    scope: Weak<Scope>,
    probe: Probe,
    flight: Arc<Singleflight<Result<Sighting, Unproven>>>,
    /// Readers that wait for the cache to get somewhere.
    waiting: AtomicUsize,
    /// Catch-up watches in a row that brought no bookmark.
    fruitless: AtomicUsize,
    catching_up: AtomicBool,
    /// Until when catch-up watches are known to be of no use.
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
    ) -> Result<(Step, ResourceVersion), Unproven> {
        let (fence, of) = (Arc::clone(self), Arc::clone(scope));
        let sighting = self
            .flight
            .join(move || async move { fence.sight(&of).await });
        let Sighting { version, validated } = sighting.await.unwrap_or(Err(Unproven::Failed))?;
        if scope.reader.version() >= version {
            return Ok((
                if validated {
                    Step::Validated
                } else {
                    Step::Current
                },
                version,
            ));
        }
        let _waiting = Waiting::new(&self.waiting);
        if scope.wait_until_version(version, SOON).await {
            return Ok((Step::Followed, version));
        }
        if self.waiting.load(Ordering::SeqCst) <= FEW && is_cheap(&scope.reader.snapshot()) {
            return Err(Unproven::Cheap);
        }
        if scope.wait_until_version(version, ON_ITS_WAY).await {
            return Ok((Step::Followed, version));
        }
        if !self.catch_up(scope) {
            return Err(Unproven::Late);
        }
        // The caller's patience ends before this.
        if !scope.wait_until_version(version, MOST).await {
            return Err(Unproven::Late);
        }
        let followed = scope.reader.event_version() >= version;
        Ok((
            if followed {
                Step::Followed
            } else {
                Step::CaughtUp
            },
            version,
        ))
    }

    /// Asks upstream where it is, and compares what it has if that is little.
    async fn sight(&self, scope: &Scope) -> Result<Sighting, Unproven> {
        let small = scope.reader.snapshot().len() <= SMALL;
        // A small type may have grown meanwhile; then the list is cut off, and nothing is compared.
        let limit = if small { 2 * SMALL } else { 1 };
        metrics::fence_asked(&scope.key.gvr, if small { "validate" } else { "list" });
        let listed = timeout(MOST, self.probe.list(limit))
            .await
            .map_err(|_| Unproven::Late)?;
        let ProbeList { version, all } =
            listed.map_err(|error| Unproven::AnswerError(Arc::new(error)))?;
        let Some(all) = all else {
            return Ok(Sighting {
                version,
                validated: false,
            });
        };
        let validated = validate(scope, version, &all).await;
        Ok(Sighting { version, validated })
    }

    /// Sees to it that a catch-up watch is open while somebody waits. Says whether that is of any
    /// use.
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
                CatchingUp {
                    fence: Arc::clone(self),
                    scope: Arc::clone(scope),
                    is_said: true,
                }
                .run(),
            );
        }
        true
    }

    /// One watch, from where the cache is to the first bookmark. Says whether there was one.
    async fn watch(&self, scope: &Scope) -> Result<bool, AnswerError> {
        let mut last = scope.reader.version();
        metrics::fence_asked(&scope.key.gvr, "watch");
        let mut watch = self.probe.watch(last, CATCH_UP).await?;
        while let Some(seen) = watch.next().await? {
            match seen {
                ProbeEvent::Event(version) => last = last.max(version),
                ProbeEvent::Bookmark(version) => {
                    // The scope's own watch brings the same events; the newest snapshot has them
                    // then.
                    if scope.wait_until_version(last, MOST).await {
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

/// Compares what upstream has at `version` with the cache. Events that are on their way may make
/// the two equal, or carry the cache past it.
async fn validate(scope: &Scope, version: ResourceVersion, all: &ObjectVersions) -> bool {
    let until = Instant::now() + ON_ITS_WAY;
    loop {
        let snapshot = scope.reader.snapshot();
        if snapshot.version() >= version {
            return false;
        }
        if is_all_of(&snapshot, all) {
            scope.confirm(snapshot, version);
            return true;
        }
        let left = until.saturating_duration_since(Instant::now());
        let next = ResourceVersion(snapshot.version().0 + 1);
        if left.is_zero() || !scope.wait_until_version(next, left).await {
            return false;
        }
    }
}

/// Whether the snapshot's objects are these, in these versions.
fn is_all_of(snapshot: &Snapshot, all: &ObjectVersions) -> bool {
    let same = |(key, version): &(String, ResourceVersion)| {
        snapshot
            .get(key)
            .is_some_and(|object| object.version == *version)
    };
    snapshot.len() == all.len() && all.iter().all(same)
}

/// The task that keeps a catch-up watch open.
struct CatchingUp {
    fence: Arc<Fence>,
    scope: Arc<Scope>,
    /// The fence says that one is open, and means this one.
    is_said: bool,
}

impl CatchingUp {
    async fn run(mut self) {
        let (fence, scope) = (&Arc::clone(&self.fence), &Arc::clone(&self.scope));
        loop {
            while fence.waiting.load(Ordering::SeqCst) > 0 {
                // To its end, whoever waits: what it tells of the type is for the next reader.
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
                        tracing::debug!(resource = %scope.key.gvr, %error, "a catch-up watch failed");
                        AFTER_FAILURE
                    }
                    Err(_) => AFTER_FAILURE,
                };
                *fence.useless_until.lock() = Some(Instant::now() + useless);
                return;
            }
            self.is_said = false;
            fence.catching_up.store(false, Ordering::SeqCst);
            // Who began to wait in between found it running.
            if fence.waiting.load(Ordering::SeqCst) == 0
                || fence.catching_up.swap(true, Ordering::SeqCst)
            {
                return;
            }
            self.is_said = true;
        }
    }
}

impl Drop for CatchingUp {
    fn drop(&mut self) {
        if self.is_said {
            self.fence.catching_up.store(false, Ordering::SeqCst);
        }
    }
}

/// Somebody waits, for as long as this lives.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::SeqCst);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
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
    async fn of_scopes_that_are_gone_nothing_is_kept() {
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
