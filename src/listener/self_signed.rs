//! Makes a self-signed certificate when none is given, as kube-apiserver does.
//!
//! The CA is in `ca.crt` and `ca.key`, the serving pair in `tls.crt` and `tls.key`. The CA stays
//! the same over restarts, so that clients keep trusting it. It may be another one than the proxy
//! would make, such as one for all replicas. The serving pair is renewed when it is about to expire
//! or lacks a name. Only then the CA's key is needed.
//!
//! Another CA is made at the start alone, and only where the proxy's own is missing, useless or about
//! to expire: clients that trust the old one would fail at once. An operator's CA is never replaced.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::{ToSpan, Zoned};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, RootCertStore};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{ExtendedKeyUsage, KeyUsage};
use x509_parser::time::ASN1Time;

/// kubeadm's lifetimes: ten years for a CA, one for what it signs.
const CA_YEARS: i32 = 10;
const SERVING_YEARS: i32 = 1;

/// Remaining lifetime at which a certificate is renewed.
const RENEW_BEFORE: Duration = Duration::from_hours(30 * 24);

const CA_NAME: &str = "watershed-self-signed-ca";

/// The serving pair's files.
#[derive(Debug)]
pub(super) struct ServingPair {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
}

/// Reason why a self-signed certificate cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SelfSignedError {
    /// The directory cannot be written.
    #[error(
        "cannot keep a self-signed certificate in {}: {source} \
         (choose another place with --cert-dir, or give --tls-cert and --tls-key)",
        path.display()
    )]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file is there and cannot be read.
    #[error("cannot read {}: {source} (see --cert-dir)", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The CA cannot sign another serving certificate, and a running proxy makes no other CA.
    #[error("the CA in {} cannot renew the certificate: {problem}", dir.display())]
    Ca {
        /// The folder.
        dir: PathBuf,
        /// The reason.
        problem: CaProblem,
    },
    /// A name cannot be in a certificate.
    #[error("cannot make a self-signed certificate for {names:?}: {source} (see --tls-san)")]
    Make {
        /// The names asked for.
        names: Vec<String>,
        /// The error of rcgen.
        source: rcgen::Error,
    },
}

/// Reason why a CA cannot sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaProblem {
    /// There is no certificate.
    #[error("ca.crt is missing")]
    Missing,
    /// The certificate is none.
    #[error("ca.crt is not a certificate")]
    Damaged,
    /// The certificate has ended, or is the proxy's own and ends within a month.
    #[error("ca.crt has expired or is about to")]
    Expiring,
    /// There is no key.
    #[error("ca.key is missing")]
    NoKey,
    /// The key is none, or another one's.
    #[error("ca.key is not the key of ca.crt")]
    OtherKey,
    /// The two fit, and clients would not accept what they sign.
    #[error(
        "clients that trust ca.crt would refuse what ca.key signs (ca.crt has to be of an authority \
         that may sign for servers, have no constraints that exclude the proxy's names, and name no \
         part of its subject twice)"
    )]
    Refused,
}

/// Returns the path of the CA's certificate.
pub(super) fn ca_file(dir: &Path) -> PathBuf {
    dir.join("ca.crt")
}

/// Returns all names by which clients may reach this proxy.
pub(super) fn names(listen: IpAddr, extra: &[String]) -> Vec<String> {
    let mut names = vec![
        "localhost".to_owned(),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
    ];
    // The default names of the API in a cluster.
    names.extend(
        [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ]
        .map(str::to_owned),
    );
    if !listen.is_unspecified() {
        names.push(listen.to_string());
    }
    names.extend(hostname());
    names.extend(extra.iter().cloned());
    // An invalid name, such as a hostname with an underscore, must not keep the proxy from
    // starting.
    names.retain(|name| {
        let usable = ServerName::try_from(name.as_str()).is_ok();
        if !usable {
            tracing::warn!(
                name,
                "name left out of the self-signed certificate: not a valid DNS name or address"
            );
        }
        usable
    });
    names.sort();
    names.dedup();
    names
}

