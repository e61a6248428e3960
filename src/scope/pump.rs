//! The task of a scope: it pumps what upstream sends into the store.
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{self, sleep, sleep_until};
use watershed_protocol::{BookmarkFormat, Frame, Scanned};

use super::cached::Scope;
use super::charges::ScopeCharges;
use super::checkpoint::Checkpoints;
use super::collect::stored_object;
use super::continuity::{Continuity, ContinuityChange};
use super::derived::{DerivationFailures, DerivedStep};
use super::feed::{FeedStep, ScopeFeed};
use super::finish::ask_upstream;
use super::metrics;
use super::open_scopes::OpenScopes;
use super::phase::{ReadyScope, ScopePhase};
use super::release::ReleaseLearner;
use super::restoring::Restoring;
use super::staleness::{StalenessChange, StalenessClock};
use super::streaming::StreamingLearner;
use super::unfit::UnfitScopes;
use crate::budget::DoesNotFit;
use crate::metric::{Counter, Metric};
use crate::store::{Discarded, InconsistentEvent, SnapshotBuilder, StoreWriter};
use crate::upstream::{Change, Probe, Release, ServedBy, Stopped};

/// Time after which a scope that was never ready is given up, and before which a representation
/// that upstream does not have is not asked for again. Requests are forwarded meanwhile.
pub(crate) const REOPEN_AFTER: Duration = Duration::from_secs(30);
/// After a schema change an API server builds the type's storage anew, within about a second. It
/// may have ended our watch before the change was seen here, so the scope is listed again after
/// this.
const STORAGE_REBUILD: Duration = Duration::from_secs(2);
/// Shortest pause between attempts of a scope that was never ready.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Time after which memory that was dropped has left the process.
const ROOM_AFTER: Duration = Duration::from_secs(12);
/// A watch that ended in good order is open again after milliseconds. A scope that waits longer
/// does not follow.
const WATCH_REOPEN: Duration = Duration::from_secs(2);

