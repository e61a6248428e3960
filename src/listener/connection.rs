//! One client connection: its limits, its protocol and its end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use pin_project_lite::pin_project;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::server::TlsStream;

use super::activity::{Activity, RunningRequest};
use super::answer_body::AnswerBody;
use super::fresh_streams;
use super::goaway::{GoawayRule, LastOfConnection};
use super::http1_rules;
use super::inspected::InspectedStream;
use super::limits::{ConnectionLimits, STREAM_WINDOW};
use super::metrics::Listener;
use super::open_body::OpenBody;
use super::peer_connection::PeerConnection;
use super::stream_stall::StreamExecutor;
use super::timeouts::{ConnectionTimeouts, TimeoutAction};
use super::watched_frames::WatchedFrames;
use super::watched_lines::WatchedLines;
use super::write_coalescing::{CoalescingStream, TurnFlusher};
use crate::body::{self, AnswerMeter, Body, BoxError, RequestBodyReader};
use crate::drain::DrainWatch;
use crate::headers::copy_of_target;

/// The client of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The address of the client. On a Unix socket, the loopback address.
    pub address: SocketAddr,
    /// The facts of the TLS handshake; `None` on a plain listener.
    pub tls: Option<Arc<TlsPeer>>,
    /// The connection.
    pub connection: PeerConnection,
}

/// Facts that the TLS handshake tells about the client.
#[derive(Debug, Default)]
pub struct TlsPeer {
    /// The client's certificate and the rest of its chain. Empty without one.
    ///
    /// The client holds the key, but **nobody has verified who signed it.**
    pub certificates: Vec<CertificateDer<'static>>,
    /// The name the client asked for.
    pub server_name: Option<String>,
}

/// Answers the requests of all connections of a listener. Functions that take a request and its peer
/// do that.
pub trait RequestHandler: Clone + Send + Sync + 'static {
    /// Returns the answer to a request.
    fn handle(
        &self,
        request: Request<Incoming>,
        peer: Peer,
    ) -> impl Future<Output = Response<Body>> + Send;
}

impl<S, F> RequestHandler for S
where
    S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send,
{
    fn handle(
        &self,
        request: Request<Incoming>,
        peer: Peer,
    ) -> impl Future<Output = Response<Body>> + Send {
        self(request, peer)
    }
}

/// The bytes a client may send ahead on a connection.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Smallest HTTP/1 buffer that hyper accepts.
const MIN_BUFFER: usize = 8192;
const MAX_HEADERS: usize = 512;

/// Streams that the client reset before they were looked at, and streams reset here for protocol
/// errors. Beyond these numbers the connection ends ("rapid reset", CVE-2023-44487).
///
/// They are h2's own defaults, named so that they stay.
const MAX_PENDING_RESETS: usize = 20;
const MAX_OWN_RESETS: usize = 1024;

/// Interval of pings on a quiet HTTP/2 connection, and the time for their answer.
///
/// They find clients that vanished, whose watches would stay open forever.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The settings of HTTP/1 and HTTP/2, made once per listener.
///
/// ALPN tells which of them a connection speaks. hyper-util's builder for both always peeks at the
/// first bytes where upgrades are wanted, and that doubles the size of hyper's buffers.
pub(super) struct Protocols {
    http1: http1::Builder,
    http2: http2::Builder<StreamExecutor>,
    limits: ConnectionLimits,
    listener: Listener,
}

/// A service that answers the requests of one connection.
pub(super) trait RequestService:
    HttpService<Incoming, ResBody = AnswerBody, Error = Infallible, Future: Send + 'static>
{
}

impl<S> RequestService for S where
    S: HttpService<Incoming, ResBody = AnswerBody, Error = Infallible, Future: Send + 'static>
{
}

/// A connection of either protocol that can be shut down gracefully.
///
/// hyper-util has such a trait, but not for HTTP/1 with upgrades.
trait GracefulConnection: Future<Output = Result<(), Self::Error>> {
    type Error: std::fmt::Display;

    fn graceful_shutdown(self: Pin<&mut Self>);
}

pin_project! {
    /// A connection, flushed after each poll.
    struct FlushedConnection<C, I> {
        #[pin]
        connection: C,
        flusher: TurnFlusher<I>,
        activity: Arc<Activity>,
    }
}

