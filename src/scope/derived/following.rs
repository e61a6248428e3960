//! The position of a derived scope in its source's changes.
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use watershed_protocol::ResourceVersion;

use super::check::CheckedPrint;
use crate::scope::cached::Scope;
use crate::scope::handle::ScopeHandle;
use crate::scope::phase::ScopePhase;
use crate::store::{Subscription, SubscriptionEnd, SubscriptionStep, WindowEvent};
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
    is_delivering: watch::Receiver<bool>,
    server: watch::Receiver<Option<ServedBy>>,
    bookmarked: watch::Receiver<ResourceVersion>,
    /// Quarantines of the source before its state was read.
    quarantines: u64,
    /// The server whose events may be printed, and in which manner.
    accepted: CheckedPrint,
    /// The caller was told this.
    reported_too_old: bool,
    /// The moment by which another server's JSON must have been compared, while that is under way.
    compared_by: Option<Instant>,
}

/// The state as the caller of [`Following::next`] knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FollowingReader {
    /// It takes the source for followed.
    pub(super) is_followed: bool,
    /// Objects of the accepted server were compared.
    pub(super) has_seen_objects: bool,
}

/// The next thing that happens to the source.
#[derive(Clone, Debug)]
pub(super) enum FollowedChange {
    /// This event may be printed. It comes again until [`Following::pass`].
    Event(Arc<WindowEvent>),
    /// All events up to this version were taken.
    Progress(ResourceVersion),
    /// It follows upstream, or does not.
    Followed(bool),
    /// It is followed at a server whose JSON has to be compared, and [accepted], before its events
    /// are printed: another server, or one that had no objects to compare.
    ///
    /// [accepted]: Following::accept
    Unchecked(ServedBy),
    /// It has not followed upstream for longer than allowed.
    TooOld,
    /// Its history is lost: its state has to be read again.
    Expired,
    /// Its objects are not upstream's.
    Quarantined,
    /// It was closed.
    Closed,
}

/// The state of a source behind which its events are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FollowedState {
    pub(super) version: ResourceVersion,
    /// The number of the source's quarantines before the state was read.
    pub(super) quarantines: u64,
}

impl Following {
    /// Begins behind a state, which was printed as `accepted` does.
    pub(super) fn new(
        source: ScopeHandle,
        subscription: Subscription,
        state: FollowedState,
        accepted: CheckedPrint,
    ) -> Self {
        Self {
            phase: source.phase.clone(),
            is_delivering: source.upstream.delivering(),
            server: source.upstream.subscribe_server(),
            bookmarked: source.upstream.subscribe_bookmarks(),
            source,
            subscription,
            pending: VecDeque::new(),
            version: state.version,
            quarantines: state.quarantines,
            accepted,
            reported_too_old: false,
            compared_by: None,
        }
    }

    pub(super) fn source(&self) -> &Arc<Scope> {
        &self.source
    }

    /// Returns the number of the source's quarantines before its state was read.
    pub(super) fn quarantines(&self) -> u64 {
        self.quarantines
    }

    /// Notes that what this server prints may be shown.
    pub(super) fn accept(&mut self, checked: CheckedPrint) {
        self.accepted = checked;
        self.end_comparison();
    }

    /// Returns the moment by which another server's JSON must have been compared, if that takes so
    /// long at most.
    pub(super) fn compared_by(&mut self, time: Duration) -> Instant {
        *self
            .compared_by
            .get_or_insert_with(|| Instant::now() + time)
    }

    /// Notes that no comparison is under way.
    pub(super) fn end_comparison(&mut self) {
        self.compared_by = None;
    }

    /// Returns the server whose events may be printed.
    pub(super) fn accepted(&self) -> &CheckedPrint {
        &self.accepted
    }

    /// Waits until the source's objects are known not to be upstream's.
    pub(super) async fn until_doubted(&self) {
        let mut phase = self.phase.clone();
        let is_doubted = |phase: &ScopePhase| matches!(phase, ScopePhase::Quarantined);
        // Only the end of the source's task drops the sender.
        let _ = phase.wait_for(is_doubted).await;
    }

