//! Waiting for a condition, with a limit.
use std::time::{Duration, Instant};

/// The longest wait. It only decides how long a failing run takes.
pub(crate) const PATIENCE: Duration = Duration::from_mins(4);

/// Waits until a condition holds. Panics with the condition's last error if it never does.
pub(crate) async fn eventually(what: &str, holds: impl AsyncFnMut() -> Result<(), String>) {
    if let Err(why) = soon(holds).await {
        panic!("{what}: not after {PATIENCE:?}: {why}");
    }
}

/// Waits until a condition holds.
///
/// # Errors
/// It never does. The error is the condition's last one.
pub(crate) async fn soon(mut holds: impl AsyncFnMut() -> Result<(), String>) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    let mut pause = Duration::from_millis(10);
    loop {
        match holds().await {
            Ok(()) => return Ok(()),
            Err(why) if Instant::now() >= deadline => return Err(why),
            Err(_) => tokio::time::sleep(pause).await,
        }
        pause = (pause * 3 / 2).min(Duration::from_millis(200));
    }
}
