//! Activity of one connection: shows whether it is idle and whether its client abuses it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Context;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::fresh_streams::{FreshStreams, REFUSAL_BYTES, StreamRoom};
use super::input_memory::{ConnectionInput, InputMemory, KeptRoom};
use super::limits::ConnectionLimits;
use super::metrics::Cut;
use super::request_frames::KeptBytes;
use super::request_lines::{RefusedRequests, RequestFault};
use super::stream_stall::{self, Unread};
use super::unread_bodies::UnreadBodies;
use crate::atomic_moment::AtomicMoment;
use crate::budget::MemoryBudget;

/// Cancelled requests after which a connection is closed, if most of its requests are cancelled.
///
/// Some cancelled requests are normal. So many on one connection are a "rapid reset" attack
/// (CVE-2023-44487), and each may cost a request to upstream.
const MANY_RESETS: u64 = 500;

/// Bytes of requests that nobody has looked at, and of unread refusals, with which a known client's
/// connection counts as one that has none.
const FEW_OF_KNOWN: usize = 32 << 10;

/// Activity of one connection. Its moments count from `opened`.
pub(super) struct Activity {
    opened: Instant,
    /// `true` on HTTP/1, while requests may come.
    http1: AtomicBool,
    /// `true` once the connection has become a tunnel.
    upgraded: AtomicBool,
    /// `true` once anything was read after the handshake.
    heard: AtomicBool,
    /// Requests running.
    running: AtomicU64,
    /// End of the handshake.
    begun: AtomicMoment,
    /// End of the last request.
    last_end: AtomicMoment,
    /// Start of the request head that is being read.
    head: AtomicMoment,
    input: ConnectionInput,
    bodies: UnreadBodies,
    /// Moment since which the socket takes no writes.
    blocked: AtomicMoment,
    /// `true` while the client's user has more waiting than its share, on HTTP/1.
    beyond_share: AtomicBool,
    requests: AtomicU64,
    /// The requests over HTTP/1 that are refused.
    refused: Arc<RefusedRequests>,
    /// Bytes received on the socket, with those of TLS.
    received: AtomicU64,
    /// Bytes that were sent to another server for this client.
    sent_on: AtomicU64,
    /// Requests that were cancelled before their answer.
    resets: AtomicU64,
    /// Set once the client's abuse is to end the connection.
    cut: OnceLock<Cut>,
    /// `true` once the client's next requests are to take another connection.
    leaving: AtomicBool,
    /// The task to wake when one of these two changes.
    waker: AtomicWaker,
    /// The turns of the connection's task over HTTP/2 so far.
    turns: AtomicU64,
    /// The requests of all connections that nobody has looked at, over HTTP/2.
    fresh: Arc<FreshStreams>,
    /// Bytes of those of this connection.
    own_fresh: AtomicUsize,
    /// `true` once the service knew the client.
    known: AtomicBool,
    /// `true` if a load balancer did not tell the client's address.
    unaddressed: AtomicBool,
    /// Notified when the connection is to make room for another.
    closing: Notify,
}

/// One running request of a connection.
pub(super) struct RunningRequest {
    activity: Arc<Activity>,
    /// Bytes that count as those of a fresh stream.
    fresh: u32,
    answered: bool,
    fault: Option<RequestFault>,
}

impl Activity {
    /// Returns the activity of a connection whose input and requests count with these.
    pub(super) fn new(input: &Arc<InputMemory>, fresh: &Arc<FreshStreams>) -> Arc<Self> {
        Arc::new(Activity {
            opened: Instant::now(),
            http1: AtomicBool::new(false),
            upgraded: AtomicBool::new(false),
            heard: AtomicBool::new(false),
            running: AtomicU64::new(0),
            begun: AtomicMoment::default(),
            last_end: AtomicMoment::default(),
            head: AtomicMoment::default(),
            input: input.of_connection(),
            bodies: UnreadBodies::default(),
            blocked: AtomicMoment::default(),
            beyond_share: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            refused: Arc::default(),
            received: AtomicU64::new(0),
            sent_on: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            cut: OnceLock::new(),
            leaving: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            turns: AtomicU64::new(0),
            fresh: Arc::clone(fresh),
            own_fresh: AtomicUsize::new(0),
            known: AtomicBool::new(false),
            unaddressed: AtomicBool::new(false),
            closing: Notify::new(),
        })
    }

