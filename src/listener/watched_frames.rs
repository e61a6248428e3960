//! The frames of a connection: shows the request head that is not complete, and paces what is read.
//!
//! All requests that are there are read before the first of them is answered, a SETTINGS frame is
//! applied to each open request, and a PING is answered. So a client that sends very many would take
//! memory and time that nobody has counted.
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::activity::Activity;
use super::fresh_streams::StreamRoom;
use super::inspect::Inspect;
use super::metrics::Cut;
use super::request_frames::{FrameCounts, FrameReader};
use crate::backoff::PauseRange;

/// Bytes that are read at once beyond the frame that has begun. The smallest requests, which name all
/// their fields by numbers, take some fifteen bytes, and others a few hundred.
const READ_AHEAD: usize = 512;
/// The same where there is room for few requests.
const READ_LITTLE: usize = 64;
/// Requests after which a connection's task lets others run.
const REQUESTS_PER_TURN: u32 = 32;
/// Pauses after which a connection looks again if there is room for its requests.
const PAUSES: PauseRange = PauseRange::new(Duration::from_millis(2), Duration::from_millis(64));
/// SETTINGS frames that a client may send within [`COUNTED_TIME`]. Usual ones send one or two in all.
const MAX_SETTINGS: u32 = 100;
/// PING and PRIORITY frames that it may send within that time. Usual ones send a few pings a second at most, and
/// Go's one more for a request that is given up.
const MAX_PINGS: u32 = 10_000;
/// Frames of types that HTTP/2 does not define that it may send within that time. Usual ones send none. What
/// is read stays in memory with the bodies that it comes between.
const MAX_UNKNOWN: u32 = 100;
const COUNTED_TIME: Duration = Duration::from_secs(10);

/// Reads the frames of a connection, reports heads that are not complete, and holds back what follows
/// too many.
pub(super) struct WatchedFrames {
    frames: FrameReader,
    activity: Arc<Activity>,
    /// The turn of the connection's task, and the counts when it began.
    turn: (u64, FrameCounts),
    settings: FrameRate,
    pings: FrameRate,
    unknown: FrameRate,
    /// Set while there is no room for further requests, with the number of pauses before it.
    pause: Option<(Pin<Box<Sleep>>, u32)>,
}

/// Frames of a kind that came of late.
#[derive(Debug)]
struct FrameRate {
    /// The time from which on they are counted.
    since: Instant,
    /// The number of such frames until then.
    before: u32,
}

impl FrameRate {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            before: 0,
        }
    }

    /// Returns `true` if more than `most` came of late, when there were `count` of them in all.
    fn exceeds(&mut self, most: u32, count: u32) -> bool {
        if count == self.before {
            return false;
        }
        if self.since.elapsed() >= COUNTED_TIME {
            (self.since, self.before) = (Instant::now(), count);
            return false;
        }
        count.wrapping_sub(self.before) > most
    }
}

impl WatchedFrames {
    pub(super) fn new(activity: &Arc<Activity>) -> Self {
        Self {
            frames: FrameReader::default(),
            activity: Arc::clone(activity),
            turn: (0, FrameCounts::default()),
            settings: FrameRate::new(),
            pings: FrameRate::new(),
            unknown: FrameRate::new(),
            pause: None,
        }
    }

    /// Has the connection cut if there were too many frames of late that ask for nothing.
    fn limit_rates(&mut self) {
        let counts = self.frames.counts();
        if self.settings.exceeds(MAX_SETTINGS, counts.settings) {
            self.activity.condemn(Cut::Settings);
        }
        if self.pings.exceeds(MAX_PINGS, counts.pings) {
            self.activity.condemn(Cut::Pings);
        }
        if self.unknown.exceeds(MAX_UNKNOWN, counts.unknown) {
            self.activity.condemn(Cut::UnknownFrames);
        }
    }

    /// Returns the number of requests that were read in this turn of the connection's task.
    fn requests_of_turn(&mut self) -> u32 {
        let (turn, counts) = (self.activity.turn(), self.frames.counts());
        if turn != self.turn.0 {
            self.turn = (turn, counts);
        }
        counts.blocks.wrapping_sub(self.turn.1.blocks)
    }
}

impl Inspect for WatchedFrames {
    fn inspect(&mut self, bytes: &mut [u8]) {
        self.frames.inspect(bytes);
        self.limit_rates();
        self.activity.note_head(self.frames.unfinished());
        self.activity.note_kept(self.frames.kept_for_hpack());
        self.activity.note_pieces(self.frames.kept_for_bodies());
    }

