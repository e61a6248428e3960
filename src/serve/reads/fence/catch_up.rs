//! Short watches that show that no event is missing up to some version.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::scope::Scope;
use crate::serve::metrics;
use crate::upstream::{AnswerError, CatchUp, Probe, ProbeEvent};
use watershed_protocol::ResourceVersion;

/// Timeout of a catch-up watch. Upstream sends a bookmark in its last two seconds, but often none
/// in shorter watches (measured: after 1.4 to 2.7 s; with 3 s rarely, with 2 never).
const CATCH_UP: Duration = Duration::from_secs(4);
/// Wait for events that the watch has shown, and that the cache lacks.
const EVENTS: Duration = Duration::from_secs(3);
/// Pause after two catch-up watches in a row that brought no bookmark.
const WITHOUT_BOOKMARKS: Duration = Duration::from_mins(1);
/// Pause after a catch-up watch that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The catch-up watches of one scope, at most one at a time.
#[derive(Debug)]
pub(super) struct CatchUpWatches {
    probe: Probe,
    /// Readers that wait for the cache to reach a version.
    waiting: AtomicUsize,
    /// Catch-up watches in a row that brought no bookmark.
    fruitless: AtomicUsize,
    is_open: AtomicBool,
    /// End of the pause of catch-up watches.
    useless_until: Mutex<Option<Instant>>,
    /// Changes when the watch that readers wait for is given up.
    given_up: watch::Sender<()>,
}

impl CatchUpWatches {
    pub(super) fn new(probe: Probe) -> Self {
        Self {
            probe,
            waiting: AtomicUsize::new(0),
            fruitless: AtomicUsize::new(0),
            is_open: AtomicBool::new(false),
            useless_until: Mutex::default(),
            given_up: watch::Sender::new(()),
        }
    }

    /// Keeps a catch-up watch open while readers wait for it. Returns a waiting reader; `None`
    /// during a pause.
    pub(super) fn keep_open(self: &Arc<Self>, scope: &Arc<Scope>) -> Option<WaitingReader> {
        let useless_until = *self.useless_until.lock();
        if useless_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        let reader = WaitingReader::new(self);
        if !self.is_open.swap(true, Ordering::SeqCst) {
            tokio::spawn(
                CatchUpTask {
                    watches: Arc::clone(self),
                    scope: Arc::clone(scope),
                    is_counted: true,
                }
                .run(),
            );
        }
        Some(reader)
    }

    /// Opens a catch-up watch that goes on from `version`.
    ///
    /// It begins before the last event, as upstream may have come to `version` in another way since
    /// (`upstream/reflect/resume.rs`). A server that does not show that event any more is asked for
    /// what follows. Also returns the version that the watch has shown already.
    async fn open_watch(
        &self,
        scope: &Scope,
        version: ResourceVersion,
    ) -> Result<(CatchUp, ResourceVersion), AnswerError> {
        if let Some(last_event) = scope.reader.last_event_version() {
            let question = scope.ask();
            let mut watch = self.probe.watch(last_event.before(), CATCH_UP).await?;
            match watch.next().await {
                Ok(Some(ProbeEvent::Event(first))) if first == last_event => {
                    return Ok((watch, last_event));
                }
                // A proxy that lags behind and is about to end sends an older bookmark. That is no
                // other history.
                Ok(Some(ProbeEvent::Bookmark(bookmark))) if bookmark < last_event => {
                    return Err(AnswerError::Unusable("a server that is behind".to_owned()));
                }
                Ok(Some(_)) => {
                    question.contradicted(last_event);
                    return Err(AnswerError::Unusable("another history".to_owned()));
                }
                Ok(None) | Err(_) => {}
            }
        }
        Ok((self.probe.watch(version, CATCH_UP).await?, version))
    }

    /// Watches from the cache's version to the first bookmark. Returns `true` if there was one.
    async fn watch(&self, scope: &Scope) -> Result<bool, AnswerError> {
        let from = scope.reader.version();
        metrics::fence_asked(&scope.key.gvr, "watch");
        let (mut watch, shown) = self.open_watch(scope, from).await?;
        let mut last = from.max(shown);
        let mut newest = ResourceVersion::default();
        while let Some(seen) = watch.next().await? {
            match seen {
                ProbeEvent::Event(version) => {
                    newest = newest.max(version);
                    last = last.max(version);
                }
                ProbeEvent::Bookmark(version) => {
                    // The scope's own watch brings the same events into the newest snapshot.
                    if scope.wait_until_version(last, EVENTS).await {
                        let snapshot = scope.reader.snapshot();
                        if snapshot.version() >= last {
                            scope.confirm(snapshot, version);
                        }
                    }
                    let reached = scope.reader.event_version();
                    if reached < newest {
                        scope.lacks_events_after(reached);
                    }
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// The task that keeps a catch-up watch open.
struct CatchUpTask {
    watches: Arc<CatchUpWatches>,
    scope: Arc<Scope>,
    /// This task counts as the open catch-up watch.
    is_counted: bool,
}

impl CatchUpTask {
    async fn run(mut self) {
        let (watches, scope) = (&Arc::clone(&self.watches), &Arc::clone(&self.scope));
        loop {
            while watches.waiting.load(Ordering::SeqCst) > 0 {
                // It runs to its end even without readers: the next reader uses the result.
                let useless = match timeout(2 * CATCH_UP, watches.watch(scope)).await {
                    Ok(Ok(true)) => {
                        watches.fruitless.store(0, Ordering::SeqCst);
                        continue;
                    }
                    // A busy server may be late with one.
                    Ok(Ok(false)) if watches.fruitless.fetch_add(1, Ordering::SeqCst) == 0 => {
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
                *watches.useless_until.lock() = Some(Instant::now() + useless);
                return;
            }
            self.is_counted = false;
            watches.is_open.store(false, Ordering::SeqCst);
            // A reader that began to wait in between found it running.
            if watches.waiting.load(Ordering::SeqCst) == 0
                || watches.is_open.swap(true, Ordering::SeqCst)
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
            self.watches.is_open.store(false, Ordering::SeqCst);
            self.watches.given_up.send_replace(());
        }
    }
}

/// A reader that waits, for as long as this lives.
pub(super) struct WaitingReader {
    watches: Arc<CatchUpWatches>,
    given_up: watch::Receiver<()>,
}

impl WaitingReader {
    fn new(watches: &Arc<CatchUpWatches>) -> Self {
        watches.waiting.fetch_add(1, Ordering::SeqCst);
        Self {
            watches: Arc::clone(watches),
            given_up: watches.given_up.subscribe(),
        }
    }

    /// Waits until the watch is given up, so that it brings nothing.
    pub(super) async fn until_given_up(&mut self) {
        // The sender lives as long as this.
        let _ = self.given_up.changed().await;
    }
}

impl Drop for WaitingReader {
    fn drop(&mut self) {
        self.watches.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests;
