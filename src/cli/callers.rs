//! Flags for the authentication and authorization of callers.
use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use clap::Args;

use super::duration::duration;
use crate::access::{
    AccessConfig, AuthenticationConfig, FrontProxyConfig, NodeGrantMode, ReviewFailurePolicy,
};

/// Flags for the authentication and authorization of callers.
#[derive(Args, Debug)]
#[command(next_help_heading = "Callers")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(super) struct CallerFlags {
    /// CAs (PEM) of client certificates: those that the API server trusts. The proxy impersonates
    /// these clients upstream, so its identity needs the right to impersonate.
    #[arg(long, visible_alias = "client-ca", value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// CAs (PEM) of the client certificates of front proxies. Front proxies name the user in
    /// request headers.
    #[arg(long, value_name = "FILE")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// Common names of front proxies' certificates. Default: any.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        requires = "requestheader_client_ca_file"
    )]
    requestheader_allowed_names: Vec<String>,
    /// Headers with the user's name, in order of preference.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "x-remote-user"
    )]
    requestheader_username_headers: Vec<String>,
    /// Headers with the user's unique id, in order of preference.
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
    /// Prefixes of headers with further attributes of the user.
    #[arg(
        long,
        value_name = "PREFIXES",
        value_delimiter = ',',
        default_value = "x-remote-extra-"
    )]
    requestheader_extra_headers_prefix: Vec<String>,
    /// Accept the group system:masters from front proxies, and from callers with certificates who
    /// impersonate. It may do everything, whatever RBAC says. Certificates that have it themselves
    /// are always accepted.
    #[arg(long)]
    allow_system_masters: bool,
    /// Accepted audiences of bearer tokens, for answers from the cache. Default: the API server's
    /// own.
    #[arg(long, value_name = "AUDIENCES", value_delimiter = ',')]
    api_audiences: Vec<String>,
    /// Validate service accounts' tokens here. Of those of one kind (account, key, audiences, types of
    /// bound objects), one is reviewed an hour. A token is valid if the API server's key signed it, it
    /// has not expired, and the objects that it is bound to are in the cache. Needs the ClusterRole
    /// system:service-account-issuer-discovery, and the right to list and watch service accounts.
    #[arg(long)]
    validate_service_account_tokens_locally: bool,
    /// Refuse service accounts' tokens without a review if they have expired, or if the API server
    /// does not have their key. Do not use this where a webhook or a token file of the API server
    /// accepts such tokens of its own issuer, or with its flag --service-account-signing-endpoint.
    /// Needs the ClusterRole system:service-account-issuer-discovery.
    #[arg(long)]
    refuse_invalid_service_account_tokens: bool,
    /// Time for which the review of an accepted token is cached.
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "DURATION")]
    authentication_token_webhook_cache_ttl: Duration,
    /// Time for which a grant by RBAC is cached, unless RBAC changes. 0s caches no grants. Other
    /// grants are cached for at most 10 s, except those that --node-grants=follow-pods keeps.
    #[arg(long, default_value = "5m", value_parser = duration, value_name = "DURATION")]
    authorization_webhook_cache_authorized_ttl: Duration,
    /// Time for which a denial is cached, unless RBAC changes. 0s caches no denials.
    #[arg(long, default_value = "30s", value_parser = duration, value_name = "DURATION")]
    authorization_webhook_cache_unauthorized_ttl: Duration,
    /// Treatment of requests while the API server cannot review their callers.
    #[arg(long, value_enum, default_value_t, value_name = "MODE")]
    authorization_unavailable: ReviewFailurePolicy,
    /// Treatment of grants that nodes (kubelets) have from the node authorizer of the API server.
    #[arg(long, value_enum, default_value_t, value_name = "MODE")]
    node_grants: NodeGrantMode,
    /// Answer requests without credentials from the cache, with the rights of system:anonymous.
    /// Default: forward them.
    #[arg(long)]
    anonymous_auth: bool,
    /// Use the proxy's own credentials for all requests, so that every client has its rights. For a
    /// sidecar; only on a loopback address or a Unix socket.
    #[arg(
        long,
        conflicts_with_all = [
            "client_ca_file", "requestheader_client_ca_file", "api_audiences", "anonymous_auth",
            "validate_service_account_tokens_locally", "refuse_invalid_service_account_tokens",
        ]
    )]
    pub(super) single_identity: bool,
}

impl CallerFlags {
    /// Writes the flags' values to the configuration.
    pub(super) fn apply(self, access: &mut AccessConfig) -> anyhow::Result<()> {
        let authentication = &mut access.authentication;
        *authentication = AuthenticationConfig {
            token_ttl: self.authentication_token_webhook_cache_ttl,
            audiences: self.api_audiences,
            validate_locally: self.validate_service_account_tokens_locally,
            refuse_invalid: self.refuse_invalid_service_account_tokens,
            anonymous: self.anonymous_auth,
        };
        let authorization = &mut access.authorization;
        authorization.allowed_ttl = self.authorization_webhook_cache_authorized_ttl;
        authorization.denied_ttl = self.authorization_webhook_cache_unauthorized_ttl;
        authorization.review_failure_policy = self.authorization_unavailable;
        authorization.node_grants = self.node_grants;
        access.client_ca = self.client_ca_file;
        access.allow_masters = self.allow_system_masters;
        access.single_identity = self.single_identity;
        if let Some(ca) = self.requestheader_client_ca_file {
            ensure!(
                !self
                    .requestheader_username_headers
                    .iter()
                    .all(String::is_empty),
                "--requestheader-username-headers must name a header"
            );
            // Every header begins with an empty prefix, so all of them would be attributes.
            ensure!(
                !self
                    .requestheader_extra_headers_prefix
                    .iter()
                    .any(|prefix| prefix.trim().is_empty()),
                "--requestheader-extra-headers-prefix has an empty value"
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