impl Protocols {
    pub(super) fn new(limits: ConnectionLimits, listener: Listener) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            // hyper measures from the end of the last request, so this is the idle timeout too.
            .header_read_timeout(limits.idle)
            // One limit for reading and writing. It bounds the request head too.
            .max_buf_size(limits.header_bytes.max(MIN_BUFFER))
            .max_headers(MAX_HEADERS)
            // As Go's server does. Scripts look for these names.
            .title_case_headers(true);
        let mut http2 = http2::Builder::new(StreamExecutor {
            stall: limits.stall,
        });
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(limits.stream_buffer)
            .max_header_list_size(u32::try_from(limits.header_bytes * 2).unwrap_or(u32::MAX))
            .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
            .max_local_error_reset_streams(MAX_OWN_RESETS)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        Protocols {
            http1,
            http2,
            limits,
            listener,
        }
    }

    pub(super) fn limits(&self) -> &ConnectionLimits {
        &self.limits
    }

    /// Returns the service that answers the requests of one connection.
    pub(super) fn requests<H: RequestHandler>(
        &self,
        activity: &Arc<Activity>,
        peer: Peer,
        handler: H,
    ) -> impl RequestService + use<H> {
        let activity = Arc::clone(activity);
        let url_bytes = self.limits.url_bytes;
        let goaway = GoawayRule::new(&self.limits, self.listener);
        // Boxed, so that the memory for finding an answer is freed once the answer begins: watches
        // stay for hours.
        service_fn(move |mut request| {
            if goaway.decides(&request) {
                activity.leave();
            }
            let mut running = RunningRequest::new(&activity);
            if request.version() == Version::HTTP_2 {
                // The request may wait, and would keep more than counts for it.
                *request.uri_mut() = copy_of_target(request.uri());
                running = running.counted(fresh_streams::bytes_of(&request));
                if !http_body::Body::is_end_stream(request.body()) {
                    let reader = RequestBodyReader(Arc::new(OpenBody::new(&activity)));
                    request.extensions_mut().insert(reader);
                }
            }
            Box::pin(answer(
                request,
                url_bytes,
                peer.clone(),
                handler.clone(),
                running,
            ))
        })
    }

    /// Serves an HTTP/1 connection until it ends, or until the drain or a timeout cuts it.
    pub(super) async fn serve_http1<I>(
        &self,
        io: I,
        requests: impl RequestService,
        activity: &Arc<Activity>,
        address: SocketAddr,
        drain: &DrainWatch,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        activity.set_http1();
        let io = InspectedStream::new(io, WatchedLines::new(activity), activity);
        let connection = pin!(
            self.http1
                .serve_connection(TokioIo::new(io), requests)
                .with_upgrades()
        );
        self.run(connection, activity, address, drain).await;
        activity.end_requests();
    }

    /// Serves an HTTP/2 connection like [`Protocols::serve_http1`].
    pub(super) async fn serve_http2<I>(
        &self,
        tls: TlsStream<I>,
        requests: impl RequestService,
        activity: &Arc<Activity>,
        address: SocketAddr,
        drain: &DrainWatch,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let (io, flusher) = CoalescingStream::new(tls);
        let io = InspectedStream::new(io, WatchedFrames::new(activity), activity);
        let connection = pin!(FlushedConnection {
            connection: self.http2.serve_connection(TokioIo::new(io), requests),
            flusher,
            activity: Arc::clone(activity),
        });
        self.run(connection, activity, address, drain).await;
    }

    async fn run<C: GracefulConnection>(
        &self,
        mut connection: Pin<&mut C>,
        activity: &Activity,
        address: SocketAddr,
        drain: &DrainWatch,
    ) {
        activity.begin();
        let mut draining = false;
        let mut next_act = drain.draining().boxed();
        let mut timeouts = ConnectionTimeouts::new(activity, &self.limits);
        let cut = loop {
            tokio::select! {
                result = connection.as_mut() => {
                    if let Err(error) = result {
                        tracing::debug!(%address, error = %error, "connection ended with an error");
                    }
                    return;
                }
                () = &mut next_act => {
                    if draining {
                        // Dropping the connection cuts its streams.
                        return;
                    }
                    draining = true;
                    next_act = drain.forced().boxed();
                    if activity.is_silent() {
                        // Without the HTTP/2 preface of the client, no GOAWAY can be sent.
                        return;
                    }
                    if timeouts.drain() {
                        connection.as_mut().graceful_shutdown();
                    }
                }
                due = poll_fn(|context| timeouts.poll(context)) => match due {
                    TimeoutAction::ShutDown if activity.is_silent() => return,
                    TimeoutAction::ShutDown => connection.as_mut().graceful_shutdown(),
                    TimeoutAction::Cut(cut) => break cut,
                },
            }
        };
        self.listener.cut(cut);
        tracing::debug!(%address, reason = cut.as_str(), "connection cut");
    }
}

