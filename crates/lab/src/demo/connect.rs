//! Connections of the demo's clients: TLS, HTTP/2 or HTTP/1.1, one or many requests at a time.
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

/// How to reach the proxy.
#[derive(Clone)]
pub(crate) struct Connector {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    tls_http1: Arc<ClientConfig>,
}

/// A connection several clients may share. It is opened with the first request, and anew after it
/// broke.
pub(crate) struct Connection {
    connector: Connector,
    http2: bool,
    sender: Mutex<Option<Sender>>,
}

enum Sender {
    Http1(http1::SendRequest<Empty<Bytes>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
}

// === impl Connector ===

impl Connector {
    pub(crate) fn new(address: SocketAddr, ca_pem: &str) -> anyhow::Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
            roots.add(certificate.context("the proxy's CA isn't PEM")?)?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let tls_http1 = Arc::new(config.clone());
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self {
            address,
            tls: Arc::new(config),
            tls_http1,
        })
    }

    async fn open(&self, http2: bool) -> anyhow::Result<Sender> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let tls = if http2 { &self.tls } else { &self.tls_http1 };
        let name = ServerName::IpAddress(self.address.ip().into());
        let io = TokioIo::new(
            TlsConnector::from(Arc::clone(tls))
                .connect(name, stream)
                .await?,
        );
        if http2 {
            let builder = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .to_owned();
            let (sender, connection) = builder.handshake(io).await?;
            tokio::spawn(connection);
            Ok(Sender::Http2(sender))
        } else {
            let (sender, connection) = http1::handshake(io).await?;
            tokio::spawn(connection);
            Ok(Sender::Http1(sender))
        }
    }
}

// === impl Connection ===

impl Connection {
    pub(crate) fn new(connector: Connector, http2: bool) -> Self {
        Self {
            connector,
            http2,
            sender: Mutex::new(None),
        }
    }

    /// Sends a GET; the connection is left to others as soon as the head of the answer is there.
    pub(crate) async fn get(&self, path: &str, token: &str) -> anyhow::Result<Response<Incoming>> {
        let authority = self.connector.address.to_string();
        let request = Request::get(if self.http2 {
            format!("https://{authority}{path}")
        } else {
            path.to_owned()
        })
        .header("host", &authority)
        .header("authorization", format!("Bearer {token}"))
        .header("accept", "application/json")
        .header("user-agent", "watershed-demo")
        .body(Empty::new())?;
        let answer = match self.sender().await? {
            // HTTP/1.1 carries one request at a time, so its sender can't be kept for others.
            Sender::Http1(mut sender) => sender.send_request(request).await,
            Sender::Http2(mut sender) => sender.send_request(request).await,
        };
        Ok(answer?)
    }

    async fn sender(&self) -> anyhow::Result<Sender> {
        if !self.http2 {
            return self.connector.open(false).await;
        }
        let mut shared = self.sender.lock().await;
        match &*shared {
            Some(Sender::Http2(sender)) if !sender.is_closed() => {
                return Ok(Sender::Http2(sender.clone()));
            }
            _ => {}
        }
        let opened = self.connector.open(true).await?;
        if let Sender::Http2(sender) = &opened {
            *shared = Some(Sender::Http2(sender.clone()));
        }
        Ok(opened)
    }
}
