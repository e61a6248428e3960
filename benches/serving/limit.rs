//! The limit server: a server whose only cost is that of hyper and rustls.
//!
//! It answers reads with a body made beforehand and sends every frame it is given to every watcher.
//! It knows no objects, versions, selectors or callers, so no server built on the same libraries
//! can do the work for less, unless it sends several events at a time. With a relay it also stands
//! in for an API server behind a proxy.
use std::collections::VecDeque;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep};
use tokio_rustls::TlsAcceptor;
use watershed_lab::body::{empty_body, full_body};
use watershed_lab::sim::ServerIdentity;

use crate::children::announce;
use crate::relay::Relay;

/// Frames kept for watchers that are behind. More than any run sends at a time.
const KEPT: usize = 8192;

/// The CA to trust, as a file in the folder given on the command line.
pub(crate) const CERTIFICATE: &str = "limit.crt";
/// Path that frames are posted to.
pub(crate) const PUSH: &str = "/push";
/// Path that the answer to all further reads is posted to, with its headers.
pub(crate) const ANSWER: &str = "/answer";
/// Header of such a post that asks for a fault, see [`Planted`].
pub(crate) const PLANTED: &str = "bench-planted";
/// The end of a path that is answered with a log.
pub(crate) const LOG: &str = "/log";
/// Length of the log, and of its pieces.
pub(crate) const LOG_BYTES: usize = 64 << 20;
const LOG_PIECE: usize = 16 << 10;
/// Query parameter that limits the log to this many bytes a second, as a link of that speed does.
pub(crate) const RATE: &str = "rate=";
/// Length of planted waits.
pub(crate) const WAIT: Duration = Duration::from_millis(20);

pub(crate) type Body = UnsyncBoxBody<Bytes, hyper::Error>;

struct Shared {
    answer: ArcSwap<Answer>,
    hub: Arc<Mutex<Hub>>,
    log: Bytes,
    relay: Option<Relay>,
    /// Held while an answer waits that is planted to queue.
    queue: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Answer {
    content_type: Option<HeaderValue>,
    content_encoding: Option<HeaderValue>,
    body: Bytes,
    planted: Option<Planted>,
}

impl Answer {
    /// Reads the answer to give from now on out of a posted request.
    async fn read(request: Request<Incoming>) -> anyhow::Result<Self> {
        let (head, body) = request.into_parts();
        Ok(Self {
            content_type: head.headers.get(header::CONTENT_TYPE).cloned(),
            content_encoding: head.headers.get(header::CONTENT_ENCODING).cloned(),
            body: body.collect().await?.to_bytes(),
            planted: Planted::of(&head.headers),
        })
    }

    /// Makes a response, with the planted fault if there is one.
    async fn respond(&self, queue: &tokio::sync::Mutex<()>) -> Response<Body> {
        let mut body = self.body.clone();
        match self.planted {
            None => {}
            Some(Planted::Copy) => body = Bytes::copy_from_slice(&body),
            Some(Planted::Wait) => sleep(WAIT).await,
            Some(Planted::Queue) => {
                let _turn = queue.lock().await;
                sleep(WAIT).await;
            }
        }
        let mut response = Response::new(full_body(body));
        let headers = [
            (header::CONTENT_TYPE, &self.content_type),
            (header::CONTENT_ENCODING, &self.content_encoding),
        ];
        for (name, value) in headers {
            if let Some(value) = value {
                response.headers_mut().insert(name, value.clone());
            }
        }
        response
    }
}

/// Faults that the instrument must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    /// Each answer has its own copy of the body.
    Copy,
    /// Each answer waits for [`WAIT`].
    Wait,
    /// The same, one after the other.
    Queue,
}

#[derive(Default)]
struct Hub {
    frames: VecDeque<Bytes>,
    /// Number of the first frame kept.
    first: u64,
    waiting: Vec<Waker>,
}

struct Watch {
    hub: Arc<Mutex<Hub>>,
    next: u64,
}

struct Log {
    piece: Bytes,
    left: usize,
    link: Option<Link>,
}

/// A link of a known speed.
struct Link {
    rate: f64,
    /// When the next piece may go.
    free: Pin<Box<Sleep>>,
}

impl Planted {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Wait => "wait",
            Self::Queue => "queue",
        }
    }

    fn of(head: &HeaderMap) -> Option<Self> {
        let name = head.get(PLANTED)?;
        [Self::Copy, Self::Wait, Self::Queue]
            .into_iter()
            .find(|planted| planted.name() == name)
    }
}

impl Hub {
    fn head(&self) -> u64 {
        self.first + self.frames.len() as u64
    }
}

impl http_body::Body for Watch {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let hub = Arc::clone(&self.hub);
        let mut hub = hub.lock();
        let index = self.next.max(hub.first) - hub.first;
        let Some(frame) = hub.frames.get(index as usize).cloned() else {
            hub.waiting.push(context.waker().clone());
            return Poll::Pending;
        };
        self.next = hub.first + index + 1;
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }
}

