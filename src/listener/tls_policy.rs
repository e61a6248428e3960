//! The TLS versions and cipher suites that listeners accept, by kube-apiserver's names.

use std::str::FromStr;

use rustls::crypto::CryptoProvider;
use rustls::{ProtocolVersion, SupportedCipherSuite, SupportedProtocolVersion};

/// The oldest version that a client may speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMinVersion {
    /// TLS 1.2
    #[default]
    Tls12,
    /// TLS 1.3
    Tls13,
}

/// Versions and cipher suites that clients may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPolicy {
    /// The oldest version.
    pub min_version: TlsMinVersion,
    /// The cipher suites of TLS 1.2; all if there are none. Those of TLS 1.3 cannot be chosen, as
    /// in kube-apiserver.
    pub cipher_suites: Vec<CipherSuiteName>,
}

/// A cipher suite, by the name that kube-apiserver has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CipherSuiteName(&'static str);

/// Names of cipher suites, and rustls' own names.
const SUITES: [(&str, &str); 11] = [
    ("TLS_AES_128_GCM_SHA256", "TLS13_AES_128_GCM_SHA256"),
    ("TLS_AES_256_GCM_SHA384", "TLS13_AES_256_GCM_SHA384"),
    (
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS13_CHACHA20_POLY1305_SHA256",
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    ),
];

/// Versions from TLS 1.3 on.
static NEW_VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

impl FromStr for TlsMinVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "VersionTLS12" => Ok(Self::Tls12),
            "VersionTLS13" => Ok(Self::Tls13),
            "VersionTLS10" | "VersionTLS11" => {
                Err("older than TLS 1.2: use VersionTLS12 or VersionTLS13".to_owned())
            }
            _ => Err("neither VersionTLS12 nor VersionTLS13".to_owned()),
        }
    }
}

impl TlsMinVersion {
    /// Returns kube-apiserver's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tls12 => "VersionTLS12",
            Self::Tls13 => "VersionTLS13",
        }
    }
}

impl FromStr for CipherSuiteName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        SUITES
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, rustls)| Self(rustls))
            .ok_or_else(|| {
                "no cipher suite of this program, which has those with ECDHE and an AEAD only, \
                 such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
                    .to_owned()
            })
    }
}

impl CipherSuiteName {
    /// Returns the name.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl TlsPolicy {
    /// Returns the versions that clients may speak.
    pub(super) fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        match self.min_version {
            TlsMinVersion::Tls12 => rustls::DEFAULT_VERSIONS,
            TlsMinVersion::Tls13 => NEW_VERSIONS,
        }
    }

    /// Takes the cipher suites that clients may not use out of a provider.
    pub(super) fn restrict(&self, mut provider: CryptoProvider) -> CryptoProvider {
        if !self.cipher_suites.is_empty() {
            provider.cipher_suites.retain(|suite| self.allows(*suite));
        }
        provider
    }

    fn allows(&self, suite: SupportedCipherSuite) -> bool {
        let is_named = |name: &CipherSuiteName| suite.suite().as_str() == Some(name.0);
        suite.version().version == ProtocolVersion::TLSv1_3
            || self.cipher_suites.iter().any(is_named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(policy: &TlsPolicy) -> Vec<&'static str> {
        let provider = policy.restrict(rustls::crypto::aws_lc_rs::default_provider());
        let mut names: Vec<_> = provider
            .cipher_suites
            .iter()
            .filter_map(|suite| suite.suite().as_str())
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn every_cipher_suite_has_a_name() {
        let all = names(&TlsPolicy::default());
        assert_eq!(all.len(), 9);
        for name in all {
            assert!(SUITES.iter().any(|(_, rustls)| *rustls == name), "{name}");
        }
    }

    #[test]
    fn only_the_named_suites_of_tls_1_2_are_left() {
        let policy = TlsPolicy {
            cipher_suites: vec![
                "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305".parse().unwrap(),
                "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256".parse().unwrap(),
            ],
            ..TlsPolicy::default()
        };
        assert_eq!(
            names(&policy),
            [
                "TLS13_AES_128_GCM_SHA256",
                "TLS13_AES_256_GCM_SHA384",
                "TLS13_CHACHA20_POLY1305_SHA256",
                "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
                "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
            ]
        );
        assert!(
            "TLS_RSA_WITH_AES_128_CBC_SHA"
                .parse::<CipherSuiteName>()
                .is_err()
        );
        assert_eq!("VersionTLS13".parse(), Ok(TlsMinVersion::Tls13));
        assert!("VersionTLS11".parse::<TlsMinVersion>().is_err());
    }
}
