//! TLS settings of the listener: the serving certificate and the accepted client authorities.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt as _;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::StoresServerSessions;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use super::client_certificates::AnyCertificate;
use super::self_signed;
use super::tls_policy;
use crate::log_throttle::LogThrottle;
use crate::work::blocking;
use watershed_connect::Validity;

pub(crate) mod certificate_key;
mod error;
mod reloaded;

pub use error::TlsError;
pub(crate) use reloaded::Reloaded;
pub use tls_policy::{CipherSuiteName, TlsMinVersion, TlsPolicy};

/// Interval between checks of the files.
///
/// cert-manager and kubelet renew long before expiry, so this only has to be short enough for an
/// operator who waits for it.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// Self-signed certificates that could not be renewed, at every look at the files.
static NOT_RENEWED: LogThrottle = LogThrottle::new(Duration::from_hours(1));

/// The source of the serving certificate.
#[derive(Clone, Debug)]
pub struct TlsOptions {
    /// The certificate chain in PEM (`--tls-cert`); with `key`, or neither.
    pub cert: Option<PathBuf>,
    /// Its private key in PEM (`--tls-key`).
    pub key: Option<PathBuf>,
    /// Authorities that sign clients' certificates (`--client-ca-file`). If there are any, clients
    /// are asked for a certificate, which may be of any authority.
    pub client_cas: Vec<PathBuf>,
    /// Directory of the self-signed pair and its CA, used without a certificate (`--cert-dir`).
    pub cert_dir: PathBuf,
    /// Additional names and addresses of the self-signed certificate (`--tls-san`).
    pub names: Vec<String>,
    /// The address listened on, which the self-signed certificate names too.
    pub listen: IpAddr,
    /// Versions and cipher suites (`--tls-min-version`, `--tls-cipher-suites`).
    pub policy: TlsPolicy,
}

/// The current TLS settings of the server. Cheap to clone.
#[derive(Clone)]
pub struct ServerTls {
    shared: Arc<ServerTlsShared>,
}

struct ServerTlsShared {
    source: CertificateSource,
    current: ArcSwap<ServedCertificate>,
    made: Mutex<MadeOfFiles>,
}

/// The settings that clients get.
struct ServedCertificate {
    config: Arc<ServerConfig>,
    /// The validity of the certificate, if that can be read.
    valid: Option<Validity>,
}

/// The parts of the settings. Each is renewed for itself: a broken file keeps no other from
/// being taken over.
struct MadeOfFiles {
    pair: Reloaded<Arc<CertifiedKey>>,
    authorities: Reloaded<Arc<RootCertStore>>,
}

/// The files, after a self-signed pair has been made where needed.
#[derive(Clone)]
struct CertificateSource {
    cert: PathBuf,
    key: PathBuf,
    client_cas: Vec<PathBuf>,
    /// Set for a self-signed pair, which is renewed here.
    self_signed: Option<SelfSignedSource>,
    policy: TlsPolicy,
}

#[derive(Clone)]
struct SelfSignedSource {
    dir: PathBuf,
    names: Vec<String>,
}

impl ServerTls {
    /// Loads or makes the certificate, and keeps it fresh from then on.
    pub async fn load(options: TlsOptions) -> Result<ServerTls, TlsError> {
        // Reading files and parsing keys must not keep the threads that serve.
        let shared = blocking(move || {
            let source = CertificateSource::new(&options)?;
            let made = MadeOfFiles {
                pair: Reloaded::new(source.pair_files(), |pem| source.pair(pem))?,
                authorities: Reloaded::new(source.client_cas.clone(), |pem| {
                    source.authorities(pem)
                })?,
            };
            Ok::<_, TlsError>(Arc::new(ServerTlsShared {
                current: ArcSwap::from_pointee(source.build(&made)?),
                source,
                made: Mutex::new(made),
            }))
        })
        .await?;
        look_regularly(&shared, |shared| async {
            ServerTls { shared }.reload().await;
        });
        Ok(ServerTls { shared })
    }

