//! Configuration of authentication and authorization.
use std::path::PathBuf;
use std::time::Duration;

use super::identity::Identity;
use super::node::{NODES, NodeGrantMode};
use super::verdict::Decision;
use crate::upstream::UserHeaders;

/// Configuration of authentication and authorization.
#[derive(Clone, Debug, Default)]
pub struct AccessConfig {
    /// Authentication by credentials that upstream accepts, too.
    pub authentication: AuthenticationConfig,
    /// Authorities of client certificates (`--client-ca-file`). As in an API server, each of their
    /// certificates identifies a user of the cluster. So they must be upstream's own authorities.
    pub client_ca: Option<PathBuf>,
    /// Front proxies that are trusted.
    pub front_proxy: Option<FrontProxyConfig>,
    /// Front proxies and callers who impersonate may name the group system:masters
    /// (`--allow-system-masters`).
    pub allow_masters: bool,
    /// All requests are sent with the proxy's own identity (`--single-identity`).
    pub single_identity: bool,
    /// Authorization of reads.
    pub authorization: AuthorizationConfig,
}

impl AccessConfig {
    /// Returns the same for a proxy on each node, of which there may be thousands. Agents read the
    /// node's part of the whole cluster, which no Role grants.
    #[must_use]
    pub fn on_node(mut self) -> Self {
        self.authorization.followed_rbac = FollowedRbac::AsNeeded;
        self
    }

    /// Returns the files of all authorities that can sign an accepted client certificate.
    pub fn authorities(&self) -> Vec<PathBuf> {
        self.client_ca
            .iter()
            .chain(self.front_proxy.as_ref().map(|proxy| &proxy.ca))
            .cloned()
            .collect()
    }
}

/// Configuration of authentication.
#[derive(Clone, Debug)]
pub struct AuthenticationConfig {
    /// Time for which an accepted token is not reviewed again
    /// (`--authentication-token-webhook-cache-ttl`).
    pub token_ttl: Duration,
    /// The audiences of which a token must have one (`--api-audiences`). If there are none, tokens
    /// must have upstream's own.
    pub audiences: Vec<String>,
    /// Service account tokens are validated in this process, if upstream accepted them or others of
    /// their kind (`--validate-service-account-tokens-locally`).
    pub validate_locally: bool,
    /// Service account tokens that upstream would refuse are not reviewed
    /// (`--refuse-invalid-service-account-tokens`).
    pub refuse_invalid: bool,
    /// A caller without credentials is `system:anonymous` (`--anonymous-auth`). Otherwise upstream
    /// decides.
    pub anonymous: bool,
}

impl Default for AuthenticationConfig {
    fn default() -> Self {
        // Source: kube-apiserver's own token cache (kubeapiserver/options/authentication.go).
        Self {
            token_ttl: Duration::from_secs(10),
            audiences: Vec::new(),
            validate_locally: false,
            refuse_invalid: false,
            anonymous: false,
        }
    }
}

/// Configuration of authorization: mostly the maximum age of verdicts.
#[derive(Clone, Debug)]
pub struct AuthorizationConfig {
    /// Age of a grant by RBAC while the changes of RBAC are followed. Zero caches none.
    pub allowed_ttl: Duration,
    /// Age of a denial while the changes of RBAC are followed. Zero caches none.
    pub denied_ttl: Duration,
    /// Age of a grant that can end unnoticed: not by RBAC, or while RBAC is not followed.
    pub unwatched_allowed_ttl: Duration,
    /// Age of a denial that can end unnoticed: of a node, or while RBAC is not followed.
    pub unwatched_denied_ttl: Duration,
    /// The treatment of requests while upstream answers no reviews.
    pub review_failure_policy: ReviewFailurePolicy,
    /// The treatment of grants that nodes have from the node authorizer.
    pub node_grants: NodeGrantMode,
    /// The types of RBAC whose changes are followed.
    pub followed_rbac: FollowedRbac,
}

