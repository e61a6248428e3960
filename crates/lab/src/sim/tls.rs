//! The server's certificate, made anew at every start.
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Context;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;

/// A TLS configuration and the CA that clients verify it with.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    /// Configuration of a TLS listener for HTTP/2 and HTTP/1.1.
    pub config: Arc<ServerConfig>,
    /// CA of the certificate, in PEM.
    pub ca_pem: String,
}

impl ServerIdentity {
    /// Makes a CA and a certificate for an address, `localhost` and the loopback addresses.
    pub fn make(address: IpAddr) -> anyhow::Result<Self> {
        let mut ca = CertificateParams::default();
        ca.distinguished_name
            .push(DnType::CommonName, "watershed simulated API server CA");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_key = KeyPair::generate()?;
        let ca_certificate = ca.self_signed(&ca_key)?;
        let issuer = Issuer::new(ca, ca_key);

        let names = [
            "localhost".to_owned(),
            "127.0.0.1".to_owned(),
            "::1".to_owned(),
            address.to_string(),
        ];
        let mut leaf = CertificateParams::new(names)?;
        leaf.distinguished_name
            .push(DnType::CommonName, "watershed simulated API server");
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &issuer)?;

        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .context("the certificate just made doesn't fit its key")?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self {
            config: Arc::new(config),
            ca_pem: ca_certificate.pem(),
        })
    }
}
