//! A small HTTP client for the demo, the tests and the benchmarks.
//!
//! It opens TLS connections and sends requests on them. Nothing is retried, repaired or hidden.
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::task::AbortOnDropHandle;

pub use watershed_connect::Protocol;

/// The body of a request.
pub type RequestBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// The bytes that a server may send ahead of the reader on an HTTP/2 connection.
///
/// The default is the default of the HTTP library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowWindows {
    stream: Option<u32>,
    connection: Option<u32>,
}

/// A server, and the token of the caller who asks it.
#[derive(Clone)]
pub struct Endpoint {
    address: SocketAddr,
    token: String,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

/// An open connection. Clones share it. Dropping the last one cuts it without a word.
#[derive(Clone)]
pub struct ClientConnection {
    authority: String,
    authorization: Option<HeaderValue>,
    sender: Sender,
    driver: Arc<AbortOnDropHandle<()>>,
}

/// A streaming answer, line by line.
pub struct Lines {
    body: Incoming,
    rest: BytesMut,
    /// The stream lives on it.
    _connection: ClientConnection,
}

/// The next item of a stream of lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextLine {
    /// A line with its newline.
    Line(Bytes),
    /// The server has ended the stream.
    End,
    /// The stream was cut.
    Broken(String),
}

#[derive(Clone)]
enum Sender {
    Http1(Arc<tokio::sync::Mutex<http1::SendRequest<RequestBody>>>),
    Http2(http2::SendRequest<RequestBody>),
}

impl FlowWindows {
    /// The windows of Go's client, which most clients of Kubernetes have.
    /// Source: `golang.org/x/net/http2/transport.go` (`transportDefaultStreamFlow`,
    /// `transportDefaultConnFlow`).
    pub const GO: Self = Self::new(4 << 20, 1 << 30);
    /// Size of both windows in [`FlowWindows::NARROW`].
    pub const NARROW_BYTES: u32 = 65_535;
    /// The windows that every HTTP/2 connection begins with. A server sends few bytes ahead of the
    /// reader.
    pub const NARROW: Self = Self::new(Self::NARROW_BYTES, Self::NARROW_BYTES);

    const fn new(stream: u32, connection: u32) -> Self {
        Self {
            stream: Some(stream),
            connection: Some(connection),
        }
    }

    /// Returns the settings of an HTTP/2 connection with these windows.
    pub(crate) fn settings(self) -> http2::Builder<TokioExecutor> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(self.stream)
            .initial_connection_window_size(self.connection);
        builder
    }
}

impl Endpoint {
    /// Returns the server at an address, verified with a CA. An empty token sends no credentials.
    pub fn new(address: SocketAddr, ca_pem: impl AsRef<[u8]>, token: &str) -> anyhow::Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem.as_ref()) {
            roots.add(certificate.with_context(|| format!("the CA of {address} is not PEM"))?)?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let http1 = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut http2 = http1.clone();
        http2.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self {
            address,
            token: token.to_owned(),
            http1: Arc::new(http1),
            http2: Arc::new(http2),
        })
    }

    /// Returns the same server with another caller's token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    /// Returns the server's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the value of the Authorization header.
    pub fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }

    /// Opens a TLS connection, without HTTP.
    pub async fn tls(&self, protocol: Protocol) -> std::io::Result<TlsStream<TcpStream>> {
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

    /// Opens a connection with the default windows.
    pub async fn connect(&self, protocol: Protocol) -> anyhow::Result<ClientConnection> {
        self.connect_with(protocol, FlowWindows::default()).await
    }

    /// Opens a connection. The windows matter to HTTP/2 alone.
    pub async fn connect_with(
        &self,
        protocol: Protocol,
        windows: FlowWindows,
    ) -> anyhow::Result<ClientConnection> {
        let io = TokioIo::new(self.tls(protocol).await?);
        let (sender, driver) = match protocol {
            Protocol::Http1 => {
                let (sender, driver) = http1::handshake(io).await?;
                let driver = tokio::spawn(async { drop(driver.await) });
                (Sender::Http1(Arc::new(sender.into())), driver)
            }
            Protocol::Http2 => {
                let (sender, driver) = windows.settings().handshake(io).await?;
                let driver = tokio::spawn(async { drop(driver.await) });
                (Sender::Http2(sender), driver)
            }
        };
        let authorization = if self.token.is_empty() {
            None
        } else {
            Some(self.bearer().parse()?)
        };
        Ok(ClientConnection {
            authority: self.address.to_string(),
            authorization,
            sender,
            driver: Arc::new(AbortOnDropHandle::new(driver)),
        })
    }
}

impl ClientConnection {
    /// Sends a request and returns when the head of its answer is there. The URI is a path.
    ///
    /// The request gets a Host header and the endpoint's credentials, unless it has its own.
    pub async fn send(
        &self,
        mut request: Request<RequestBody>,
    ) -> anyhow::Result<Response<Incoming>> {
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.authority.parse()?);
        if let Some(authorization) = &self.authorization {
            headers
                .entry(header::AUTHORIZATION)
                .or_insert_with(|| authorization.clone());
        }
        match &self.sender {
            Sender::Http1(sender) => {
                let mut sender = sender.lock().await;
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
            Sender::Http2(sender) => {
                let mut sender = sender.clone();
                let path = request
                    .uri()
                    .path_and_query()
                    .map_or("/", |path| path.as_str());
                *request.uri_mut() = format!("https://{}{path}", self.authority).parse()?;
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
        }
    }

    /// Returns `true` if the connection is closed.
    pub fn is_closed(&self) -> bool {
        self.driver.is_finished()
    }
}

/// Returns the answer if it is a success, and an error with its text otherwise.
pub async fn expect_success(
    path: &str,
    answer: Response<Incoming>,
) -> anyhow::Result<Response<Incoming>> {
    let status = answer.status();
    if !status.is_success() {
        let text = answer.into_body().collect().await?.to_bytes();
        bail!("{path}: {status}: {}", String::from_utf8_lossy(&text));
    }
    Ok(answer)
}

impl Lines {
    /// Reads an answer that came on a connection.
    pub fn new(connection: &ClientConnection, answer: Response<Incoming>) -> Self {
        Self {
            body: answer.into_body(),
            rest: BytesMut::new(),
            _connection: connection.clone(),
        }
    }

    /// Waits for the next line, or for the end.
    pub async fn next(&mut self) -> NextLine {
        loop {
            if let Some(end) = memchr::memchr(b'\n', &self.rest) {
                return NextLine::Line(self.rest.split_to(end + 1).freeze());
            }
            match self.body.frame().await {
                None if self.rest.is_empty() => return NextLine::End,
                None => {
                    return NextLine::Broken("the stream ends in the middle of a line".to_owned());
                }
                Some(Err(error)) => return NextLine::Broken(format!("{error:?}")),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.rest.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}
