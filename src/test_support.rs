//! A small API server on the loopback, with its certificates and clients.
//!
//! The tests of the listener and of upstream use it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::body::{self, Body, BoxError};
use crate::drain;
use crate::listener::tls::{ServerTls, TlsOptions, TlsPolicy};
use crate::listener::{ConnectionLimits, TrustedProxies, listen};
use crate::upstream::Upstream;
use crate::upstream::{ForwardIdentity, ForwardOptions, Forwarder};
use watershed_connect::ConnectOptions;

/// Timeout of every step of a test. Only a hang takes that long.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Returns the result of `future`. Panics if it takes longer than [`SOON`].
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future)
        .await
        .expect("this should not take long")
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(condition: impl Fn() -> bool) {
    soon(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

// === certificates ===

/// A CA that issues certificates.
pub(crate) struct Pki {
    pub(crate) ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Pki {
    pub(crate) fn new() -> Pki {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "test-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let ca_pem = params.self_signed(&key).unwrap().pem();
        Pki {
            ca_pem,
            issuer: Issuer::new(params, key),
        }
    }

    /// Issues a certificate. Returns it and its key in PEM.
    pub(crate) fn issue(&self, common_name: &str, names: &[&str]) -> (String, String) {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    pub(crate) fn roots(&self) -> RootCertStore {
        roots(&self.ca_pem)
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::new(self.server_config(true)))
    }

    fn server_config(&self, http2: bool) -> ServerConfig {
        let (cert, key) = self.issue("api", &["127.0.0.1", "localhost", "api.test"]);
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()), provider())
                .allow_unauthenticated()
                .build()
                .unwrap();
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain(&cert), private_key(&key))
            .unwrap();
        config.alpn_protocols = if http2 {
            vec![b"h2".to_vec(), b"http/1.1".to_vec()]
        } else {
            vec![b"http/1.1".to_vec()]
        };
        config
    }
}

pub(crate) fn roots(ca_pem: &str) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap())
        .unwrap();
    roots
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn chain(pem: &str) -> Vec<CertificateDer<'static>> {
    vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()]
}

fn private_key(pem: &str) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap()
}

// === the API server ===

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

/// Reads the whole body as text.
pub(crate) async fn read<B>(body: B) -> Result<String, BoxError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let bytes = soon(body.collect()).await.map_err(Into::into)?.to_bytes();
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

// === credentials ===

/// The token in the kubeconfigs of this module.
pub(crate) const OWN_TOKEN: &str = "proxy-secret-token";

/// Writes a kubeconfig with a client certificate and a token to a directory of its own.
pub(crate) fn kubeconfig(pki: &Pki, url: &str) -> (TempDir, ConnectOptions) {
    let user =
        format!("{{client-certificate: client.crt, client-key: client.key, token: {OWN_TOKEN}}}");
    kubeconfig_with(pki, url, &user)
}

/// Writes a kubeconfig with this user, which may name `client.crt` and `client.key`.
pub(crate) fn kubeconfig_with(pki: &Pki, url: &str, user: &str) -> (TempDir, ConnectOptions) {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = pki.issue("the-proxy", &[]);
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    file("ca.crt", &pki.ca_pem);
    file("client.crt", &cert);
    file("client.key", &key);
    let path = file("config", &kubeconfig_text(url, user));
    (dir, options(path))
}

pub(crate) fn kubeconfig_text(url: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: main\n\
         contexts: [{{name: main, context: {{cluster: main, user: main}}}}]\n\
         clusters: [{{name: main, \
         cluster: {{server: \"{url}\", certificate-authority: ca.crt}}}}]\n\
         users: [{{name: main, user: {user}}}]\n"
    )
}

pub(crate) fn options(path: PathBuf) -> ConnectOptions {
    ConnectOptions {
        kubeconfig: Some(path),
        ..ConnectOptions::default()
    }
}

pub(crate) async fn upstream_of(pki: &Pki, api: &Api) -> Upstream {
    let (_dir, options) = kubeconfig(pki, &api.url());
    Upstream::load(&options).await.unwrap()
}

// === the proxy, and clients of it ===

/// A listener whose service forwards all requests.
///
/// Requests whose paths begin with `/long` are forwarded as long ones.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) roots: RootCertStore,
    _cert_dir: TempDir,
    _drain: drain::DrainTrigger,
}

impl Proxy {
    pub(crate) async fn start(upstream: &Upstream) -> Proxy {
        Self::start_as(upstream, ForwardIdentity::Caller).await
    }

    pub(crate) async fn start_as(upstream: &Upstream, authority: ForwardIdentity) -> Proxy {
        let cert_dir = tempfile::tempdir().unwrap();
        let tls = ServerTls::load(tls_options(&cert_dir)).await.unwrap();
        let roots = roots(&std::fs::read_to_string(tls.ca_file().unwrap()).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (trigger, watch) = drain::channel();
        let forwarder = Forwarder::new(upstream);
        let service = move |request: Request<Incoming>, _peer| {
            let (forwarder, authority) = (forwarder.clone(), authority.clone());
            async move {
                let options = ForwardOptions {
                    long: request.uri().path().starts_with("/long"),
                    identity: authority,
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
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots.clone());
    let mut config = match identity {
        Some((cert, key)) => {
            builder.with_client_cert_resolver(Arc::new(ShownCertificate::new(&cert, &key)))
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    let mut tcp = TcpStream::connect(address).await?;
    tcp.write_all(before).await?;
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