impl<I, S> GracefulConnection for http1::UpgradeableConnection<I, S>
where
    S: RequestService,
    I: Read + Write + Unpin + Send + 'static,
{
    type Error = hyper::Error;

    fn graceful_shutdown(self: Pin<&mut Self>) {
        Self::graceful_shutdown(self);
    }
}

impl<I, S> GracefulConnection
    for FlushedConnection<
        http2::Connection<
            TokioIo<InspectedStream<CoalescingStream<I>, WatchedFrames>>,
            S,
            StreamExecutor,
        >,
        I,
    >
where
    S: RequestService,
    I: AsyncRead + AsyncWrite + Unpin + 'static,
{
    type Error = BoxError;

    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.project().connection.graceful_shutdown();
    }
}

impl<C, I> Future for FlushedConnection<C, I>
where
    C: Future<Output = hyper::Result<()>>,
    I: AsyncRead + AsyncWrite + Unpin,
{
    type Output = Result<(), BoxError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let this = self.project();
        this.activity.begin_turn();
        this.flusher
            .poll(context, |context| this.connection.poll(context))
    }
}

/// Has one request answered.
///
/// A panic is answered with 500, and the other streams of the connection go on.
async fn answer(
    request: Request<Incoming>,
    url_bytes: usize,
    peer: Peer,
    handler: impl RequestHandler,
    mut running: RunningRequest,
) -> Result<Response<AnswerBody>, Infallible> {
    let head = request.method() == Method::HEAD;
    let has_large_body = http1_rules::has_large_body(&request);
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let (version, address) = (request.version(), peer.address);
    let url = uri.path().len() + uri.query().map_or(0, |query| query.len() + 1);
    let fault = running.fault();
    let mut answering = pin!(
        AssertUnwindSafe(async {
            let refusal = if let Some(fault) = fault {
                Some(http1_rules::refused(fault))
            } else if url > url_bytes {
                Some(too_long(url_bytes))
            } else if request.headers().len() > MAX_HEADERS {
                Some(too_many_fields())
            } else {
                http1_rules::bad_escape(&request).or_else(|| http1_rules::refusal(&request))
            };
            let Some(refusal) = refusal else {
                return handler.handle(request, peer).await;
            };
            // Over HTTP/1, the connection ends with such an answer.
            if version == Version::HTTP_2 {
                body::discard_of(request);
            }
            refusal
        })
        .catch_unwind()
    );
    let answered = poll_fn(|context| {
        let polled = answering.as_mut().poll(context);
        // Before it knows a stranger, the service may wait for upstream.
        if polled.is_ready() || running.is_known() {
            running.begun();
        }
        polled
    });
    let mut response = match answered.await {
        Ok(response) => response,
        Err(_panic) => {
            let path = uri.path();
            tracing::error!(%method, path, %address, "panic while handling a request");
            internal_error()
        }
    };
    http1_rules::complete(&mut response, has_large_body);
    if head {
        without_body(&mut response);
    }
    running.answered();
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        running.upgraded();
    }
    let is_last = response.extensions_mut().remove::<LastOfConnection>();
    if is_last.is_some() && version == Version::HTTP_2 {
        running.leave();
    }
    if is_uncounted_refusal(&response, running.is_known()) {
        running.refused();
    }
    Ok(AnswerBody::of(response, running))
}

/// Returns `true` for a refusal that no share of memory counts: of a stranger, for a limit, or before
/// anybody looked at the request.
fn is_uncounted_refusal(response: &Response<Body>, is_known: bool) -> bool {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    let is_for_a_limit = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
    );
    let is_metered = response.extensions().get::<AnswerMeter>().is_some();
    is_error && (!is_known || is_for_a_limit || !is_metered)
}

fn internal_error() -> Response<Body> {
    let mut response = Response::new(body::full("Internal Server Error\n"));
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

fn too_long(limit: usize) -> Response<Body> {
    let mut response = Response::new(body::full(format!(
        "the URL is longer than {limit} bytes\n"
    )));
    *response.status_mut() = StatusCode::URI_TOO_LONG;
    response
}

fn too_many_fields() -> Response<Body> {
    let text = format!("the request has more than {MAX_HEADERS} header fields\n");
    let mut response = Response::new(body::full(text));
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response
}

/// Removes the body of an answer to HEAD. hyper does so on HTTP/1 only.
fn without_body(response: &mut Response<Body>) {
    let length = http_body::Body::size_hint(response.body()).exact();
    if let Some(length) = length.filter(|&length| length > 0) {
        response
            .headers_mut()
            .entry(CONTENT_LENGTH)
            .or_insert_with(|| length.into());
    }
    *response.body_mut() = body::empty();
}
