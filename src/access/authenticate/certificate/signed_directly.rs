//! Client certificates that an authority has signed itself, and that webpki does not take.
//!
//! webpki wants what the Web's authorities sign: certificates of version 3, which are no authorities,
//! without critical policies, and for clients by name. API servers take more. `openssl x509 -req`
//! makes certificates of version 1, unless it is given a file of extensions.
//!
//! Source: Go's `crypto/x509/verify.go` (`Verify`). Chains with intermediates, and authorities with
//! constraints of names, are left to webpki.
use std::borrow::Cow;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use x509_parser::asn1_rs::{FromDer, Sequence};
use x509_parser::prelude::X509Certificate;
use x509_parser::time::ASN1Time;

use super::authorities::{constrains_names, is_for_clients, may_sign};
use crate::listener::tls::certificate_key;

/// Returns `true` if the certificate is valid for a client now, and one of the authorities has signed
/// it, or is the certificate itself.
pub(super) fn is_valid(
    certificate: &CertificateDer<'_>,
    authorities: &[CertificateDer<'_>],
    now: ASN1Time,
) -> bool {
    let Some(parsed) = certificate_key::parsed(certificate) else {
        return false;
    };
    is_for_clients(&parsed, now)
        && (authorities.contains(certificate)
            || authorities.iter().any(|authority| {
                certificate_key::parsed(authority).is_some_and(|authority| {
                    may_sign(&authority, 0, now)
                        && !constrains_names(&authority)
                        && parsed.issuer().as_raw() == authority.subject().as_raw()
                        && has_signed(&authority, certificate, &parsed)
                })
            }))
}

/// Returns `true` if the authority's key has signed the certificate.
fn has_signed(
    authority: &X509Certificate<'_>,
    der: &CertificateDer<'_>,
    certificate: &X509Certificate<'_>,
) -> bool {
    if certificate.tbs_certificate.signature != certificate.signature_algorithm {
        return false;
    }
    let signed = certificate.tbs_certificate.as_ref();
    let Some(name) = signature_algorithm(der) else {
        return false;
    };
    let all = default_provider().signature_verification_algorithms.all;
    let named = all
        .iter()
        .copied()
        .filter(|algorithm| *algorithm.signature_alg_id().as_ref() == *name);
    let signature = &certificate.signature_value.data;
    let key = certificate_key::key_of(authority);
    certificate_key::has_signed(&key, named, signed, signature)
}

/// Returns the algorithm that a certificate names outside of what is signed, as it is written there.
fn signature_algorithm<'a>(certificate: &'a [u8]) -> Option<&'a [u8]> {
    let content = |der: &'a [u8]| {
        let (_, sequence) = Sequence::from_der(der).ok()?;
        match sequence.content {
            Cow::Borrowed(content) => Some(content),
            Cow::Owned(_) => None,
        }
    };
    let (algorithm, _) = Sequence::from_der(content(certificate)?).ok()?;
    content(algorithm)
}
