//! The limit server: what hyper and rustls cost when nothing else is done.
//!
//! It answers reads with bodies made beforehand and sends every frame it is given to every watcher. It knows no
//! objects, versions, selectors or callers, so no server built on the same libraries can do the work for less, unless
//! it sends several events at a time.
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::children::announce;

/// Frames kept for watchers that are behind. More than any run sends at a time.
const KEPT: usize = 8192;

/// The bodies, as files in the folder given on the command line.
pub(crate) const LIST: &str = "list.json";
pub(crate) const NODE_LIST: &str = "node-list.json";
pub(crate) const OBJECT: &str = "object.json";
/// The certificate to trust.
pub(crate) const CERTIFICATE: &str = "limit.crt";
/// Where frames are posted to.
pub(crate) const PUSH: &str = "/push";

type Body = UnsyncBoxBody<Bytes, Infallible>;

struct Shared {
    list: Bytes,
    node_list: Bytes,
    object: Bytes,
    hub: Arc<Mutex<Hub>>,
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

impl Hub {
    fn head(&self) -> u64 {
        self.first + self.frames.len() as u64
    }
}

impl http_body::Body for Watch {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
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

/// Serves until it is killed. Says `limit server at ADDRESS` when it is ready.
pub(crate) fn run(folder: &Path) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(folder))
}

async fn serve(folder: &Path) -> anyhow::Result<()> {
    let read = |name| fs::read(folder.join(name)).map(Bytes::from).with_context(|| format!("no {name}"));
    let (list, node_list, object) = (read(LIST)?, read(NODE_LIST)?, read(OBJECT)?);
    let shared = Arc::new(Shared { list, node_list, object, hub: Arc::default() });
    let acceptor = TlsAcceptor::from(Arc::new(tls(&folder.join(CERTIFICATE))?));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    announce(&format!("limit server at {}", listener.local_addr()?))?;
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(connection(stream, acceptor.clone(), Arc::clone(&shared)));
    }
}

fn tls(certificate_file: &Path) -> anyhow::Result<ServerConfig> {
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()])?.self_signed(&key)?;
    fs::write(certificate_file, certificate.pem())?;
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let stream = acceptor.accept(stream).await?;
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let service = service_fn(move |request| answer(request, Arc::clone(&shared)));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(1000);
    let builder = if http2 { builder.http2_only() } else { builder.http1_only() };
    builder.serve_connection(TokioIo::new(stream), service).await.map_err(anyhow::Error::from_boxed)
}

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Response<Body>, hyper::Error> {
    let uri = request.uri();
    let query = uri.query().unwrap_or_default();
    let body = if request.method() == Method::POST && uri.path() == PUSH {
        let frame = request.into_body().collect().await?.to_bytes();
        push(&shared.hub, frame);
        full(&Bytes::new())
    } else if query.contains("watch=true") {
        let hub = Arc::clone(&shared.hub);
        let next = hub.lock().head();
        Watch { hub, next }.boxed_unsync()
    } else if query.contains("fieldSelector") {
        full(&shared.node_list)
    } else if uri.path().contains("/namespaces/") {
        full(&shared.object)
    } else {
        full(&shared.list)
    };
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(response)
}

fn full(bytes: &Bytes) -> Body {
    Full::new(bytes.clone()).boxed_unsync()
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
