//! Client certificates in the TLS handshake.
//!
//! The handshake proves that the client holds the key. It does not prove who the client is: the
//! issuer is verified later.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};

/// Largest chain of certificates that a client may send, in bytes. Its connection holds it,
/// verified or not: rustls does, and the proxy verifies it again against changed authorities.
const MAX_CHAIN_BYTES: usize = 16 * 1024;

/// Asks for a certificate and takes any, or none.
///
/// As in an API server, a certificate of an unknown authority does not end the handshake. Its
/// bearer may have a token, and there may be several authorities for different purposes.
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
        let lengths = intermediates.iter().map(|certificate| certificate.len());
        if end_entity.len() + lengths.sum::<usize>() > MAX_CHAIN_BYTES {
            return Err(Error::General(format!(
                "the client's certificates are longer than {MAX_CHAIN_BYTES} bytes"
            )));
        }
        // The signature is verified with the key in it.
        rustls::server::ParsedCertificate::try_from(end_entity)
            .map(|_| ClientCertVerified::assertion())
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
