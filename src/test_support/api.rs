//! A small API server.
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio_rustls::TlsAcceptor;

use super::pki::Pki;
use super::wait::soon;
use crate::body::{self, Body, BoxError};

/// Protocol and limits of the test's API server.
#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) http2: bool,
    pub(crate) streams: u32,
}

pub(crate) const HTTP2: Settings = Settings {
    http2: true,
    streams: 100,
};
pub(crate) const HTTP1: Settings = Settings {
    http2: false,
    streams: 0,
};

/// The connection that carried a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conn {
    pub(crate) number: usize,
    pub(crate) client_cert: bool,
}

#[derive(Clone, Copy)]
enum Order {
    Cut,
    GoAway,
}

/// A running API server.
pub(crate) struct Api {
    pub(crate) address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    orders: broadcast::Sender<Order>,
}

impl Api {
    pub(crate) async fn start<H, F>(pki: &Pki, settings: Settings, handler: H) -> Api
    where
        H: Fn(Request<Incoming>, Conn) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(pki.server_config(settings.http2)));
        let (orders, _) = broadcast::channel(16);
        let (accepted, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let api = Api {
            address,
            accepted: Arc::clone(&accepted),
            open: Arc::clone(&open),
            orders: orders.clone(),
        };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let mut orders = orders.subscribe();
                let (acceptor, handler) = (acceptor.clone(), handler.clone());
                let (accepted, open) = (Arc::clone(&accepted), Arc::clone(&open));
                tokio::spawn(async move {
                    let Ok(tls) = acceptor.accept(stream).await else {
                        return;
                    };
                    let number = accepted.fetch_add(1, Ordering::AcqRel);
                    open.fetch_add(1, Ordering::AcqRel);
                    let conn = Conn {
                        number,
                        client_cert: tls.get_ref().1.peer_certificates().is_some(),
                    };
                    let mut builder = auto::Builder::new(TokioExecutor::new());
                    builder.http2().max_concurrent_streams(settings.streams);
                    let service = service_fn(move |request| {
                        let answer = handler(request, conn);
                        async move { Ok::<_, Infallible>(answer.await) }
                    });
                    let connection =
                        builder.serve_connection_with_upgrades(TokioIo::new(tls), service);
                    let mut connection = std::pin::pin!(connection);
                    loop {
                        tokio::select! {
                            _ = connection.as_mut() => break,
                            order = orders.recv() => match order {
                                Ok(Order::GoAway) => connection.as_mut().graceful_shutdown(),
                                _ => break,
                            }
                        }
                    }
                    open.fetch_sub(1, Ordering::AcqRel);
                });
            }
        });
        api
    }

    /// Returns the number of connections accepted since the start.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Acquire)
    }

    /// Returns the number of open connections.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Drops all connections.
    pub(crate) fn cut(&self) {
        let _ = self.orders.send(Order::Cut);
    }

    /// Announces the end of all connections (GOAWAY with HTTP/2).
    pub(crate) fn go_away(&self) {
        let _ = self.orders.send(Order::GoAway);
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }
}

/// Creates a body from a stream of chunks.
pub(crate) fn streamed<S>(chunks: S) -> Body
where
    S: Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
{
    StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data))).boxed_unsync()
}

/// Creates a body that sends one chunk and never ends, as a quiet watch.
pub(crate) fn hanging() -> Body {
    let first = futures_util::stream::iter([Ok(Bytes::from_static(b"open\n"))]);
    streamed(first.chain(futures_util::stream::pending()))
}

pub(crate) fn text(words: impl Into<String>) -> Response<Body> {
    Response::new(body::full(words.into()))
}

/// Returns an answer of this status and content type.
pub(crate) fn typed(status: u16, content_type: &str, body: &'static str) -> Response<Body> {
    Response::builder()
        .status(status)
        .header("content-type", content_type)
        .body(body::full(body))
        .unwrap()
}

/// Reads the whole body as text.
pub(crate) async fn read<B>(body: B) -> Result<String, BoxError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let bytes = soon(body.collect()).await.map_err(Into::into)?.to_bytes();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