impl Default for AuthorizationConfig {
    fn default() -> Self {
        Self {
            // Source of both: kube-apiserver's own flags of these names
            // (kubeapiserver/options/authorization.go).
            allowed_ttl: Duration::from_mins(5),
            denied_ttl: Duration::from_secs(30),
            // Source: the delegated authorizer's default
            // (apiserver/pkg/server/options/authorization.go).
            unwatched_allowed_ttl: Duration::from_secs(10),
            // A program is often granted access just after it was refused, and tries again.
            unwatched_denied_ttl: Duration::from_secs(1),
            review_failure_policy: ReviewFailurePolicy::default(),
            node_grants: NodeGrantMode::default(),
            followed_rbac: FollowedRbac::default(),
        }
    }
}

impl AuthorizationConfig {
    /// Returns the lifetime of a verdict while RBAC is followed, and while it is not.
    ///
    /// Other authorizers (the node authorizer, webhooks) give no sign when their answer changes, so
    /// their verdicts always have the short lifetime. A grant without a reason has it, too: that is
    /// upstream's answer for members of system:masters.
    pub(super) fn lifetimes(
        &self,
        identity: &Identity,
        decision: &Decision,
    ) -> (Duration, Duration) {
        let (ttl, unwatched, is_watched) = match decision {
            Decision::Allowed(_) => (
                self.allowed_ttl,
                self.unwatched_allowed_ttl,
                decision.is_grant_by_rbac(),
            ),
            Decision::Denied(_) => (
                self.denied_ttl,
                self.unwatched_denied_ttl,
                !identity.is_in(NODES),
            ),
        };
        let unwatched = unwatched.min(ttl);
        (if is_watched { ttl } else { unwatched }, unwatched)
    }
}

/// The types of RBAC whose changes are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FollowedRbac {
    /// All four.
    #[default]
    All,
    /// ClusterRoles and ClusterRoleBindings, and those of namespaces once somebody's rights in a
    /// namespace are reviewed. Until they are followed, such a verdict is used for seconds.
    AsNeeded,
}

/// Treatment of requests while upstream answers no reviews of their callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ReviewFailurePolicy {
    /// Requests are refused (503) and can be sent again. Cached verdicts apply until they expire.
    #[default]
    Refuse,
    /// Requests are forwarded, and upstream decides. Open watches go on.
    Forward,
}

/// Configuration of trusted front proxies. Header names are compared without regard to case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontProxyConfig {
    /// Authorities of front proxies' certificates (`--requestheader-client-ca-file`).
    pub ca: PathBuf,
    /// Common names that such a certificate may have; if there are none, it may have any
    /// (`--requestheader-allowed-names`).
    pub allowed_names: Vec<String>,
    /// Headers with the user's name; the first that is present counts.
    pub username_headers: Vec<String>,
    /// Headers with the user's unique id; the first that is present counts.
    pub uid_headers: Vec<String>,
    /// Headers with the user's groups; all count.
    pub group_headers: Vec<String>,
    /// Prefixes of headers with further attributes; the attribute's name follows.
    pub extra_prefixes: Vec<String>,
}

impl FrontProxyConfig {
    /// Returns the configuration with the headers that kube-apiserver itself sends.
    pub fn new(ca: PathBuf) -> Self {
        Self {
            ca,
            allowed_names: Vec::new(),
            username_headers: vec!["x-remote-user".to_owned()],
            uid_headers: vec!["x-remote-uid".to_owned()],
            group_headers: vec!["x-remote-group".to_owned()],
            extra_prefixes: vec!["x-remote-extra-".to_owned()],
        }
    }

    /// Returns the fields by which front proxies name users.
    pub fn user_headers(&self) -> UserHeaders {
        let names = [
            &self.username_headers,
            &self.uid_headers,
            &self.group_headers,
        ];
        UserHeaders::new(
            names.into_iter().flatten().cloned(),
            self.extra_prefixes.iter().cloned(),
        )
    }
}