    /// Returns `true` if events were taken that are not passed on yet.
    pub(super) fn has_events(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Takes the next event off.
    pub(super) fn pass(&mut self) {
        if let Some(event) = self.pending.pop_front() {
            self.version = self.version.max(event.version);
        }
    }

    /// Waits for the next change. Cancelling a call loses nothing.
    pub(super) async fn next(&mut self, reader: FollowingReader) -> FollowedChange {
        loop {
            if let Some(change) = self.known(reader) {
                return change;
            }
            let (subscription, version) = (&mut self.subscription, self.version);
            let step = tokio::select! {
                biased;
                step = poll_fn(|context| poll(subscription, version, context)),
                    if self.pending.is_empty() => step,
                // The senders are dropped with the source's task only, whose phase tells that first.
                _ = self.phase.changed() => continue,
                _ = self.is_delivering.changed() => continue,
                _ = self.bookmarked.changed() => continue,
                _ = self.server.changed() => continue,
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

    /// Returns what is known already, and not to the reader.
    fn known(&mut self, reader: FollowingReader) -> Option<FollowedChange> {
        // It may be listed again already, at the same version, so that no event tells.
        if self.source.differences.quarantines() != self.quarantines {
            return Some(FollowedChange::Quarantined);
        }
        let (is_ready, is_too_old) = match &*self.phase.borrow() {
            ScopePhase::Quarantined => return Some(FollowedChange::Quarantined),
            ScopePhase::Stopped(_) => return Some(FollowedChange::Closed),
            phase => (
                matches!(phase, ScopePhase::Ready(_)),
                matches!(phase, ScopePhase::Stale(_)),
            ),
        };
        let reported_too_old = std::mem::replace(&mut self.reported_too_old, is_too_old);
        if is_too_old && !reported_too_old {
            return Some(FollowedChange::TooOld);
        }
        let is_delivering = *self.is_delivering.borrow();
        if reader.is_followed && !is_delivering {
            return Some(FollowedChange::Followed(false));
        }
        let is_unseen = self.has_events() && !reader.has_seen_objects;
        let unchecked = self.server.borrow().clone();
        let unchecked = unchecked.filter(|it| is_unseen || !it.is_same(&self.accepted.server));
        if let Some(server) = unchecked {
            // One that is not followed now is not asked: another one may take its place.
            let may_ask = is_delivering && is_ready;
            if !may_ask {
                self.end_comparison();
            }
            return may_ask.then_some(FollowedChange::Unchecked(server));
        }
        if let Some(event) = self.pending.front() {
            return Some(FollowedChange::Event(Arc::clone(event)));
        }
        // The watch of one that is too old may be open, and bring nothing.
        let is_back = is_delivering && !is_too_old && !reader.is_followed;
        is_back.then_some(FollowedChange::Followed(true))
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
            | SubscriptionStep::Ended(SubscriptionEnd::Paused) => return Poll::Pending,
            SubscriptionStep::Ended(
                SubscriptionEnd::Expired { .. } | SubscriptionEnd::Relisted,
            ) => TakenStep::Expired,
            SubscriptionStep::Ended(SubscriptionEnd::Closed) => TakenStep::Closed,
        };
        return Poll::Ready(step);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::{FutureExt as _, StreamExt as _, stream};
    use http::Response;
    use watershed_protocol::{
        BookmarkFormat, Encoding, FieldTable, GroupVersionResource, Representation,
    };

    use super::*;
    use crate::scope::derived::printer::JsonPrinter;
    use crate::scope::{ObjectShape, ScopeConfig, ScopeOptions, Scopes};
    use crate::store::{Interest, SubscriptionStart};
    use crate::test_support::{Api, HTTP2, Pki, streamed, upstream_of};
    use crate::upstream::UpstreamClient;

    /// A mark of the end of no initial events.
    const MARK: &str = concat!(
        r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"8","#,
        r#""annotations":{"k8s.io/initial-events-end":"true"}}}"#
    );

    /// Opens a scope and follows it. Nothing happens to it.
    async fn followed() -> (Api, Scopes, Following) {
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, |_, _| async {
            let frame = format!("{{\"type\":\"BOOKMARK\",\"object\":{MARK}}}\n");
            let frames = stream::iter([Ok(Bytes::from(frame))]).chain(stream::pending());
            let response = Response::builder().header("content-type", "application/json");
            response.body(streamed(frames)).unwrap()
        })
        .await;
        let upstream = upstream_of(&pki, &api).await;
        let scopes = Scopes::new(UpstreamClient::new(&upstream), ScopeConfig::default());
        let gvr = GroupVersionResource::new("", "v1", "pods");
        let shape = ObjectShape::new("Pod", FieldTable::builtin(&gvr, true).unwrap());
        let representation = Representation::whole(Encoding::Json);
        let choice = (Arc::default(), ScopeOptions::default());
        let source = scopes
            .acquire(&gvr, representation, &shape, |_| Some(choice))
            .unwrap();
        let ready = source.wait_until_settled().await.unwrap();
        let checked = CheckedPrint {
            server: source.upstream.server().unwrap(),
            release: None,
            manner: JsonPrinter::of_type(&gvr, "Pod", false)
                .unwrap()
                .manner(None, &ready.format),
            warnings: Vec::new(),
            bookmark: BookmarkFormat::learn(&ready.format, &Bytes::from_static(MARK.as_bytes()))
                .unwrap(),
            has_seen_objects: false,
        };
        let (subscription, snapshot) = source
            .reader
            .subscribe(SubscriptionStart::Now, Interest::All);
        let state = FollowedState {
            version: snapshot.version(),
            quarantines: 0,
        };
        let following = Following::new(source, subscription, state, checked);
        (api, scopes, following)
    }

    /// Returns the next change for a reader who takes the source for followed or not, if there is one.
    fn next(following: &mut Following, is_followed: bool) -> Option<FollowedChange> {
        let reader = FollowingReader {
            is_followed,
            has_seen_objects: false,
        };
        following.next(reader).now_or_never()
    }

    #[tokio::test]
    async fn a_source_whose_open_watch_brings_nothing_is_too_old_until_it_does() {
        let (_api, _scopes, mut following) = followed().await;
        let ready = match &*following.phase.borrow() {
            ScopePhase::Ready(ready) => Arc::clone(ready),
            phase => panic!("{phase:?}"),
        };
        // Its watch is open all the time.
        let (phase, phases) = watch::channel(ScopePhase::Ready(Arc::clone(&ready)));
        following.phase = phases;
        assert!(*following.is_delivering.borrow());
        assert!(next(&mut following, true).is_none());
        phase.send_replace(ScopePhase::Stale(Arc::clone(&ready)));
        let change = next(&mut following, true);
        assert!(matches!(change, Some(FollowedChange::TooOld)), "{change:?}");
        assert!(next(&mut following, false).is_none());
        phase.send_replace(ScopePhase::Ready(ready));
        let change = next(&mut following, false);
        assert!(
            matches!(change, Some(FollowedChange::Followed(true))),
            "{change:?}"
        );
    }
}
