//! The pods that grants of nodes rest on.
use watershed_protocol::GroupVersionResource;

use super::config::AppConfig;
use crate::access::NodeGrantMode;
use crate::scope::{Retention, ScopeKey};

/// Returns the scope of the pods that are followed for the grants of nodes (`--node-grants`), and
/// its retention.
pub(super) fn followed_pods(config: &AppConfig) -> Option<(ScopeKey, Retention)> {
    if config.access.authorization.node_grants == NodeGrantMode::Review {
        return None;
    }
    let pods = GroupVersionResource::new("", "v1", "pods");
    let scope = config.policy.followed_scope(pods, config.scopes.window);
    if scope.is_none() {
        tracing::warn!(
            "--node-grants=follow-pods has no effect on secrets and config maps, because the \
             configuration does not cache whole pods in one scope"
        );
    }
    scope
}
