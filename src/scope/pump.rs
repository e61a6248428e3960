//! The task of a scope: it pumps what upstream sends into the store.
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};
use watershed_protocol::{BookmarkFormat, WireFormat};

use super::cached::Scope;
use super::collect::stored_object;
use super::continuity::{Continuity, ContinuityChange};
use super::metrics;
use super::open_scopes::OpenScopes;
use super::phase::{ReadyScope, ScopePhase};
use crate::metric::{Counter, Metric};
use crate::store::{SnapshotBuilder, StoreWriter};
use crate::upstream::{Change, Reflector, Stopped};

/// Minimum time before a scope that stopped is opened anew. Requests are forwarded meanwhile.
pub(crate) const REOPEN_AFTER: Duration = Duration::from_secs(30);
/// After a schema change an API server builds the type's storage anew, within about a second. It
/// may have ended our watch before the change was seen here, so the scope is listed again after
/// this.
const STORAGE_REBUILD: Duration = Duration::from_secs(2);
/// A watch that ended in good order is open again after milliseconds. A scope that waits longer
/// does not follow.
const WATCH_REOPEN: Duration = Duration::from_secs(2);

/// The task of one scope.
pub(super) struct ScopePump {
    pub(super) reflector: Reflector,
    pub(super) continuity: Continuity,
    pub(super) writer: StoreWriter,
    pub(super) phase: watch::Sender<ScopePhase>,
    pub(super) events: Counter,
    pub(super) scope: Arc<Scope>,
    pub(super) open: OpenScopes,
    pub(super) null_in_structs: Arc<NullInStructs>,
    pub(super) timers: PumpTimers,
    /// The form of the last list.
    pub(super) format: Option<Arc<WireFormat>>,
    /// The reason why the task ended. It is closed unless set: the runtime may drop the task.
    pub(super) stopped: Stopped,
}

/// Moments at which the task has something to do.
#[derive(Default)]
pub(super) struct PumpTimers {
    /// The scope is listed again then, after a schema change.
    list_again: Option<Instant>,
    /// Upstream ended the watch. Unless it is open again by then, the scope does not follow.
    reopened_by: Option<Instant>,
}

/// The newest [`BookmarkFormat::null_in_structs`] of any scope. Some bookmarks do not tell it, and
/// it is the same for all types.
#[derive(Debug, Default)]
pub(super) struct NullInStructs(Mutex<Option<bool>>);

impl NullInStructs {
    fn complete(&self, format: BookmarkFormat) -> BookmarkFormat {
        let known = {
            let mut known = self.0.lock();
            *known = format.null_in_structs().or(*known);
            *known
        };
        format.with_null_in_structs(known)
    }
}

impl ScopePump {
    pub(super) async fn run(mut self) {
        self.stopped = loop {
            let question = self.reflector.is_listing().then(|| self.scope.ask());
            let change = tokio::select! {
                () = self.scope.stop.cancelled() => break Stopped::Closed,
                change = self.continuity.changed() => {
                    self.continue_after(change);
                    continue;
                }
                () = self.scope.schema_changed.notified() => {
                    self.reflector.schema_changed();
                    self.timers.list_again = Some(Instant::now() + STORAGE_REBUILD);
                    continue;
                }
                () = wait_until(self.timers.list_again) => {
                    tracing::info!(
                        resource = %self.scope.key.gvr,
                        "the type's schema changed; listing again"
                    );
                    self.timers.list_again = None;
                    self.reflector.restart();
                    continue;
                }
                () = wait_until(self.timers.reopened_by) => {
                    self.timers.reopened_by = None;
                    self.scope.set_following(false);
                    continue;
                }
                change = self.reflector.next(), if self.continuity.is_certain() => change,
            };
            match change {
                Ok(change) if self.continuity.admits(&change, question) => self.apply(change),
                Ok(_) => {}
                Err(stopped) => break stopped,
            }
        };
    }

    fn continue_after(&mut self, change: ContinuityChange) {
        match change {
            ContinuityChange::TimelineEnded => self.forget(),
            ContinuityChange::Proven => self.apply(Change::Resumed { is_proven: true }),
            ContinuityChange::Unknown => self.reflector.restart(),
            ContinuityChange::ListDue => {}
        }
    }

    /// Drops everything held, as upstream has another history.
    fn forget(&mut self) {
        self.reflector.restart();
        self.scope.set_following(false);
        // Before the store, so that nobody takes an empty one for a state.
        self.phase.send_replace(ScopePhase::Failing);
        self.writer.reset();
        self.scope.publish_version();
        // Afterwards, so that no old version counts as one of the new timeline.
        self.continuity.begin_anew();
    }

