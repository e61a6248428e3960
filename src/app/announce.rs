//! Log lines about the policy, at the start.
use std::time::Duration;

use tokio::time::sleep;

use crate::catalog::Catalog;
use crate::serve::{CacheMode, CachingException, CachingPolicy};

/// Interval between looks at the catalog, until it has types.
const LOOK: Duration = Duration::from_secs(1);

/// Logs what an operator has chosen differently from the defaults, once upstream's types are known.
pub(super) async fn announce(policy: CachingPolicy, catalog: Catalog) {
    while catalog.is_empty() {
        sleep(LOOK).await;
    }
    for name in policy.possibly_stale() {
        tracing::warn!(
            resource = name,
            "consistent reads may get an older state (consistentReads: stale in --config)"
        );
    }
    for name in policy.without_managed_fields() {
        tracing::warn!(
            resource = name,
            "held and answered without metadata.managedFields (managedFields: drop in --config); \
             clients that read them, as for server-side apply, must not use this proxy for the type"
        );
    }
    for exception in policy.exceptions() {
        announce_exception(&exception, &catalog);
    }
    for ((group, resource), selections) in &policy.scopes {
        let selections: Vec<_> = selections.iter().map(ToString::to_string).collect();
        tracing::info!(
            group,
            resource,
            ?selections,
            "only these parts are cached, each from its first request on"
        );
    }
}

/// Logs the caching of a type that is an exception from the policy's default.
fn announce_exception(exception: &CachingException, catalog: &Catalog) {
    let (resource, cache) = (exception.name(), exception.mode.as_str());
    match (exception.sensitive, exception.mode) {
        (true, CacheMode::Objects) => {
            tracing::warn!(
                resource,
                cache,
                "held in this process's memory, by choice (cache in --config)"
            );
        }
        (true, CacheMode::Metadata) => tracing::warn!(
            resource,
            cache,
            "the metadata is held in memory, by choice (cache in --config); \
             kubectl apply keeps what it was given in annotations, and so there"
        ),
        (_, CacheMode::Nothing) => {
            tracing::info!(
                resource,
                cache,
                "not held in memory; its reads are forwarded (cache in --config)"
            );
        }
        (false, _) => tracing::info!(
            resource,
            cache,
            "held in memory by choice (cache in --config)"
        ),
    }
    // A type of another group may be defined later.
    if catalog.has(&exception.group, None)
        && exception.resource != "*"
        && !catalog.has_resource(&exception.group, &exception.resource)
    {
        tracing::warn!(
            resource,
            cache,
            "upstream has no type of this name (resources in --config)"
        );
    }
}