fn hostname() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())?
        .trim()
        .to_lowercase();
    (!name.is_empty()).then_some(name)
}

/// Finds a valid serving pair in `dir`, or makes one. If the CA there cannot sign it, makes another
/// CA. One that the proxy did not make stays, which is an error. Blocks.
pub(super) fn ensure(dir: &Path, names: &[String]) -> Result<ServingPair, SelfSignedError> {
    let problem = match renew(dir, names) {
        Err(SelfSignedError::Ca { problem, .. })
            if problem != CaProblem::Refused && is_replaceable(dir)? =>
        {
            problem
        }
        Err(error @ SelfSignedError::Ca { .. }) => {
            // A running proxy would go on with it, too.
            let pair = serving_pair(dir);
            if !read_ca(dir).is_ok_and(|ca| serves_now(&ca, &pair, names)) {
                return Err(error);
            }
            tracing::warn!(%error, "serving a certificate that ends within a month");
            return Ok(pair);
        }
        other => return other,
    };
    if problem != CaProblem::Missing {
        tracing::warn!(dir = %dir.display(), %problem, "making another CA: clients have to trust it");
    }
    fs::create_dir_all(dir).map_err(|source| SelfSignedError::Write {
        path: dir.to_owned(),
        source,
    })?;
    let make = cannot_make(names);
    let ca_key = KeyPair::generate().map_err(make)?;
    let certificate = ca_params().self_signed(&ca_key).map_err(make)?;
    write(&dir.join("ca.key"), &ca_key.serialize_pem(), 0o600)?;
    write(&ca_file(dir), &certificate.pem(), 0o644)?;
    sign(dir, names, certificate.der(), ca_key)
}

/// Finds a valid serving pair in `dir`, or lets the CA there sign one. Blocks.
pub(super) fn renew(dir: &Path, names: &[String]) -> Result<ServingPair, SelfSignedError> {
    let useless = |problem| useless(dir, problem);
    let ca = read_ca(dir)?;
    let parsed = parsed(&ca).ok_or_else(|| useless(CaProblem::Damaged))?;
    let left = if is_own(&parsed) {
        RENEW_BEFORE
    } else {
        Duration::ZERO
    };
    if ends_within(&parsed, left) {
        return Err(useless(CaProblem::Expiring));
    }
    let pair = serving_pair(dir);
    if is_valid(&ca, &pair, names) {
        return Ok(pair);
    }
    let key = read_if_present(&dir.join("ca.key"))?.ok_or_else(|| useless(CaProblem::NoKey))?;
    // openssl writes the parameters of a curve before the key.
    let key = PrivateKeyDer::from_pem_slice(&key).ok();
    let key = key.map(|key| KeyPair::try_from(&key));
    let is_its_key = |key: &KeyPair| {
        parsed.public_key().raw == rcgen::PublicKeyData::subject_public_key_info(key)
    };
    let key = key.and_then(Result::ok).filter(is_its_key);
    let key = key.ok_or_else(|| useless(CaProblem::OtherKey))?;
    if !signs_servers(&parsed) {
        return Err(useless(CaProblem::Refused));
    }
    sign(dir, names, &ca, key)
}

/// Reads the CA's certificate, which can be parsed.
fn read_ca(dir: &Path) -> Result<CertificateDer<'static>, SelfSignedError> {
    let ca = read_if_present(&ca_file(dir))?.ok_or_else(|| useless(dir, CaProblem::Missing))?;
    let ca = CertificateDer::from_pem_slice(&ca).ok();
    let ca = ca.filter(|ca| parsed(ca).is_some());
    ca.ok_or_else(|| useless(dir, CaProblem::Damaged))
}

fn parsed<'a>(ca: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    let parsed = x509_parser::parse_x509_certificate(ca);
    parsed.ok().map(|(_, parsed)| parsed)
}

