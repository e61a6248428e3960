//! Flags that say how callers are known.
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;

use crate::access::{AccessConfig, AuthenticationConfig, FrontProxyConfig, ReviewFailurePolicy};

/// Who is calling.
#[derive(Args, Debug)]
#[command(next_help_heading = "Callers")]
pub(super) struct Callers {
    /// Authorities (PEM) of client certificates: must be the API server's own. Their bearers are
    /// impersonated upstream, which the proxy's identity must be permitted to do.
    #[arg(long, visible_alias = "client-ca", value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Authorities (PEM) of the certificates of front proxies, which say in headers whom a request
    /// is for.
    #[arg(long, value_name = "FILE")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// Common names that a front proxy's certificate may have; without it, any.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        requires = "requestheader_client_ca_file"
    )]
    requestheader_allowed_names: Vec<String>,
    /// Headers in which a front proxy names the user; the first that is there counts.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "x-remote-user"
    )]
    requestheader_username_headers: Vec<String>,
    /// Headers with the user's unique id; the first that is there counts.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "x-remote-uid"
    )]
    requestheader_uid_headers: Vec<String>,
    /// Headers with the user's groups.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "x-remote-group"
    )]
    requestheader_group_headers: Vec<String>,
    /// What headers with further attributes of the user begin with.
    #[arg(
        long,
        value_name = "PREFIXES",
        value_delimiter = ',',
        default_value = "x-remote-extra-"
    )]
    requestheader_extra_headers_prefix: Vec<String>,
    /// Audiences of which a bearer token must be for one, for answers from memory. Without it: the
    /// API server's own.
    #[arg(long, value_name = "AUDIENCES", value_delimiter = ',')]
    api_audiences: Vec<String>,
    /// Do not review a service account's token again while it can be seen to be good: signed by a
    /// key that the API server shows, not expired, and the account and what else it is bound to
    /// still there in memory. Needs the ClusterRole system:service-account-issuer-discovery.
    #[arg(long)]
    validate_service_account_tokens_locally: bool,
    /// How long a token is not reviewed again that was accepted (such as 10s, kube-apiserver's
    /// own).
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "DURATION")]
    authentication_token_webhook_cache_ttl: Duration,
    /// How long a grant is remembered that RBAC gave, unless RBAC changes (such as 5m; 0s asks each
    /// time). Others: 10 s at most.
    #[arg(long, default_value = "5m", value_parser = duration, value_name = "DURATION")]
    authorization_webhook_cache_authorized_ttl: Duration,
    /// How long a denial is remembered, unless RBAC changes (such as 30s; 0s asks each time).
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "DURATION")]
    authorization_webhook_cache_unauthorized_ttl: Duration,
    /// What is done with requests while the API server cannot be asked about their callers.
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    authorization_unavailable: ReviewFailurePolicy,
    /// Answer requests without credentials from memory, too, as what system:anonymous may see.
    /// Without it the API server answers them.
    #[arg(long)]
    anonymous_auth: bool,
    /// Everybody who reaches the proxy is the proxy: its own credentials are used for all requests.
    /// For a sidecar; only on a loopback address or a Unix socket.
    #[arg(
        long,
        conflicts_with_all = ["client_ca_file", "requestheader_client_ca_file", "api_audiences", "anonymous_auth",
            "validate_service_account_tokens_locally"]
    )]
    pub(super) single_identity: bool,
}

impl Callers {
    /// Fills in what is said here.
    pub(super) fn apply(self, access: &mut AccessConfig) -> anyhow::Result<()> {
        let authentication = &mut access.authentication;
        *authentication = AuthenticationConfig {
            token_ttl: self.authentication_token_webhook_cache_ttl,
            audiences: self.api_audiences,
            validate_locally: self.validate_service_account_tokens_locally,
            anonymous: self.anonymous_auth,
        };
        let authorization = &mut access.authorization;
        authorization.allowed_ttl = self.authorization_webhook_cache_authorized_ttl;
        authorization.denied_ttl = self.authorization_webhook_cache_unauthorized_ttl;
        authorization.review_failure_policy = self.authorization_unavailable;
        access.client_ca = self.client_ca_file;
        access.single_identity = self.single_identity;
        if let Some(ca) = self.requestheader_client_ca_file {
            ensure!(
                !self
                    .requestheader_username_headers
                    .iter()
                    .all(String::is_empty),
                "a front proxy has to name the user (--requestheader-username-headers)"
            );
            access.front_proxy = Some(FrontProxyConfig {
                ca,
                allowed_names: self.requestheader_allowed_names,
                username_headers: self.requestheader_username_headers,
                uid_headers: self.requestheader_uid_headers,
                group_headers: self.requestheader_group_headers,
                extra_prefixes: self.requestheader_extra_headers_prefix,
            });
        }
        Ok(())
    }
}

/// The longest time that anything is remembered.
const MAX_DURATION: Duration = Duration::from_hours(24);

/// As Go's and kube-apiserver's flags have it: 5m, 30s, 1h30m, 0s.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed: jiff::SignedDuration = text
        .parse()
        .map_err(|error: jiff::Error| error.to_string())?;
    let duration = Duration::try_from(parsed).map_err(|_| "it is negative".to_owned())?;
    if duration > MAX_DURATION {
        Err("it is longer than a day".to_owned())
    } else {
        Ok(duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_in_kube_apiserver() {
        for (text, seconds) in [
            ("5m", 300.0),
            ("30s", 30.0),
            ("0s", 0.0),
            ("1h30m", 5400.0),
            ("5m0s", 300.0),
            ("1.5s", 1.5),
        ] {
            assert_eq!(
                duration(text).map(|duration| duration.as_secs_f64()),
                Ok(seconds),
                "{text}"
            );
        }
        for text in ["", "5", "-5m", "5 apples", "1000000h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