    /// Returns the activity of a connection whose input and requests count with no others.
    pub(super) fn alone() -> Arc<Self> {
        let budget = MemoryBudget::default();
        Self::new(
            &InputMemory::within(&budget),
            &FreshStreams::within(&budget),
        )
    }

    /// Notes the end of the handshake: the time for the first request begins.
    pub(super) fn begin(&self) {
        self.begun.set(self.opened, Instant::now());
    }

    /// Notes that a load balancer did not tell the client's address.
    pub(super) fn set_unaddressed(&self) {
        self.unaddressed.store(true, Ordering::Release);
    }

    pub(super) fn is_unaddressed(&self) -> bool {
        self.unaddressed.load(Ordering::Acquire)
    }

    pub(super) fn set_http1(&self) {
        self.http1.store(true, Ordering::Release);
    }

    /// Notes that no further request comes: what is read from now on belongs to a tunnel.
    pub(super) fn end_requests(&self) {
        self.http1.store(false, Ordering::Release);
        self.note_head(0);
    }

    /// Returns `true` if the connection has become a tunnel.
    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Acquire)
    }

    /// Returns what the reader of the connection notes of requests that are refused.
    pub(super) fn refused(&self) -> &Arc<RefusedRequests> {
        &self.refused
    }

    pub(super) fn is_http1(&self) -> bool {
        self.http1.load(Ordering::Relaxed)
    }

    /// Returns the time `after` a moment, if there is one.
    fn until(&self, moment: &AtomicMoment, after: Duration) -> Option<Instant> {
        Some(moment.get(self.opened)? + after)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.running.load(Ordering::Acquire) > 0
    }

    /// Returns the moment at which the connection has been idle for too long.
    pub(super) fn idle_at(&self, limits: &ConnectionLimits) -> Instant {
        let until = self.until(&self.last_end, limits.idle);
        let until = until.or_else(|| self.until(&self.begun, limits.start));
        until.unwrap_or(self.opened + limits.start)
    }

    /// Returns the moment at which the request head has taken too long. Over HTTP/2, the first one
    /// is part of the first request, which has less time. Over HTTP/1, one that waits for the end of a
    /// running request has all of its time then.
    pub(super) fn head_at(&self, limits: &ConnectionLimits) -> Option<Instant> {
        if self.is_http1() && self.is_busy() {
            return None;
        }
        let limit = if self.is_http1() || self.has_asked() {
            limits.head
        } else {
            limits.start
        };
        self.until(&self.head, limit)
    }

    /// Returns `true` if there was a request.
    pub(super) fn has_asked(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0
    }

    /// Notes the bytes of a request head that is not complete; zero if there is none.
    pub(super) fn note_head(&self, bytes: usize) {
        let has_begun = self.head.is_set();
        if bytes == 0 && has_begun {
            self.head.clear();
        } else if bytes > 0 && !has_begun {
            self.head.set(self.opened, Instant::now());
        }
        if !self.input.set_unfinished(bytes) {
            // There is no room for the request head.
            self.condemn(Cut::Head);
        }
    }

    /// Notes the bytes that HPACK's decoder keeps for the connection.
    pub(super) fn note_kept(&self, bytes: usize) {
        let room = self.input.set_kept(bytes, self.is_known());
        self.stay_within(room, Cut::HeaderTable);
    }

    /// Notes the bytes that all pieces of bodies so far may have kept, if none of them was read.
    pub(super) fn note_pieces(&self, kept: KeptBytes) {
        self.bodies
            .set_kept(kept, self.turn(), |unread| self.note_unread(unread));
    }

    /// Notes the bytes that are kept with unread pieces of bodies.
    pub(super) fn note_unread(&self, bytes: usize) {
        let room = self.input.set_unread(bytes, self.is_known());
        self.stay_within(room, Cut::UnreadBodies);
    }

    pub(super) fn unread_bodies(&self) -> &UnreadBodies {
        &self.bodies
    }

    /// Has the client take another connection, where it begins with nothing again, or cuts this one.
    fn stay_within(&self, room: KeptRoom, cut: Cut) {
        match room {
            KeptRoom::Enough => {}
            KeptRoom::Little => self.leave(),
            KeptRoom::None => self.condemn(cut),
        }
    }

    /// Returns how long the socket may take nothing; `None` for as long as it likes.
    pub(super) fn allowed_stall(&self, limits: &ConnectionLimits) -> Option<Duration> {
        let unread = if self.beyond_share.load(Ordering::Acquire) {
            Unread::BeyondShare
        } else {
            Unread::WithinShare
        };
        stream_stall::allowed(limits.stall, unread).map(|(stall, _)| stall)
    }

    /// Returns the moment at which the socket has taken nothing for so long.
    pub(super) fn stalled_at(&self, stall: Duration) -> Option<Instant> {
        self.until(&self.blocked, stall)
    }

    /// Wakes the task when the result of [`Activity::condemned`] or [`Activity::is_leaving`] changes.
    pub(super) fn register(&self, context: &Context<'_>) {
        self.waker.register(context.waker());
    }

    /// Has the connection cut for this reason. The first reason stays.
    pub(super) fn condemn(&self, cut: Cut) {
        if self.cut.set(cut).is_ok() {
            self.waker.wake();
        }
    }

    /// Returns why the connection is to be cut, if it is.
    pub(super) fn condemned(&self) -> Option<Cut> {
        self.cut.get().copied()
    }

    /// Notes that the connection's task is polled.
    pub(super) fn begin_turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of turns so far.
    pub(super) fn turn(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Returns the room for further requests over HTTP/2.
    pub(super) fn room_for_requests(&self) -> StreamRoom {
        let is_known = self.is_known();
        // A stranger whose socket takes nothing has answers waiting that no stream counts any more.
        if !is_known && self.blocked.is_set() {
            return StreamRoom::None;
        }
        // What a known client does not read yet must not keep it from saying that it reads.
        let few = if is_known { FEW_OF_KNOWN } else { 0 };
        let has_some = self.own_fresh.load(Ordering::Acquire) > few;
        self.fresh.room(is_known, has_some)
    }

    /// Counts requests that nobody has looked at.
    fn count_fresh(&self, before: u32, now: u32) {
        self.own_fresh.fetch_add(now as usize, Ordering::AcqRel);
        self.own_fresh.fetch_sub(before as usize, Ordering::AcqRel);
        self.fresh.add(now);
        self.fresh.remove(before);
    }

    /// Has the client take another connection for its next requests.
    pub(super) fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Returns `true` if the client's next requests are to take another connection.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Returns `true` if the client has sent nothing since the handshake.
    pub(super) fn is_silent(&self) -> bool {
        !self.heard.load(Ordering::Relaxed) && !self.has_asked()
    }

    /// Notes that the service knows the client.
    pub(super) fn set_known(&self) {
        self.known.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed)
    }

    /// Returns the moment at which the last request ended, or the connection began.
    pub(super) fn last_ended(&self) -> Instant {
        let last = self.last_end.get(self.opened);
        let last = last.or_else(|| self.begun.get(self.opened));
        last.unwrap_or(self.opened)
    }

    /// Asks the connection to make room for another.
    pub(super) fn close(&self) {
        self.closing.notify_one();
    }

    /// Completes when the connection is to make room for another.
    pub(super) async fn closing(&self) {
        self.closing.notified().await;
    }

    /// Counts bytes that are about to be sent to another server for this client. Returns `false`,
    /// and counts none, if they come to more than `factor` times those received.
    pub(super) fn send_on(&self, bytes: u64, factor: u64) -> bool {
        let limit = self.received.load(Ordering::Relaxed).saturating_mul(factor);
        let counted = |sent: u64| sent.checked_add(bytes).filter(|sent| *sent <= limit);
        let order = Ordering::Relaxed;
        self.sent_on.fetch_update(order, order, counted).is_ok()
    }

    /// Counts bytes that were read on the socket.
    pub(super) fn read(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
        if !self.heard.load(Ordering::Relaxed) && self.begun.is_set() {
            self.heard.store(true, Ordering::Relaxed);
        }
    }

    /// Notes whether the socket took what was written.
    pub(super) fn written(&self, progress: bool) {
        let blocked = self.blocked.is_set();
        if progress && blocked {
            self.blocked.clear();
        } else if !progress && !blocked {
            self.blocked.set(self.opened, Instant::now());
        }
    }
}

