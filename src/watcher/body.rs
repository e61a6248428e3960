//! The body of a watch response: initial state, events, bookmarks, and a clean end.
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::bookmark_schedule::BookmarkSchedule;
use super::chunk::{Chunk, ContentCoding};
use super::guard::{AccessGuard, AccessStatus};
use super::options::{Bookmarks, EndMark, InitialState, WatchEnding, WatchObserver, WatchOptions};
use super::view::{ClientFrame, ClientView};
use crate::store::{StoredObject, Subscription, SubscriptionEnd, SubscriptionStep};
use crate::work::{COMPRESSED_PIECE, WorkBudget};
use watershed_protocol::{Malformed, ResourceVersion, Status, WireFormat};

/// Size of a chunk of events before compression. Events that wait together are written together:
/// one write and one TLS record instead of many. Small ones are copied for that, large ones are
/// not.
const CHUNK: usize = 32 * 1024;
/// Size of a chunk of the initial state. It is larger, as most of it is sent without a copy.
const INITIAL_CHUNK: usize = 64 * 1024;
/// Number of events taken from the window at a time. The scope is locked meanwhile.
const BATCH: usize = 64;

/// The next thing to do before the events are looked at.
enum OutsideEvent {
    GoOn,
    Wait,
    End(WatchEnding),
}

/// A `http_body::Body` that reads the window itself: no task, no channel, no queue per watch.
///
/// It is polled only when the connection can take more, so a slow client holds nothing but its
/// position.
///
/// Guard, drain signal and observer are type parameters: there may be a hundred thousand bodies,
/// and boxes would take more memory than what they hold.
pub struct WatchBody<G: AccessGuard, D: Future<Output = ()> + Unpin, O: WatchObserver> {
    subscription: Subscription,
    format: Arc<WireFormat>,
    view: ClientView,
    coding: ContentCoding,
    start: ResourceVersion,
    /// The rest of the state it begins with.
    initial: Option<Box<InitialState>>,
    is_over: bool,
    /// The rest of the chunk that is handed out, never empty.
    rest: Option<Box<std::vec::IntoIter<Bytes>>>,
    bookmarks: Option<Bookmarks>,
    is_from_etcd: bool,
    schedule: BookmarkSchedule,
    /// Fires when something is scheduled, or when the guard is to be polled.
    timer: Pin<Box<Sleep>>,
    guard: G,
    draining: D,
    observer: O,
}

impl<G: AccessGuard, D: Future<Output = ()> + Unpin, O: WatchObserver> WatchBody<G, D, O> {
    /// Begins a watch over `subscription`.
    pub fn new(subscription: Subscription, options: WatchOptions<G, D, O>) -> Self {
        let schedule = BookmarkSchedule::new(
            Instant::now(),
            options.deadline,
            options.bookmarks.is_some(),
        );
        Self {
            subscription,
            format: options.format,
            view: options.view,
            coding: options.coding,
            start: options.start,
            initial: options.initial.map(Box::new),
            is_over: false,
            rest: None,
            bookmarks: options.bookmarks,
            is_from_etcd: options.is_from_etcd,
            timer: Box::pin(tokio::time::sleep_until(schedule.wake())),
            schedule,
            guard: options.guard,
            draining: options.draining,
            observer: options.observer,
        }
    }

    fn end(&mut self, how: WatchEnding) {
        if !self.is_over {
            self.is_over = true;
            self.observer.ended(how);
        }
    }

    /// Looks at what ends a watch from outside or makes it wait: deadline, shutdown and guard.
    fn poll_outside(&mut self, context: &mut Context<'_>) -> OutsideEvent {
        if Pin::new(&mut self.draining).poll(context).is_ready() {
            return OutsideEvent::End(WatchEnding::Draining);
        }
        loop {
            let status = self.guard.poll(context);
            self.set_timer();
            if self.timer.as_mut().poll(context).is_pending() {
                return match status {
                    AccessStatus::Granted => OutsideEvent::GoOn,
                    AccessStatus::InDoubt => OutsideEvent::Wait,
                    AccessStatus::Revoked => OutsideEvent::End(WatchEnding::Revoked),
                };
            }
            let now = Instant::now();
            if self.schedule.is_over(now) {
                return OutsideEvent::End(WatchEnding::Deadline);
            }
            if status == AccessStatus::Revoked {
                return OutsideEvent::End(WatchEnding::Revoked);
            }
            self.schedule.advance_to(now);
        }
    }

