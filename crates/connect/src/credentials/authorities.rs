//! The certificate authorities that may have signed the API server's certificate.

use kube_client::Config;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

/// Removes authorities that rustls cannot use, as client-go does with those that Go cannot. Bundles
/// of a system contain some. Returns an error if none is left.
///
/// In a pod, kube-client would read the file itself, again and again, and accept no such bundle.
///
/// Source: `client-go/transport/transport.go` (rootCertPool).
pub(super) fn keep_usable(config: &mut Config, from: &str) -> Result<(), String> {
    config.root_cert_file = None;
    let Some(authorities) = &mut config.root_cert else {
        return Ok(());
    };
    let given = authorities.len();
    authorities.retain(|der| {
        let certificate = CertificateDer::from_slice(der);
        RootCertStore::empty().add(certificate).is_ok()
    });
    let unusable = given - authorities.len();
    if authorities.is_empty() {
        let what = match unusable {
            0 => "no certificate",
            _ => "no certificate that can be used",
        };
        return Err(format!(
            "the certificate authority's file or data holds {what}"
        ));
    }
    if unusable > 0 {
        tracing::warn!(
            from,
            unusable,
            "ignoring certificates of the certificate authority"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kube_client::client::ConfigExt as _;

    use super::*;
    use crate::install_crypto;

    #[test]
    fn odd_certificates_in_a_pods_bundle_are_left_out() {
        install_crypto();
        let key = rcgen::KeyPair::generate().unwrap();
        let good = rcgen::CertificateParams::default()
            .self_signed(&key)
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        let odd = "-----BEGIN CERTIFICATE-----\nb2RkLCBub3QgREVS\n-----END CERTIFICATE-----\n";
        std::fs::write(&file, format!("{odd}{}", good.pem())).unwrap();
        let mut config = Config::new("https://127.0.0.1:6443".parse().unwrap());
        config.root_cert = Some(vec![b"odd, not DER".to_vec(), good.der().to_vec()]);
        config.root_cert_file = Some(file);
        keep_usable(&mut config, "this test").unwrap();
        assert_eq!(config.root_cert, Some(vec![good.der().to_vec()]));
        config.rustls_client_config().unwrap();
    }
}