impl RunningRequest {
    pub(super) fn new(activity: &Arc<Activity>) -> Self {
        activity.running.fetch_add(1, Ordering::AcqRel);
        let number = activity.requests.fetch_add(1, Ordering::Relaxed);
        RunningRequest {
            activity: Arc::clone(activity),
            fresh: 0,
            answered: false,
            // Over HTTP/2 none is noted.
            fault: activity.refused.fault(number),
        }
    }

    /// Counts so many bytes of a request that nobody has looked at, until [`Self::begun`].
    pub(super) fn counted(mut self, bytes: u32) -> Self {
        self.count_fresh(bytes);
        self
    }

    /// Notes that the service counts what the request takes from now on.
    pub(super) fn begun(&mut self) {
        self.count_fresh(0);
    }

    /// Returns `true` once the service knew the client.
    pub(super) fn is_known(&self) -> bool {
        self.activity.is_known()
    }

    /// Notes that the request is refused, and that nothing else counts that. Over HTTP/2 it counts
    /// until it was taken, which must be soon.
    pub(super) fn refused(&mut self) {
        if !self.activity.is_http1() {
            self.count_fresh(REFUSAL_BYTES);
        }
    }

    /// Returns `true` if the answer is a refusal that counts.
    pub(super) fn is_refused(&self) -> bool {
        self.answered && self.fresh > 0
    }

