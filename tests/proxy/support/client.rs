//! The lab's client for tests. A test panics if an expected answer does not arrive.
use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
pub(crate) use watershed_lab::body::{empty_body as nothing, full_body as whole};
use watershed_lab::client;
pub(crate) use watershed_lab::client::{NextLine as Next, Protocol, RequestBody};

use super::waiting::PATIENCE;

pub(crate) const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

/// A server and the token of its caller.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    endpoint: client::Endpoint,
}

/// One connection. Dropping it closes it without any farewell.
#[derive(Clone)]
pub(crate) struct Connection(client::ClientConnection);

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A watch, line by line.
pub(crate) struct Lines(client::Lines);

/// An HTTP/1.1 connection without a client.
pub(crate) struct Raw {
    pub(crate) stream: TlsStream<TcpStream>,
    pub(crate) text: String,
}

/// Waits for a future. Panics if it does not finish within [`PATIENCE`].
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("{what}: not after {PATIENCE:?}"))
}

impl Endpoint {
    pub(crate) fn new(address: SocketAddr, ca_pem: &str, token: &str) -> Self {
        Self {
            address,
            endpoint: client::Endpoint::new(address, ca_pem, token).unwrap(),
        }
    }

    /// Returns the same server with another caller's token. An empty token sends no credentials.
    pub(crate) fn as_user(&self, token: &str) -> Self {
        Self {
            address: self.address,
            endpoint: self.endpoint.with_token(token),
        }
    }

    /// Opens a TLS connection, without HTTP.
    pub(crate) async fn tls(&self, protocol: Protocol) -> std::io::Result<TlsStream<TcpStream>> {
        self.endpoint.tls(protocol).await
    }

    pub(crate) async fn connect(&self, protocol: Protocol) -> anyhow::Result<Connection> {
        Ok(Connection(self.endpoint.connect(protocol).await?))
    }

    /// Sends one request on a connection of its own.
    pub(crate) async fn send(
        &self,
        protocol: Protocol,
        request: Request<RequestBody>,
    ) -> anyhow::Result<Answer> {
        self.connect(protocol).await?.read(request).await
    }

    pub(crate) async fn get(&self, protocol: Protocol, path: &str) -> Answer {
        let request = Request::get(path).body(nothing()).unwrap();
        within(path, self.send(protocol, request))
            .await
            .unwrap_or_else(|error| panic!("{path}: {error:#}"))
    }

    /// Opens a watch on a connection of its own.
    pub(crate) async fn watch(&self, protocol: Protocol, path: &str) -> Lines {
        let connection = self.connect(protocol).await.unwrap();
        within(path, connection.watch(path)).await.unwrap()
    }

    /// Writes raw bytes. Reads until the server closes or `enough` is true of the answer.
    pub(crate) async fn raw(&self, bytes: &[u8], enough: impl Fn(&str) -> bool) -> Raw {
        let mut stream = self.tls(Protocol::Http1).await.unwrap();
        // A server that refuses early may close before all is written.
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

impl Connection {
    /// Returns the head of the answer and a body still to be read.
    pub(crate) async fn open(
        &self,
        request: Request<RequestBody>,
    ) -> anyhow::Result<Response<Incoming>> {
        self.0.send(request).await
    }

    pub(crate) async fn read(&self, request: Request<RequestBody>) -> anyhow::Result<Answer> {
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

    /// Opens a watch with the given request.
    pub(crate) async fn follow(&self, request: Request<RequestBody>) -> anyhow::Result<Lines> {
        let path = request.uri().path().to_owned();
        let answer = client::expect_success(&path, self.open(request).await?).await?;
        Ok(Lines(client::Lines::new(&self.0, answer)))
    }

    /// Opens a watch with the given request. Also returns where its answer came from.
    pub(crate) async fn follow_with_source(
        &self,
        request: Request<RequestBody>,
    ) -> anyhow::Result<(String, Lines)> {
        let path = request.uri().path().to_owned();
        let answer = client::expect_success(&path, self.open(request).await?).await?;
        let source = answer.headers()["x-watershed-source"].to_str()?.to_owned();
        Ok((source, Lines(client::Lines::new(&self.0, answer))))
    }

    /// Returns `true` if the server has closed the connection.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    /// Returns the parts of an answer that have to be equal with and without the proxy.
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

impl Lines {
    pub(crate) async fn next(&mut self) -> Next {
        self.0.next().await
    }

    /// Returns the next line. Panics if the watch ends or sends nothing.
    pub(crate) async fn line(&mut self) -> String {
        match within("a line of the watch", self.next()).await {
            Next::Line(line) => String::from_utf8(line.to_vec()).unwrap(),
            other => panic!("a line was expected, not {other:?}"),
        }
    }

    /// Reads to the end. Returns all lines and the kind of end.
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

impl Raw {
    /// Reads until `enough` is true of the text. Returns `false` if the server closes before.
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
