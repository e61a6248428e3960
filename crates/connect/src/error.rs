//! Errors of connecting to an API server, in words for the operator.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use kube_client::client::AuthError;

use super::address::Address;

/// Reason why a connection to the API server failed.
///
/// Cheap to clone: everyone who waited for a failed connection gets the same error.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectError {
    /// No TCP connection.
    #[error("cannot connect to the API server at {address}: {source}")]
    Connect {
        /// The address of the server.
        address: Address,
        /// The error of the system.
        source: Arc<io::Error>,
    },
    /// No connection in time.
    #[error(
        "the API server at {address} did not accept a connection within {}s \
         (a firewall, or a dead host?)",
        after.as_secs()
    )]
    ConnectTimeout {
        /// The address of the server.
        address: Address,
        /// The timeout.
        after: Duration,
    },
    /// A TCP connection, and no TLS handshake in time.
    #[error(
        "the API server at {address} accepted a connection, but no TLS handshake within {}s \
         (does it hang?)",
        after.as_secs()
    )]
    HandshakeTimeout {
        /// The address of the server.
        address: Address,
        /// The timeout of both together.
        after: Duration,
    },
    /// The TLS handshake failed.
    #[error(
        "TLS handshake with the API server at {address} failed: {source}{}",
        hint(source)
    )]
    Tls {
        /// The address of the server.
        address: Address,
        /// The error of the handshake.
        source: Arc<io::Error>,
    },
    /// There is no token for the proxy's own requests.
    #[error("no credentials for the API server: {0} (the user's part of the kubeconfig)")]
    Credentials(String),
}

/// Returns what decides about certificates, where a certificate is the reason.
fn hint(error: &io::Error) -> &'static str {
    let reason = error.get_ref();
    match reason.and_then(|reason| reason.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(_)) => {
            " (certificate-authority and tls-server-name in the kubeconfig decide what is trusted)"
        }
        _ => "",
    }
}

/// Formats an error with all its causes on one line, as hyper's own text hides the causes.
///
/// A text that several causes repeat appears once. Only the first line of each text is taken: the
/// others show a place in a YAML file. What a credential plugin was given and printed does not
/// appear.
pub fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(reason) = plugin_failure(error) {
            // The texts so far repeat that of the plugin's failure.
            return reason;
        }
        let words = error.to_string();
        let words = words.lines().next().unwrap_or_default();
        // rustls names a page of its documentation.
        let words = words.split(": https://docs.rs/").next().unwrap_or_default();
        if !text.contains(words) {
            text = if text.is_empty() {
                words.to_owned()
            } else {
                format!("{text}: {words}")
            };
        }
        next = error.source();
    }
    text
}

/// Returns the failure of a plugin that kube-client ran, without its environment, arguments and
/// output.
fn plugin_failure(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    match error.downcast_ref()? {
        AuthError::AuthExecRun { out, .. } => {
            Some(format!("the credential plugin failed with {}", out.status))
        }
        AuthError::AuthExecParse(_) => {
            Some("the credential plugin printed no ExecCredential".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_untrusted_certificate_is_a_matter_of_trust() {
        let untrusted = rustls::CertificateError::UnknownIssuer;
        let untrusted = io::Error::other(rustls::Error::InvalidCertificate(untrusted));
        let cut = io::Error::from(io::ErrorKind::ConnectionReset);
        for (source, is_trust) in [(untrusted, true), (cut, false)] {
            let error = ConnectError::Tls {
                address: Address::parse("https://a:1").unwrap(),
                source: Arc::new(source),
            };
            let text = error.to_string();
            assert_eq!(text.contains("certificate-authority"), is_trust, "{text}");
        }
    }

    #[test]
    fn causes_appear_once_and_on_one_line() {
        let error = anyhow::anyhow!("no such file\n --> there")
            .context("cannot read a: no such file")
            .context("--b");
        assert_eq!(one_line(error.as_ref()), "--b: cannot read a: no such file");
        let cut = anyhow::anyhow!("closed without close_notify: https://docs.rs/rustls/manual")
            .context("cannot read a body");
        assert_eq!(
            one_line(cut.as_ref()),
            "cannot read a body: closed without close_notify"
        );
    }
}