    fn poll_allowed(&mut self, context: &mut Context<'_>) -> Poll<usize> {
        if self.activity.condemned().is_some() {
            // The connection is about to be cut.
            return Poll::Pending;
        }
        let requests = self.requests_of_turn();
        loop {
            let (ahead, most) = match self.activity.room_for_requests() {
                StreamRoom::Enough => (READ_AHEAD, REQUESTS_PER_TURN),
                StreamRoom::Little => (READ_LITTLE, 1),
                StreamRoom::None => {
                    let first = || (Box::pin(sleep(PAUSES.after(0))), 0);
                    let (pause, before) = self.pause.get_or_insert_with(first);
                    ready!(pause.as_mut().poll(context));
                    *before = before.saturating_add(1);
                    pause.as_mut().reset(Instant::now() + PAUSES.after(*before));
                    continue;
                }
            };
            self.pause = None;
            if requests >= most {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            return Poll::Ready(self.frames.left() + ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::poll_fn;
    use std::task::Waker;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Empty;
    use hyper::body::Incoming;
    use hyper::server::conn::http2;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::io::{AsyncRead, ReadBuf};

    use super::super::activity::RunningRequest;
    use super::super::fresh_streams::FreshStreams;
    use super::super::input_memory::InputMemory;
    use super::super::inspected::InspectedStream;
    use super::*;
    use crate::budget::MemoryBudget;
    use crate::test_support::soon;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    /// HEADERS with the smallest request there is, which has all fields by their numbers.
    const REQUEST: &[u8] = &[0, 0, 4, 1, 5, 0, 0, 0, 1, 0x82, 0x84, 0x87, 0xbe];
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    const UNKNOWN: &[u8] = &[0, 0, 4, 0xbb, 0, 0, 0, 0, 0, 1, 2, 3, 4];
    const PRIORITY: &[u8] = &[0, 0, 5, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 16];

    fn activity(budget: usize) -> Arc<Activity> {
        let budget = MemoryBudget::new(Some(budget));
        Activity::new(
            &InputMemory::within(&budget),
            &FreshStreams::within(&budget),
        )
    }

    /// Returns a connection of so many frames.
    fn connection(
        activity: &Arc<Activity>,
        frame: &[u8],
        count: usize,
    ) -> InspectedStream<std::io::Cursor<Vec<u8>>, WatchedFrames> {
        let bytes = [PREFACE, &frame.repeat(count)].concat();
        InspectedStream::new(
            std::io::Cursor::new(bytes),
            WatchedFrames::new(activity),
            activity,
        )
    }

    /// Reads as much as there is in a turn, by reads of 16 KiB. Returns the bytes.
    fn turn<I: AsyncRead + Unpin>(activity: &Activity, stream: &mut I) -> usize {
        activity.begin_turn();
        let mut context = Context::from_waker(Waker::noop());
        let (mut space, mut read) = (vec![0; 16 << 10], 0);
        loop {
            let mut buffer = ReadBuf::new(&mut space);
            let polled = Pin::new(&mut *stream).poll_read(&mut context, &mut buffer);
            if polled.is_pending() || buffer.filled().is_empty() {
                return read;
            }
            read += buffer.filled().len();
        }
    }

    #[tokio::test]
    async fn a_turn_reads_few_requests_and_any_number_of_other_bytes() {
        let activity = activity(1 << 30);
        let mut requests = connection(&activity, REQUEST, 1_000);
        let (mut read, mut turns) = (0, 0);
        while read < PREFACE.len() + 1_000 * REQUEST.len() {
            let bytes = turn(&activity, &mut requests);
            let most = REQUESTS_PER_TURN as usize * REQUEST.len() + READ_AHEAD;
            assert!((1..=most).contains(&bytes), "{bytes}");
            (read, turns) = (read + bytes, turns + 1);
        }
        assert!(turns > 20, "{turns}");
        let data = [&[0, 0x40, 0, 0, 0, 0, 0, 0, 1][..], &[b'#'; 0x4000]].concat();
        let mut upload = connection(&activity, &data, 50);
        assert_eq!(
            turn(&activity, &mut upload),
            PREFACE.len() + 50 * data.len()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_is_read_while_others_wait_for_their_turn() {
        let activity = activity(16 * 20_000);
        let mut requests = connection(&activity, REQUEST, 1_000);
        let fresh = || RunningRequest::new(&activity).counted(10_000);
        let mut waiting = [fresh(), fresh()];
        for _ in 0..3 {
            assert_eq!(turn(&activity, &mut requests), 0);
            tokio::time::advance(PAUSES.longest).await;
        }
        waiting[0].begun();
        assert!(turn(&activity, &mut requests) > 0);
        waiting[0].refused();
        let _more = RunningRequest::new(&activity).counted(8_000);
        assert_eq!(turn(&activity, &mut requests), 0);
        activity.set_known();
        tokio::time::advance(PAUSES.longest).await;
        assert!(turn(&activity, &mut requests) > 0, "strangers do not count");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_request_of_a_connection_is_read_while_those_of_others_wait() {
        let budget = MemoryBudget::new(Some(16 * 20_000));
        let heads = InputMemory::within(&budget);
        let streams = FreshStreams::within(&budget);
        let [others, one] = [(); 2].map(|()| Activity::new(&heads, &streams));
        let _waiting = RunningRequest::new(&others).counted(30_000);
        let mut requests = connection(&one, REQUEST, 1_000);
        let read = turn(&one, &mut requests);
        let least = PREFACE.len() + REQUEST.len();
        assert!((least..least + READ_LITTLE).contains(&read), "{read}");
        let mut first = RunningRequest::new(&one).counted(10_000);
        assert_eq!(turn(&one, &mut requests), 0);
        first.begun();
        tokio::time::advance(PAUSES.longest).await;
        assert!(turn(&one, &mut requests) > 0);
    }

    /// Clients that send the same few long fields again and again, and others that differ each time.
    #[tokio::test]
    async fn usual_requests_have_the_table_keep_little() {
        let budget = MemoryBudget::new(Some(1 << 20));
        let heads = InputMemory::within(&budget);
        let activity = Activity::new(&heads, &FreshStreams::within(&MemoryBudget::default()));
        let (near, far) = tokio::io::duplex(1 << 20);
        let io = InspectedStream::new(far, WatchedFrames::new(&activity), &activity);
        let answer = service_fn(async |_: Request<Incoming>| {
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        });
        let server = http2::Builder::new(TokioExecutor::new());
        let mut server = Box::pin(server.serve_connection(TokioIo::new(io), answer));
        let served = Arc::clone(&activity);
        let server = tokio::spawn(poll_fn(move |context| {
            served.begin_turn();
            server.as_mut().poll(context)
        }));
        let client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (mut client, connection) = client.handshake(TokioIo::new(near)).await.unwrap();
        let connection = tokio::spawn(connection);
        for n in 0..1_000 {
            let request = Request::get(format!("https://api.example/api/v1/pods/name-{n}"))
                .header("authorization", format!("Bearer {}", "a".repeat(1_500)))
                .header("x-forwarded-for", format!("10.0.{}.{}", n / 250, n % 250))
                .body(Empty::<Bytes>::new());
            let answer = soon(client.send_request(request.unwrap())).await;
            assert!(answer.unwrap().status().is_success());
        }
        assert_eq!(activity.condemned(), None);
        drop(client);
        soon(connection).await.unwrap().unwrap();
        soon(server).await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn frames_that_ask_for_nothing_are_read_no_further_when_they_are_many() {
        for (frame, most, cut) in [
            (SETTINGS, MAX_SETTINGS, Cut::Settings),
            (PING, MAX_PINGS, Cut::Pings),
            (PRIORITY, MAX_PINGS, Cut::Pings),
            (UNKNOWN, MAX_UNKNOWN, Cut::UnknownFrames),
        ] {
            let activity = activity(1 << 30);
            let most = most as usize;
            let mut frames = WatchedFrames::new(&activity);
            frames.inspect(&mut PREFACE.to_vec());
            for _ in 0..3 {
                frames.inspect(&mut frame.repeat(most));
                assert_eq!(activity.condemned(), None);
                tokio::time::advance(COUNTED_TIME).await;
            }
            let mut many = connection(&activity, frame, 10 * most);
            let read = turn(&activity, &mut many);
            assert_eq!(activity.condemned(), Some(cut));
            assert!(
                read <= PREFACE.len() + most * frame.len() + READ_AHEAD,
                "{read}"
            );
        }
    }
}
