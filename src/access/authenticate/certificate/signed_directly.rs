//! Client certificates that an authority has signed itself, and that webpki does not take.
//!
//! webpki wants what the Web's authorities sign: certificates of version 3, which are no authorities,
//! without critical policies, and for clients by name. API servers take more. `openssl x509 -req`
//! makes certificates of version 1, unless it is given a file of extensions.
//!
//! Source of the rules: Go's `crypto/x509/verify.go` (`Verify`, `isValid`, `CheckSignatureFrom`,
//! `checkChainForKeyUsage`). Chains with intermediates, and authorities with constraints of names, are
//! left to webpki.
use std::borrow::Cow;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use x509_parser::asn1_rs::{FromDer, Sequence};
use x509_parser::extensions::{ExtendedKeyUsage, ParsedExtension};
use x509_parser::oid_registry::{
    OID_X509_EXT_BASIC_CONSTRAINTS, OID_X509_EXT_CERTIFICATE_POLICIES,
    OID_X509_EXT_EXTENDED_KEY_USAGE, OID_X509_EXT_KEY_USAGE, OID_X509_EXT_NAME_CONSTRAINTS,
    OID_X509_EXT_SUBJECT_ALT_NAME, Oid,
};
use x509_parser::prelude::{X509Certificate, X509Version};
use x509_parser::time::ASN1Time;

use crate::listener::tls::certificate_key;

/// Critical extensions of a client's certificate that are looked at, here or by Go, or that ask
/// nothing of an API server.
const KNOWN_EXTENSIONS: [Oid<'static>; 5] = [
    OID_X509_EXT_KEY_USAGE,
    OID_X509_EXT_SUBJECT_ALT_NAME,
    OID_X509_EXT_BASIC_CONSTRAINTS,
    OID_X509_EXT_CERTIFICATE_POLICIES,
    OID_X509_EXT_EXTENDED_KEY_USAGE,
];

/// Returns `true` if the certificate is valid for a client now, and one of the authorities has signed
/// it.
pub(super) fn is_valid(
    certificate: &CertificateDer<'_>,
    authorities: &[CertificateDer<'_>],
    now: ASN1Time,
) -> bool {
    let Some(parsed) = certificate_key::parsed(certificate) else {
        return false;
    };
    is_for_clients(&parsed, now)
        && authorities.iter().any(|authority| {
            certificate_key::parsed(authority).is_some_and(|authority| {
                may_sign(&authority, now)
                    && parsed.issuer().as_raw() == authority.subject().as_raw()
                    && has_signed(&authority, certificate, &parsed)
            })
        })
}

/// Returns `true` if a certificate may be a client's, whoever has signed it.
fn is_for_clients(certificate: &X509Certificate<'_>, now: ASN1Time) -> bool {
    let are_known = certificate.extensions().iter().all(|extension| {
        let is_known = !extension.critical || KNOWN_EXTENSIONS.contains(&extension.oid);
        is_known
            && !matches!(
                extension.parsed_extension(),
                ParsedExtension::ParseError { .. }
            )
    });
    // Fails if an extension is there twice.
    are_known
        && certificate.extensions_map().is_ok()
        && certificate.validity().is_valid_at(now)
        && allows_clients(certificate)
}

/// Returns `true` if an authority may sign certificates of clients.
fn may_sign(authority: &X509Certificate<'_>, now: ASN1Time) -> bool {
    let (Ok(constraints), Ok(usage)) = (authority.basic_constraints(), authority.key_usage())
    else {
        return false;
    };
    let is_authority = match constraints {
        Some(constraints) => constraints.value.ca,
        None => authority.version() != X509Version::V3,
    };
    let has_name_constraints = authority
        .get_extension_unique(&OID_X509_EXT_NAME_CONSTRAINTS)
        .map_or(true, |constraints| constraints.is_some());
    is_authority
        && usage.is_none_or(|usage| usage.value.key_cert_sign())
        && !has_name_constraints
        && authority.validity().is_valid_at(now)
        && allows_clients(authority)
}

/// Returns `true` if a certificate names no purposes, or that of clients.
fn allows_clients(certificate: &X509Certificate<'_>) -> bool {
    let allows = |usage: &ExtendedKeyUsage<'_>| usage.any || usage.client_auth;
    let usage = certificate.extended_key_usage();
    usage.is_ok_and(|usage| usage.is_none_or(|usage| allows(usage.value)))
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
