//! Handles the steps of the feed: changes, and news of the source of a derived scope.
use super::feed::FeedStep;
use super::{EventOrigin, ListRequest, ScopePump};
use crate::scope::cached::DifferingPart;
use crate::scope::derived::{CheckedServer, DerivedStep};
use crate::store::SnapshotBuilder;
use crate::upstream::Change;

impl ScopePump {
    /// Handles a step of the feed. A list answers `request`.
    pub(super) async fn handle_feed_step(&mut self, step: FeedStep, request: Option<ListRequest>) {
        match step {
            FeedStep::Upstream(change) => self.apply_if_admitted(change, None, request),
            FeedStep::Derived(step) => self.handle_derived_step(step).await,
            FeedStep::MayRejoin => self.rejoin().await,
            FeedStep::FellBack { is_resumable } => self.handle_fallback(is_resumable).await,
        }
    }

    /// Handles a step of a scope that is derived. Upstream is asked for no list then.
    async fn handle_derived_step(&mut self, step: DerivedStep) {
        match step {
            DerivedStep::Change(change) => self.apply_if_admitted(change, None, None),
            DerivedStep::Event(event) => {
                let change = Change::Event(event.frame, event.scanned);
                self.apply_if_admitted(change, Some(event.origin), None);
            }
            DerivedStep::TooOld => self.served.mark_too_old(),
            DerivedStep::Doubted => self.quarantine(DifferingPart::Objects),
            DerivedStep::Refollowed => self.served.mark_followed(),
            DerivedStep::Checked(server) => self.adopt_server(server).await,
        }
    }

    /// Goes on at another server, which prints objects as they are held from now on.
    pub(super) async fn adopt_server(&mut self, server: CheckedServer) {
        if !self.apply_reprint(server.reprinted).await {
            self.relist();
            return;
        }
        self.learn_bookmark(Some(server.bookmark));
        self.follow_server();
        self.note_release(server.release);
        self.served.mark_followed();
    }

    /// Goes on with upstream's own list and watch in place of the source.
    async fn handle_fallback(&mut self, is_resumable: bool) {
        // Before its source is forgotten: readers see it as quarantined all the time.
        if self.scope.source_is_quarantined() {
            self.quarantine(DifferingPart::Objects);
        } else if is_resumable {
            self.resume_held();
        }
        self.feed.forget_source();
        self.served.mark_lost();
        // The list and watch of its own may have a state of their own, too.
        if self.properties.is_unknown() {
            self.restore().await;
        }
    }

    /// Applies a change, if it belongs to what is held. While that is being found out, the feed is
    /// not read, and the scope does not follow for long. `origin` makes the frame of an event again.
    fn apply_if_admitted(
        &mut self,
        change: Change<SnapshotBuilder>,
        origin: Option<EventOrigin>,
        request: Option<ListRequest>,
    ) {
        let is_repeat = matches!(change, Change::Event(..)) && self.continuity.awaits_repeat();
        let (question, list_asked) = request
            .map(|request| (request.question, request.asked))
            .unzip();
        if self.continuity.admits(&change, question) {
            if is_repeat {
                self.resumption_is_proven();
            }
            self.apply(change, origin, list_asked);
        } else if !self.continuity.is_certain() {
            self.served.mark_ended();
        }
    }
}
