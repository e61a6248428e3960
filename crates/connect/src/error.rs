//! Why an API server cannot be reached, in words for the operator.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::address::Address;

/// Why no connection to the API server could be had. Cheap to clone: one failed attempt is the
/// answer to everyone who waited for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectError {
    /// No TCP connection.
    #[error("cannot connect to the API server at {address}: {source}")]
    Connect {
        /// Where.
        address: Address,
        /// The system's words.
        source: Arc<io::Error>,
    },
    /// No connection in time.
    #[error("the API server at {address} did not accept a connection within {}s (a firewall, or a dead host?)", after.as_secs())]
    ConnectTimeout {
        /// Where.
        address: Address,
        /// How long it was waited for.
        after: Duration,
    },
    /// The TLS handshake failed.
    #[error(
        "no TLS with the API server at {address}: {source} (certificate-authority and tls-server-name in the kubeconfig decide what is trusted)"
    )]
    Tls {
        /// Where.
        address: Address,
        /// The handshake's words.
        source: Arc<io::Error>,
    },
    /// The proxy's own token could not be had.
    #[error("no credentials for the API server: {0} (the user's part of the kubeconfig)")]
    Credentials(String),
}

/// An error with all its causes on one line; hyper's own text hides them. What several of them say
/// is said once, and of a text of several lines, which shows the place in a YAML file, the first
/// line is taken.
pub fn one_line(error: &dyn std::error::Error) -> String {
    let mut told = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let words = error.to_string();
        let words = words.lines().next().unwrap_or_default();
        if !told.contains(words) {
            told = if told.is_empty() {
                words.to_owned()
            } else {
                format!("{told}: {words}")
            };
        }
        next = error.source();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once_and_on_one_line() {
        let error = anyhow::anyhow!("no such file\n --> there")
            .context("cannot read a: no such file")
            .context("--b");
        assert_eq!(one_line(error.as_ref()), "--b: cannot read a: no such file");
    }
}
