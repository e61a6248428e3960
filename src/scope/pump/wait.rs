//! Waits for a moment that may never come.
use tokio::time::{Instant, sleep_until};

/// Waits until a moment, or forever if there is none.
pub(super) async fn wait_until(moment: Option<impl Into<Instant>>) {
    match moment {
        Some(moment) => sleep_until(moment.into()).await,
        None => std::future::pending().await,
    }
}
