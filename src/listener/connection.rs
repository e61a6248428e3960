//! One client connection: its limits, its protocol and its end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures_util::FutureExt;
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use pin_project_lite::pin_project;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::server::TlsStream;

use super::activity::{Activity, Running};
use super::clock::{Clock, Due};
use super::gathered::{Gathered, Turns};
use super::limits::ConnectionLimits;
use super::metrics::Listener;
use super::pieces::Pieces;
use super::stall::{Pace, Streams};
use crate::body::{self, AnswerMeter, Body, BodyMeter, BoxError, InMemory};
use crate::drain;

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The address the connection came from. Of a Unix socket, the loopback address.
    pub address: SocketAddr,
    /// What the TLS handshake told; `None` on a plain listener.
    pub tls: Option<Arc<TlsPeer>>,
}

/// What the TLS handshake told about the client.
#[derive(Debug, Default)]
pub struct TlsPeer {
    /// The client's certificate and what it sent along, whose key it holds. **Nobody has verified
    /// who signed it.** Empty without one.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The name the client asked for.
    pub server_name: Option<String>,
}

/// The bytes a client may send ahead on one stream, and on a connection.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// hyper takes no less for HTTP/1.
const MIN_BUFFER: usize = 8192;
const MAX_HEADERS: usize = 512;

/// Streams that the client reset before they were looked at, and streams reset here for what the
/// client did wrong: beyond these the connection ends ("rapid reset", CVE-2023-44487, and its kin).
/// They are h2's own defaults, named so that they stay.
const MAX_PENDING_RESETS: usize = 20;
const MAX_OWN_RESETS: usize = 1024;

/// An HTTP/2 answer is handed out in pieces of this size: what is handed out at once is held for
/// the client, whatever its window.
const PIECE: usize = 64 * 1024;

/// What lies in memory anyway costs nothing to be held for a client, and each time that it is
/// handed out some of the processor. Not more, as a client that takes nothing of it is cut.
const MOST_PIECES: usize = 256 * 1024;

/// A ping on a quiet HTTP/2 connection, and how long its answer may take: finds clients that
/// vanished without a word, whose watches would stay for ever.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The settings of both protocols, made once a listener.
///
/// Which of them a connection speaks is known from TLS. hyper-util's builder for both finds out by
/// itself where upgrades are wanted, whatever it was told, and what it has looked at makes hyper's
/// buffers twice as large.
pub(super) struct Protocols {
    http1: http1::Builder,
    http2: http2::Builder<Streams>,
    limits: ConnectionLimits,
    listener: Listener,
}

/// What answers the requests of a connection.
pub(super) trait Requests:
    HttpService<Incoming, ResBody = Counted, Error = Infallible, Future: Send + 'static>
{
}

impl<S> Requests for S where
    S: HttpService<Incoming, ResBody = Counted, Error = Infallible, Future: Send + 'static>
{
}

/// A connection of either protocol. hyper-util's trait for this is missing on HTTP/1 with upgrades.
trait Graceful: Future<Output = Result<(), Self::Error>> {
    type Error: std::fmt::Display;

    fn graceful_shutdown(self: Pin<&mut Self>);
}

pin_project! {
    /// A connection, and what sends what it writes.
    struct InTurns<C, I> {
        #[pin]
        connection: C,
        turns: Turns<I>,
    }
}

// === impl Protocols ===

impl Protocols {
    pub(super) fn new(limits: ConnectionLimits, listener: Listener) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            // hyper counts this from the end of the last request, so it is the idle time too.
            .header_read_timeout(limits.idle)
            // One number for what is read and written ahead: it bounds the request head too.
            .max_buf_size(limits.header_bytes.max(MIN_BUFFER))
            .max_headers(MAX_HEADERS);
        let mut http2 = http2::Builder::new(Streams {
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

    pub(super) fn listener(&self) -> Listener {
        self.listener
    }

    /// What answers the requests of a connection.
    pub(super) fn requests<S, F>(
        &self,
        activity: &Arc<Activity>,
        peer: Peer,
        service: S,
    ) -> impl Requests + use<S, F>
    where
        S: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let activity = Arc::clone(activity);
        let url_bytes = self.limits.url_bytes;
        // Boxed, so that what it takes to find an answer is given back when there is one: watches
        // stay for hours.
        service_fn(move |request| {
            let running = Running::new(&activity);
            Box::pin(answer(
                request,
                url_bytes,
                peer.clone(),
                service.clone(),
                running,
            ))
        })
    }

    /// Serves one connection to its end, or until the drain or the watch over its client cuts it.
    pub(super) async fn serve_http1<I>(
        &self,
        io: I,
        requests: impl Requests,
        activity: &Activity,
        address: SocketAddr,
        drain: drain::DrainWatch,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        activity.speaks_http1();
        let connection = pin!(
            self.http1
                .serve_connection(TokioIo::new(io), requests)
                .with_upgrades()
        );
        self.run(connection, activity, address, drain).await;
    }

    /// The same of HTTP/2.
    pub(super) async fn serve_http2<I>(
        &self,
        tls: TlsStream<I>,
        requests: impl Requests,
        activity: &Activity,
        address: SocketAddr,
        drain: drain::DrainWatch,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let (io, turns) = Gathered::new(tls);
        let connection = self.http2.serve_connection(TokioIo::new(io), requests);
        let connection = pin!(InTurns { connection, turns });
        self.run(connection, activity, address, drain).await;
    }

    async fn run<C: Graceful>(
        &self,
        mut connection: Pin<&mut C>,
        activity: &Activity,
        address: SocketAddr,
        drain: drain::DrainWatch,
    ) {
        activity.begin();
        let mut draining = false;
        let mut next_act = drain.draining().boxed();
        let mut clock = Clock::new(activity, &self.limits);
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
                        // Not even the beginning of HTTP/2 is there, without which nothing can be
                        // said.
                        return;
                    }
                    if clock.drain() {
                        connection.as_mut().graceful_shutdown();
                    }
                }
                due = poll_fn(|context| clock.poll(context)) => match due {
                    Due::End if activity.is_silent() => return,
                    Due::End => connection.as_mut().graceful_shutdown(),
                    Due::Cut(cut) => break cut,
                },
            }
        };
        self.listener.cut(cut);
        tracing::debug!(%address, reason = cut.as_str(), "connection cut");
    }
}

