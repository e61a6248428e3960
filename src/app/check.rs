//! Checks a configuration before the proxy is started, or beside a running one.
//!
//! The check reads everything with the code of `serve`. It writes nothing, and asks upstream only
//! for its version, its types and the proxy's rights.
use super::config::AppConfig;
use super::node_grants;

/// Memory limit below which the check warns, in bytes. A proxy without objects takes some 25 MiB
/// (`process_resident_memory_bytes`).
const SMALLEST_MEMORY: usize = 32 << 20;

mod files;
mod finding;
mod places;
mod rights;
mod upstream;

pub use finding::{Finding, Level};

use finding::Findings;

/// Runs all checks.
pub async fn check(config: &AppConfig) -> Vec<Finding> {
    let mut findings = Findings::default();
    for name in config.policy.without_effect() {
        findings.warning(
            "configuration",
            format!(
                "{name} has settings, but is not cached: add `cache: onDemand` (resources in --config)"
            ),
        );
    }
    if node_grants::lacks_pods(config) {
        findings.warning("configuration", node_grants::NOT_FOLLOWED);
    }
    if config
        .memory_limit
        .is_some_and(|limit| limit < SMALLEST_MEMORY)
    {
        findings.warning(
            "configuration",
            "a proxy without objects takes some 25 MiB: next to nothing fits into its memory limit \
             (--memory-limit, memoryLimit in --config, or 80 % of the container's)",
        );
    }
    places::examine(config, &mut findings).await;
    files::examine(config, &mut findings).await;
    upstream::examine_replicas(config, &mut findings).await;
    if let Some(client) = upstream::examine(config, &mut findings).await {
        rights::examine(config, &client, &mut findings).await;
    }
    findings.0
}
