//! The end of a run that the user interrupts.
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Time for requests under way, and for the last events, after an interruption.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// Waits until the user interrupts, and then for [`GRACE`].
pub(super) async fn end_of_grace(interrupt: &CancellationToken) {
    interrupt.cancelled().await;
    sleep(GRACE).await;
}