/// The task of one scope.
pub(super) struct ScopePump {
    pub(super) feed: ScopeFeed,
    pub(super) failures: Arc<DerivationFailures>,
    pub(super) continuity: Continuity,
    pub(super) writer: StoreWriter,
    pub(super) unfit: Arc<UnfitScopes>,
    pub(super) phase: watch::Sender<ScopePhase>,
    pub(super) events: Counter,
    pub(super) scope: Arc<Scope>,
    pub(super) open: OpenScopes,
    pub(super) null_in_structs: Arc<NullInStructs>,
    pub(super) timers: PumpTimers,
    /// Asks about versions that several deletions share, if the type has such.
    pub(super) probe: Option<Probe>,
    pub(super) streaming: StreamingLearner,
    pub(super) release: ReleaseLearner,
    /// An event that is known came again in other bytes. The followed server's release tells why.
    pub(super) is_rewritten: bool,
    /// The release of the followed server, once it has told it.
    pub(super) followed_release: Option<Release>,
    /// Tells others of a server of another release.
    pub(super) releases: Arc<watch::Sender<Option<ServedBy>>>,
    /// The properties of the type that the last list showed.
    pub(super) ready: Option<Arc<ReadyScope>>,
    /// The first refusal of a scope that was never ready.
    pub(super) refused_since: Option<Instant>,
    pub(super) staleness: StalenessClock,
    pub(super) checkpoints: Option<Checkpoints>,
    /// The proofs of a state from a checkpoint, until it is shown.
    pub(super) restoring: Option<Restoring>,
    /// The reason why the task ended. It is closed unless set: the runtime may drop the task.
    pub(super) stopped: Stopped,
    /// Dropped with the task.
    pub(super) _owner: Option<Arc<dyn Any + Send + Sync>>,
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
        self.restore().await;
        self.stopped = loop {
            if self.feed.derive_again() {
                // The source learns what there is to know.
                self.release.listed(None);
                self.streaming.cancel();
            }
            let question = self.feed.is_listing().then(|| self.scope.ask());
            if question.is_some() {
                // They are asked anew after the list, and hold what others wait for.
                self.release.cancel();
                self.streaming.cancel();
            }
            let step = tokio::select! {
                () = self.scope.stop.cancelled() => break Stopped::Closed,
                change = self.continuity.changed() => {
                    self.continue_after(change);
                    continue;
                }
                () = self.scope.schema_changed.notified() => {
                    if let Some(reflector) = self.feed.reflector() {
                        reflector.schema_changed();
                    }
                    self.timers.list_again = Some(Instant::now() + STORAGE_REBUILD);
                    continue;
                }
                () = self.scope.type_removed.notified() => {
                    if let Some(reflector) = self.feed.reflector() {
                        reflector.type_removed();
                    }
                    continue;
                }
                answer = self.streaming.learned(), if question.is_none() => {
                    self.initial_events_learned(&answer);
                    continue;
                }
                learned = self.release.learned() => {
                    self.release_learned(learned);
                    continue;
                }
                () = self.scope.found_different.notified() => {
                    self.quarantine();
                    continue;
                }
                () = wait_until(self.staleness.due()) => {
                    self.staleness_changed();
                    continue;
                }
                () = wait_until(self.timers.list_again) => {
                    tracing::info!(
                        resource = %self.scope.key.gvr,
                        "the type's schema changed; listing again"
                    );
                    self.timers.list_again = None;
                    self.relist();
                    continue;
                }
                () = wait_until(self.timers.reopened_by) => {
                    self.timers.reopened_by = None;
                    self.lost();
                    continue;
                }
                finished = ask_upstream(&self.scope.reader, self.probe.as_ref()) => {
                    self.writer.finish(finished);
                    self.scope.publish_version();
                    continue;
                }
                step = self.feed.next(), if self.continuity.is_certain() => step,
            };
            let change = match step {
                Ok(FeedStep::Upstream(change)) => Ok(change),
                Ok(FeedStep::Derived(step)) => match self.take_in(step) {
                    Some(change) => Ok(change),
                    None => continue,
                },
                Ok(FeedStep::FellBack) => {
                    self.lost();
                    continue;
                }
                Err(stopped) => Err(stopped),
            };
            match change {
                Ok(change) if self.continuity.admits(&change, question) => self.apply(change),
                Ok(_) if self.continuity.is_certain() => {}
                Ok(_) => {
                    let by = Instant::now() + WATCH_REOPEN;
                    self.timers.reopened_by.get_or_insert(by);
                }
                Err(stopped) if self.tries_again(&stopped) => {}
                Err(stopped) => break stopped,
            }
        };
    }

    /// Takes in a step of a derived scope. Returns its change, if it is one.
    fn take_in(&mut self, step: DerivedStep) -> Option<Change<SnapshotBuilder>> {
        match step {
            DerivedStep::Change(change) => return Some(change),
            DerivedStep::TooOld => self.too_old(),
            DerivedStep::Doubted => self.quarantine(),
            DerivedStep::Refollowed => self.refollowed(),
            DerivedStep::Checked { release, bookmark } => {
                self.learn_bookmark(Some(bookmark));
                self.follow_server();
                self.note_release(release);
                self.refollowed();
            }
        }
        None
    }

    /// Records that changes of the source arrive again, of which none was lost.
    fn refollowed(&mut self) {
        self.scope.set_following(true);
        let source = self.scope.derived_from.load();
        if source.as_ref().is_some_and(|source| source.age().is_none()) {
            // It was followed all the time, while its server's JSON was compared.
            self.heard();
        } else {
            self.staleness.reopened(time::Instant::now());
        }
    }

    /// Records that the source is older than allowed, which counts here as well.
    fn too_old(&mut self) {
        self.lost();
        if self.staleness.exceed() {
            self.exceeded();
        }
    }

    fn continue_after(&mut self, change: ContinuityChange) {
        match change {
            ContinuityChange::TimelineEnded => self.forget(),
            ContinuityChange::Proven => {
                self.apply(Change::Resumed { is_proven: true });
                self.restored(|proofs| proofs.is_followed = true);
            }
            ContinuityChange::Unknown => self.relist(),
            ContinuityChange::ListDue => {}
        }
    }

    /// Drops everything held, as upstream has another history.
    fn forget(&mut self) {
        self.relist();
        self.drop_held();
        // Afterwards, so that no old version counts as one of the new timeline.
        self.continuity.begin_anew();
    }

    pub(super) fn drop_held(&mut self) {
        // Before the store, so that nobody takes an empty one for a state.
        self.phase.send_replace(ScopePhase::Failing);
        let charges = self.scope.charges.lock().take();
        discard(self.writer.reset(), charges);
        self.scope.publish_version();
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
                load,
            } => {
                self.not_restored();
                self.learn_bookmark(bookmark);
                self.streaming.listed(streams_initial_events);
                self.refused_since = None;
                let ready = Arc::new(ReadyScope {
                    format,
                    streams_initial_events,
                    warnings,
                });
                self.ready = Some(Arc::clone(&ready));
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
                if !self.scope.is_derived() {
                    self.count(&metrics::UPSTREAM_LISTS);
                }
                self.scope.first_list.get_or_init(|| version);
                if streams_initial_events {
                    // Before what it printed, so that none of that is derived as another's.
                    self.name_server();
                }
                let charges = self.scope.charges.lock().take();
                let replaced = self.writer.replace(snapshot);
                // Counted twice for a moment, rather than not at all.
                self.scope.count_held();
                drop(load);
                self.unfit.loaded(&self.scope.key, Instant::now());
                discard(replaced, charges);
                self.scope.irreducible.clear();
                self.scope.unprintable.clear();
                self.is_rewritten = false;
                self.continuity.listed();
                self.phase.send_replace(ScopePhase::Ready(ready));
                *self.scope.printed_by.lock() = None;
                if let Some(reflector) = self.feed.reflector() {
                    self.release.listed(reflector.listed_by());
                }
                if streams_initial_events {
                    self.follow_server();
                }
                if let Some(release) = self.feed.compared_release().cloned() {
                    self.note_release(Some(release));
                }
                self.heard();
            }
            Change::Event(frame, scanned) => {
                self.apply_event(now, frame, scanned);
                self.restored(|proofs| proofs.is_followed = true);
            }
            Change::Progress { version, format } => {
                self.learn_bookmark(format);
                self.writer.progress(now, version);
                self.scope.bookmarked.send_replace(version);
                self.heard();
                self.restored(|proofs| proofs.is_followed = true);
            }
            Change::Resumed { .. } => {
                self.streaming.reconnected();
                // The event that comes again is printed by this server.
                self.is_rewritten = false;
                self.follow_server();
                self.count(&metrics::UPSTREAM_RESUMES);
                self.staleness.reopened(time::Instant::now());
            }
            Change::Interrupted | Change::Ended | Change::OtherHistory { .. } => {}
        }
        self.scope.count_held();
        self.scope.publish_version();
    }

    fn apply_event(&mut self, now: Instant, frame: Frame, scanned: Scanned) {
        if !self.scope.is_derived() {
            self.events.increment(1);
        }
        let Some(ready) = &self.ready else { return };
        let object = stored_object(&ready.format, &frame.object, scanned);
        // A known event does not show that news arrives.
        let is_news = object.version > self.scope.reader.event_version();
        match self.writer.apply(now, frame, object) {
            Ok(()) if is_news => self.heard(),
            Ok(()) => {}
            Err(InconsistentEvent::Rewritten { .. }) if self.release.is_learning() => {
                self.is_rewritten = true;
            }
            Err(error) => self.inconsistent(error),
        }
    }

    /// Lists the scope again, as an event does not fit to what is known.
    pub(super) fn inconsistent(&mut self, error: impl std::fmt::Display) {
        tracing::error!(
            resource = %self.scope.key.gvr,
            %error,
            "upstream's events are inconsistent; listing again"
        );
        self.relist();
    }

    /// Gives up the watch, and lists the scope again. Changes do not arrive until then: lists have
    /// pauses between them, and upstream may not answer.
    pub(super) fn relist(&mut self) {
        self.not_restored();
        self.feed.restart();
        self.lost();
    }

    /// Records that upstream's changes do not arrive any more.
    fn lost(&mut self) {
        self.scope.set_following(false);
        self.staleness.lost(time::Instant::now());
        self.scope.age.publish(self.staleness.lost_since());
    }

    /// Records that upstream has proven the state that is held. The watch may have broken since.
    pub(super) fn proven(&mut self) {
        self.heard();
        if !self.scope.is_following() {
            self.lost();
        }
    }

    /// Records that upstream sent a list, an event or a bookmark.
    fn heard(&mut self) {
        if self.staleness.heard() {
            self.recovered();
        }
    }

    /// Serves the scope again, if it was too old.
    fn recovered(&mut self) {
        self.scope.age.publish(None);
        let ScopePhase::Stale(ready) = self.scope.phase() else {
            return;
        };
        tracing::info!(resource = %self.scope.key.gvr, "followed again; served from memory");
        self.writer.resume();
        self.phase.send_replace(ScopePhase::Ready(ready));
    }

    fn staleness_changed(&mut self) {
        match self.staleness.tick(time::Instant::now()) {
            Some(StalenessChange::Recovered) => self.recovered(),
            Some(StalenessChange::Exceeded) => self.exceeded(),
            None => {}
        }
    }

    /// Serves the scope no longer, as it is too old, and ends its watches.
    fn exceeded(&mut self) {
        let key = &self.scope.key;
        match self.scope.phase() {
            ScopePhase::Ready(ready) => {
                tracing::warn!(
                    resource = %key.gvr,
                    selection = %key.selection,
                    "not followed for --max-staleness; requests are forwarded until it is"
                );
                // Before the watches end: their clients come back at once.
                self.phase.send_replace(ScopePhase::Stale(ready));
                self.writer.pause();
            }
            // Its watches may lack an event, so that they cannot go on elsewhere.
            ScopePhase::Quarantined => self.writer.expire(),
            _ => {}
        }
    }

    /// Serves the scope no longer, as its objects are not upstream's, and lists it again. The list
    /// expires its watches.
    fn quarantine(&mut self) {
        if let ScopePhase::Ready(_) | ScopePhase::Stale(_) = self.scope.phase() {
            self.phase.send_replace(ScopePhase::Quarantined);
            if self.scope.prints_differently.swap(false, Ordering::Relaxed) {
                self.feed.distrust();
            }
            self.relist();
        }
    }

    /// Records that upstream's watch broke. A scope that was never listed is failing then.
    fn interrupted(&mut self) {
        self.lost();
        self.phase.send_if_modified(|phase| {
            let is_first = matches!(phase, ScopePhase::Syncing);
            if is_first {
                *phase = ScopePhase::Failing;
            }
            is_first
        });
    }

    /// Prepares another attempt after a refusal, if the scope was never ready. Returns `false` if
    /// the refusal is final.
    ///
    /// One answer may be an accident: a load balancer's page, or an API server that does not know
    /// the roles yet. Requests are forwarded meanwhile, and the pauses grow as long as it lasts.
    fn tries_again(&mut self, stopped: &Stopped) -> bool {
        if self.restoring.is_some() && *stopped != Stopped::Closed {
            self.give_up_restored();
            return true;
        }
        if let Stopped::DoesNotFit(DoesNotFit { needed }) = stopped
            && self.makes_room(*needed)
        {
            return true;
        }
        // On-demand scopes that recover by themselves would not count against their limit.
        if self.ready.is_some() || self.scope.on_demand || !stopped.may_pass() {
            return false;
        }
        let lasts = if let Some(since) = self.refused_since {
            since.elapsed()
        } else {
            self.refused_since = Some(Instant::now());
            self.report_stop(stopped);
            Duration::ZERO
        };
        if lasts >= REOPEN_AFTER {
            return false;
        }
        self.phase
            .send_replace(ScopePhase::Stopped(stopped.clone()));
        let jitter = 0.75 + fastrand::f64() / 2.0;
        self.feed.pause(lasts.max(FIRST_RETRY).mul_f64(jitter));
        true
    }

    /// Drops what is held of a scope whose new list does not fit beside it, and lists it again once
    /// that memory is free. Returns `false` if nothing is held.
    fn makes_room(&mut self, needed: usize) -> bool {
        let held = self.scope.held();
        if held == 0 {
            return false;
        }
        tracing::info!(
            resource = %self.scope.key.gvr,
            held,
            needed,
            "dropped, as it does not fit into memory beside its new list"
        );
        self.drop_held();
        self.feed.pause(ROOM_AFTER);
        true
    }

    pub(super) fn learn_bookmark(&self, format: Option<BookmarkFormat>) {
        if let Some(format) = format {
            let format = self.null_in_structs.complete(format);
            self.scope.bookmarks.store(Some(Arc::new(format)));
        }
    }

    fn count(&self, metric: &Metric<Counter, 2>) {
        metrics::of_type(metric, &self.scope.key.gvr).increment(1);
    }

    /// Logs and counts that the scope cannot be cached.
    fn report_stop(&self, reason: &Stopped) {
        let key = &self.scope.key;
        if *reason == Stopped::Closed {
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
                %reason,
                "not cached; its requests are forwarded"
            );
        }
        let labels = [
            key.gvr.group.clone().into(),
            key.gvr.resource.clone().into(),
            reason.as_str().into(),
        ];
        metrics::STOPPED.with(labels).increment(1);
    }
}

