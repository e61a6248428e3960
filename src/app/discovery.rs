//! Reading upstream's types at the start, and the reason why that fails.
use std::time::Duration;

use tokio::time::timeout;

use crate::catalog::{CatalogFollower, DiscoveryError};
use crate::upstream::Upstream;

/// Longest wait for upstream's types before requests are taken. Without them, all are forwarded.
const FIRST: Duration = Duration::from_secs(5);

/// Reads upstream's types, so that the first request finds them. If that fails, the follower goes
/// on trying.
pub(super) async fn read_first(follower: &mut CatalogFollower, upstream: &Upstream) {
    match timeout(FIRST, follower.read()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => error.report(upstream),
        Err(_) => tracing::error!(
            "upstream has not answered discovery within {FIRST:?}: not ready, waiting for it; \
             requests are forwarded"
        ),
    }
}

/// Adds advice to the error of discovery.
pub(super) fn explain(error: DiscoveryError, upstream: &Upstream) -> anyhow::Error {
    let advice = error.advice(upstream);
    anyhow::Error::new(error).context(format!("cannot read upstream's discovery ({advice})"))
}
