//! Short watches that show that no event is missing up to some version.
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use super::metrics;
use crate::scope::Scope;
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
    state: Mutex<CatchUpState>,
}

#[derive(Debug, Default)]
struct CatchUpState {
    /// The open watch. Its task has the sender, and each reader that waits for it another receiver.
    open: Option<watch::Receiver<()>>,
    /// The last watch brought no bookmark.
    was_fruitless: bool,
    /// End of the pause of catch-up watches.
    useless_until: Option<Instant>,
}

impl CatchUpWatches {
    pub(super) fn new(probe: Probe) -> Self {
        Self {
            probe,
            state: Mutex::default(),
        }
    }

    /// Keeps a catch-up watch open while readers wait for it. Returns a waiting reader; `None`
    /// during a pause.
    pub(super) fn keep_open(self: &Arc<Self>, scope: &Arc<Scope>) -> Option<WaitingReader> {
        let mut state = self.state.lock();
        let useless_until = state.useless_until;
        if useless_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        // A closed channel is that of a task that gave up.
        let open = state.open.take().filter(|open| open.has_changed().is_ok());
        let open = open.unwrap_or_else(|| {
            let (readers, open) = watch::channel(());
            tokio::spawn(Arc::clone(self).run(Arc::clone(scope), readers));
            open
        });
        state.open = Some(open.clone());
        Some(WaitingReader(open))
    }

    /// Opens one watch after the other while readers wait. Gives up when the next ones would bring
    /// nothing.
    async fn run(self: Arc<Self>, scope: Arc<Scope>, readers: watch::Sender<()>) {
        while !self.close_if_unused(&readers) {
            // It runs to its end even without readers: the next reader uses the result.
            let ended = timeout(2 * CATCH_UP, self.watch(&scope)).await;
            let pause = match ended {
                Ok(Ok(has_bookmark)) => {
                    let mut state = self.state.lock();
                    let was_fruitless = mem::replace(&mut state.was_fruitless, !has_bookmark);
                    // A busy server may be late with one.
                    if has_bookmark || !was_fruitless {
                        continue;
                    }
                    WITHOUT_BOOKMARKS
                }
                Ok(Err(error)) => {
                    let resource = &scope.key.gvr;
                    tracing::debug!(%resource, %error, "a catch-up watch failed");
                    AFTER_FAILURE
                }
                Err(_) => AFTER_FAILURE,
            };
            self.state.lock().useless_until = Some(Instant::now() + pause);
            return;
        }
    }

    /// Closes the open watch if no reader waits for it. Returns `true` if that is so. The lock keeps
    /// readers from finding a watch that is about to close.
    fn close_if_unused(&self, readers: &watch::Sender<()>) -> bool {
        let mut state = self.state.lock();
        // The state itself has a receiver.
        let is_unused = readers.receiver_count() <= 1;
        if is_unused {
            state.open = None;
        }
        is_unused
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
        metrics::asked(&scope.key.gvr, "watch");
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

/// A reader that waits for the open watch, for as long as this lives.
pub(super) struct WaitingReader(watch::Receiver<()>);

impl WaitingReader {
    /// Waits until the watch is given up, so that it brings nothing.
    pub(super) async fn until_given_up(&mut self) {
        // Nothing is sent. The channel closes with the watch's task, which goes on while this waits.
        let _ = self.0.changed().await;
    }
}

#[cfg(test)]
mod tests;
