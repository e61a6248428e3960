//! The pods that grants of nodes rest on.
use watershed_protocol::GroupVersionResource;

use super::config::AppConfig;
use crate::access::NodeGrantMode;
use crate::scope::{ScopeKey, ScopeOptions};

/// The warning where the pods cannot be followed.
pub(super) const NOT_FOLLOWED: &str = "--node-grants=follow-pods has no effect on secrets and \
    config maps, because the configuration does not cache whole pods in one scope";

/// Returns the scope of the pods that are followed for the grants of nodes (`--node-grants`), and
/// its options; `None` if they are not followed, or [cannot be](lacks_pods).
pub(super) fn followed_pods(config: &AppConfig) -> Option<(ScopeKey, ScopeOptions)> {
    if config.access.authorization.node_grants == NodeGrantMode::Review {
        return None;
    }
    let pods = GroupVersionResource::new("", "v1", "pods");
    config.policy.followed_scope(pods, config.scopes.window)
}

/// Returns `true` if the pods should be followed, but the configuration does not cache them.
pub(super) fn lacks_pods(config: &AppConfig) -> bool {
    let is_wanted = config.access.authorization.node_grants != NodeGrantMode::Review;
    is_wanted && followed_pods(config).is_none()
}
