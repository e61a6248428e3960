//! Client certificates, verified against authorities in a file that is reloaded when it changes.
mod authorities;
mod name;
mod signed_directly;

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use moka::Expiry;
use moka::sync::Cache;
use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage, VerifiedPath};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::time::ASN1Time;

use crate::access::identity::Identity;
use crate::access::token_attribute::CREDENTIAL_ID;
use crate::listener::tls::{self, Reloaded, TlsError, certificate_key};
use crate::work::blocking;

/// Time after which a certificate is verified again.
const VERIFIED_TTL: Duration = Duration::from_secs(10);
/// Limit of cached certificates.
const MAX_CERTIFICATES: u64 = 20_000;
/// The attribute of a certificate's subject that is the user's unique id.
/// Source: `apiserver/pkg/authentication/request/x509/x509.go` (parseUIDFromCert).
const UID: &str = "1.3.6.1.4.1.57683.2";

/// The subject of a client certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CertificateSubject {
    /// The last common name; may be empty.
    pub(crate) common_name: String,
    /// All organizations.
    pub(in crate::access) organizations: Vec<String>,
    /// The user's unique id.
    pub(in crate::access) uid: Option<String>,
    /// The certificate's SHA-256 in hexadecimal digits.
    pub(in crate::access) fingerprint: String,
}

impl CertificateSubject {
    /// Returns the user, or `None` without a common name.
    ///
    /// Source: `apiserver/pkg/authentication/request/x509/x509.go` (CommonNameUserConversion).
    pub(crate) fn identity(&self) -> Option<Identity> {
        (!self.common_name.is_empty()).then(|| Identity {
            user: self.common_name.clone(),
            uid: self.uid.clone(),
            groups: self.organizations.clone(),
            extra: vec![(
                CREDENTIAL_ID.to_owned(),
                vec![format!("X509SHA256={}", self.fingerprint)],
            )],
        })
    }

    /// Reads the subject. Returns `None` if upstream would read it differently.
    pub(crate) fn of(certificate: &X509Certificate<'_>) -> Option<Self> {
        if !name::is_whole(certificate.subject()) {
            return None;
        }
        let mut subject = Self::default();
        for attribute in certificate.subject().iter_attributes() {
            let text = attribute.as_str().ok().map(str::to_owned);
            match attribute.attr_type().to_id_string().as_str() {
                "2.5.4.3" => subject.common_name = text?,
                "2.5.4.10" => subject.organizations.push(text?),
                UID => {
                    let uid = text.filter(|uid| !uid.is_empty() && subject.uid.is_none())?;
                    subject.uid = Some(uid);
                }
                _ => {}
            }
        }
        Some(subject)
    }
}

/// Returns `true` if one set of authorities has a key of the other set, or has signed one of its
/// certificates.
pub fn overlap(signers: &[CertificateDer<'_>], others: &[CertificateDer<'_>]) -> bool {
    let (mut keys, mut subjects) = (HashSet::new(), HashSet::new());
    for signer in parsed(signers) {
        keys.insert(signer.public_key().raw.to_vec());
        subjects.insert(signer.subject().as_raw().to_vec());
    }
    parsed(others).any(|other| {
        let is_self_issued = other.issuer() == other.subject();
        keys.contains(other.public_key().raw)
            || (!is_self_issued && subjects.contains(other.issuer().as_raw()))
    })
}

