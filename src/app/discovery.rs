//! The types that are known at the start, and the reason why none are.
use std::time::Duration;

use tokio::time::timeout;

use super::AppConfig;
use crate::access::{FollowedRbac, lists_rbac};
use crate::catalog::{Catalog, CatalogFollower, DiscoveryError, NeededTypes, is_well_known};
use crate::scope::Scopes;
use crate::upstream::{Upstream, UpstreamClient};

/// Longest wait for upstream's types before requests are taken. Without them, all are forwarded.
const FIRST_TYPES_WAIT: Duration = Duration::from_secs(5);

/// Returns the types that matter to a proxy.
pub(super) fn needed_types(config: &AppConfig) -> NeededTypes {
    // Elsewhere a start is rare, and clients ask for the documents that discovery brings.
    let is_on_node = config.access.authorization.followed_rbac == FollowedRbac::AsNeeded;
    if config.policy.may_cache_custom_types() {
        NeededTypes::All
    } else if is_on_node && config.policy.caches_only(is_well_known) {
        NeededTypes::WellKnown
    } else {
        NeededTypes::BuiltIn
    }
}

/// Creates the catalog and its follower.
///
/// Each proxy lists RBAC at its start, so where discovery is not needed that list shows that
/// upstream is there, and knows the proxy.
pub(super) fn catalog(
    config: &AppConfig,
    client: UpstreamClient,
    scopes: &Scopes,
) -> (CatalogFollower, Catalog) {
    let needed = needed_types(config);
    let (follower, catalog) =
        CatalogFollower::new(client, scopes.clone(), config.aggregated.clone());
    let follower = follower.needing(needed);
    let follower = match needed {
        NeededTypes::WellKnown => {
            let followed = config.access.authorization.followed_rbac;
            follower.trusting(lists_rbac(scopes.clone(), followed))
        }
        NeededTypes::All | NeededTypes::BuiltIn => follower,
    };
    (follower, catalog)
}

/// Learns upstream's types, so that the first request finds them. If that fails, the follower goes
/// on trying.
pub(super) async fn learn_first(follower: &mut CatalogFollower, upstream: &Upstream) {
    match timeout(FIRST_TYPES_WAIT, follower.begin()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => error.report(upstream),
        Err(_) => tracing::error!(
            "upstream has not answered within {FIRST_TYPES_WAIT:?}: its types are not known, and \
             requests are forwarded until it answers"
        ),
    }
}

/// Adds advice to the error of discovery.
pub(super) fn explain(error: DiscoveryError, upstream: &Upstream) -> anyhow::Error {
    let advice = error.advice(upstream);
    anyhow::Error::new(error).context(format!("cannot read upstream's discovery ({advice})"))
}