impl http_body::Body for Log {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let length = self.left.min(self.piece.len());
        if let Some(link) = &mut self.link {
            ready!(link.free.as_mut().poll(context));
            // Counts from when the link was free, which makes up for a late timer.
            let next = link.free.deadline() + Duration::from_secs_f64(length as f64 / link.rate);
            link.free.as_mut().reset(next);
        }
        self.left -= length;
        Poll::Ready((length > 0).then(|| Ok(Frame::data(self.piece.slice(..length)))))
    }
}

impl Link {
    fn of(query: &str) -> Option<Self> {
        let rate = query
            .split('&')
            .find_map(|parameter| parameter.strip_prefix(RATE)?.parse().ok())?;
        Some(Self {
            rate,
            free: Box::pin(sleep(Duration::ZERO)),
        })
    }
}

/// Serves until it is killed. Says `limit server at ADDRESS` when it is ready.
pub(crate) fn run(folder: &Path, relay: Option<SocketAddr>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(serve(folder, relay))
}

async fn serve(folder: &Path, relay: Option<SocketAddr>) -> anyhow::Result<()> {
    let line = concat!(
        "2026-01-01T00:00:00Z info something was done, ",
        "and it took no longer than it should have\n"
    );
    let log: Bytes = line.bytes().cycle().take(LOG_PIECE).collect();
    let relay = relay
        .map(|address| Relay::read(folder, address))
        .transpose()?;
    let (answer, hub, queue) = Default::default();
    let shared = Arc::new(Shared {
        answer,
        hub,
        log,
        relay,
        queue,
    });
    let identity = ServerIdentity::make(Ipv4Addr::LOCALHOST.into())?;
    fs::write(folder.join(CERTIFICATE), identity.ca_pem)?;
    let acceptor = TlsAcceptor::from(identity.config);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    announce(&format!("limit server at {}", listener.local_addr()?))?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(connection(stream, acceptor.clone(), Arc::clone(&shared)));
    }
}

async fn connection(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    shared: Arc<Shared>,
) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let stream = acceptor.accept(stream).await?;
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let service = service_fn(move |request| answer(request, Arc::clone(&shared)));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(1000);
    let builder = if http2 {
        builder.http2_only()
    } else {
        builder.http1_only()
    };
    builder
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(anyhow::Error::from_boxed)
}

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> anyhow::Result<Response<Body>> {
    let uri = request.uri();
    let query = uri.query().unwrap_or_default();
    if request.method() == Method::POST && uri.path() == PUSH {
        let frame = request.into_body().collect().await?.to_bytes();
        push(&shared.hub, frame);
        return Ok(Response::new(empty_body()));
    }
    if request.method() == Method::POST && uri.path() == ANSWER {
        shared.answer.store(Arc::new(Answer::read(request).await?));
        return Ok(Response::new(empty_body()));
    }
    // The API server behind the relay answers everything but pods.
    if let Some(relay) = shared
        .relay
        .as_ref()
        .filter(|_| !uri.path().contains("/pods"))
    {
        return relay.answer(request).await;
    }
    let is_watch = query.contains("watch=true") || query.contains("watch=1");
    let begins_with_state = query.contains("sendInitialEvents");
    if is_watch && begins_with_state && shared.relay.is_some() {
        // A proxy lists then.
        return Ok(refused(StatusCode::UNPROCESSABLE_ENTITY));
    }
    if is_watch && !begins_with_state {
        let hub = Arc::clone(&shared.hub);
        let next = hub.lock().head();
        let mut response = Response::new(Watch { hub, next }.boxed_unsync());
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        return Ok(response);
    }
    if uri.path().ends_with(LOG) {
        let log = Log {
            piece: shared.log.clone(),
            left: LOG_BYTES,
            link: Link::of(query),
        };
        let mut response = Response::new(log.boxed_unsync());
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        return Ok(response);
    }
    if shared.relay.is_some() && shared.hub.lock().head() > 0 {
        // The answer lacks the events since, and a proxy would take it for another history.
        return Ok(refused(StatusCode::SERVICE_UNAVAILABLE));
    }
    let answer = shared.answer.load();
    Ok(answer.respond(&shared.queue).await)
}

fn refused(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(empty_body());
    *response.status_mut() = status;
    response
}

fn push(hub: &Mutex<Hub>, frame: Bytes) {
    let waiting = {
        let mut hub = hub.lock();
        hub.frames.push_back(frame);
        if hub.frames.len() > KEPT {
            hub.frames.pop_front();
            hub.first += 1;
        }
        std::mem::take(&mut hub.waiting)
    };
    waiting.into_iter().for_each(Waker::wake);
}
