//! Connections of the load. They set what a Go client sets, as most clients of Kubernetes are.
use std::net::SocketAddr;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use watershed_lab::body::full_body;
use watershed_lab::client::{self, FlowWindows, Protocol, RequestBody, expect_success};

use crate::form::{Form, Reader};

/// One connection. Clones of an HTTP/2 one send several requests on it at a time.
#[derive(Clone)]
pub(crate) struct Connection {
    connection: client::ClientConnection,
    form: Form,
}

/// A server, and the token of the caller who asks it.
#[derive(Clone)]
pub(crate) struct Endpoint(client::Endpoint);

impl Endpoint {
    /// Returns the server at a URL, or at an address alone.
    pub(crate) fn new(server: &str, ca_pem: &[u8], token: &str) -> anyhow::Result<Self> {
        let address = server
            .trim_start_matches("https://")
            .parse()
            .with_context(|| format!("not an address: {server}"))?;
        Ok(Self(client::Endpoint::new(address, ca_pem, token)?))
    }

    /// Returns the same server with another caller's token.
    pub(crate) fn as_user(&self, token: &str) -> Self {
        Self(self.0.with_token(token))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Returns the value of the Authorization header.
    pub(crate) fn bearer(&self) -> String {
        self.0.bearer()
    }

    /// Opens a TLS connection, without HTTP.
    pub(crate) async fn tls(&self, http1: bool) -> anyhow::Result<TlsStream<TcpStream>> {
        Ok(self.0.tls(protocol(http1)).await?)
    }

    pub(crate) async fn connect(&self, http1: bool) -> anyhow::Result<Connection> {
        self.connect_with(http1, FlowWindows::GO).await
    }

    /// Opens a connection on which no more than 64 KiB, and what the kernel holds, is sent ahead of
    /// the reader.
    pub(crate) async fn connect_narrow(&self, http1: bool) -> anyhow::Result<Connection> {
        self.connect_with(http1, FlowWindows::NARROW).await
    }

    async fn connect_with(&self, http1: bool, windows: FlowWindows) -> anyhow::Result<Connection> {
        Ok(Connection {
            connection: self.0.connect_with(protocol(http1), windows).await?,
            form: Form::Json,
        })
    }
}

fn protocol(http1: bool) -> Protocol {
    if http1 {
        Protocol::Http1
    } else {
        Protocol::Http2
    }
}

impl Connection {
    /// Asks for every answer in this form instead of JSON.
    pub(crate) fn asking(mut self, form: Form) -> Self {
        self.form = form;
        self
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// Sends a request. Returns when the head of a successful answer is there.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, Bytes)>,
    ) -> anyhow::Result<Response<Incoming>> {
        expect_success(path, self.try_send(method, path, body).await?).await
    }

    /// Sends a request. The answer may have any status.
    pub(crate) async fn try_send(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, Bytes)>,
    ) -> anyhow::Result<Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::ACCEPT, self.form.accept())
            .header(header::USER_AGENT, "watershed-bench");
        if self.form.is_gzip() {
            request = request.header(header::ACCEPT_ENCODING, "gzip");
        }
        let mut bytes = Bytes::new();
        if let Some((content_type, body)) = body {
            request = request.header(header::CONTENT_TYPE, content_type);
            bytes = body;
        }
        self.pass_on(request.body(full_body(bytes))?).await
    }

    /// Sends a request as it is, with the endpoint's credentials unless it has its own.
    pub(crate) async fn pass_on(
        &self,
        request: Request<RequestBody>,
    ) -> anyhow::Result<Response<Incoming>> {
        self.connection.send(request).await
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Response<Incoming>> {
        self.send(Method::GET, path, None).await
    }

    /// Reads a whole answer.
    pub(crate) async fn fetch(&self, path: &str) -> anyhow::Result<Bytes> {
        let body = self.get(path).await?.into_body();
        Ok(body.collect().await?.to_bytes())
    }

    /// Reads an answer and throws it away as it comes. Returns its length.
    pub(crate) async fn swallow(&self, path: &str) -> anyhow::Result<usize> {
        drain(path, self.get(path).await?).await
    }

    /// Reads a watch up to the end of its first state, and leaves it. Returns the bytes until then.
    pub(crate) async fn swallow_initial(&self, path: &str) -> anyhow::Result<usize> {
        self.drain_initial(path, self.get(path).await?).await
    }

    /// Reads an answered watch up to the end of its first state, and leaves it. Returns the bytes
    /// until then.
    pub(crate) async fn drain_initial(
        &self,
        path: &str,
        answer: Response<Incoming>,
    ) -> anyhow::Result<usize> {
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

/// Reads the body of an answer and throws it away as it comes. Returns its length.
pub(crate) async fn drain(path: &str, answer: Response<Incoming>) -> anyhow::Result<usize> {
    let (mut body, mut length) = (answer.into_body(), 0);
    while let Some(frame) = body.frame().await {
        length += frame?.data_ref().map_or(0, Bytes::len);
    }
    ensure!(length > 0, "{path}: an empty answer");
    Ok(length)
}
