//! The task of a scope: it pumps what upstream sends into the store.
mod applying;
mod changed_schema;
mod collect;
mod continuity;
mod earlier_states;
mod feed;
mod feed_steps;
mod finish;
mod followed_server;
mod following;
mod history_check;
mod other_streams;
mod overdue;
mod properties;
mod rederivation;
mod release;
mod relisting;
mod reprint;
mod restore;
mod resumption;
mod served;
mod shared;
mod shown_phase;
mod staleness;
mod stopping;
mod streaming;
mod wait;

use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use watershed_protocol::{BookmarkFormat, ReadDefaults};

use super::cached::{DifferingPart, Scope, ScopeSignal};
use super::config::ScopeShare;
use super::key::ScopeKey;
use super::metrics;
use super::timeline::Question;
use crate::budget::MemoryBudget;
use crate::metric::{Counter, Metric};
use crate::store::{FrameOrigin, StoreWriter, UnfinishedVersion};
use crate::upstream::{InitialEventsProbe, Probe, ReflectorTarget, Stopped, UpstreamClient};
use changed_schema::ChangedSchema;
use continuity::{Continuity, ContinuityChange};
use feed::FeedStep;
use finish::ask_upstream;
use followed_server::{FollowedServer, ServerAnswer};
use other_streams::OtherStreams;
use overdue::OverdueEvents;
use properties::TypeProperties;
use release::{ReleaseContext, ReleaseLearner};
use served::{DeliveryChange, ServedState};
use staleness::StalenessClock;
use streaming::StreamingLearner;
use wait::wait_until;

pub(super) use feed::ScopeFeed;
pub(super) use shared::SharedByPumps;
pub(super) use shown_phase::ShownPhase;
pub(crate) use stopping::REOPEN_AFTER;

/// Makes the frame of an event again.
type EventOrigin = Box<dyn FrameOrigin>;

/// The parts that the task of a scope is made of.
pub(super) struct PumpParts {
    pub(super) client: UpstreamClient,
    pub(super) target: ReflectorTarget,
    pub(super) scope: Arc<Scope>,
    pub(super) feed: ScopeFeed,
    pub(super) writer: StoreWriter,
    pub(super) phase: ShownPhase,
    /// Answers that are compared with what is held are charged to it.
    pub(super) budget: MemoryBudget,
    pub(super) max_staleness: Duration,
    /// The patience with events that upstream is known to have.
    pub(super) overdue: Duration,
    /// Dropped with the task.
    pub(super) share: Option<ScopeShare>,
}

/// The task of one scope.
pub(super) struct ScopePump {
    shared: SharedByPumps,
    feed: ScopeFeed,
    continuity: Continuity,
    served: ServedState,
    events: Counter,
    scope: Arc<Scope>,
    schema: ChangedSchema,
    /// The changes that upstream makes to objects that are read, and not to those of events.
    read_defaults: ReadDefaults,
    /// Asks about versions that several deletions share, if the type has such.
    probe: Option<Probe>,
    server: FollowedServer,
    properties: TypeProperties,
    /// The first refusal of a scope that was never ready.
    refused_since: Option<Instant>,
    /// The reason why the task ended. It is closed unless set: the runtime may drop the task.
    stopped: Stopped,
    _share: Option<ScopeShare>,
}

/// The request for a list, which is the next change.
struct ListRequest {
    question: Question,
    /// The time before it.
    asked: Instant,
}

/// An occasion on which the task has something to do.
enum PumpEvent {
    Signal(ScopeSignal),
    Continuity(ContinuityChange),
    Server(ServerAnswer),
    /// A comparison found objects that are not upstream's.
    FoundDifferent(DifferingPart),
    Delivery(DeliveryChange),
    /// The scope is to be listed, as its schema has changed.
    SchemaListDue,
    /// Upstream has told how many objects it has at a version that several deletions share.
    Finished(UnfinishedVersion),
    Feed(Result<FeedStep, Stopped>),
}

impl ScopePump {
    /// Prepares the task of a scope that has nothing yet.
    pub(super) fn new(parts: PumpParts, shared: SharedByPumps) -> Self {
        let PumpParts {
            client,
            target,
            scope,
            feed,
            mut writer,
            phase,
            budget,
            max_staleness,
            overdue,
            share,
        } = parts;
        let ScopeKey { gvr, selection, .. } = &scope.key;
        let probe = gvr.is_event().then(|| {
            writer.expect_shared_deletions();
            Probe::new(client.clone(), gvr, selection, target.fields.namespaced())
        });
        let streaming = StreamingLearner::new(InitialEventsProbe::new(client.clone(), &target));
        Self {
            continuity: Continuity::new(client.clone(), &scope),
            read_defaults: ReadDefaults::of(gvr),
            events: metrics::of_type(&metrics::UPSTREAM_EVENTS, gvr),
            server: FollowedServer::new(
                ReleaseLearner::new(ReleaseContext {
                    client,
                    target,
                    reader: scope.reader.clone(),
                    learners: Arc::clone(&shared.learners),
                    budget,
                    print: Arc::clone(&scope.print),
                }),
                streaming,
            ),
            served: ServedState::new(
                Arc::clone(&scope),
                writer,
                phase,
                StalenessClock::new(max_staleness),
                OverdueEvents::new(
                    scope.upstream.subscribe_lacking(),
                    scope.reader.clone(),
                    overdue,
                ),
                OtherStreams::new(&shared.streams),
            ),
            shared,
            feed,
            scope,
            probe,
            schema: ChangedSchema::default(),
            properties: TypeProperties::Unknown,
            refused_since: None,
            stopped: Stopped::Closed,
            _share: share,
        }
    }

