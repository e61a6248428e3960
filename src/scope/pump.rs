//! The task of a scope: it pumps what upstream sends into the store.
use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{self, sleep_until};
use watershed_protocol::{BookmarkFormat, Frame, ReadDefaults, ResourceVersion, Scanned};

use super::cached::Scope;
use super::charges::discard;
use super::collect::stored_object;
use super::continuity::{Continuity, ContinuityChange};
use super::derived::{DerivationFailures, DerivedStep};
use super::earlier_states::EarlierStates;
use super::feed::{FeedStep, ScopeFeed};
use super::finish::ask_upstream;
use super::found_differences::DifferingPart;
use super::metrics;
use super::open_scopes::OpenScopes;
use super::overdue::OverdueEvents;
use super::phase::{ReadyScope, ScopePhase};
use super::release::{LearnedRelease, ReleaseLearner};
use super::restoring::Restoring;
use super::signals::ScopeSignal;
use super::staleness::StalenessClock;
use super::streaming::StreamingLearner;
use super::timeline::Question;
use super::unfit::UnfitScopes;
use crate::budget::MemoryLoad;
use crate::metric::{Counter, Metric};
use crate::store::{
    FrameOrigin, InconsistentEvent, Snapshot, SnapshotBuilder, StoreWriter, UnfinishedVersion,
};
use crate::upstream::{
    AnswerCompression, Change, InitialEventsAnswer, ListedState, Probe, Release, ServedBy, Stopped,
};

/// After a schema change an API server builds the type's storage anew, within about a second. It
/// may have ended our watch before the change was seen here, so the scope is listed again after
/// this.
const STORAGE_REBUILD: Duration = Duration::from_secs(2);
/// A watch that ended in good order is open again after milliseconds. A scope that waits longer
/// does not follow.
const WATCH_REOPEN: Duration = Duration::from_secs(2);

/// Makes the frame of an event again.
type EventOrigin = Box<dyn FrameOrigin>;
/// A change, and what makes its event's frame again.
type ChangeWithOrigin = (Change<SnapshotBuilder>, Option<EventOrigin>);

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
    /// The changes that upstream makes to objects that are read, and not to those of events.
    pub(super) read_defaults: ReadDefaults,
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
    /// The time before the request for the list that is under way.
    pub(super) list_asked: Option<Instant>,
    /// The properties of the type that the last list showed.
    pub(super) ready: Option<Arc<ReadyScope>>,
    /// The first refusal of a scope that was never ready.
    pub(super) refused_since: Option<Instant>,
    pub(super) staleness: StalenessClock,
    pub(super) overdue: OverdueEvents,
    pub(super) earlier: EarlierStates,
    /// The proofs of an earlier state, until it is shown.
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
    pub(super) reopened_by: Option<Instant>,
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

/// An occasion on which the task has something to do.
enum PumpEvent {
    Signal(ScopeSignal),
    Continuity(ContinuityChange),
    InitialEvents(InitialEventsAnswer),
    Release(LearnedRelease),
    /// A comparison found objects that are not upstream's.
    FoundDifferent(DifferingPart),
    StalenessDue,
    /// Upstream has shown this version, and its watch did not bring it in time.
    Overdue(ResourceVersion),
    ListDue,
    /// The watch that ended is not open again.
    NotReopened,
    /// Upstream has told how many objects it has at a version that several deletions share.
    Finished(UnfinishedVersion),
    Feed(Result<FeedStep, Stopped>),
}

impl ScopePump {
    pub(super) async fn run(mut self) {
        self.restore().await;
        self.stopped = loop {
            let question = self.begin_turn();
            // Not a function of its own: its future would be copied, and is large.
            let event = tokio::select! {
                signal = self.scope.signals.next() => PumpEvent::Signal(signal),
                change = self.continuity.changed() => PumpEvent::Continuity(change),
                answer = self.streaming.learned(), if question.is_none() => {
                    PumpEvent::InitialEvents(answer)
                }
                learned = self.release.learned() => PumpEvent::Release(learned),
                part = self.scope.differences.reported() => PumpEvent::FoundDifferent(part),
                () = wait_until(self.staleness.due()) => PumpEvent::StalenessDue,
                version = self.overdue.overdue() => PumpEvent::Overdue(version),
                () = wait_until(self.timers.list_again) => PumpEvent::ListDue,
                () = wait_until(self.timers.reopened_by) => PumpEvent::NotReopened,
                finished = ask_upstream(&self.scope.reader, self.probe.as_ref()) => {
                    PumpEvent::Finished(finished)
                }
                step = self.feed.next(), if self.continuity.is_certain() => PumpEvent::Feed(step),
            };
            if let ControlFlow::Break(stopped) = self.react(event, question).await {
                break stopped;
            }
        };
    }