    fn apply(&mut self, change: Change<SnapshotBuilder>) {
        let now = Instant::now();
        if matches!(change, Change::Ended) {
            self.timers.reopened_by = Some(now + WATCH_REOPEN);
            return;
        }
        self.timers.reopened_by = None;
        if matches!(change, Change::Interrupted) {
            self.interrupted();
            return;
        }
        self.scope.set_following(true);
        *self.scope.last_heard.lock() = now;
        match change {
            Change::Listed {
                format,
                version,
                objects,
                streams_initial_events,
                warnings,
                bookmark,
            } => {
                self.learn_bookmark(bookmark);
                let ready = ReadyScope {
                    format: Arc::clone(&format),
                    streams_initial_events,
                    warnings,
                };
                self.format = Some(format);
                let snapshot = objects.finish(version);
                let representation = self.scope.key.representation;
                tracing::info!(
                    resource = %self.scope.key.gvr,
                    encoding = ?representation.encoding,
                    metadata_only = representation.metadata_only,
                    %version,
                    objects = snapshot.len(),
                    bytes = snapshot.size(),
                    "listed"
                );
                self.count(&metrics::UPSTREAM_LISTS);
                self.scope.first_list.get_or_init(|| version);
                self.writer.replace(snapshot);
                self.continuity.listed();
                self.phase.send_replace(ScopePhase::Ready(Arc::new(ready)));
            }
            Change::Event(frame, scanned) => {
                self.events.increment(1);
                let Some(format) = &self.format else { return };
                let object = stored_object(format, &frame.object, scanned);
                if let Err(error) = self.writer.apply(now, frame, object) {
                    tracing::error!(
                        resource = %self.scope.key.gvr,
                        %error,
                        "upstream's events are inconsistent; listing again"
                    );
                    self.reflector.restart();
                    self.scope.set_following(false);
                }
            }
            Change::Progress { version, format } => {
                self.learn_bookmark(format);
                self.writer.progress(now, version);
            }
            Change::Resumed { .. } => self.count(&metrics::UPSTREAM_RESUMES),
            Change::Interrupted | Change::Ended | Change::OtherHistory { .. } => {}
        }
        self.scope.publish_version();
    }

    /// Records that upstream's watch broke. A scope that was never listed is failing then.
    fn interrupted(&self) {
        self.scope.set_following(false);
        self.phase.send_if_modified(|phase| {
            let is_first = matches!(phase, ScopePhase::Syncing);
            if is_first {
                *phase = ScopePhase::Failing;
            }
            is_first
        });
    }

    fn learn_bookmark(&self, format: Option<BookmarkFormat>) {
        if let Some(format) = format {
            let format = self.null_in_structs.complete(format);
            self.scope.bookmarks.store(Some(Arc::new(format)));
        }
    }

    fn count(&self, metric: &Metric<Counter, 2>) {
        metrics::of_type(metric, &self.scope.key.gvr).increment(1);
    }

    fn log_end(&self) {
        let key = &self.scope.key;
        if self.stopped == Stopped::Closed {
            tracing::debug!(
                resource = %key.gvr,
                representation = ?key.representation,
                "closed"
            );
        } else {
            tracing::info!(
                resource = %key.gvr,
                selection = %key.selection,
                representation = ?key.representation,
                reason = %self.stopped,
                "not cached; its requests are forwarded"
            );
        }
    }
}

impl Drop for ScopePump {
    /// However the task ends, even by a panic, nobody may wait for a scope that stands still.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stopped = Stopped::Failed;
        }
        self.log_end();
        let gvr = &self.scope.key.gvr;
        let labels = [
            gvr.group.clone().into(),
            gvr.resource.clone().into(),
            self.stopped.as_str().into(),
        ];
        metrics::STOPPED.with(labels).increment(1);
        self.scope.set_following(false);
        self.phase
            .send_replace(ScopePhase::Stopped(self.stopped.clone()));
        self.writer.close();
        // A scope that was closed is not among the open ones any more.
        if self.stopped == Stopped::Closed {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            let scope = Arc::downgrade(&self.scope);
            let open = self.open.clone();
            runtime.spawn(async move {
                sleep(REOPEN_AFTER).await;
                if let Some(scope) = scope.upgrade() {
                    open.forget(&scope);
                }
            });
        }
    }
}

/// Waits until a moment, or for ever if there is none.
async fn wait_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
