//! One connection to the API server.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use http::Response;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::class::ConnectionClass;
use super::error::UpstreamError;
use super::release::{KnownRelease, Release};
use super::server::Upstream;
use super::traffic::OpenConnection;
use crate::backoff::PauseRange;
use crate::body::Body;
use crate::headers::VIA;
use watershed_connect::{Address, CONNECT_TIMEOUT, Dialed, DialedStream, Protocol};

mod lease;
mod queue;
mod silence;

pub(super) use lease::{Lease, NotSent};
pub(super) use queue::{ConnectionPermits, ConnectionQueue};
pub(super) use silence::AwaitedBy;
use silence::UnansweredRequests;

/// Interval and timeout of HTTP/2 pings, which are also sent on idle connections.
///
/// A dead connection is noticed after their sum, instead of after TCP's quarter of an hour.
const PING_INTERVAL: Duration = Duration::from_secs(15);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Limit of an answer's headers over HTTP/2. kube-apiserver's carry a warning for each deprecation, and more.
///
/// h2 ends a connection, with all of its streams, if headers come in many more frames than this limit takes of
/// the largest. Go's server sends 16 KiB in each. So the limit is as many times 256 KiB as [`FRAME`] is larger.
const MAX_HEADER_BYTES: u32 = MAX_RELAYED_HEADER_BYTES * (FRAME / GO_FRAME);
const MAX_RELAYED_HEADER_BYTES: u32 = 256 * 1024;
const MAX_HEADERS: usize = 512;

/// Returns the settings of a connection by HTTP/1.1.
pub(super) fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.max_headers(MAX_HEADERS);
    builder
}

/// Largest frame that upstream may send.
///
/// Each frame wakes three tasks on its way to the client, so fewer frames than with the protocol's
/// default of 16 KiB save CPU.
const FRAME: u32 = 256 * 1024;
/// Largest frame in which Go's server sends headers, and the protocol's default.
const GO_FRAME: u32 = 16 * 1024;

/// Cancelled streams of a connection that h2 remembers for a second.
const MAX_CANCELLED: usize = 1000;

/// Bytes of a request's body that are buffered while upstream does not read them.
const SEND_BUFFER: usize = 128 * 1024;

/// Pauses between checks for the peer's settings. hyper does not report their arrival.
const LIMIT_POLLS: PauseRange =
    PauseRange::new(Duration::from_micros(200), Duration::from_millis(20));

/// A connection of either protocol.
pub(super) enum HttpConnection {
    Http2(Arc<Http2Connection>),
    Http1(Http1Connection),
}

/// A shared connection.
pub(super) struct Http2Connection {
    /// `None` once the connection has ended.
    ///
    /// hyper may leave a request in its queue while closing it, until the last sender is dropped.
    /// Its caller would wait forever.
    sender: Arc<Mutex<Option<http2::SendRequest<Body>>>>,
    pub(super) address: Address,
    pub(super) generation: u64,
    pub(super) opened: Instant,
    /// Streams in use. Increased only under the group's lock.
    streams: AtomicUsize,
    /// Streams that the peer allows.
    peer_limit: Arc<AtomicUsize>,
    /// No further request is sent on it.
    closed: Arc<AtomicBool>,
    idle_since: Mutex<Instant>,
    unanswered: UnansweredRequests,
    release: KnownRelease,
    /// No request is to follow one whose answer was given up.
    is_alone: bool,
    permits: ConnectionPermits,
    /// Streams go on after the server has said that the connection ends.
    _open: OpenConnection,
}

/// An exclusive connection.
pub(super) struct Http1Connection {
    sender: http1::SendRequest<Body>,
    pub(super) address: Address,
    pub(super) generation: u64,
    pub(super) idle_since: Instant,
    opened: Instant,
    /// Its request is the last one.
    retired: bool,
    permits: ConnectionPermits,
}

/// The address that sent an answer, and the connection that it came by: an extension of every
/// answer. Cheap to clone.
#[derive(Clone)]
pub struct ServedBy {
    /// The address.
    pub address: Address,
    /// The connection, if it is shared.
    connection: Option<Weak<Http2Connection>>,
    opened: Option<Instant>,
}

/// The HTTP/1 connections of a group that wait for a request, the youngest last.
pub(super) struct IdleHttp1 {
    upstream: Upstream,
    pub(super) connections: Mutex<VecDeque<Http1Connection>>,
}

type Http2Driver = http2::Connection<TokioIo<DialedStream>, Body, TokioExecutor>;