    /// Prepares for the next event. Returns the question that a list answers, if one is due.
    fn begin_turn(&mut self) -> Option<Question> {
        if self.feed.derive_again() {
            // The source learns what there is to know.
            self.release.record_list(None);
            self.streaming.cancel();
        }
        let question = self.feed.is_listing().then(|| self.scope.ask());
        if question.as_ref().is_some_and(Question::knows_a_version)
            && let Some(reflector) = self.feed.reflector()
        {
            // An older state would look as if upstream's versions had gone back.
            reflector.begin_with_most_recent();
        }
        self.list_asked = question.is_some().then(Instant::now);
        if question.is_some() {
            // They are asked anew after the list, and hold what others wait for.
            self.release.cancel();
            self.streaming.cancel();
        }
        question
    }

    /// Does what an event asks for. Breaks when the task has to end.
    async fn react(
        &mut self,
        event: PumpEvent,
        question: Option<Question>,
    ) -> ControlFlow<Stopped> {
        match event {
            PumpEvent::Signal(ScopeSignal::Stop) => return ControlFlow::Break(Stopped::Closed),
            PumpEvent::Signal(ScopeSignal::SchemaChanged) => self.schema_changed(),
            PumpEvent::Signal(ScopeSignal::TypeRemoved) => {
                if let Some(reflector) = self.feed.reflector() {
                    reflector.type_removed();
                }
            }
            PumpEvent::Continuity(change) => self.continue_after(change),
            PumpEvent::InitialEvents(answer) => self.apply_initial_events(&answer),
            PumpEvent::Release(learned) => self.apply_release(learned).await,
            PumpEvent::FoundDifferent(part) => self.quarantine(part),
            PumpEvent::StalenessDue => self.update_staleness(),
            PumpEvent::Overdue(version) => self.reopen(version),
            PumpEvent::ListDue => {
                tracing::info!(
                    resource = %self.scope.key.gvr,
                    "the type's schema changed; listing again"
                );
                self.timers.list_again = None;
                self.feed.list_changed_schema();
                self.expect_list();
            }
            PumpEvent::NotReopened => {
                self.timers.reopened_by = None;
                self.mark_lost();
            }
            PumpEvent::Finished(finished) => {
                self.writer.finish(finished);
                self.scope.publish_version();
            }
            PumpEvent::Feed(Ok(step)) => {
                if let Some((change, origin)) = self.take_step(step).await {
                    self.take_change(change, origin, question);
                }
            }
            PumpEvent::Feed(Err(stopped)) if self.tries_again(&stopped) => {}
            PumpEvent::Feed(Err(stopped)) => return ControlFlow::Break(stopped),
        }
        ControlFlow::Continue(())
    }

    /// Takes in a step of the feed. Returns its change, if it is one, and what makes the frame of an
    /// event again.
    async fn take_step(&mut self, step: FeedStep) -> Option<ChangeWithOrigin> {
        match step {
            FeedStep::Upstream(change) => return Some((change, None)),
            FeedStep::Derived(step) => return self.take_in(step).await,
            FeedStep::MayRejoin => self.rejoin().await,
            FeedStep::FellBack { is_resumable } => {
                // Before its source is forgotten: readers see it as quarantined all the time.
                if self.scope.source_is_quarantined() {
                    self.quarantine(DifferingPart::Objects);
                } else if is_resumable {
                    self.resume_held();
                }
                self.feed.forget_source();
                self.mark_lost();
                // The list and watch of its own may have a state of their own, too.
                if self.ready.is_none() {
                    self.restore().await;
                }
            }
        }
        None
    }

    /// Applies a change that belongs to what is held. While that is being found out, the feed is not
    /// read, and the scope does not follow for long.
    fn take_change(
        &mut self,
        change: Change<SnapshotBuilder>,
        origin: Option<EventOrigin>,
        question: Option<Question>,
    ) {
        if self.continuity.admits(&change, question) {
            self.apply(change, origin);
        } else if !self.continuity.is_certain() {
            let by = Instant::now() + WATCH_REOPEN;
            self.timers.reopened_by.get_or_insert(by);
        }
    }

