//! One client connection: its limits, its protocol and its end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::body::{self, Body, BoxError};
use super::drain;

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The address the connection came from.
    pub address: SocketAddr,
    /// What the TLS handshake told; `None` on a plain listener.
    pub tls: Option<Arc<TlsPeer>>,
}

/// What the TLS handshake told about the client.
#[derive(Debug, Default)]
pub struct TlsPeer {
    /// The client's certificate and what it sent along, whose key it holds. **Nobody has verified who signed it.**
    /// Empty without one.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The name the client asked for.
    pub server_name: Option<String>,
}

/// What connections may cost.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at a time. Further ones wait in the kernel's backlog.
    pub connections: usize,
    /// HTTP/2 streams a connection may have open.
    pub streams: u32,
    /// Bytes of answer a connection or a stream may hold that the client has not taken. Not more, as
    /// the cursor of a watch is the buffer, and it costs nothing.
    pub send_buffer: usize,
    /// How long a connection may be without a request before it is closed.
    pub idle: Duration,
    /// How long TLS and the first request may take.
    pub start: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 20_000,
            // kube-apiserver's recommended options say 1000; its bare default of 100 makes
            // clients with many informers wait.
            streams: 1000,
            send_buffer: 64 * 1024,
            // kube-apiserver's idle timeout.
            idle: Duration::from_secs(90),
            start: Duration::from_secs(10),
        }
    }
}

/// The bytes a client may send ahead on one stream, and on a connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Room for long tokens and for `Impersonate-Group` lists; kube-apiserver takes up to 1 MB.
const MAX_HEADER_BYTES: u32 = 128 * 1024;
const MAX_HEADERS: usize = 512;

/// A ping on a quiet HTTP/2 connection, and how long its answer may take: finds clients that
/// vanished without a word, whose watches would stay for ever.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The settings of both protocols, made once a listener.
pub(super) struct Protocols {
    http1: auto::Builder<TokioExecutor>,
    http2: auto::Builder<TokioExecutor>,
    limits: Limits,
}

/// Keeps count of the requests of one connection, to know when it is idle.
struct Activity {
    opened: Instant,
    /// Requests running.
    running: AtomicU64,
    /// Milliseconds after `opened` at which the last request ended, plus one; 0 before the first.
    last_end: AtomicU64,
}

/// One running request of a connection.
struct Running(Arc<Activity>);

// === impl Protocols ===

impl Protocols {
    pub(super) fn new(limits: Limits) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            // hyper counts this from the end of the last request, so it is the idle time too.
            .header_read_timeout(limits.idle)
            // One number for what is read and written ahead: it bounds the request head too.
            .max_buf_size(limits.send_buffer)
            .max_headers(MAX_HEADERS);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(limits.send_buffer)
            .max_header_list_size(MAX_HEADER_BYTES)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        Protocols { http1: builder.clone().http1_only(), http2: builder.http2_only(), limits }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Serves one connection to its end, or until the drain cuts it.
    pub(super) async fn serve<I, S, F>(&self, io: I, http2: bool, peer: Peer, service: S, drain: drain::Watch)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let activity = Arc::new(Activity::new());
        let address = peer.address;
        let requests = service_fn({
            let activity = Arc::clone(&activity);
            move |request| answer(request, peer.clone(), service.clone(), Running::new(&activity))
        });
        let builder = if http2 { &self.http2 } else { &self.http1 };
        let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(io), requests));
        let mut forced = pin!(drain.forced());
        let mut draining = pin!(drain.draining());
        let mut ending = false;
        loop {
            tokio::select! {
                result = connection.as_mut() => {
                    if let Err(error) = result {
                        tracing::debug!(%address, error = %error, "connection ended with an error");
                    }
                    return;
                }
                () = &mut draining, if !ending => {
                    ending = true;
                    connection.as_mut().graceful_shutdown();
                }
                // Dropping the connection cuts its streams.
                () = &mut forced => return,
                () = activity.idle(&self.limits), if !ending => {
                    ending = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// Runs the service for one request. A panic is that request's own affair: it is answered with 500,
/// and the other streams of the connection go on.
async fn answer<S, F>(
    request: Request<Incoming>,
    peer: Peer,
    service: S,
    running: Running,
) -> Result<Response<Counted>, Infallible>
where
    S: Fn(Request<Incoming>, Peer) -> F,
    F: Future<Output = Response<Body>>,
{
    let head = request.method() == Method::HEAD;
    let answered = AssertUnwindSafe(async { service(request, peer).await }).catch_unwind().await;
    let mut response = answered.unwrap_or_else(|_| {
        tracing::error!("a request panicked; its client got 500, everything else goes on");
        let mut response = Response::new(body::full("Internal Server Error\n"));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    });
    if head {
        without_body(&mut response);
    }
    Ok(response.map(|inner| Counted { inner, _running: running }))
}

/// Leaves of an answer what HEAD wants. hyper does so on HTTP/1 only.
fn without_body(response: &mut Response<Body>) {
    let length = http_body::Body::size_hint(response.body()).exact();
    if let Some(length) = length.filter(|&length| length > 0) {
        response.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    *response.body_mut() = body::empty();
}

// === impl Activity ===

impl Activity {
    fn new() -> Self {
        Activity { opened: Instant::now(), running: AtomicU64::new(0), last_end: AtomicU64::new(0) }
    }

    /// Waits until the connection has had nothing to do for as long as the limits allow.
    async fn idle(&self, limits: &Limits) {
        loop {
            let until = match self.last_end.load(Ordering::Acquire) {
                0 => self.opened + limits.start,
                end => self.opened + Duration::from_millis(end) + limits.idle,
            };
            let busy = self.running.load(Ordering::Acquire) > 0;
            if !busy && until <= Instant::now() {
                return;
            }
            // While requests run, look again after a whole idle time; it is only about tidiness.
            tokio::time::sleep_until(if busy { Instant::now() + limits.idle } else { until }).await;
        }
    }
}

// === impl Running ===

impl Running {
    fn new(activity: &Arc<Activity>) -> Self {
        activity.running.fetch_add(1, Ordering::AcqRel);
        Running(Arc::clone(activity))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let end = u64::try_from(self.0.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.last_end.store(end.saturating_add(1), Ordering::Release);
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An answer's body that keeps its connection from being idle.
struct Counted {
    inner: Body,
    _running: Running,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