    /// Returns an acceptor with the current certificate.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.shared.current.load().config))
    }

    /// Returns the validity of the serving certificate, if it can be read.
    pub fn validity(&self) -> Option<Validity> {
        self.shared.current.load().valid
    }

    /// Returns the CA file of the self-signed certificate; `None` with given files.
    pub fn ca_file(&self) -> Option<PathBuf> {
        self.shared
            .source
            .self_signed
            .as_ref()
            .map(|pair| self_signed::ca_file(&pair.dir))
    }

    /// Takes over changed files. Logs broken ones, and goes on with what they held before.
    pub async fn reload(&self) {
        let shared = Arc::clone(&self.shared);
        let reloaded = blocking(move || shared.take_over_changes());
        if let Err(error) = reloaded.await {
            tracing::warn!(%error, "cannot reload the serving certificate; keeping the old one");
        }
    }
}

impl ServerTlsShared {
    fn take_over_changes(&self) -> Result<(), TlsError> {
        let source = &self.source;
        if let Some(pair) = &source.self_signed
            && let Err(error) = self_signed::renew(&pair.dir, &pair.names)
            && NOT_RENEWED.count(1).is_some()
        {
            tracing::warn!(%error, "cannot renew the self-signed certificate; serving the old one");
        }
        let mut made = self.made.lock();
        let pair = made.pair.refresh(|pem| source.pair(pem));
        let authorities = made.authorities.refresh(|pem| source.authorities(pem));
        pair.log("serving certificate");
        authorities.log("client authorities");
        if pair.is_taken_over() || authorities.is_taken_over() {
            self.current.store(Arc::new(source.build(&made)?));
        }
        Ok(())
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls")
            .field("cert", &self.shared.source.cert)
            .finish_non_exhaustive()
    }
}

/// Has files looked at again in each interval, for as long as somebody holds what is made of them.
pub(crate) fn look_regularly<T, F>(made: &Arc<T>, look: impl Fn(Arc<T>) -> F + Send + 'static)
where
    T: Send + Sync + 'static,
    F: Future<Output = ()> + Send,
{
    let made = Arc::downgrade(made);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let Some(made) = made.upgrade() else { return };
            // What a parser does with one file must not stop the reading of the next.
            if AssertUnwindSafe(look(made)).catch_unwind().await.is_err() {
                tracing::error!(
                    "reading changed files panicked; trying again in {RELOAD_INTERVAL:?}"
                );
            }
        }
    });
}

impl CertificateSource {
    fn new(options: &TlsOptions) -> Result<CertificateSource, TlsError> {
        let client_cas = options.client_cas.clone();
        match (&options.cert, &options.key) {
            (Some(cert), Some(key)) => Ok(CertificateSource {
                cert: cert.clone(),
                key: key.clone(),
                client_cas,
                self_signed: None,
                policy: options.policy.clone(),
            }),
            (None, None) => {
                let names = self_signed::names(options.listen, &options.names);
                let pair = self_signed::ensure(&options.cert_dir, &names)?;
                let self_signed = Some(SelfSignedSource {
                    dir: options.cert_dir.clone(),
                    names,
                });
                Ok(CertificateSource {
                    cert: pair.cert,
                    key: pair.key,
                    client_cas,
                    self_signed,
                    policy: options.policy.clone(),
                })
            }
            _ => Err(TlsError::HalfPair),
        }
    }

    fn pair_files(&self) -> Vec<PathBuf> {
        vec![self.cert.clone(), self.key.clone()]
    }