/// Returns the error of a CA that cannot sign another certificate.
fn useless(dir: &Path, problem: CaProblem) -> SelfSignedError {
    SelfSignedError::Ca {
        dir: dir.to_owned(),
        problem,
    }
}

/// Returns `true` if no CA is there but one that the proxy made. One that cannot be read may be another's if
/// there is a key.
fn is_replaceable(dir: &Path) -> Result<bool, SelfSignedError> {
    match read_ca(dir) {
        Ok(ca) => Ok(parsed(&ca).is_some_and(|ca| is_own(&ca))),
        Err(SelfSignedError::Ca {
            problem: CaProblem::Missing,
            ..
        }) => Ok(true),
        Err(SelfSignedError::Ca { .. }) => Ok(read_if_present(&dir.join("ca.key"))?.is_none()),
        Err(error) => Err(error),
    }
}

/// Returns `true` if a certificate ends within this time.
fn ends_within(certificate: &X509Certificate<'_>, left: Duration) -> bool {
    let end = certificate.validity().not_after.timestamp();
    let needed = UnixTime::now().as_secs() + left.as_secs();
    i64::try_from(needed).map_or(true, |needed| end <= needed)
}

/// Returns `true` if a CA has the name that the proxy gives its own.
fn is_own(ca: &X509Certificate<'_>) -> bool {
    let mut names = ca.subject().iter_common_name();
    names.any(|name| name.as_str().is_ok_and(|name| name == CA_NAME))
}

/// Returns `true` if clients in Go accept certificates of servers that this CA signs now.
///
/// Source: `crypto/x509/verify.go` (isValid, checkChainForKeyUsage).
fn signs_servers(ca: &X509Certificate<'_>) -> bool {
    let is_allowed = |usage: &KeyUsage| usage.key_cert_sign();
    let is_for_servers = |usage: &ExtendedKeyUsage<'_>| usage.any || usage.server_auth;
    let usage = ca.key_usage();
    let extended = ca.extended_key_usage();
    ca.is_ca()
        && ca.validity().not_before.timestamp() <= ASN1Time::now().timestamp()
        && usage.is_ok_and(|it| it.is_none_or(|it| is_allowed(it.value)))
        && extended.is_ok_and(|it| it.is_none_or(|it| is_for_servers(it.value)))
}

/// Makes a serving pair that this CA signs.
fn sign(
    dir: &Path,
    names: &[String],
    ca: &CertificateDer<'static>,
    ca_key: KeyPair,
) -> Result<ServingPair, SelfSignedError> {
    let refused = || useless(dir, CaProblem::Refused);
    let make = cannot_make(names);
    let issuer = Issuer::from_ca_cert_der(ca, ca_key).map_err(|_| refused())?;
    let key = KeyPair::generate().map_err(make)?;
    let certificate = serving_params(names)
        .and_then(|params| params.signed_by(&key, &issuer))
        .map_err(make)?;
    // Otherwise each look at the files would find the pair useless, and make another one.
    if let Err(error) = verify(ca, certificate.der(), names, RENEW_BEFORE)
        && !is_about_a_name(&error)
    {
        tracing::debug!(%error, "a certificate of the CA in --cert-dir would be refused");
        return Err(refused());
    }
    let pair = serving_pair(dir);
    write(&pair.key, &key.serialize_pem(), 0o600)?;
    write(&pair.cert, &certificate.pem(), 0o644)?;
    Ok(pair)
}

fn cannot_make(names: &[String]) -> impl Fn(rcgen::Error) -> SelfSignedError + Copy {
    |source| SelfSignedError::Make {
        names: names.to_vec(),
        source,
    }
}

fn serving_pair(dir: &Path) -> ServingPair {
    ServingPair {
        cert: dir.join("tls.crt"),
        key: dir.join("tls.key"),
    }
}