    /// Follows upstream until the scope is closed or refused.
    pub(super) async fn run(mut self) {
        self.restore().await;
        self.stopped = loop {
            let request = self.begin_turn();
            let is_listing = request.is_some();
            // Not a function of its own: its future would be copied, and is large.
            let event = {
                let mut step = pin!(self.feed.next());
                tokio::select! {
                    signal = self.scope.signals.next() => PumpEvent::Signal(signal),
                    change = self.continuity.changed() => PumpEvent::Continuity(change),
                    answer = self.server.answer(), if !is_listing => PumpEvent::Server(answer),
                    part = self.scope.differences.reported() => PumpEvent::FoundDifferent(part),
                    // Time passes in it, and the request that is under way goes on.
                    change = self.served.delivery_changed(is_listing) => {
                        PumpEvent::Delivery(change)
                    }
                    () = wait_until(self.schema.list_due()) => PumpEvent::SchemaListDue,
                    finished = ask_upstream(&self.scope.reader, self.probe.as_ref()) => {
                        PumpEvent::Finished(finished)
                    }
                    step = &mut step, if self.continuity.is_certain() => PumpEvent::Feed(step),
                }
            };
            if let ControlFlow::Break(stopped) = self.handle(event, request).await {
                break stopped;
            }
        };
    }

    /// Prepares for the next event. Returns the request for a list, if that is the next change.
    fn begin_turn(&mut self) -> Option<ListRequest> {
        if self.feed.derive_again() {
            // The source learns what there is to know.
            self.server.release.record_list(None);
            self.server.streaming.cancel();
        }
        self.served.begin_turn();
        if !self.feed.is_listing() {
            return None;
        }
        let question = self.scope.ask();
        if question.knows_a_version()
            && let Some(reflector) = self.feed.reflector()
        {
            // An older state would look as if upstream's versions had gone back.
            reflector.begin_with_most_recent();
        }
        // They are asked anew after the list, and hold what others wait for.
        self.server.cancel();
        let asked = Instant::now();
        Some(ListRequest { question, asked })
    }

    /// Does what an event asks for. Breaks when the task has to end.
    async fn handle(
        &mut self,
        event: PumpEvent,
        request: Option<ListRequest>,
    ) -> ControlFlow<Stopped> {
        match event {
            PumpEvent::Signal(ScopeSignal::Stop) => return ControlFlow::Break(Stopped::Closed),
            PumpEvent::Signal(ScopeSignal::SchemaChanged) => self.handle_schema_change(),
            PumpEvent::Signal(ScopeSignal::TypeRemoved) => self.handle_type_removal(),
            PumpEvent::Continuity(change) => self.handle_continuity(change),
            PumpEvent::Server(ServerAnswer::InitialEvents(answer)) => {
                self.handle_initial_events(&answer);
            }
            PumpEvent::Server(ServerAnswer::Release(learned)) => self.handle_release(learned).await,
            PumpEvent::FoundDifferent(part) => self.quarantine(part),
            PumpEvent::Delivery(change) => self.handle_delivery(change),
            PumpEvent::SchemaListDue => self.list_changed_schema(),
            PumpEvent::Finished(finished) => self.finish_version(finished),
            PumpEvent::Feed(Ok(step)) => self.handle_feed_step(step, request).await,
            PumpEvent::Feed(Err(stopped)) if self.tries_again(&stopped) => {}
            PumpEvent::Feed(Err(stopped)) => return ControlFlow::Break(stopped),
        }
        ControlFlow::Continue(())
    }

    fn handle_type_removal(&mut self) {
        if let Some(reflector) = self.feed.reflector() {
            reflector.type_removed();
        }
    }

    fn finish_version(&mut self, finished: UnfinishedVersion) {
        self.served.writer.finish(finished);
        self.scope.publish_version();
    }

    pub(super) fn learn_bookmark(&self, format: Option<BookmarkFormat>) {
        if let Some(format) = format {
            let format = self.shared.null_in_structs.complete(format);
            self.scope.forms.bookmarks.store(Some(Arc::new(format)));
        }
    }

    pub(super) fn count(&self, metric: &Metric<Counter, 2>) {
        metrics::of_type(metric, &self.scope.key.gvr).increment(1);
    }
}
