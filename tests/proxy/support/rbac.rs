//! Objects of RBAC, and verdicts that only a change of them ends.
use std::time::Duration;

use watershed::app::AppConfig;
use watershed_protocol::GroupVersionResource;

/// Returns a type of RBAC.
pub(crate) fn rbac(resource: &str) -> GroupVersionResource {
    GroupVersionResource::new("rbac.authorization.k8s.io", "v1", resource)
}

/// Configures caching times so long that only a change of RBAC ends a verdict within a test.
pub(crate) fn remember(config: &mut AppConfig) {
    let hour = Duration::from_hours(1);
    let authorization = &mut config.access.authorization;
    authorization.allowed_ttl = hour;
    authorization.denied_ttl = hour;
    authorization.unwatched_allowed_ttl = hour;
    authorization.unwatched_denied_ttl = hour;
    config.access.authentication.token_ttl = hour;
}
