//! The authorities that sign certificates of clients.
//!
//! Source of the rules: Go's `crypto/x509/verify.go` (`isValid`, `CheckSignatureFrom`,
//! `checkChainForKeyUsage`).
use x509_parser::extensions::{ExtendedKeyUsage, ParsedExtension};
use x509_parser::oid_registry::{
    OID_X509_EXT_BASIC_CONSTRAINTS, OID_X509_EXT_CERTIFICATE_POLICIES,
    OID_X509_EXT_EXTENDED_KEY_USAGE, OID_X509_EXT_KEY_USAGE, OID_X509_EXT_NAME_CONSTRAINTS,
    OID_X509_EXT_SUBJECT_ALT_NAME, Oid,
};
use x509_parser::prelude::{X509Certificate, X509Version};
use x509_parser::time::ASN1Time;

/// Critical extensions that are looked at, here or by webpki, or that ask nothing of an API server.
const KNOWN_EXTENSIONS: [Oid<'static>; 5] = [
    OID_X509_EXT_KEY_USAGE,
    OID_X509_EXT_SUBJECT_ALT_NAME,
    OID_X509_EXT_BASIC_CONSTRAINTS,
    OID_X509_EXT_CERTIFICATE_POLICIES,
    OID_X509_EXT_EXTENDED_KEY_USAGE,
];

/// Returns `true` if a certificate may be a client's, whoever has signed it.
pub(super) fn is_for_clients(certificate: &X509Certificate<'_>, time: ASN1Time) -> bool {
    is_understood(certificate, &[])
        && certificate.validity().is_valid_at(time)
        && allows_clients(certificate)
}

/// Returns `true` if an authority may sign certificates of clients, with so many between them.
/// Constraints of names are not looked at.
pub(super) fn may_sign(authority: &X509Certificate<'_>, between: usize, time: ASN1Time) -> bool {
    let Ok(constraints) = authority.basic_constraints() else {
        return false;
    };
    let (is_authority, longest) = match constraints.map(|constraints| constraints.value) {
        Some(constraints) => (constraints.ca, constraints.path_len_constraint),
        None => (authority.version() != X509Version::V3, None),
    };
    is_authority
        && longest.is_none_or(|longest| between <= longest as usize)
        && is_understood(authority, &[OID_X509_EXT_NAME_CONSTRAINTS])
        && authority.validity().is_valid_at(time)
        && allows_clients(authority)
        && has_key_to_sign(authority)
}

/// Returns `true` if the key of a certificate may sign others.
pub(super) fn has_key_to_sign(certificate: &X509Certificate<'_>) -> bool {
    let usage = certificate.key_usage();
    usage.is_ok_and(|usage| usage.is_none_or(|usage| usage.value.key_cert_sign()))
}

/// Returns `true` if an authority constrains the names in what it signs, or may do so.
pub(super) fn constrains_names(authority: &X509Certificate<'_>) -> bool {
    let constraints = authority.get_extension_unique(&OID_X509_EXT_NAME_CONSTRAINTS);
    constraints.map_or(true, |constraints| constraints.is_some())
}

/// Returns `true` if all critical extensions are known, none is there twice, and each can be read.
fn is_understood(certificate: &X509Certificate<'_>, also: &[Oid<'static>]) -> bool {
    let mut extensions = certificate.extensions().iter();
    let are_known = extensions.all(|extension| {
        let is_known = !extension.critical
            || KNOWN_EXTENSIONS.contains(&extension.oid)
            || also.contains(&extension.oid);
        is_known
            && !matches!(
                extension.parsed_extension(),
                ParsedExtension::ParseError { .. }
            )
    });
    are_known && certificate.extensions_map().is_ok()
}

/// Returns `true` if a certificate names no purposes, or that of clients.
fn allows_clients(certificate: &X509Certificate<'_>) -> bool {
    let allows = |usage: &ExtendedKeyUsage<'_>| usage.any || usage.client_auth;
    let usage = certificate.extended_key_usage();
    usage.is_ok_and(|usage| usage.is_none_or(|usage| allows(usage.value)))
}