    /// Takes in a step of a derived scope. Returns its change, if it is one, and what makes the
    /// frame of an event again.
    pub(super) async fn take_in(&mut self, step: DerivedStep) -> Option<ChangeWithOrigin> {
        match step {
            DerivedStep::Change(change) => return Some((change, None)),
            DerivedStep::Event(event) => {
                let change = Change::Event(event.frame, event.scanned);
                return Some((change, Some(event.origin)));
            }
            DerivedStep::TooOld => self.mark_too_old(),
            DerivedStep::Doubted => self.quarantine(DifferingPart::Objects),
            DerivedStep::Refollowed => self.mark_followed(),
            DerivedStep::Checked {
                release,
                bookmark,
                reprinted,
            } => {
                if !self.apply_reprint(reprinted).await {
                    self.relist();
                    return None;
                }
                self.learn_bookmark(Some(bookmark));
                self.follow_server();
                self.note_release(release);
                self.mark_followed();
            }
        }
        None
    }

    fn continue_after(&mut self, change: ContinuityChange) {
        match change {
            ContinuityChange::TimelineEnded => self.forget(),
            ContinuityChange::Proven => {
                self.apply(Change::Resumed { is_proven: true }, None);
                self.record_proof(|proofs| proofs.is_followed = true);
            }
            ContinuityChange::Unknown if self.restoring.is_some() => self.give_up_restored(),
            ContinuityChange::Unknown => self.relist(),
            ContinuityChange::ListDue => {}
        }
    }

    /// Stops serving the scope: upstream may now return the same versions in other bytes. The scope is
    /// listed again once upstream has taken the schema into use. Its watches go on until then, as
    /// upstream's do.
    fn schema_changed(&mut self) {
        if let Some(reflector) = self.feed.reflector() {
            reflector.schema_changed();
        }
        self.timers.list_again = Some(Instant::now() + STORAGE_REBUILD);
        self.phase.send_if_modified(|phase| {
            let is_held = matches!(phase, ScopePhase::Ready(_) | ScopePhase::Stale(_));
            if is_held {
                *phase = ScopePhase::SchemaChanged;
            }
            is_held
        });
    }

    /// Drops everything held, as upstream has another history.
    fn forget(&mut self) {
        self.relist();
        self.scope.history.expect_new_timeline();
        self.drop_held();
        // Afterwards, so that no old version counts as one of the new timeline.
        self.continuity.begin_anew();
    }

    pub(super) fn drop_held(&mut self) {
        // Before the store, so that nobody takes an empty one for a state.
        self.phase.send_replace(ScopePhase::Failing);
        let charges = self.scope.memory.charges.lock().take();
        let replaced = self.writer.reset();
        // Others may have counted what was held after its charges were taken.
        self.scope.count_held();
        discard(replaced, charges);
        self.scope.publish_version();
    }

    /// Applies a change. `origin` makes the frame of an event again.
    fn apply(&mut self, change: Change<SnapshotBuilder>, origin: Option<EventOrigin>) {
        let now = Instant::now();
        match change {
            Change::Ended => {
                self.timers.reopened_by = Some(now + WATCH_REOPEN);
                return;
            }
            Change::Interrupted => {
                self.timers.reopened_by = None;
                self.mark_interrupted();
                return;
            }
            _ => self.timers.reopened_by = None,
        }
        self.scope.upstream.set_following(true);
        self.scope.upstream.mark_heard(now);
        match change {
            Change::Listed(listed) => self.apply_list(*listed),
            Change::Event(frame, scanned) => {
                self.apply_event(now, frame, scanned, origin);
                self.record_proof(|proofs| proofs.is_followed = true);
            }
            Change::Progress { version, format } => {
                self.learn_bookmark(format);
                self.writer.progress(now, version);
                self.scope.upstream.record_bookmark(version);
                self.mark_heard();
                self.record_proof(|proofs| proofs.is_followed = true);
            }
            Change::Resumed { .. } => {
                self.streaming.record_reconnection();
                // The event that comes again is printed by this server.
                self.is_rewritten = false;
                self.follow_server();
                self.count(&metrics::UPSTREAM_RESUMES);
                self.staleness.mark_reopened(time::Instant::now());
            }
            Change::Interrupted | Change::Ended | Change::OtherHistory { .. } => {}
        }
        self.scope.count_held();
        self.scope.publish_version();
    }