    fn set_timer(&mut self) {
        let wake = self.schedule.wake().min(self.guard.due());
        if self.timer.deadline() != wake {
            self.timer.as_mut().reset(wake);
        }
    }

    /// Returns the next chunk of the initial state. There is none if all of it has been sent, or if
    /// the work of this turn is done.
    fn initial_chunk(&mut self) -> Option<Bytes> {
        let initial = self.initial.as_mut()?;
        let mut chunk = Chunk::new(self.coding);
        let shared = self.coding == ContentCoding::Gzip && self.view.is_plain();
        while chunk.bytes() < INITIAL_CHUNK && !initial.budget.is_spent() {
            let Some(mut run) = initial.rest.take().or_else(|| initial.runs.next()) else {
                if let Some(EndMark { format, version }) = initial.end_mark.take()
                    && let Some(mark) = self.view.end_mark(&format, version)
                {
                    chunk.push(mark);
                    self.view.note_sent();
                }
                self.initial = None;
                break;
            };
            if shared {
                if !run.is_added_compressed() {
                    initial.budget.spend(COMPRESSED_PIECE);
                }
                chunk.push_run(&run);
                continue;
            }
            let mut done = 0;
            for object in run.objects() {
                if chunk.bytes() >= INITIAL_CHUNK || initial.budget.is_spent() {
                    break;
                }
                done += 1;
                initial.budget.spend(self.view.filter.work());
                if !self.view.filter.matches(&object.attributes) {
                    continue;
                }
                initial.budget.spend(self.view.object_work(object));
                match self.view.initial(object) {
                    None => chunk.push_object(&self.format, &object.bytes.get()),
                    Some(Ok(frame)) => {
                        chunk.push(frame);
                        self.view.note_sent();
                    }
                    Some(Err(error)) => {
                        self.broken(object, &error, &mut chunk);
                        return self.hand_out(chunk);
                    }
                }
            }
            run.advance(done);
            initial.rest = Some(run).filter(|run| !run.is_empty());
        }
        self.hand_out(chunk)
    }

    /// Ends the watch at an object that cannot be framed: it must not be skipped. The client is
    /// told to begin anew, which is forwarded. If it resumed, it would come to the object again.
    fn broken(&mut self, object: &StoredObject, error: &Malformed, chunk: &mut Chunk) {
        tracing::error!(key = object.key(), %error, "cannot frame an object; the watch is ended");
        if let Some(irreducible) = self.view.irreducible() {
            irreducible.record(object);
        }
        self.expire(chunk, self.start, self.start);
        self.end(WatchEnding::Broken);
    }

    fn expire(&self, chunk: &mut Chunk, version: ResourceVersion, oldest: ResourceVersion) {
        let format = self.view.format(&self.format);
        // Without a version that is too old, as after a change of how the objects are printed, there
        // are no two numbers to name.
        let status = if self.is_from_etcd || version >= oldest {
            Status::expired_watch_of_etcd()
        } else {
            Status::expired_watch(version, oldest)
        };
        chunk.push(format.status_event(&status.to_object(format.encoding())));
    }

    fn poll_events(&mut self, context: &Context<'_>) -> Poll<Option<Bytes>> {
        let mut chunk = Chunk::new(self.coding);
        let mut budget = WorkBudget::default();
        loop {
            match self
                .subscription
                .step(context, BATCH, CHUNK.saturating_sub(chunk.bytes()))
            {
                SubscriptionStep::Events(events) => {
                    let work = events.iter().map(|event| self.view.event_work(event));
                    budget.spend(work.sum());
                    for event in events {
                        match self.view.frame(&event, &self.format) {
                            Ok(Some(ClientFrame::Shared)) => chunk.push_whole(&event),
                            Ok(Some(ClientFrame::Own(frame))) => {
                                chunk.push(frame);
                                self.view.note_sent();
                            }
                            Ok(None) => {}
                            Err(error) => {
                                self.broken(&event.object, &error, &mut chunk);
                                return Poll::Ready(self.hand_out(chunk));
                            }
                        }
                    }
                    if chunk.bytes() >= CHUNK {
                        return Poll::Ready(self.hand_out(chunk));
                    }
                    if budget.ends_turn(context) {
                        return ready_or_pending(self.hand_out(chunk));
                    }
                }
                SubscriptionStep::CaughtUp(version) => {
                    if self.take_due_bookmark(version)
                        && let Some(format) =
                            self.bookmarks.as_ref().and_then(|forms| forms.load_full())
                        && let Some(frame) = self.view.bookmark(&format, version)
                    {
                        chunk.push(frame);
                        self.view.note_sent();
                    }
                    return ready_or_pending(self.hand_out(chunk));
                }
                // A bookmark would tell that nothing of its version is missing.
                SubscriptionStep::Unfinished => return ready_or_pending(self.hand_out(chunk)),
                SubscriptionStep::Ended(end) => {
                    if let SubscriptionEnd::Expired { version, oldest } = end {
                        self.expire(&mut chunk, version, oldest);
                    }
                    self.end(end.into());
                    return Poll::Ready(self.hand_out(chunk));
                }
            }
        }
    }

