//! Client certificates in the TLS handshake.
//!
//! The handshake proves that the client holds the key. It does not prove who the client is: the
//! issuer is verified later.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved,
    RootCertStore, SignatureScheme,
};

use super::tls::certificate_key;

/// Largest chain of certificates that a client may send, in bytes. Its connection holds it,
/// verified or not: rustls does, and the proxy verifies it again against changed authorities.
const MAX_CHAIN_BYTES: usize = 16 * 1024;
/// Most certificates that a client may send. The paths among authorities of one name are as many as
/// their orders, and whoever verifies them tries each.
const MAX_CHAIN_LENGTH: usize = 6;

/// Asks for a certificate and takes any, or none.
///
/// As in an API server, a certificate of an unknown authority does not end the handshake. Its
/// bearer may have a token, and there may be several authorities for different purposes. Neither
/// does one of version 1, or with an extension that nobody here knows.
///
/// Invariant: nothing is concluded from a certificate before its issuer is verified.
#[derive(Debug)]
pub(super) struct AnyCertificate {
    /// Names of accepted authorities, for clients that choose among several certificates.
    hints: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl AnyCertificate {
    pub(super) fn new(authorities: &RootCertStore, algorithms: WebPkiSupportedAlgorithms) -> Self {
        Self {
            hints: authorities.subjects(),
            algorithms,
        }
    }
}

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if 1 + intermediates.len() > MAX_CHAIN_LENGTH {
            return Err(Error::General(format!(
                "the client sent more than {MAX_CHAIN_LENGTH} certificates"
            )));
        }
        let lengths = intermediates.iter().map(|certificate| certificate.len());
        if end_entity.len() + lengths.sum::<usize>() > MAX_CHAIN_BYTES {
            return Err(Error::General(format!(
                "the client's certificates are longer than {MAX_CHAIN_BYTES} bytes"
            )));
        }
        // The signature is verified with the key in it.
        key_of(end_entity).map(|_| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let mut schemes = self.algorithms.mapping.iter();
        let Some((_, algorithms)) = schemes.find(|(scheme, _)| *scheme == signed.scheme) else {
            return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
        };
        let key = key_of(certificate)?;
        let algorithms = algorithms.iter().copied();
        if certificate_key::has_signed(&key, algorithms, message, signed.signature()) {
            Ok(HandshakeSignatureValid::assertion())
        } else {
            Err(CertificateError::BadSignature.into())
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = key_of(certificate)?;
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Returns the key in a client's certificate.
fn key_of<'a>(certificate: &'a CertificateDer<'_>) -> Result<SubjectPublicKeyInfoDer<'a>, Error> {
    let parsed = certificate_key::parsed(certificate).ok_or(CertificateError::BadEncoding)?;
    Ok(certificate_key::key_of(&parsed))
}

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::pki_types::pem::PemObject;

    use super::*;
    use crate::test_support::Pki;

    #[test]
    fn more_certificates_than_a_chain_needs_end_the_handshake() {
        let algorithms = default_provider().signature_verification_algorithms;
        let any = AnyCertificate::new(&RootCertStore::empty(), algorithms);
        let authority = CertificateDer::from_pem_slice(Pki::new().ca_pem.as_bytes()).unwrap();
        for (above, is_taken) in [(0, true), (5, true), (6, false)] {
            let above = vec![authority.clone(); above];
            let verified = any.verify_client_cert(&authority, &above, UnixTime::now());
            assert_eq!(verified.is_ok(), is_taken, "{} above", above.len());
        }
    }
}
