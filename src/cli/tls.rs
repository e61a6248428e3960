//! Flags of `watershed serve` for TLS: versions, cipher suites and HSTS.
use anyhow::ensure;
use clap::Args;
use http::HeaderValue;

use crate::listener::tls::{CipherSuiteName, TlsMinVersion, TlsPolicy};

/// Flags for TLS.
#[derive(Args, Debug)]
#[command(next_help_heading = "TLS")]
pub(super) struct TlsFlags {
    /// Oldest TLS version that clients may speak: VersionTLS12 or VersionTLS13.
    #[arg(long, default_value = "VersionTLS12", value_name = "VERSION")]
    tls_min_version: TlsMinVersion,
    /// Cipher suites of TLS 1.2 that clients may use, by kube-apiserver's names. Default: all.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    tls_cipher_suites: Vec<CipherSuiteName>,
    /// Directives of the header Strict-Transport-Security in all answers to clients, such as
    /// max-age=31536000,includeSubDomains,preload. Default: no such header.
    #[arg(long, value_name = "DIRECTIVES", value_delimiter = ',')]
    strict_transport_security_directives: Vec<String>,
}

impl TlsFlags {
    /// Returns the versions and cipher suites.
    pub(super) fn policy(&self) -> TlsPolicy {
        TlsPolicy {
            min_version: self.tls_min_version,
            cipher_suites: self.tls_cipher_suites.clone(),
        }
    }

    /// Returns the value of the header.
    /// Source: `apiserver/pkg/server/options/server_run_options.go` (`validateHSTSDirectives`).
    pub(super) fn hsts(&self) -> anyhow::Result<Option<HeaderValue>> {
        let directives = &self.strict_transport_security_directives;
        for directive in directives {
            let is_age = directive.strip_prefix("max-age=").is_some_and(|seconds| {
                !seconds.is_empty() && seconds.bytes().all(|byte| byte.is_ascii_digit())
            });
            let word = directive.to_ascii_lowercase();
            ensure!(
                is_age || matches!(&*word, "includesubdomains" | "preload"),
                "{directive:?} is no directive (--strict-transport-security-directives): use \
                 max-age=SECONDS, includeSubDomains or preload"
            );
        }
        if directives.is_empty() {
            return Ok(None);
        }
        Ok(Some(HeaderValue::from_str(&directives.join("; "))?))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        tls: TlsFlags,
    }

    #[test]
    fn directives_are_joined_to_a_header() {
        let hsts = |value: &str| {
            let line = Line::parse_from(["x", "--strict-transport-security-directives", value]);
            line.tls.hsts().map(|value| value.unwrap())
        };
        assert_eq!(
            hsts("max-age=31536000,includeSubDomains,preload").unwrap(),
            "max-age=31536000; includeSubDomains; preload"
        );
        for wrong in ["max-age", "max-age=", "max-age=a", "always", "preload;x"] {
            assert!(hsts(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Line::parse_from(["x"]).tls.hsts().unwrap(), None);
        assert!(Line::try_parse_from(["x", "--tls-min-version=VersionTLS11"]).is_err());
    }
}