    /// Returns `true` if a bookmark of this version is to be sent.
    fn take_due_bookmark(&mut self, version: ResourceVersion) -> bool {
        if !self.schedule.is_due() {
            return false;
        }
        let is_met = self.schedule.take(version, self.start, Instant::now());
        self.set_timer();
        is_met
    }

    /// Waits for the end of the scope while events are held back. It shows nothing to the caller.
    fn poll_end(&mut self, context: &Context<'_>) -> Poll<()> {
        match self.subscription.ended(context) {
            Some(end) => {
                self.end(end.into());
                Poll::Ready(())
            }
            None => Poll::Pending,
        }
    }

    /// Returns what is ready now, with a bookmark that lets the client go on elsewhere.
    fn last_chunk(&mut self, context: &Context<'_>) -> Option<Bytes> {
        if self.initial.is_some() {
            return None;
        }
        self.schedule.expect_last();
        match self.poll_events(context) {
            Poll::Ready(chunk) => chunk,
            Poll::Pending => None,
        }
    }

    /// Returns the first piece of a chunk and keeps the others for the next polls.
    fn hand_out(&mut self, chunk: Chunk) -> Option<Bytes> {
        let frames = chunk.frames();
        let pieces = chunk.finish();
        let bytes = pieces.iter().map(Bytes::len).sum();
        let mut pieces = pieces.into_iter();
        let first = pieces.next()?;
        self.observer.sent(frames, bytes);
        self.rest = Some(pieces).filter(|rest| rest.len() > 0).map(Box::new);
        Some(first)
    }
}

fn ready_or_pending(chunk: Option<Bytes>) -> Poll<Option<Bytes>> {
    chunk.map_or(Poll::Pending, |bytes| Poll::Ready(Some(bytes)))
}

impl<G: AccessGuard, D: Future<Output = ()> + Unpin, O: WatchObserver> http_body::Body
    for WatchBody<G, D, O>
{
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        if let Some(rest) = &mut this.rest {
            let next = rest.next();
            this.rest.take_if(|rest| rest.len() == 0);
            return Poll::Ready(next.map(|next| Ok(Frame::data(next))));
        }
        if this.is_over {
            return Poll::Ready(None);
        }
        match this.poll_outside(context) {
            OutsideEvent::GoOn => {}
            OutsideEvent::Wait => return this.poll_end(context).map(|()| None),
            OutsideEvent::End(how) => {
                let last = match how {
                    WatchEnding::Draining if this.guard.poll(context) == AccessStatus::Granted => {
                        this.last_chunk(context)
                    }
                    _ => None,
                };
                this.end(how);
                return Poll::Ready(last.map(|chunk| Ok(Frame::data(chunk))));
            }
        }
        while !this.is_over
            && let Some(initial) = &mut this.initial
        {
            if initial.budget.awaits_turn(context) {
                return Poll::Pending;
            }
            if let Some(chunk) = this.initial_chunk() {
                if let Some(initial) = &mut this.initial {
                    initial.budget.spend_bytes(chunk.len());
                }
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
        }
        if this.is_over {
            return Poll::Ready(None);
        }
        let chunk = ready!(this.poll_events(context));
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    /// Tells that the rest of a chunk follows, so that it is sent with its beginning.
    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(self.rest.as_ref().map_or(0, |rest| rest.len() as u64));
        hint
    }
}

impl<G: AccessGuard, D: Future<Output = ()> + Unpin, O: WatchObserver> Drop for WatchBody<G, D, O> {
    fn drop(&mut self) {
        self.end(WatchEnding::Gone);
    }
}
