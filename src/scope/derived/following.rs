//! The position of a derived scope in its source's changes.
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::watch;
use watershed_protocol::ResourceVersion;

use crate::scope::cached::Scope;
use crate::scope::handle::ScopeHandle;
use crate::scope::phase::ScopePhase;
use crate::store::{Subscription, SubscriptionStep, WindowEvent};
use crate::upstream::ServedBy;

/// Events that are taken at a time, and their bytes.
const BATCH: (usize, usize) = (64, 1 << 20);

/// Follows the events of a scope, and what becomes of it.
pub(super) struct Following {
    source: ScopeHandle,
    subscription: Subscription,
    /// Events that were taken, and not passed on yet.
    pending: VecDeque<Arc<WindowEvent>>,
    /// Everything up to here was taken.
    version: ResourceVersion,
    phase: watch::Receiver<ScopePhase>,
    is_followed: watch::Receiver<bool>,
    server: watch::Receiver<Option<ServedBy>>,
    bookmarked: watch::Receiver<ResourceVersion>,
    /// The caller was told this.
    told_followed: bool,
}

/// The next thing that happens to the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FollowedChange {
    /// There is an event: [`Following::event`].
    Event,
    /// All events up to this version were taken.
    Progress(ResourceVersion),
    /// It follows upstream, or does not.
    Followed(bool),
    /// It is followed at another server.
    Server,
    /// Its history is lost: its state has to be read again.
    Expired,
    /// Its objects are not upstream's.
    Quarantined,
    /// It was closed.
    Closed,
}

impl Following {
    /// Begins behind a state of this version.
    pub(super) fn new(
        source: ScopeHandle,
        subscription: Subscription,
        version: ResourceVersion,
    ) -> Self {
        Self {
            phase: source.phase.clone(),
            is_followed: source.following(),
            server: source.server.subscribe(),
            bookmarked: source.bookmarked.subscribe(),
            source,
            subscription,
            pending: VecDeque::new(),
            version,
            told_followed: true,
        }
    }

    pub(super) fn source(&self) -> &Arc<Scope> {
        &self.source
    }

    pub(super) fn into_source(self) -> ScopeHandle {
        self.source
    }

    /// Returns the next event.
    pub(super) fn event(&self) -> Option<&WindowEvent> {
        self.pending.front().map(|event| &**event)
    }

    /// Takes the next event off.
    pub(super) fn pass(&mut self) {
        if let Some(event) = self.pending.pop_front() {
            self.version = self.version.max(event.version);
        }
    }

    /// Waits for the next change. Cancelling a call loses nothing.
    pub(super) async fn next(&mut self) -> FollowedChange {
        loop {
            if let Some(change) = self.known() {
                return change;
            }
            let (subscription, version) = (&mut self.subscription, self.version);
            let step = tokio::select! {
                biased;
                step = poll_fn(|context| poll(subscription, version, context)) => step,
                // A sender lives as long as the source, which the handle keeps.
                _ = self.phase.changed() => continue,
                _ = self.is_followed.changed() => continue,
                _ = self.bookmarked.changed() => continue,
                _ = self.server.changed() => return FollowedChange::Server,
            };
            match step {
                TakenStep::Events(events) => self.pending.extend(events),
                TakenStep::Progress(version) => {
                    self.version = version;
                    return FollowedChange::Progress(version);
                }
                TakenStep::Expired => return FollowedChange::Expired,
                TakenStep::Closed => return FollowedChange::Closed,
            }
        }
    }

    /// Returns what is known already.
    fn known(&mut self) -> Option<FollowedChange> {
        match &*self.phase.borrow() {
            ScopePhase::Quarantined => return Some(FollowedChange::Quarantined),
            ScopePhase::Stopped(_) => return Some(FollowedChange::Closed),
            _ => {}
        }
        if !self.pending.is_empty() {
            return Some(FollowedChange::Event);
        }
        let is_followed = *self.is_followed.borrow();
        let before = std::mem::replace(&mut self.told_followed, is_followed);
        (before != is_followed).then_some(FollowedChange::Followed(is_followed))
    }
}

/// A step of the subscription that says something.
enum TakenStep {
    Events(Vec<Arc<WindowEvent>>),
    Progress(ResourceVersion),
    Expired,
    Closed,
}

fn poll(
    subscription: &mut Subscription,
    known: ResourceVersion,
    context: &Context<'_>,
) -> Poll<TakenStep> {
    loop {
        let step = match subscription.step(context, BATCH.0, BATCH.1) {
            SubscriptionStep::Events(events) if events.is_empty() => continue,
            SubscriptionStep::Events(events) => TakenStep::Events(events),
            SubscriptionStep::CaughtUp(version) if version > known => TakenStep::Progress(version),
            // While the source is paused its phase tells; it goes on afterwards.
            SubscriptionStep::CaughtUp(_)
            | SubscriptionStep::Unfinished
            | SubscriptionStep::Paused => return Poll::Pending,
            SubscriptionStep::Expired { .. } => TakenStep::Expired,
            SubscriptionStep::Closed => TakenStep::Closed,
        };
        return Poll::Ready(step);
    }
}