impl<I, S> Graceful for http1::UpgradeableConnection<I, S>
where
    S: Requests,
    I: Read + Write + Unpin + Send + 'static,
{
    type Error = hyper::Error;

    fn graceful_shutdown(self: Pin<&mut Self>) {
        Self::graceful_shutdown(self);
    }
}

impl<I, S> Graceful for InTurns<http2::Connection<TokioIo<Gathered<I>>, S, Streams>, I>
where
    S: Requests,
    I: AsyncRead + AsyncWrite + Unpin + 'static,
{
    type Error = BoxError;

    fn graceful_shutdown(self: Pin<&mut Self>) {
        self.project().connection.graceful_shutdown();
    }
}

impl<C, I> Future for InTurns<C, I>
where
    C: Future<Output = hyper::Result<()>>,
    I: AsyncRead + AsyncWrite + Unpin,
{
    type Output = Result<(), BoxError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let this = self.project();
        this.turns
            .poll(context, |context| this.connection.poll(context))
    }
}

/// Runs the service for one request. A panic is that request's own affair: it is answered with 500,
/// and the other streams of the connection go on.
async fn answer<S, F>(
    request: Request<Incoming>,
    url_bytes: usize,
    peer: Peer,
    service: S,
    mut running: Running,
) -> Result<Response<Counted>, Infallible>
where
    S: Fn(Request<Incoming>, Peer) -> F,
    F: Future<Output = Response<Body>>,
{
    let head = request.method() == Method::HEAD;
    let uri = request.uri();
    let url = uri.path().len() + uri.query().map_or(0, |query| query.len() + 1);
    let answered = AssertUnwindSafe(async {
        if url > url_bytes {
            return too_long(url_bytes);
        }
        service(request, peer).await
    });
    let answered = answered.catch_unwind().await;
    let mut response = answered.unwrap_or_else(|_| {
        tracing::error!("a request panicked; its client got 500, everything else goes on");
        let mut response = Response::new(body::full("Internal Server Error\n"));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    });
    if head {
        without_body(&mut response);
    }
    running.answered();
    let in_memory = response.extensions().get::<InMemory>().is_some();
    let meter = response
        .extensions_mut()
        .remove::<AnswerMeter>()
        .map(|metered| metered.0);
    Ok(response.map(|inner| Counted {
        inner,
        in_memory,
        rest: Bytes::new(),
        in_pieces: Pace::is_kept(),
        meter,
        _running: running,
    }))
}

fn too_long(most: usize) -> Response<Body> {
    let mut response = Response::new(body::full(format!("the URL is longer than {most} bytes\n")));
    *response.status_mut() = StatusCode::URI_TOO_LONG;
    response
}

/// Leaves of an answer what HEAD wants. hyper does so on HTTP/1 only.
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

/// An answer's body that keeps its connection from being idle, and shows how its client takes it.
pub(super) struct Counted {
    inner: Body,
    in_memory: bool,
    /// On HTTP/2, where what is handed out at once is held.
    in_pieces: bool,
    /// What is left of a frame that is handed out in pieces.
    rest: Bytes,
    meter: Option<Arc<dyn BodyMeter>>,
    _running: Running,
}

impl Counted {
    fn count(&self, bytes: usize) {
        if let Some(meter) = &self.meter
            && bytes > 0
        {
            meter.sent(bytes);
        }
    }
}

impl http_body::Body for Counted {
    type Data = Pieces;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Pieces>, BoxError>>> {
        let this = &mut *self;
        Pace::Asked.tell();
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other.map_data(Pieces::from)))),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        Pace::HandedOut.tell();
        let piece = if this.in_pieces { PIECE } else { usize::MAX };
        let mut pieces = Pieces::from(this.rest.split_to(piece.min(this.rest.len())));
        while this.in_memory && pieces.remaining() < MOST_PIECES {
            if this.rest.is_empty()
                && this.inner.size_hint().lower() > 0
                && let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut this.inner).poll_frame(cx)
                && let Ok(data) = frame.into_data()
            {
                this.rest = data;
            }
            if this.rest.is_empty() {
                break;
            }
            pieces.push(this.rest.split_to(piece.min(this.rest.len())));
        }
        this.count(pieces.remaining());
        Poll::Ready(Some(Ok(Frame::data(pieces))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let inner = self.inner.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper().and_then(|upper| upper.checked_add(rest)) {
            hint.set_upper(upper);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The task of an HTTP/2 stream has room for both, and takes 384 bytes with them: the next size
    /// is 512. There may be a hundred thousand.
    #[test]
    fn the_body_of_an_open_stream_is_small() {
        let bytes = size_of::<Counted>() + size_of::<Pieces>();
        assert!(bytes <= 160, "{bytes}");
    }
}
