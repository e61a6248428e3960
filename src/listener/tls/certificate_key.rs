//! The keys in certificates.
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer};
use webpki::RawPublicKeyEntity;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Returns a certificate that is well-formed, of any version and with any extensions.
pub(crate) fn parsed<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    let (rest, parsed) = X509Certificate::from_der(certificate).ok()?;
    rest.is_empty().then_some(parsed)
}

/// Returns the key in a certificate.
pub(crate) fn key_of<'a>(certificate: &X509Certificate<'a>) -> SubjectPublicKeyInfoDer<'a> {
    SubjectPublicKeyInfoDer::from(certificate.tbs_certificate.subject_pki.raw)
}

/// Returns `true` if the key made this signature, by one of the algorithms.
pub(crate) fn has_signed(
    key: &SubjectPublicKeyInfoDer<'_>,
    algorithms: impl IntoIterator<Item = &'static dyn SignatureVerificationAlgorithm>,
    message: &[u8],
    signature: &[u8],
) -> bool {
    let Ok(key) = RawPublicKeyEntity::try_from(key) else {
        return false;
    };
    let mut algorithms = algorithms.into_iter();
    algorithms.any(|algorithm| key.verify_signature(algorithm, message, signature).is_ok())
}
