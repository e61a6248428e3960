//! Clients that speak plain HTTP: nothing is repaired, retried or hidden.
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use crate::rig::PATIENCE;

pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

pub(crate) const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// A server, and who asks it.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    token: String,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

/// One connection. Dropping it cuts it without a word.
#[derive(Clone)]
pub(crate) struct Connection {
    endpoint: Endpoint,
    sender: Sender,
    task: Arc<AbortOnDropHandle<()>>,
}

#[derive(Clone)]
enum Sender {
    Http1(Arc<tokio::sync::Mutex<http1::SendRequest<Body>>>),
    Http2(http2::SendRequest<Body>),
}

/// An answer, read to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A watch, line by line.
pub(crate) struct Lines {
    body: Incoming,
    rest: BytesMut,
    /// The stream lives on it.
    _connection: Connection,
}

/// What comes next in a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// With its newline.
    Line(Bytes),
    /// The stream is over, as its server wished.
    End,
    /// The stream was cut.
    Broken(String),
}

pub(crate) fn nothing() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn whole(text: impl Into<Bytes>) -> Body {
    Full::new(text.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// Fails the test when something that must come doesn't.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("{what}: not after {PATIENCE:?}"))
}

// === impl Endpoint ===

impl Endpoint {
    pub(crate) fn new(address: SocketAddr, ca_pem: &str, token: &str) -> Self {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let http1 = Arc::new(config.clone());
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self {
            address,
            token: token.to_owned(),
            http1,
            http2: Arc::new(config),
        }
    }

    /// The same server, asked by somebody else; nobody in particular with an empty token.
    pub(crate) fn as_user(&self, token: &str) -> Self {
        Self {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    /// TLS and no HTTP yet.
    pub(crate) async fn tls(&self, protocol: Protocol) -> std::io::Result<TlsStream<TcpStream>> {
        let config = match protocol {
            Protocol::Http1 => &self.http1,
            Protocol::Http2 => &self.http2,
        };
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::IpAddress(self.address.ip().into());
        TlsConnector::from(Arc::clone(config))
            .connect(name, stream)
            .await
    }

    pub(crate) async fn connect(&self, protocol: Protocol) -> anyhow::Result<Connection> {
        let io = TokioIo::new(self.tls(protocol).await?);
        let (sender, task) = match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(io).await?;
                (
                    Sender::Http1(Arc::new(sender.into())),
                    tokio::spawn(async { drop(connection.await) }),
                )
            }
            Protocol::Http2 => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
                (
                    Sender::Http2(sender),
                    tokio::spawn(async { drop(connection.await) }),
                )
            }
        };
        Ok(Connection {
            endpoint: self.clone(),
            sender,
            task: Arc::new(AbortOnDropHandle::new(task)),
        })
    }

    /// One request on a connection of its own.
    pub(crate) async fn send(
        &self,
        protocol: Protocol,
        request: Request<Body>,
    ) -> anyhow::Result<Answer> {
        self.connect(protocol).await?.read(request).await
    }

    pub(crate) async fn get(&self, protocol: Protocol, path: &str) -> Answer {
        let request = Request::get(path).body(nothing()).unwrap();
        within(path, self.send(protocol, request))
            .await
            .unwrap_or_else(|error| panic!("{path}: {error:#}"))
    }

    /// A watch on a connection of its own.
    pub(crate) async fn watch(&self, protocol: Protocol, path: &str) -> Lines {
        let connection = self.connect(protocol).await.unwrap();
        within(path, connection.watch(path)).await.unwrap()
    }

    /// Bytes written by hand; what comes back until the server closes, or until `enough` of it is
    /// there.
    pub(crate) async fn raw(&self, bytes: &[u8], enough: impl Fn(&str) -> bool) -> Raw {
        let mut stream = self.tls(Protocol::Http1).await.unwrap();
        // A server that refuses half-way may close before all is written.
        let _ = stream.write_all(bytes).await;
        let _ = stream.flush().await;
        let mut raw = Raw {
            stream,
            text: String::new(),
        };
        raw.read_until(enough).await;
        raw
    }
}