/// Returns the content of a file; `None` if there is none.
fn read_if_present(path: &Path) -> Result<Option<Vec<u8>>, SelfSignedError> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SelfSignedError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Returns `true` if a client that trusts `ca` accepts the pair by each name, now and for a while.
fn is_valid(ca: &CertificateDer<'static>, pair: &ServingPair, names: &[String]) -> bool {
    is_accepted(ca, pair, names, RENEW_BEFORE)
}

/// Returns `true` if such a client accepts the pair now.
fn serves_now(ca: &CertificateDer<'static>, pair: &ServingPair, names: &[String]) -> bool {
    parsed(ca).is_some_and(|ca| !ends_within(&ca, Duration::ZERO))
        && is_accepted(ca, pair, names, Duration::ZERO)
}

/// Returns `true` if such a client accepts the pair, now and at the end of `lasting`.
fn is_accepted(
    ca: &CertificateDer<'static>,
    pair: &ServingPair,
    names: &[String],
    lasting: Duration,
) -> bool {
    let certificate = certificate_of(pair);
    certificate.is_some_and(|certificate| verify(ca, &certificate, names, lasting).is_ok())
}

/// Returns the certificate of a pair, if its key fits.
fn certificate_of(pair: &ServingPair) -> Option<CertificateDer<'static>> {
    let certificate = CertificateDer::from_pem_file(&pair.cert).ok()?;
    let key = PrivateKeyDer::from_pem_file(&pair.key).ok()?;
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    CertifiedKey::from_der(vec![certificate.clone()], key, &provider).ok()?;
    Some(certificate)
}

/// Returns the error of a client that trusts `ca` and refuses a certificate, by one of these names, now
/// or at the end of `lasting`.
fn verify(
    ca: &CertificateDer<'static>,
    certificate: &CertificateDer<'static>,
    names: &[String],
    lasting: Duration,
) -> Result<(), rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(ca.clone())?;
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let now = Duration::from_secs(UnixTime::now().as_secs());
    for name in names {
        let name = ServerName::try_from(name.as_str())
            .map_err(|_| rustls::Error::from(CertificateError::NotValidForName))?;
        // A pair that was made while the clock was ahead is not valid yet.
        for moment in [now, now + lasting] {
            let moment = UnixTime::since_unix_epoch(moment);
            verifier.verify_server_cert(certificate, &[], &name, &[], moment)?;
        }
    }
    Ok(())
}

/// Returns `true` if a certificate is refused for a name that no certificate can have as it was given.
fn is_about_a_name(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        )
    )
}

fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, CA_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    set_lifetime(&mut params, CA_YEARS);
    params
}

fn serving_params(names: &[String]) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names.to_vec())?;
    params
        .distinguished_name
        .push(DnType::CommonName, "watershed");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    set_lifetime(&mut params, SERVING_YEARS);
    Ok(params)
}

/// Sets a lifetime that begins yesterday, for clients whose clock is behind.
fn set_lifetime(params: &mut CertificateParams, years: i32) {
    let yesterday = Zoned::now().date().saturating_sub(1.day());
    let last = yesterday.saturating_add(years.years());
    let date = |date: jiff::civil::Date| {
        date_time_ymd(
            i32::from(date.year()),
            date.month().unsigned_abs(),
            // Days after the 28th are cut off, as 29 February is not in every year.
            date.day().unsigned_abs().min(28),
        )
    };
    params.not_before = date(yesterday);
    params.not_after = date(last);
}

/// Writes a temporary file and renames it, so that readers see the old file or the new one.
fn write(path: &Path, content: &str, mode: u32) -> Result<(), SelfSignedError> {
    let failed = |source| SelfSignedError::Write {
        path: path.to_owned(),
        source,
    };
    let beside = path.with_extension("new");
    // One left by a crash might have other permissions.
    let _ = fs::remove_file(&beside);
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let mut file = options.open(&beside).map_err(failed)?;
    file.write_all(content.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    fs::rename(&beside, path).map_err(failed)
}

#[cfg(test)]
mod tests;
