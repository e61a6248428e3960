//! Connections of the load generator. They set what a Go client sets, as most clients of Kubernetes
//! are.
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
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

use crate::form::{Form, Reader};

/// Flow control of Go's HTTP/2 client: `transportDefaultStreamFlow`, `transportDefaultConnFlow`.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 1 << 30;
/// The smallest that HTTP/2 begins with: who has such windows holds little that was not read.
pub(crate) const NARROW: u32 = 65_535;

/// How to reach a server.
#[derive(Clone)]
pub(crate) struct Reach {
    address: SocketAddr,
    token: String,
    http2: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
}

/// One connection. An HTTP/2 one may be cloned, to have several requests on it at a time.
pub(crate) struct Connection {
    sender: Sender,
    authority: String,
    token: String,
    form: Form,
    /// Drives the connection; ends with its last handle.
    task: Arc<AbortOnDropHandle<()>>,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

// === impl Reach ===

impl Reach {
    /// `server` is a URL, or the address alone.
    pub(crate) fn new(server: &str, ca_pem: &[u8], token: &str) -> anyhow::Result<Self> {
        let address = server
            .trim_start_matches("https://")
            .parse()
            .with_context(|| format!("not an address: {server}"))?;
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem) {
            roots.add(certificate.context("a CA that isn't PEM")?)?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let http1 = Arc::new(config.clone());
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self {
            address,
            token: token.to_owned(),
            http2: Arc::new(config),
            http1,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The Authorization header of a request.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }

    /// TLS, and no HTTP yet.
    pub(crate) async fn tls(&self, http1: bool) -> anyhow::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let tls = if http1 { &self.http1 } else { &self.http2 };
        let name = ServerName::IpAddress(self.address.ip().into());
        Ok(TlsConnector::from(Arc::clone(tls))
            .connect(name, stream)
            .await?)
    }

    pub(crate) async fn connect(&self, http1: bool) -> anyhow::Result<Connection> {
        self.connect_with(http1, STREAM_WINDOW, CONNECTION_WINDOW)
            .await
    }

    /// A connection on which nothing is sent ahead of the reader but 64 KiB and what the kernel
    /// holds.
    pub(crate) async fn connect_narrow(&self, http1: bool) -> anyhow::Result<Connection> {
        self.connect_with(http1, NARROW, NARROW).await
    }

    async fn connect_with(
        &self,
        http1: bool,
        stream: u32,
        connection: u32,
    ) -> anyhow::Result<Connection> {
        let io = TokioIo::new(self.tls(http1).await?);
        let (sender, task) = if http1 {
            let (sender, connection) = http1::handshake(io).await?;
            (
                Sender::Http1(sender),
                tokio::spawn(async move { drop(connection.await) }),
            )
        } else {
            let (sender, driver) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .initial_stream_window_size(stream)
                .initial_connection_window_size(connection)
                .handshake(io)
                .await?;
            (
                Sender::Http2(sender),
                tokio::spawn(async move { drop(driver.await) }),
            )
        };
        Ok(Connection {
            sender,
            authority: self.address.to_string(),
            token: self.token.clone(),
            form: Form::Json,
            task: Arc::new(AbortOnDropHandle::new(task)),
        })
    }
}

// === impl Connection ===

impl Connection {
    /// Asks for every answer in this form; JSON otherwise.
    pub(crate) fn asking(mut self, form: Form) -> Self {
        self.form = form;
        self
    }

    /// Host and port of the server.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.task.is_finished()
    }

    /// Another handle to an HTTP/2 connection.
    pub(crate) fn share(&self) -> anyhow::Result<Self> {
        let Sender::Http2(sender) = &self.sender else {
            anyhow::bail!("HTTP/1.1 carries one request at a time")
        };
        Ok(Self {
            sender: Sender::Http2(sender.clone()),
            authority: self.authority.clone(),
            token: self.token.clone(),
            form: self.form,
            task: Arc::clone(&self.task),
        })
    }

    /// Sends a request; the answer's head is here when this returns, and its status is a success.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: Option<(&str, Bytes)>,
    ) -> anyhow::Result<Response<Incoming>> {
        let response = self.try_send(method, path, body).await?;
        let status = response.status();
        if !status.is_success() {
            let text = response.into_body().collect().await?.to_bytes();
            anyhow::bail!("{path}: {status}: {}", String::from_utf8_lossy(&text));
        }
        Ok(response)
    }

    /// The same, whatever the status is.
    pub(crate) async fn try_send(
        &mut self,
        method: Method,
        path: &str,
        body: Option<(&str, Bytes)>,
    ) -> anyhow::Result<Response<Incoming>> {
        let uri = match &self.sender {
            Sender::Http1(_) => path.to_owned(),
            Sender::Http2(_) => format!("https://{}{path}", self.authority),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header("host", &self.authority)
            .header("authorization", format!("Bearer {}", self.token))
            .header("accept", self.form.accept())
            .header("user-agent", "watershed-bench");
        if self.form.is_gzip() {
            request = request.header("accept-encoding", "gzip");
        }
        let mut bytes = Bytes::new();
        if let Some((content_type, body)) = body {
            request = request.header("content-type", content_type);
            bytes = body;
        }
        self.pass_on(request.body(Full::new(bytes))?).await
    }

    /// Sends a request as it is.
    pub(crate) async fn pass_on(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> anyhow::Result<Response<Incoming>> {
        Ok(match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        })
    }

    pub(crate) async fn get(&mut self, path: &str) -> anyhow::Result<Response<Incoming>> {
        self.send(Method::GET, path, None).await
    }

    /// The whole body.
    pub(crate) async fn fetch(&mut self, path: &str) -> anyhow::Result<Bytes> {
        Ok(self
            .get(path)
            .await?
            .into_body()
            .collect()
            .await?
            .to_bytes())
    }

    /// Reads an answer and throws it away, as fast as it comes. Returns its length.
    pub(crate) async fn swallow(&mut self, path: &str) -> anyhow::Result<usize> {
        let mut body = self.get(path).await?.into_body();
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            length += frame?.data_ref().map_or(0, Bytes::len);
        }
        ensure!(length > 0, "{path}: an empty answer");
        Ok(length)
    }

    /// Reads a watch as far as the objects it begins with go, and leaves it. Returns its bytes
    /// until then.
    pub(crate) async fn swallow_initial(&mut self, path: &str) -> anyhow::Result<usize> {
        let answer = self.get(path).await?;
        self.form.expect(answer.headers())?;
        let (mut body, mut reader, mut length) = (answer.into_body(), Reader::new(self.form), 0);
        while !reader.ended() {
            let frame = body
                .frame()
                .await
                .with_context(|| format!("{path}: ended before its end mark"))??;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            length += data.len();
            reader.push(data)?;
        }
        Ok(length)
    }
}
