//! Reading upstream's types, and the reason why that fails.
use jiff::Timestamp;

use crate::catalog::DiscoveryError;
use crate::upstream::Upstream;

/// Adds advice to the error of discovery.
pub(super) fn explain(error: DiscoveryError, upstream: &Upstream) -> anyhow::Error {
    let expired = upstream
        .certificate()
        .filter(|valid| !valid.is_valid(Timestamp::now()));
    let is_unknown = matches!(error, DiscoveryError::Unknown { .. });
    let advice = match expired {
        Some(valid) if is_unknown => {
            format!(
                "the client certificate of {}: {}",
                upstream.source(),
                valid.describe(Timestamp::now())
            )
        }
        _ if is_unknown => format!("check the user's part of {}", upstream.source()),
        _ => "check --kubeconfig, --server and the proxy's permissions".to_owned(),
    };
    anyhow::Error::new(error).context(format!("cannot read upstream's discovery ({advice})"))
}