/// Speaks HTTP on a new connection, and spawns the task that drives it.
pub(super) async fn handshake(
    dialed: Dialed,
    class: ConnectionClass,
    generation: u64,
    permits: ConnectionPermits,
    open: OpenConnection,
) -> Result<HttpConnection, UpstreamError> {
    let Dialed {
        stream,
        protocol,
        address,
    } = dialed;
    let io = TokioIo::new(stream);
    if protocol == Protocol::Http1 {
        let (sender, driver) = http1_builder()
            .handshake(io)
            .await
            .map_err(|error| handshake_failed(&address, error))?;
        tokio::spawn(async move {
            // Its end shows in the sender.
            let _ = driver.await;
            drop(open);
        });
        let idle_since = Instant::now();
        return Ok(HttpConnection::Http1(Http1Connection {
            sender,
            address,
            generation,
            idle_since,
            opened: idle_since,
            retired: false,
            permits,
        }));
    }
    let (sender, mut driver) = http2_builder(class)
        .handshake(io)
        .await
        .map_err(|error| handshake_failed(&address, error))?;
    let peer_limit = wait_for_peer_limit(&mut driver, &address).await?;
    let connection = Http2Connection {
        sender: Arc::new(Mutex::new(Some(sender))),
        address,
        generation,
        opened: Instant::now(),
        streams: AtomicUsize::new(0),
        peer_limit: Arc::new(AtomicUsize::new(peer_limit)),
        closed: Arc::new(AtomicBool::new(false)),
        idle_since: Mutex::new(Instant::now()),
        unanswered: UnansweredRequests::default(),
        release: KnownRelease::default(),
        is_alone: class.is_alone(),
        permits,
        _open: open,
    };
    connection.spawn_driver(driver);
    Ok(HttpConnection::Http2(Arc::new(connection)))
}

fn handshake_failed(address: &Address, source: hyper::Error) -> UpstreamError {
    UpstreamError::Handshake {
        address: address.clone(),
        source: Arc::new(source),
    }
}

fn http2_builder(class: ConnectionClass) -> http2::Builder<TokioExecutor> {
    let windows = class.windows();
    // Others than API servers choose the headers of relayed answers.
    let (header_bytes, frame) = match class {
        ConnectionClass::Watch | ConnectionClass::Short | ConnectionClass::LongForward => {
            (MAX_HEADER_BYTES, FRAME)
        }
        ConnectionClass::Relayed => (MAX_RELAYED_HEADER_BYTES, GO_FRAME),
    };
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
        // Nothing is sent before the peer has told its limit: a request beyond it would block all
        // that come after it.
        .initial_max_send_streams(0)
        .max_header_list_size(header_bytes)
        .max_send_buf_size(SEND_BUFFER)
        .max_frame_size(frame)
        // Frames of streams that were cancelled here may still come, and are no fault of upstream's.
        .max_concurrent_reset_streams(MAX_CANCELLED)
        .max_local_error_reset_streams(None)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    builder
}

/// Drives a new connection until the peer's settings arrive. Returns the streams that they allow.
async fn wait_for_peer_limit(
    driver: &mut Http2Driver,
    address: &Address,
) -> Result<usize, UpstreamError> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let mut polls = 0_u32;
    while driver.current_max_send_streams() == 0 {
        match poll_fn(|cx| Poll::Ready(Pin::new(&mut *driver).poll(cx))).await {
            Poll::Ready(Err(error)) => return Err(handshake_failed(address, error)),
            Poll::Pending if Instant::now() <= deadline => {
                tokio::time::sleep(LIMIT_POLLS.after(polls)).await;
            }
            Poll::Ready(Ok(())) | Poll::Pending => {
                return Err(UpstreamError::NoStreams {
                    address: address.clone(),
                });
            }
        }
        polls = polls.saturating_add(1);
    }
    Ok(driver.current_max_send_streams())
}

impl Http2Connection {
    /// Spawns the task that drives the connection until it ends.
    fn spawn_driver(&self, mut driver: Http2Driver) {
        let (peer_limit, closed) = (Arc::clone(&self.peer_limit), Arc::clone(&self.closed));
        // Weak: when nobody has the sender any more, the connection ends.
        let sender = Arc::downgrade(&self.sender);
        tokio::spawn(async move {
            let _ = poll_fn(|cx| {
                let polled = Pin::new(&mut driver).poll(cx);
                // The peer may change its limit. The next request sees that at the latest.
                peer_limit.store(driver.current_max_send_streams(), Ordering::Release);
                polled
            })
            .await;
            closed.store(true, Ordering::Release);
            drop(driver);
            if let Some(sender) = sender.upgrade() {
                sender.lock().take();
            }
        });
    }

    /// Returns `true` if no further request should be sent on it.
    pub(super) fn is_closed(&self) -> bool {
        if self.unanswered.are_many() {
            // For good, also if it answers later: no group may have it any more.
            self.retire();
        }
        self.closed.load(Ordering::Acquire)
            || self
                .sender
                .lock()
                .as_ref()
                .is_none_or(http2::SendRequest::is_closed)
    }

