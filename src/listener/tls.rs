//! TLS settings of the listener: the serving certificate and the accepted client authorities.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use super::client_certificates::AnyCertificate;
use super::self_signed;
use super::tls_policy;
use crate::log_throttle::LogThrottle;
use watershed_connect::Validity;

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

/// Reason why the serving certificate or the client authorities cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Only one of the two files was given.
    #[error(
        "--tls-cert and --tls-key belong together: \
         give both, or neither for a self-signed certificate"
    )]
    HalfPair,
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file holds no usable PEM.
    #[error("{} holds no usable PEM {what}: {reason}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The wanted kind of PEM.
        what: &'static str,
        /// The reason.
        reason: String,
    },
    /// rustls rejects the certificate or an authority.
    #[error("the certificate in {} cannot be served: {reason}", path.display())]
    Unusable {
        /// The certificate's file.
        path: PathBuf,
        /// The error of rustls.
        reason: String,
    },
    /// The key belongs to another certificate.
    #[error(
        "the private key in {} is not that of the certificate in {}",
        key.display(),
        cert.display()
    )]
    Mismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The self-signed pair could not be made.
    #[error(transparent)]
    SelfSigned(#[from] self_signed::SelfSignedError),
}

impl TlsError {
    /// Returns the faulty file, if it was given by the operator.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Read { path, .. } | Self::Pem { path, .. } | Self::Unusable { path, .. } => {
                Some(path)
            }
            Self::Mismatch { key, .. } => Some(key),
            Self::HalfPair | Self::SelfSigned(_) => None,
        }
    }
}

/// The current TLS settings of the server. Cheap to clone.
#[derive(Clone)]
pub struct ServerTls {
    shared: Arc<ServerTlsShared>,
}

struct ServerTlsShared {
    source: CertificateSource,
    current: ArcSwap<ServedCertificate>,
    /// Contents of the files at the last check, valid or not: each change is tried and logged once.
    seen: Mutex<CertificateFiles>,
}

/// The settings that clients get.
struct ServedCertificate {
    config: Arc<ServerConfig>,
    /// The validity of the certificate, if that can be read.
    valid: Option<Validity>,
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

#[derive(PartialEq, Eq)]
struct CertificateFiles {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_cas: Vec<Vec<u8>>,
}

// === impl ServerTls ===

impl ServerTls {
    /// Loads or makes the certificate, and keeps it fresh from then on.
    pub async fn load(options: TlsOptions) -> Result<ServerTls, TlsError> {
        let shared = blocking(move || {
            let source = CertificateSource::new(&options)?;
            let files = source.read()?;
            let current = ArcSwap::from_pointee(source.build(&files)?);
            Ok(Arc::new(ServerTlsShared {
                source,
                current,
                seen: Mutex::new(files),
            }))
        })
        .await?;
        let weak = Arc::downgrade(&shared);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(RELOAD_INTERVAL).await;
                let Some(shared) = weak.upgrade() else { return };
                ServerTls { shared }.reload().await;
            }
        });
        Ok(ServerTls { shared })
    }

    /// Returns an acceptor with the current certificate.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.shared.current.load().config))
    }

    /// Returns the end of the serving certificate in seconds since the epoch, if it can be read.
    pub fn ends(&self) -> Option<i64> {
        self.shared
            .current
            .load()
            .valid
            .map(|valid| valid.not_after.as_second())
    }

    /// Returns the CA file of the self-signed certificate; `None` with given files.
    pub fn ca_file(&self) -> Option<PathBuf> {
        self.shared
            .source
            .self_signed
            .as_ref()
            .map(|pair| self_signed::ca_file(&pair.dir))
    }

    /// Takes over changed files. Logs broken ones, and keeps the old certificate.
    pub async fn reload(&self) {
        let shared = Arc::clone(&self.shared);
        let outcome = blocking(move || {
            if let Some(pair) = &shared.source.self_signed
                && let Err(error) = self_signed::renew(&pair.dir, &pair.names)
                && NOT_RENEWED.count(1).is_some()
            {
                tracing::warn!(%error, "cannot renew the self-signed certificate; serving the old one");
            }
            let files = shared.source.read()?;
            let mut seen = shared.seen.lock();
            if *seen == files {
                return Ok(false);
            }
            let built = shared.source.build(&files);
            *seen = files;
            shared.current.store(Arc::new(built?));
            Ok(true)
        })
        .await;
        match outcome {
            Ok(false) => {}
            Ok(true) => tracing::info!("serving certificate reloaded"),
            Err(error) => {
                tracing::warn!(%error, "cannot reload the serving certificate; keeping the old one");
            }
        }
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls")
            .field("cert", &self.shared.source.cert)
            .finish_non_exhaustive()
    }
}

/// Reads files and parses keys away from the threads that serve.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TlsError> + Send + 'static,
) -> Result<T, TlsError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

// === impl CertificateSource ===

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

    fn read(&self) -> Result<CertificateFiles, TlsError> {
        Ok(CertificateFiles {
            cert: read(&self.cert)?,
            key: read(&self.key)?,
            client_cas: self
                .client_cas
                .iter()
                .map(|path| read(path))
                .collect::<Result<_, _>>()?,
        })
    }

    fn build(&self, files: &CertificateFiles) -> Result<ServedCertificate, TlsError> {
        let chain = certificates(&self.cert, &files.cert)?;
        let key = PrivateKeyDer::from_pem_slice(&files.key).map_err(|error| TlsError::Pem {
            path: self.key.clone(),
            what: "private key",
            reason: error.to_string(),
        })?;
        let unusable = |error: &dyn std::fmt::Display, path: &Path| TlsError::Unusable {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let provider = Arc::new(self.policy.restrict(provider));
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(self.policy.versions())
            .map_err(|error| unusable(&error, &self.cert))?;
        let mut authorities = RootCertStore::empty();
        for (path, pem) in self.client_cas.iter().zip(&files.client_cas) {
            for certificate in certificates(path, pem)? {
                authorities
                    .add(certificate)
                    .map_err(|error| unusable(&error, path))?;
            }
        }
        let builder = if self.client_cas.is_empty() {
            builder.with_no_client_auth()
        } else {
            let algorithms = provider.signature_verification_algorithms;
            builder
                .with_client_cert_verifier(Arc::new(AnyCertificate::new(&authorities, algorithms)))
        };
        let valid = chain
            .first()
            .and_then(|certificate| Validity::of(certificate));
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => TlsError::Mismatch {
                    cert: self.cert.clone(),
                    key: self.key.clone(),
                },
                error => unusable(&error, &self.cert),
            })?;
        // An API server serves such a certificate too: it may be renewed, and some clients do not
        // check it.
        if let Some(valid) = valid.filter(|valid| !valid.is_valid(Timestamp::now())) {
            tracing::error!(
                cert = %self.cert.display(),
                "clients will refuse the serving certificate: {}",
                valid.describe(Timestamp::now())
            );
        }
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        if !self.client_cas.is_empty() {
            // A session that can be resumed holds the client's certificates, and outlives its
            // connection.
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        Ok(ServedCertificate {
            config: Arc::new(config),
            valid,
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read {
        path: path.to_owned(),
        source,
    })
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
        .map_err(|error| unusable(error.to_string()))?;
    if chain.is_empty() {
        return Err(unusable("there is no certificate in it".to_owned()));
    }
    Ok(chain)
}

#[cfg(test)]
mod tests;
