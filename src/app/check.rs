//! Checks a configuration before the proxy is started, or beside a running one.
//!
//! The check reads everything with the code of `serve`. It writes nothing, and asks upstream only
//! for its version, its types and the proxy's rights.
use super::config::AppConfig;

/// Bytes that a proxy without objects does not fill: it takes some 25 MiB (`process_resident_memory_bytes`).
const EMPTY_PROXY: usize = 32 << 20;

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
    if config.memory_limit.is_some_and(|limit| limit < EMPTY_PROXY) {
        findings.warning(
            "configuration",
            "a proxy without objects takes some 25 MiB: next to nothing fits into --memory-limit",
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
