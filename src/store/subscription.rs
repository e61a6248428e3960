//! One reader of a window's events.
use std::sync::Arc;
use std::task::Context;

use watershed_protocol::ResourceVersion;

use super::cursor::Position;
use super::event::WindowEvent;
use super::state::{Outlook, StoreState};
use super::subscribers::Membership;
use super::sync::RwLock;

/// Follows the events of a scope. It holds a position and no events.
#[derive(Debug)]
pub struct Subscription {
    state: Arc<RwLock<StoreState>>,
    pub(super) membership: Membership,
    /// Everything of interest up to here was handed out, or lies before the start.
    delivered: ResourceVersion,
    /// The generation of the snapshot when it began.
    generation: u64,
}

/// The result of one [`Subscription::step`].
#[derive(Clone, Debug)]
pub enum SubscriptionStep {
    /// The next events, possibly none of interest. More may follow: step again without waiting.
    Events(Vec<Arc<WindowEvent>>),
    /// Everything up to this version, the newest known, has been handed out; the waker is
    /// registered. A watch that started at a version still ahead may see one below its start here.
    CaughtUp(ResourceVersion),
    /// Everything known has been handed out, but more deletions of the newest version may follow;
    /// the waker is registered.
    Unfinished,
    /// There will be no more events.
    Ended(SubscriptionEnd),
}

/// The reason why a subscription ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionEnd {
    /// The events after the subscriber's version are not held any more.
    Expired {
        /// The version up to which everything was handed out.
        version: ResourceVersion,
        /// The oldest version a watch could start from.
        oldest: ResourceVersion,
    },
    /// The scope was listed again as the schema of its objects has changed. The events in between
    /// are not held; a new subscription learns that.
    Relisted,
    /// The scope has not followed upstream for too long. Everything that is known has been handed
    /// out. A new subscription may go on from there later.
    Paused,
    /// The scope is closed.
    Closed,
}

impl Subscription {
    pub(super) fn new(
        state: Arc<RwLock<StoreState>>,
        membership: Membership,
        delivered: ResourceVersion,
        generation: u64,
    ) -> Self {
        Self {
            state,
            membership,
            delivered,
            generation,
        }
    }

    /// Returns `true` if some of the events after its start are not held.
    pub fn is_expired(&self) -> bool {
        self.membership.slot.cursor.position() == Position::Expired
    }

    /// Returns the next events: at most `limit`, and no more than reach `byte_limit`. The waker of
    /// `context` is called for events after [`SubscriptionStep::CaughtUp`] only.
    pub fn step(
        &mut self,
        context: &Context<'_>,
        limit: usize,
        byte_limit: usize,
    ) -> SubscriptionStep {
        let slot = &self.membership.slot;
        // Registered before the look, so that no event slips in between.
        slot.waker.register(context.waker());
        let state = self.state.read();
        if state.outlook == Outlook::Released {
            return SubscriptionStep::Ended(SubscriptionEnd::Closed);
        }
        let from = match slot.cursor.position() {
            Position::CaughtUp => return caught_up(&state, &mut self.delivered),
            // By sequence, not by version: of events that share a version, some may be read and
            // others lost.
            Position::At(from) if from >= state.window.first() => from,
            Position::At(_) if slot.starts_at_or_after(state.window.floor()) => {
                state.window.first()
            }
            Position::At(_) | Position::Expired => {
                slot.cursor.set(Position::Expired);
                if self.generation < state.schema_changed {
                    return SubscriptionStep::Ended(SubscriptionEnd::Relisted);
                }
                return SubscriptionStep::Ended(SubscriptionEnd::Expired {
                    version: self.delivered,
                    oldest: state.window.floor(),
                });
            }
        };
        let mut events = state.window.batch(from, limit, byte_limit);
        let next = from + events.len() as u64;
        if next < state.window.head() {
            slot.cursor.set(Position::At(next));
        } else {
            slot.cursor.set(Position::CaughtUp);
            if events.is_empty() {
                return caught_up(&state, &mut self.delivered);
            }
        }
        if slot.skipped > ResourceVersion::default() {
            events.retain(|event| event.version > slot.skipped);
        }
        if let Some(last) = events.last() {
            self.delivered = last.version;
        }
        SubscriptionStep::Events(events)
    }

    /// Returns how the subscription ended, if the writer has ended it: events that were not handed
    /// out do not matter. The waker of `context` is called when it does.
    pub fn ended(&self, context: &Context<'_>) -> Option<SubscriptionEnd> {
        self.membership.slot.waker.register(context.waker());
        self.state.read().outlook.end()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.state.write().subscribers.remove(&self.membership);
    }
}

impl Outlook {
    /// Returns the end of a subscription which has got all events.
    fn end(self) -> Option<SubscriptionEnd> {
        match self {
            Self::Followed => None,
            Self::Paused => Some(SubscriptionEnd::Paused),
            Self::Closed | Self::Released => Some(SubscriptionEnd::Closed),
        }
    }
}

fn caught_up(state: &StoreState, delivered: &mut ResourceVersion) -> SubscriptionStep {
    if let Some(end) = state.outlook.end() {
        return SubscriptionStep::Ended(end);
    }
    if state.unfinished.is_some() {
        return SubscriptionStep::Unfinished;
    }
    let version = state.snapshot.version();
    *delivered = version.max(*delivered);
    SubscriptionStep::CaughtUp(version)
}