/// Returns the certificates that can be parsed.
fn parsed<'a>(all: &'a [CertificateDer<'_>]) -> impl Iterator<Item = X509Certificate<'a>> {
    all.iter()
        .filter_map(|der| X509Certificate::from_der(der).ok())
        .map(|(_, certificate)| certificate)
}

/// Verifies client certificates. Cheap to clone.
#[derive(Clone)]
pub(in crate::access) struct Certificates(Arc<AuthorityFile>);

impl Certificates {
    /// Reads the authorities, and reads them again whenever the file changes.
    pub(in crate::access) async fn load(path: PathBuf) -> Result<Self, TlsError> {
        let authorities = Arc::new(blocking(move || AuthorityFile::read(path)).await?);
        tls::look_regularly(&authorities, |authorities| async {
            Self(authorities).reload().await;
        });
        Ok(Self(authorities))
    }

    /// Returns the authorities.
    pub(in crate::access) fn authorities(&self) -> Vec<CertificateDer<'static>> {
        self.0.verifier.load().authorities.clone()
    }

    /// Reads the file again. A broken file is logged, and the old authorities are kept.
    pub(in crate::access) async fn reload(&self) {
        let file = Arc::clone(&self.0);
        blocking(move || file.take_over_changes()).await;
    }

    /// Verifies a chain and returns the subject of its first certificate, whose key the client
    /// has proved to hold. Returns `None` if the chain is not valid now.
    pub(in crate::access) fn verify(
        &self,
        chain: &[CertificateDer<'static>],
    ) -> Option<Arc<CertificateSubject>> {
        let verifier = self.0.verifier.load();
        let mut hasher = blake3::Hasher::new();
        for certificate in chain {
            hasher.update(&(certificate.len() as u64).to_le_bytes());
            hasher.update(certificate);
        }
        verifier
            .verified
            .get_with(*hasher.finalize().as_bytes(), || verifier.verify(chain))
            .subject
    }
}

struct AuthorityFile {
    path: PathBuf,
    verifier: ArcSwap<ClientVerifier>,
    made: Mutex<Reloaded<Arc<ClientVerifier>>>,
}

impl AuthorityFile {
    fn read(path: PathBuf) -> Result<Self, TlsError> {
        let files = vec![path.clone()];
        let made = Reloaded::new(files, |pem| ClientVerifier::new(&path, pem).map(Arc::new))?;
        Ok(Self {
            verifier: ArcSwap::new(Arc::clone(&made.current)),
            made: Mutex::new(made),
            path,
        })
    }

    fn take_over_changes(&self) {
        let mut made = self.made.lock();
        let refresh = made.refresh(|pem| ClientVerifier::new(&self.path, pem).map(Arc::new));
        let what = format!(
            "authorities of client certificates in {}",
            self.path.display()
        );
        refresh.log(&what);
        if refresh.is_taken_over() {
            self.verifier.store(Arc::clone(&made.current));
        }
    }
}

/// The authorities at one time, and the certificates that have been verified against them.
struct ClientVerifier {
    authorities: Vec<CertificateDer<'static>>,
    /// The name and the key of each authority, in the same order.
    anchors: Vec<TrustAnchor<'static>>,
    verified: Cache<ChainHash, VerifiedChain>,
}

impl ClientVerifier {
    /// `contents` are those of the file.
    fn new(file: &Path, contents: &[Vec<u8>]) -> Result<Self, TlsError> {
        let authorities = tls::certificates(file, &contents.concat())?;
        let mut roots = RootCertStore::empty();
        tls::add_roots(&mut roots, file, authorities.clone())?;
        let verified = Cache::builder()
            .max_capacity(MAX_CERTIFICATES)
            .expire_after(ChainExpiry)
            .build();
        Ok(Self {
            authorities,
            anchors: roots.roots,
            verified,
        })
    }

    fn verify(&self, chain: &[CertificateDer<'static>]) -> VerifiedChain {
        self.valid(chain).unwrap_or(VerifiedChain {
            subject: None,
            ttl: VERIFIED_TTL,
        })
    }

    fn valid(&self, chain: &[CertificateDer<'static>]) -> Option<VerifiedChain> {
        let (end_entity, others) = chain.split_first()?;
        let now = UnixTime::now();
        let time = ASN1Time::from_timestamp(i64::try_from(now.as_secs()).ok()?).ok()?;
        if !signed_directly::is_valid(end_entity, &self.authorities, time)
            && let Err(error) = self.verify_by_webpki(end_entity, others, now, time)
        {
            tracing::debug!(%error, "a client certificate is not valid");
            return None;
        }
        let (_, certificate) = X509Certificate::from_der(end_entity).ok()?;
        let mut subject = CertificateSubject::of(&certificate)?;
        subject.fingerprint = fingerprint(end_entity);
        let end = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
        let left = Duration::from_secs(end.saturating_sub(now.as_secs()));
        Some(VerifiedChain {
            subject: Some(Arc::new(subject)),
            ttl: VERIFIED_TTL.min(left),
        })
    }

    /// Verifies a chain by webpki, which sees no more of an authority than its name and its key.
    /// The chain may have more certificates than are needed.
    fn verify_by_webpki(
        &self,
        end_entity: &CertificateDer<'static>,
        others: &[CertificateDer<'static>],
        now: UnixTime,
        time: ASN1Time,
    ) -> Result<(), webpki::Error> {
        let is_between = |other: &&CertificateDer<'static>| {
            !self.authorities.contains(other)
                && certificate_key::parsed(other)
                    .is_some_and(|other| authorities::has_key_to_sign(&other))
        };
        let between: Vec<_> = others.iter().filter(is_between).cloned().collect();
        let may_sign = |path: &VerifiedPath<'_>| {
            let between = path.intermediate_certificates().count();
            let mut authorities = self.anchors.iter().zip(&self.authorities);
            let may_sign = authorities.any(|(anchor, authority)| {
                anchor == path.anchor()
                    && certificate_key::parsed(authority)
                        .is_some_and(|authority| authorities::may_sign(&authority, between, time))
            });
            may_sign.then_some(()).ok_or(webpki::Error::UnknownIssuer)
        };
        let signatures = default_provider().signature_verification_algorithms;
        EndEntityCert::try_from(end_entity)?
            .verify_for_usage(
                signatures.all,
                &self.anchors,
                &between,
                now,
                KeyUsage::client_auth(),
                None,
                Some(&may_sign),
            )
            .map(|_| ())
    }
}

type ChainHash = [u8; 32];

#[derive(Clone)]
struct VerifiedChain {
    /// `None` if the chain is not valid.
    subject: Option<Arc<CertificateSubject>>,
    ttl: Duration,
}

struct ChainExpiry;

impl Expiry<ChainHash, VerifiedChain> for ChainExpiry {
    fn expire_after_create(
        &self,
        _: &ChainHash,
        chain: &VerifiedChain,
        _: Instant,
    ) -> Option<Duration> {
        Some(chain.ttl)
    }
}

fn fingerprint(certificate: &[u8]) -> String {
    let digest = ::aws_lc_rs::digest::digest(&::aws_lc_rs::digest::SHA256, certificate);
    let mut text = String::with_capacity(64);
    for byte in digest.as_ref() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests;
