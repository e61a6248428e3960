//! Waits with a limit.
use std::time::Duration;

/// Timeout of every step of a test. Only a hang takes that long.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Returns the result of `future`. Panics if it takes longer than [`SOON`].
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future)
        .await
        .expect("this should not take long")
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(condition: impl Fn() -> bool) {
    soon(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
