//! Writes checkpoints of the open scopes, regularly and at the end.
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::registry::Scopes;

/// Time limit at the end of the process. Until then, clients are elsewhere already.
const AT_THE_END: Duration = Duration::from_secs(10);

/// Writes checkpoints at their interval. Never returns, but without checkpoints.
pub async fn save_regularly(scopes: Scopes) {
    let Some(checkpoints) = scopes.checkpoints().cloned() else {
        return;
    };
    loop {
        // Proxies that started together must not write together.
        sleep(checkpoints.interval().mul_f64(0.8 + fastrand::f64() / 5.0)).await;
        checkpoints.write_changed(scopes.all()).await;
    }
}

/// Writes checkpoints before the process ends.
pub async fn save_finally(scopes: &Scopes) {
    if let Some(checkpoints) = scopes.checkpoints()
        && timeout(AT_THE_END, checkpoints.write_all(scopes.all()))
            .await
            .is_err()
    {
        tracing::warn!("not all checkpoints were written in time");
    }
}
