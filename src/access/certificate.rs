//! Callers known by certificate: verified against authorities in a file that is read again when it
//! changes.
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use moka::Expiry;
use moka::sync::Cache;
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::listener::tls::{self, TlsError};

/// A certificate is looked at again after this long: it may have ended.
const VERIFIED: Duration = Duration::from_secs(10);
const MAX_CERTIFICATES: u64 = 20_000;
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);
/// The attribute of a certificate's subject that is the user's unique id.
/// Source: `apiserver/pkg/authentication/request/x509/x509.go` (parseUIDFromCert).
const UID: &str = "1.3.6.1.4.1.57683.2";

/// Whom a certificate is of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subject {
    /// The last common name; may be empty.
    pub(super) common_name: String,
    /// All organizations.
    pub(super) organizations: Vec<String>,
    /// The user's unique id.
    pub(super) uid: Option<String>,
    /// The certificate's SHA-256, in hexadecimal digits.
    pub(super) fingerprint: String,
}

/// Verifies certificates. Cheap to clone.
#[derive(Clone)]
pub(super) struct Certificates(Arc<Inner>);

struct Inner {
    file: PathBuf,
    verifier: ArcSwap<Verifier>,
    /// The file's bytes last looked at, whether they were good or not.
    seen: Mutex<Vec<u8>>,
}

/// The authorities of one moment, and the certificates that were verified against them.
struct Verifier {
    webpki: Arc<dyn ClientCertVerifier>,
    verified: Cache<[u8; 32], Verdict>,
}

#[derive(Clone)]
struct Verdict {
    subject: Option<Arc<Subject>>,
    stands: Duration,
}

struct Lifetime;

impl Expiry<[u8; 32], Verdict> for Lifetime {
    fn expire_after_create(&self, _: &[u8; 32], verdict: &Verdict, _: Instant) -> Option<Duration> {
        Some(verdict.stands)
    }
}

impl Certificates {
    /// Reads the authorities, and does so again whenever the file changes.
    pub(super) async fn load(file: PathBuf) -> Result<Self, TlsError> {
        let pem = read(file.clone()).await?;
        let verifier = ArcSwap::from_pointee(Verifier::new(&file, &pem)?);
        let inner = Arc::new(Inner {
            file,
            verifier,
            seen: Mutex::new(pem),
        });
        let weak = Arc::downgrade(&inner);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(RELOAD_INTERVAL).await;
                let Some(inner) = weak.upgrade() else { return };
                Self(inner).reload().await;
            }
        });
        Ok(Self(inner))
    }

    /// The authorities themselves.
    pub(super) fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        tls::certificates(&self.0.file, &self.0.seen.lock())
    }

    /// Takes over a changed file. A broken one is told, and the old authorities are kept.
    pub(super) async fn reload(&self) {
        let file = &self.0.file;
        let changed = async {
            let pem = read(file.clone()).await?;
            if *self.0.seen.lock() == pem {
                return Ok(false);
            }
            let verifier = Verifier::new(file, &pem);
            *self.0.seen.lock() = pem;
            self.0.verifier.store(Arc::new(verifier?));
            Ok::<_, TlsError>(true)
        };
        match changed.await {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!(file = %file.display(), "authorities of client certificates reloaded")
            }
            Err(error) => {
                tracing::warn!(%error, "new authorities of client certificates not taken, keeping the old ones");
            }
        }
    }

    /// Whom a certificate is of, if it is good at this moment: the first of the chain, which a
    /// client showed whose key it holds.
    pub(super) fn verify(&self, chain: &[CertificateDer<'static>]) -> Option<Arc<Subject>> {
        let verifier = self.0.verifier.load();
        let mut hasher = blake3::Hasher::new();
        for certificate in chain {
            hasher.update(&(certificate.len() as u64).to_le_bytes());
            hasher.update(certificate);
        }
        let verdict = verifier
            .verified
            .get_with(*hasher.finalize().as_bytes(), || verifier.verify(chain));
        verdict.subject
    }
}

impl Verifier {
    fn new(file: &Path, pem: &[u8]) -> Result<Self, TlsError> {
        let unusable = |reason: String| TlsError::Unusable {
            path: file.to_owned(),
            reason,
        };
        let mut authorities = RootCertStore::empty();
        for certificate in tls::certificates(file, pem)? {
            authorities
                .add(certificate)
                .map_err(|error| unusable(error.to_string()))?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let webpki =
            WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider).build();
        let webpki = webpki.map_err(|error| unusable(error.to_string()))?;
        let verified = Cache::builder()
            .max_capacity(MAX_CERTIFICATES)
            .expire_after(Lifetime)
            .build();
        Ok(Self { webpki, verified })
    }

    fn verify(&self, chain: &[CertificateDer<'static>]) -> Verdict {
        let bad = Verdict {
            subject: None,
            stands: VERIFIED,
        };
        let Some((end_entity, intermediates)) = chain.split_first() else {
            return bad;
        };
        let now = UnixTime::now();
        if let Err(error) = self
            .webpki
            .verify_client_cert(end_entity, intermediates, now)
        {
            tracing::debug!(%error, "a client certificate is not good");
            return bad;
        }
        let Ok((_, certificate)) = X509Certificate::from_der(end_entity) else {
            return bad;
        };
        let Some(mut subject) = Subject::of(&certificate) else {
            return bad;
        };
        subject.fingerprint = fingerprint(end_entity);
        let ends = certificate.validity().not_after.timestamp();
        let left = u64::try_from(ends)
            .unwrap_or(0)
            .saturating_sub(now.as_secs());
        Verdict {
            subject: Some(Arc::new(subject)),
            stands: VERIFIED.min(Duration::from_secs(left)),
        }
    }
}

impl Subject {
    /// `None` if upstream would read it in another way than this does.
    fn of(certificate: &X509Certificate<'_>) -> Option<Self> {
        let mut subject = Self::default();
        for attribute in certificate.subject().iter_attributes() {
            let text = || attribute.as_str().ok().map(str::to_owned);
            match attribute.attr_type().to_id_string().as_str() {
                "2.5.4.3" => subject.common_name = text()?,
                "2.5.4.10" => subject.organizations.push(text()?),
                UID => {
                    let uid = text().filter(|uid| !uid.is_empty() && subject.uid.is_none())?;
                    subject.uid = Some(uid);
                }
                _ => {}
            }
        }
        Some(subject)
    }
}

fn fingerprint(certificate: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, certificate);
    let mut text = String::with_capacity(64);
    for byte in digest.as_ref() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

async fn read(file: PathBuf) -> Result<Vec<u8>, TlsError> {
    tokio::fs::read(&file)
        .await
        .map_err(|source| TlsError::Read { path: file, source })
}

#[cfg(test)]
mod tests;