    /// Takes a stream if one of those that a class may use is free. Called only under the group's
    /// lock.
    pub(super) fn take_stream(&self, class: ConnectionClass) -> bool {
        let allowed = self.peer_limit.load(Ordering::Acquire);
        self.take_below(class.windows().streams_of(allowed))
    }

    /// Takes the first stream, if none is in use. Called only under the group's lock.
    pub(super) fn take_alone(&self) -> bool {
        self.take_below(1)
    }

    /// Keeps further requests off the connection. It ends with those that are on it.
    pub(super) fn retire(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Takes a stream if the peer allows it, for a question about the server at the end of this
    /// connection. Called only under the group's lock.
    pub(super) fn take_any_stream(&self) -> bool {
        self.take_below(self.peer_limit.load(Ordering::Acquire))
    }

    fn take_below(&self, limit: usize) -> bool {
        let below_limit = self.streams.load(Ordering::Acquire) < limit;
        if below_limit {
            self.streams.fetch_add(1, Ordering::AcqRel);
        }
        below_limit
    }

    /// Returns the number of streams in use.
    pub(super) fn streams(&self) -> usize {
        self.streams.load(Ordering::Acquire)
    }

    /// Returns the time without streams; `None` while there are any.
    pub(super) fn idle(&self) -> Option<Duration> {
        (self.streams.load(Ordering::Acquire) == 0).then(|| self.idle_since.lock().elapsed())
    }

    fn give_back(&self) {
        *self.idle_since.lock() = Instant::now();
        self.streams.fetch_sub(1, Ordering::AcqRel);
        self.permits.queue().notify_first();
    }
}

impl Http1Connection {
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl ServedBy {
    /// Returns the server that sent an answer, while the connection to it is open. `None` if each request has a
    /// connection of its own, or if a proxy in between may lead to another server by now.
    pub fn directly<B>(response: &Response<B>) -> Option<Self> {
        if response.headers().contains_key(VIA) {
            return None;
        }
        let server = response.extensions().get::<Self>();
        server.filter(|server| server.is_connected()).cloned()
    }

    /// Returns `true` if both answers came by one connection. Of HTTP/1 connections, which each
    /// request has to itself, the address must be the same.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.connection, &other.connection) {
            (Some(this), Some(other)) => Weak::ptr_eq(this, other),
            (None, None) => self.address == other.address,
            _ => false,
        }
    }

    /// Returns the time at which the connection was opened, if it is shared.
    pub(super) fn opened(&self) -> Option<Instant> {
        self.opened
    }

    /// Returns the shared connection, while it exists.
    pub(super) fn shared(&self) -> Option<Arc<Http2Connection>> {
        self.connection.as_ref()?.upgrade()
    }

    /// Returns `false` if the connection takes no more requests, while its streams may go on for an
    /// hour. An API server does so on its way down, and at random (`--goaway-chance`).
    pub fn takes_requests(&self) -> bool {
        // Or each request has a connection of its own.
        self.connection.is_none() || self.is_connected()
    }

    /// Returns `true` if the connection is shared and still takes requests. Then the server is the same process
    /// as before.
    pub fn is_connected(&self) -> bool {
        self.shared()
            .is_some_and(|connection| !connection.is_closed())
    }

    /// Returns the release of the server. Awaits `question` if it is not known.
    pub(super) async fn known_release(
        &self,
        question: impl Future<Output = Result<Option<Release>, String>>,
    ) -> Result<Option<Release>, String> {
        let Some(connection) = self.shared() else {
            return question.await;
        };
        if connection.is_closed() {
            let last = connection.release.last().await;
            return last.ok_or_else(|| "its connection takes no more requests".to_owned());
        }
        connection.release.or_ask(question).await
    }
}

impl std::fmt::Debug for ServedBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ServedBy").field(&self.address).finish()
    }
}

impl IdleHttp1 {
    pub(super) fn new(upstream: Upstream) -> Self {
        Self {
            upstream,
            connections: Mutex::default(),
        }
    }

    /// Keeps a connection that has done its work, unless newer credentials are in use.
    pub(super) fn put_back(&self, connection: Http1Connection) {
        if connection.generation == self.upstream.current().generation {
            let queue = connection.permits.queue().clone();
            self.connections.lock().push_back(connection);
            queue.notify_first();
        }
    }

    /// Takes the youngest live connection of this generation. Drops the others on the way.
    pub(super) fn take(&self, generation: u64) -> Option<Http1Connection> {
        let mut connections = self.connections.lock();
        while let Some(connection) = connections.pop_back() {
            if !connection.is_closed() && connection.generation == generation {
                return Some(connection);
            }
        }
        None
    }

    /// Drops connections that are dead, idle for this long, or of other credentials.
    pub(super) fn sweep(&self, generation: u64, idle: Duration) {
        self.connections.lock().retain(|connection| {
            !connection.is_closed()
                && connection.generation == generation
                && connection.idle_since.elapsed() < idle
        });
    }
}