    /// Applies a list: what it shows of upstream, and its objects.
    fn apply_list(&mut self, listed: ListedState<SnapshotBuilder>) {
        self.abandon_restored();
        self.learn_bookmark(listed.bookmark);
        self.streaming.record_list(listed.streams_initial_events);
        let is_compressed = listed.compression == AnswerCompression::Gzip;
        self.scope.upstream.set_compressed(is_compressed);
        // Before the watches that wait for the list: they would ask upstream for it.
        if listed.compression != AnswerCompression::NotAsked {
            self.scope.forms.compression.learned(is_compressed);
        }
        let ready = ReadyScope {
            format: listed.format,
            streams_initial_events: listed.streams_initial_events,
            warnings: listed.warnings,
        };
        self.take_list(ready, listed.objects.finish(listed.version), listed.load);
    }

    /// Puts a new list in place of what was held.
    fn take_list(&mut self, ready: ReadyScope, snapshot: Snapshot, load: MemoryLoad) {
        let streams_initial_events = ready.streams_initial_events;
        let ready = Arc::new(ready);
        self.refused_since = None;
        self.ready = Some(Arc::clone(&ready));
        let version = snapshot.version();
        let representation = self.scope.key.representation;
        tracing::info!(
            resource = %self.scope.key.gvr,
            encoding = representation.encoding.as_str(),
            metadata_only = representation.metadata_only,
            %version,
            objects = snapshot.len(),
            bytes = snapshot.size(),
            "listed"
        );
        if !self.scope.is_derived() {
            self.count(&metrics::UPSTREAM_LISTS);
            let again = self.scope.history.beginning().is_some();
            metrics::of_type(&metrics::RELISTS, &self.scope.key.gvr).increment(again.into());
        }
        self.scope.history.record_list(version);
        if streams_initial_events {
            // Before what it printed, so that none of that is derived as another's.
            self.name_server();
        }
        let charges = self.scope.memory.charges.lock().take();
        let replaced = self.writer.replace(snapshot);
        if let Some(asked) = self.list_asked
            && self.feed.lists_most_recent()
        {
            self.scope.history.record_consistent_list(asked, version);
        }
        // Counted twice for a moment, rather than not at all.
        self.scope.count_held();
        drop(load);
        self.unfit.loaded(&self.scope.key, Instant::now());
        discard(replaced, charges);
        self.scope.forms.forget_objects();
        self.is_rewritten = false;
        self.continuity.record_list();
        if let Some(quarantines) = self.feed.source_quarantines() {
            self.scope.source.record_quarantines(quarantines);
        }
        self.phase
            .send_replace(if self.timers.list_again.is_some() {
                ScopePhase::SchemaChanged
            } else {
                ScopePhase::Ready(ready)
            });
        self.scope.print.set_release(None);
        if let Some(reflector) = self.feed.reflector() {
            self.release.record_list(reflector.listed_by());
        }
        if streams_initial_events {
            self.follow_server();
        }
        if let Some(release) = self.feed.compared_release().cloned() {
            self.note_release(Some(release));
        }
        self.mark_heard();
    }

    fn apply_event(
        &mut self,
        now: Instant,
        frame: Frame,
        scanned: Scanned,
        origin: Option<EventOrigin>,
    ) {
        if !self.scope.is_derived() {
            self.events.increment(1);
        }
        let Some(ready) = &self.ready else { return };
        let encoding = self.scope.key.representation.encoding;
        let read = self.read_defaults.applied(encoding, &frame.object);
        let read = read.map(|read| stored_object(&ready.format, &read, scanned.clone()));
        let object = stored_object(&ready.format, &frame.object, scanned);
        // A known event does not show that news arrives.
        let is_news = object.version > self.scope.reader.event_version();
        match self.writer.apply_from(now, frame, object, read, origin) {
            Ok(()) if is_news => self.mark_heard(),
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
        self.feed.restart();
        self.expect_list();
    }

    /// Notes that the feed's next change is a list.
    fn expect_list(&mut self) {
        self.abandon_restored();
        self.mark_lost();
    }

    pub(super) fn learn_bookmark(&self, format: Option<BookmarkFormat>) {
        if let Some(format) = format {
            let format = self.null_in_structs.complete(format);
            self.scope.forms.bookmarks.store(Some(Arc::new(format)));
        }
    }

    pub(super) fn count(&self, metric: &Metric<Counter, 2>) {
        metrics::of_type(metric, &self.scope.key.gvr).increment(1);
    }
}

/// Waits until a moment, or forever if there is none.
async fn wait_until(moment: Option<impl Into<time::Instant>>) {
    match moment {
        Some(moment) => sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