    /// Makes the serving certificate of its two files' contents.
    fn pair(&self, pem: &[Vec<u8>]) -> Result<Arc<CertifiedKey>, TlsError> {
        let [cert, key] = pem else {
            return Err(TlsError::HalfPair);
        };
        let chain = certificates(&self.cert, cert)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError::Pem {
            path: self.key.clone(),
            what: "private key",
            reason: pem_reason(&error),
        })?;
        let pair =
            CertifiedKey::from_der(chain, key, &rustls::crypto::aws_lc_rs::default_provider());
        pair.map(Arc::new).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => TlsError::Mismatch {
                cert: self.cert.clone(),
                key: self.key.clone(),
            },
            error => unusable(&self.cert, &error),
        })
    }

    /// Makes the authorities that clients are told of the contents of their files.
    fn authorities(&self, pem: &[Vec<u8>]) -> Result<Arc<RootCertStore>, TlsError> {
        let mut authorities = RootCertStore::empty();
        for (path, pem) in self.client_cas.iter().zip(pem) {
            add_roots(&mut authorities, path, certificates(path, pem)?)?;
        }
        Ok(Arc::new(authorities))
    }

    fn build(&self, made: &MadeOfFiles) -> Result<ServedCertificate, TlsError> {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let provider = Arc::new(self.policy.restrict(provider));
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(self.policy.versions())
            .map_err(|error| unusable(&self.cert, &error))?;
        let builder = if self.client_cas.is_empty() {
            builder.with_no_client_auth()
        } else {
            let authorities = &made.authorities.current;
            let algorithms = provider.signature_verification_algorithms;
            builder
                .with_client_cert_verifier(Arc::new(AnyCertificate::new(authorities, algorithms)))
        };
        let pair = Arc::clone(&made.pair.current);
        let valid = pair
            .cert
            .first()
            .and_then(|certificate| Validity::of(certificate));
        // An API server serves such a certificate too: it may be renewed, and some clients do not
        // check it.
        if let Some(valid) = valid.filter(|valid| !valid.is_valid(Timestamp::now())) {
            tracing::error!(
                cert = %self.cert.display(),
                "clients will refuse the serving certificate: {}",
                valid.describe(Timestamp::now())
            );
        }
        let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        if !self.client_cas.is_empty() {
            config.session_storage = Arc::new(ForgottenSessions);
            config.send_tls13_tickets = 1;
        }
        Ok(ServedCertificate {
            config: Arc::new(config),
            valid,
        })
    }
}

/// Sessions that cannot be resumed: one that can holds the client's certificates, and outlives its
/// connection.
///
/// With TLS 1.3, clients get a ticket all the same. Its packet acknowledges the end of the handshake at once; without
/// it, a client that collects small writes (Nagle) sends its first request 40 ms later.
#[derive(Debug)]
struct ForgottenSessions;

impl StoresServerSessions for ForgottenSessions {
    fn put(&self, _: Vec<u8>, _: Vec<u8>) -> bool {
        true
    }

    fn get(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn take(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn can_cache(&self) -> bool {
        // That is asked for TLS 1.2 alone, where the server has the last word anyway.
        false
    }
}

/// Returns the error of a file whose content cannot be used.
pub(crate) fn unusable(path: &Path, error: &dyn std::fmt::Display) -> TlsError {
    TlsError::Unusable {
        path: path.to_owned(),
        reason: error.to_string(),
    }
}

/// Parses the certificates of a PEM file; at least one.
pub(crate) fn certificates(
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unusable = |reason: String| TlsError::Pem {
        path: path.to_owned(),
        what: "certificate",
        reason,
    };
    let chain = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unusable(pem_reason(&error)))?;
    if chain.is_empty() {
        return Err(unusable("there is no certificate in it".to_owned()));
    }
    Ok(chain)
}

/// Adds the authorities of a file, each of which must be usable as one.
pub(crate) fn add_roots(
    roots: &mut RootCertStore,
    path: &Path,
    authorities: Vec<CertificateDer<'static>>,
) -> Result<(), TlsError> {
    authorities
        .into_iter()
        .try_for_each(|authority| roots.add(authority))
        .map_err(|error| unusable(path, &error))
}

/// Describes an error without the bytes that it was found at, which may be part of a key.
fn pem_reason(error: &pem::Error) -> String {
    match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no line that ends it".to_owned(),
        pem::Error::IllegalSectionStart { .. } => {
            "a line that begins a section does not end with five dashes".to_owned()
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
