//! Certificates of a test.
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, PublicKeyData as _,
    SigningKey as _,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

/// A CA that issues certificates.
pub(crate) struct Pki {
    pub(crate) ca_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Pki {
    pub(crate) fn new() -> Pki {
        Self::shaped(|_| {})
    }

    /// Makes an authority of any shape.
    pub(crate) fn shaped(shape: impl FnOnce(&mut CertificateParams)) -> Pki {
        let params = authority("test-ca", shape);
        let key = KeyPair::generate().unwrap();
        let ca_pem = params.self_signed(&key).unwrap().pem();
        Pki {
            ca_pem,
            issuer: Issuer::new(params, key),
        }
    }

    /// Issues a certificate. Returns it and its key in PEM.
    pub(crate) fn issue(&self, common_name: &str, names: &[&str]) -> (String, String) {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Issues a certificate of any shape, whose key nobody keeps.
    pub(crate) fn sign(
        &self,
        shape: impl FnOnce(&mut CertificateParams),
    ) -> Vec<CertificateDer<'static>> {
        let mut params = CertificateParams::default();
        shape(&mut params);
        let key = KeyPair::generate().unwrap();
        chain(&params.signed_by(&key, &self.issuer).unwrap().pem())
    }

    /// Issues a certificate of version 1, as `openssl x509 -req` does. Returns it and its key in PEM.
    pub(crate) fn issue_version_1(&self, common_name: &str) -> (String, String) {
        self.issue_named(&[common_name])
    }

    /// Issues such a certificate with several common names. An empty one is an empty set.
    pub(crate) fn issue_named(&self, common_names: &[&str]) -> (String, String) {
        let [named, authority] = [common_names, &["test-ca"]].map(|names| {
            let sets = names.iter().map(|name| {
                if name.is_empty() {
                    return der(0x31, &[]);
                }
                let attribute = der(6, &[&[0x55, 4, 3]]);
                let attribute = der(0x30, &[&attribute, &der(12, &[name.as_bytes()])]);
                der(0x31, &[&attribute])
            });
            der(0x30, &[&sets.collect::<Vec<_>>().concat()])
        });
        let time = |text: &str| der(0x17, &[text.as_bytes()]);
        let validity = der(0x30, &[&time("200101000000Z"), &time("491231235959Z")]);
        let ecdsa_with_sha256 = [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
        let algorithm = der(0x30, &[&der(6, &[&ecdsa_with_sha256])]);
        let key = KeyPair::generate().unwrap();
        let public = key.subject_public_key_info();
        let serial = der(2, &[&[1]]);
        let parts: [&[u8]; 6] = [&serial, &algorithm, &authority, &validity, &named, &public];
        let signed = der(0x30, &parts);
        let signature = self.issuer.key().sign(&signed).unwrap();
        let signature = der(3, &[&[0], &signature]);
        let certificate = der(0x30, &[&signed, &algorithm, &signature]);
        let text = BASE64_STANDARD.encode(certificate);
        let pem = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
        (pem, key.serialize_pem())
    }

    /// Makes an authority of any shape below this one.
    pub(crate) fn below(&self, shape: impl FnOnce(&mut CertificateParams)) -> Pki {
        let params = authority("test-ca-below", shape);
        let key = KeyPair::generate().unwrap();
        let ca_pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pki {
            ca_pem,
            issuer: Issuer::new(params, key),
        }
    }

    pub(crate) fn roots(&self) -> RootCertStore {
        roots(&self.ca_pem)
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::new(self.server_config(true)))
    }

    pub(super) fn server_config(&self, http2: bool) -> ServerConfig {
        let (cert, key) = self.issue("api", &["127.0.0.1", "localhost", "api.test"]);
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()), provider())
                .allow_unauthenticated()
                .build()
                .unwrap();
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain(&cert), private_key(&key))
            .unwrap();
        config.alpn_protocols = if http2 {
            vec![b"h2".to_vec(), b"http/1.1".to_vec()]
        } else {
            vec![b"http/1.1".to_vec()]
        };
        config
    }
}

/// Returns the parameters of an authority of any shape.
fn authority(name: &str, shape: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    shape(&mut params);
    params
}

/// Writes a value in DER, made of these parts.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut out = vec![tag];
    match u8::try_from(content.len()) {
        Ok(length @ ..128) => out.push(length),
        Ok(length) => out.extend([0x81, length]),
        Err(_) => {
            out.push(0x82);
            out.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
        }
    }
    out.extend(content);
    out
}

pub(crate) fn roots(ca_pem: &str) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap())
        .unwrap();
    roots
}

pub(super) fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

pub(super) fn chain(pem: &str) -> Vec<CertificateDer<'static>> {
    vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()]
}

pub(super) fn private_key(pem: &str) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap()
}
