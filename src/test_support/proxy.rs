//! A proxy before the small API server, and clients of it.
use std::net::SocketAddr;
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::api::text;
use super::pki::{chain, private_key, provider, roots};
use crate::body::{self, Body};
use crate::drain;
use crate::listener::tls::{ServerTls, TlsOptions, TlsPolicy};
use crate::listener::{ConnectionLimits, TrustedProxies, listen};
use crate::upstream::{ConnectionClass, ForwardIdentity, ForwardOptions, Forwarder, Upstream};

/// A listener whose service forwards all requests.
///
/// Requests whose paths begin with `/long` are forwarded as long ones.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) roots: RootCertStore,
    pub(crate) forwarder: Forwarder,
    _cert_dir: TempDir,
    _drain: drain::DrainTrigger,
}

impl Proxy {
    pub(crate) async fn start(upstream: &Upstream) -> Proxy {
        Self::start_as(upstream, ForwardIdentity::Caller).await
    }

    pub(crate) async fn start_as(upstream: &Upstream, identity: ForwardIdentity) -> Proxy {
        let cert_dir = tempfile::tempdir().unwrap();
        let tls = ServerTls::load(tls_options(&cert_dir)).await.unwrap();
        let roots = roots(&std::fs::read_to_string(tls.ca_file().unwrap()).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (trigger, watch) = drain::channel();
        let forwarder = Forwarder::new(upstream);
        let forwarding = forwarder.clone();
        let service = move |request: Request<Incoming>, _peer| {
            let (forwarder, identity) = (forwarding.clone(), identity.clone());
            async move {
                let path = request.uri().path();
                let options = ForwardOptions {
                    class: if path.starts_with("/long") {
                        ConnectionClass::LongForward
                    } else {
                        ConnectionClass::Short
                    },
                    identity,
                    share: None,
                };
                forwarder
                    .forward(request, options)
                    .await
                    .unwrap_or_else(|error| {
                        let mut response = text(error.to_string());
                        *response.status_mut() = if error.is_refused() {
                            http::StatusCode::BAD_REQUEST
                        } else {
                            http::StatusCode::BAD_GATEWAY
                        };
                        response
                    })
            }
        };
        tokio::spawn(listen::serve(
            listener,
            tls,
            service,
            ConnectionLimits::default(),
            TrustedProxies::default(),
            watch,
        ));
        Proxy {
            address,
            roots,
            forwarder,
            _cert_dir: cert_dir,
            _drain: trigger,
        }
    }

    pub(crate) async fn http1(&self) -> http1::SendRequest<Body> {
        http1_client(self.connect(b"http/1.1").await).await
    }

    pub(crate) async fn http2(&self) -> http2::SendRequest<Body> {
        http2_client(self.connect(b"h2").await).await
    }

    pub(crate) async fn connect(&self, protocol: &[u8]) -> TlsStream<TcpStream> {
        connect(self.address, &self.roots, protocol, None)
            .await
            .unwrap()
    }
}

pub(crate) fn tls_options(dir: &TempDir) -> TlsOptions {
    TlsOptions {
        cert: None,
        key: None,
        client_cas: Vec::new(),
        cert_dir: dir.path().to_owned(),
        names: Vec::new(),
        listen: "127.0.0.1".parse().unwrap(),
        policy: TlsPolicy::default(),
    }
}

/// Shows a certificate in every handshake, even with a key that does not belong to it.
#[derive(Debug)]
struct ShownCertificate(Arc<rustls::sign::CertifiedKey>);

impl ShownCertificate {
    fn new(cert: &str, key: &str) -> Self {
        let key = provider()
            .key_provider
            .load_private_key(private_key(key))
            .unwrap();
        Self(Arc::new(rustls::sign::CertifiedKey::new(chain(cert), key)))
    }
}

impl rustls::client::ResolvesClientCert for ShownCertificate {
    fn resolve(
        &self,
        _: &[&[u8]],
        _: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Opens a TLS connection, with a certificate and key in PEM if given.
pub(crate) async fn connect(
    address: SocketAddr,
    roots: &RootCertStore,
    protocol: &[u8],
    identity: Option<(String, String)>,
) -> std::io::Result<TlsStream<TcpStream>> {
    connect_after(b"", address, roots, protocol, identity).await
}

/// Sends bytes before the TLS handshake.
pub(crate) async fn connect_after(
    before: &[u8],
    address: SocketAddr,
    roots: &RootCertStore,
    protocol: &[u8],
    identity: Option<(String, String)>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut tcp = TcpStream::connect(address).await?;
    tcp.write_all(before).await?;
    let config = client_config(rustls::DEFAULT_VERSIONS, roots, protocol, identity);
    shake_hands(config, tcp).await
}

/// Opens a TLS connection of one version, with a certificate and key in PEM.
pub(crate) async fn connect_by(
    version: &'static SupportedProtocolVersion,
    address: SocketAddr,
    roots: &RootCertStore,
    identity: (String, String),
) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(address).await?;
    let config = client_config(&[version], roots, b"h2", Some(identity));
    shake_hands(config, tcp).await
}

fn client_config(
    versions: &[&'static SupportedProtocolVersion],
    roots: &RootCertStore,
    protocol: &[u8],
    identity: Option<(String, String)>,
) -> ClientConfig {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots.clone());
    let mut config = match identity {
        Some((cert, key)) => {
            builder.with_client_cert_resolver(Arc::new(ShownCertificate::new(&cert, &key)))
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    config
}

async fn shake_hands(
    config: ClientConfig,
    tcp: TcpStream,
) -> std::io::Result<TlsStream<TcpStream>> {
    TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from("localhost").unwrap(), tcp)
        .await
}

pub(crate) async fn http1_client(tls: TlsStream<TcpStream>) -> http1::SendRequest<Body> {
    let (sender, driver) = http1::handshake(TokioIo::new(tls)).await.unwrap();
    tokio::spawn(driver.with_upgrades());
    sender
}

pub(crate) async fn http2_client(tls: TlsStream<TcpStream>) -> http2::SendRequest<Body> {
    let (sender, driver) = http2::handshake(TokioExecutor::new(), TokioIo::new(tls))
        .await
        .unwrap();
    tokio::spawn(driver);
    sender
}

/// Creates a GET for HTTP/1.1.
pub(crate) fn get(path: &str) -> Request<Body> {
    Request::get(path)
        .header("host", "localhost")
        .body(body::empty())
        .unwrap()
}

/// Creates a GET for HTTP/2.
pub(crate) fn get2(path: &str) -> Request<Body> {
    Request::get(format!("https://localhost{path}"))
        .body(body::empty())
        .unwrap()
}