/// An HTTP/1.1 connection without a client.
pub(crate) struct Raw {
    pub(crate) stream: TlsStream<TcpStream>,
    pub(crate) text: String,
}

impl Raw {
    /// Reads until the text is enough; false when the server closes before.
    pub(crate) async fn read_until(&mut self, enough: impl Fn(&str) -> bool) -> bool {
        let reading = async {
            let mut buffer = vec![0; 16 * 1024];
            while !enough(&self.text) {
                match self.stream.read(&mut buffer).await {
                    Ok(n) if n > 0 => self.text.push_str(&String::from_utf8_lossy(&buffer[..n])),
                    _ => return false,
                }
            }
            true
        };
        within("an answer or an end", reading).await
    }

    pub(crate) async fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
        self.stream.flush().await.unwrap();
    }
}

// === impl Connection ===

impl Connection {
    /// The head of the answer and a body still to be read.
    pub(crate) async fn open(
        &self,
        mut request: Request<Body>,
    ) -> anyhow::Result<Response<Incoming>> {
        let authority = self.endpoint.address.to_string();
        let headers = request.headers_mut();
        headers.insert("host", authority.parse()?);
        if !self.endpoint.token.is_empty() {
            headers
                .entry("authorization")
                .or_insert(format!("Bearer {}", self.endpoint.token).parse().unwrap());
        }
        match &self.sender {
            Sender::Http1(sender) => {
                let mut sender = sender.lock().await;
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
            Sender::Http2(sender) => {
                let mut sender = sender.clone();
                let path = request.uri().path_and_query().unwrap().as_str().to_owned();
                *request.uri_mut() = format!("https://{authority}{path}").parse()?;
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
        }
    }

    pub(crate) async fn read(&self, request: Request<Body>) -> anyhow::Result<Answer> {
        let (head, body) = self.open(request).await?.into_parts();
        Ok(Answer {
            status: head.status,
            headers: head.headers,
            body: body.collect().await?.to_bytes(),
        })
    }

    pub(crate) async fn watch(&self, path: &str) -> anyhow::Result<Lines> {
        self.follow(Request::get(path).body(nothing())?).await
    }

    /// The same with a request of one's own.
    pub(crate) async fn follow(&self, request: Request<Body>) -> anyhow::Result<Lines> {
        let response = self.open(request).await?;
        if response.status() != StatusCode::OK {
            let (status, body) = (
                response.status(),
                response.into_body().collect().await?.to_bytes(),
            );
            anyhow::bail!("{status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(Lines {
            body: response.into_body(),
            rest: BytesMut::new(),
            _connection: self.clone(),
        })
    }

    /// Whether the server has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.task.is_finished()
    }
}

// === impl Answer ===

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    /// What has to be the same through the proxy and without it.
    pub(crate) fn essence(&self) -> (StatusCode, Vec<(&'static str, &str)>, String) {
        let names = [
            "content-type",
            "retry-after",
            "cache-control",
            "x-content-type-options",
            "warning",
        ];
        let headers = names.map(|name| (name, self.header(name))).into();
        (
            self.status,
            headers,
            String::from_utf8_lossy(&self.body).into_owned(),
        )
    }
}

// === impl Lines ===

impl Lines {
    pub(crate) async fn next(&mut self) -> Next {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.rest) {
                return Next::Line(self.rest.split_to(end + 1).freeze());
            }
            match self.body.frame().await {
                None if self.rest.is_empty() => return Next::End,
                None => return Next::Broken("the stream ends in the middle of a line".to_owned()),
                Some(Err(error)) => return Next::Broken(format!("{error:?}")),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.rest.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    /// The next line, which has to come.
    pub(crate) async fn line(&mut self) -> String {
        match within("a line of the watch", self.next()).await {
            Next::Line(line) => String::from_utf8(line.to_vec()).unwrap(),
            other => panic!("a line was expected, not {other:?}"),
        }
    }

    /// All lines up to the end, and the end.
    pub(crate) async fn rest(mut self) -> (Vec<Bytes>, Next) {
        let mut lines = Vec::new();
        loop {
            match within("the end of the watch", self.next()).await {
                Next::Line(line) => lines.push(line),
                end => return (lines, end),
            }
        }
    }
}