    fn count_fresh(&mut self, bytes: u32) {
        if bytes != self.fresh {
            self.activity.count_fresh(self.fresh, bytes);
            self.fresh = bytes;
        }
    }

    /// Notes whether the client's user may leave as much waiting as there is. On HTTP/2, each stream
    /// knows that for itself.
    pub(super) fn note_share(&self, is_within: bool) {
        if self.activity.is_http1() {
            let beyond = &self.activity.beyond_share;
            beyond.store(!is_within, Ordering::Release);
        }
    }

    /// Has the client take another connection for its next requests.
    pub(super) fn leave(&self) {
        self.activity.leave();
    }

    /// Returns why the request is refused, if it is.
    pub(super) fn fault(&self) -> Option<RequestFault> {
        self.fault
    }

    /// Notes that the connection becomes a tunnel.
    pub(super) fn upgraded(&self) {
        self.activity.upgraded.store(true, Ordering::Release);
    }

    /// Notes that the answer has begun: cancelling from now on is no reset.
    pub(super) fn answered(&mut self) {
        self.answered = true;
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.count_fresh(0);
        let activity = &self.activity;
        activity.last_end.set(activity.opened, Instant::now());
        if activity.is_http1() && activity.head.is_set() {
            activity.head.set(activity.opened, Instant::now());
        }
        activity.running.fetch_sub(1, Ordering::AcqRel);
        if !self.answered {
            let resets = activity.resets.fetch_add(1, Ordering::Relaxed) + 1;
            if resets >= MANY_RESETS && resets * 2 > activity.requests.load(Ordering::Relaxed) {
                activity.condemn(Cut::Resets);
            }
        }
    }
}
