//! Keeps what a scope holds within one timeline.
//!
//! When the timeline of upstream's versions has ended, everything held is dropped before anything
//! new is taken in. After an interruption, events are taken in only once upstream has been found to
//! have the history that was followed: the reflector proves it by a repeated event, or by the name
//! that a proxy gives to its history, or else upstream's objects are compared with those held.
use std::future::ready;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use watershed_protocol::{EventKind, Scanned};

use super::history_check::{HistoryVerdict, find_out};
use crate::scope::cached::Scope;
use crate::scope::timeline::Question;
use crate::upstream::{Change, Probe, ResumeProof, UpstreamClient};

/// Knows whether upstream's changes follow what a scope holds.
pub(super) struct Continuity {
    scope: Arc<Scope>,
    probe: Probe,
    /// The timeline of what is held, or will be after the next list.
    timeline: u64,
    changes: watch::Receiver<u64>,
    state: ContinuityState,
    /// The next event is the last known one again.
    is_repeat_due: bool,
    /// Nothing came since the list.
    is_fresh: bool,
    /// Upstream itself has shown what is held, so that its history is another one if it contradicts
    /// that.
    is_upstreams: bool,
}

enum ContinuityState {
    /// Upstream's changes follow what is held.
    Certain,
    /// Nothing is held. The scope is listed at this moment.
    Forgotten { list_at: Instant },
    /// Upstream is asked if it has the history that was followed.
    Asking(BoxFuture<'static, HistoryVerdict>),
}

/// A change of what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContinuityChange {
    /// The timeline has ended: what is held has to be dropped.
    TimelineEnded,
    /// The scope is to be listed now.
    ListDue,
    /// The resumed watch goes on from what is held.
    Proven,
    /// It cannot be told if it does, and a list would not help: the last one has just been.
    Presumed,
    /// It cannot be told if it does: the scope has to be listed again.
    Unknown,
}

impl Continuity {
    pub(super) fn new(client: UpstreamClient, scope: &Arc<Scope>) -> Self {
        Self {
            probe: scope.probe(client),
            timeline: scope.history.held_in(),
            changes: scope.history.timeline().changes(),
            scope: Arc::clone(scope),
            state: ContinuityState::Certain,
            is_repeat_due: false,
            is_fresh: false,
            is_upstreams: true,
        }
    }

    /// Notes that another replica says what is held. That one may not know yet that upstream's
    /// history is another one.
    pub(super) fn believe_replica(&mut self) {
        self.is_upstreams = false;
    }

    /// Returns `true` if the next change from upstream may be taken.
    pub(super) fn is_certain(&self) -> bool {
        matches!(self.state, ContinuityState::Certain)
    }

    /// Returns `true` if nothing is awaited that would prove upstream's history.
    pub(super) fn is_settled(&self) -> bool {
        self.is_certain() && !self.is_repeat_due
    }

    /// Notes that a list follows, whatever upstream's history is.
    pub(super) fn expect_list(&mut self) {
        if let ContinuityState::Asking(_) = self.state {
            self.state = ContinuityState::Certain;
        }
        self.is_repeat_due = false;
    }

    /// Waits for a change. Cancel safe.
    pub(super) async fn changed(&mut self) -> ContinuityChange {
        let (timeline, changes, state) = (self.timeline, &mut self.changes, &mut self.state);
        let ended = async move {
            // The sender lives as long as the scope.
            let _ = changes.wait_for(|number| *number > timeline).await;
        };
        let is_fresh = self.is_fresh;
        let known = async move {
            match state {
                ContinuityState::Certain => std::future::pending().await,
                ContinuityState::Forgotten { list_at } => {
                    sleep_until(*list_at).await;
                    ContinuityChange::ListDue
                }
                ContinuityState::Asking(verdict) => match verdict.await {
                    HistoryVerdict::Proven => ContinuityChange::Proven,
                    // Another list would lead here again, if much is deleted.
                    HistoryVerdict::Unknown if is_fresh => ContinuityChange::Presumed,
                    HistoryVerdict::Unknown => ContinuityChange::Unknown,
                },
            }
        };
        tokio::select! {
            () = ended => ContinuityChange::TimelineEnded,
            change = known => {
                self.state = ContinuityState::Certain;
                self.is_upstreams |=
                    matches!(change, ContinuityChange::Proven | ContinuityChange::Presumed);
                change
            }
        }
    }

    /// Returns `true` if the next event is one that is known already.
    pub(super) fn awaits_repeat(&self) -> bool {
        self.is_repeat_due
    }

    /// Returns `true` if a change belongs to what is held. `question` was prepared before a list
    /// was asked for.
    pub(super) fn admits<C>(&mut self, change: &Change<C>, question: Option<Question>) -> bool {
        match (change, question) {
            (Change::Listed(listed), Some(question)) => {
                (self.is_repeat_due, self.is_fresh) = (false, true);
                self.is_upstreams = true;
                question.answered(listed.version).is_ok()
            }
            // Derived from a scope whose list was admitted.
            (Change::Listed(_), None) => {
                (self.is_repeat_due, self.is_fresh) = (false, true);
                self.is_upstreams = true;
                self.is_current()
            }
            // The next change is a list.
            (Change::OtherHistory { missing }, _) => {
                if self.is_upstreams {
                    self.scope.ask().contradicted(*missing);
                }
                false
            }
            (Change::Event(frame, event), _) if std::mem::take(&mut self.is_repeat_due) => {
                self.admits_repeat(frame.kind, event)
            }
            (Change::Resumed { proof }, _) => {
                self.is_repeat_due = *proof == ResumeProof::RepeatedEvent;
                if *proof == ResumeProof::None {
                    let scope = Arc::clone(&self.scope);
                    let asked = find_out(scope, self.probe.clone(), self.is_upstreams);
                    self.state = ContinuityState::Asking(Box::pin(asked));
                    return false;
                }
                self.is_current()
            }
            (Change::Event(..) | Change::Progress { .. }, _) => {
                self.is_fresh = false;
                self.is_current()
            }
            _ => self.is_current(),
        }
    }

    /// Returns `true` if a repeated event is the known one. In another history, an event of another
    /// object may have its version.
    fn admits_repeat(&mut self, kind: EventKind, event: &Scanned) -> bool {
        let held = self.scope.reader.followed();
        let object = held.get(event.attributes.key());
        let is_known = match kind {
            EventKind::Deleted => object.is_none(),
            _ => object.is_some_and(|object| object.version == event.version),
        };
        if is_known {
            self.is_upstreams = true;
        } else if self.is_upstreams {
            self.scope.ask().contradicted(event.version);
        } else {
            self.state = ContinuityState::Asking(Box::pin(ready(HistoryVerdict::Unknown)));
        }
        is_known && self.is_current()
    }

    fn is_current(&self) -> bool {
        self.scope.history.timeline().number() == self.timeline
    }

    /// Begins a new timeline, in which nothing is held until the next list.
    pub(super) fn begin_anew(&mut self) {
        let newest = self.scope.history.begin_anew(&self.scope.key.gvr);
        self.timeline = newest.timeline();
        self.is_repeat_due = false;
        let list_at = Instant::now() + self.scope.history.timeline().relist_delay();
        self.state = ContinuityState::Forgotten { list_at };
    }

    /// Notes that the scope was listed, in this timeline.
    pub(super) fn record_list(&self) {
        self.scope.history.record_timeline(self.timeline);
    }
}