impl Drop for ScopePump {
    /// However the task ends, even by a panic, nobody may wait for a scope that stands still.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stopped = Stopped::Failed;
        }
        let tried_again = self.refused_since.is_some();
        if !tried_again || self.stopped == Stopped::Closed {
            self.report_stop(&self.stopped);
        }
        self.scope.set_following(false);
        self.staleness.stopped();
        self.scope.age.publish(None);
        self.phase
            .send_replace(ScopePhase::Stopped(self.stopped.clone()));
        let is_too_large = matches!(self.stopped, Stopped::DoesNotFit(_));
        if is_too_large || self.scope.frees_memory.load(Ordering::Acquire) {
            let charges = self.scope.charges.lock().take();
            discard(self.writer.release(), charges);
        } else {
            self.writer.close();
        }
        if let Stopped::DoesNotFit(DoesNotFit { needed }) = self.stopped {
            // The next request finds it there, and opens no scope before it may fit.
            let key = self.scope.key.clone();
            self.unfit.add(key, needed, Instant::now());
            self.open.forget(&self.scope);
            return;
        }
        // A scope that was closed is not among the open ones any more.
        if self.stopped == Stopped::Closed {
            return;
        }
        // A scope that was refused for long enough makes room for one with pauses of its own.
        let was_retried = tried_again || self.ready.is_some();
        let remembered = if was_retried && self.stopped != Stopped::Failed {
            Duration::ZERO
        } else {
            REOPEN_AFTER
        };
        if let Ok(runtime) = Handle::try_current() {
            let scope = Arc::downgrade(&self.scope);
            let open = self.open.clone();
            runtime.spawn(async move {
                sleep(remembered).await;
                if let Some(scope) = scope.upgrade() {
                    open.forget(&scope);
                }
            });
        }
    }
}

/// Drops what was replaced on a thread of its own: a large type takes longer than others wait.
fn discard(replaced: Discarded, charges: ScopeCharges) {
    // Without a runtime nobody waits: the process ends.
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn_blocking(move || {
            drop(replaced);
            drop(charges);
        });
    }
}

/// Waits until a moment, or for ever if there is none.
async fn wait_until(moment: Option<impl Into<time::Instant>>) {
    match moment {
        Some(moment) => sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
