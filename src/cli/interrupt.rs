//! Signals that end a command: the first one in good order, the second at once.
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::output::complain;

/// Runs a command that ends in good order when its token is cancelled. Returns `None` if a second
/// signal ends it at once.
pub(super) async fn interruptible<T>(
    interrupt: &CancellationToken,
    command: impl Future<Output = T>,
) -> Option<T> {
    tokio::select! {
        ended = command => Some(ended),
        () = interrupted_twice(interrupt) => None,
    }
}

/// Cancels a token on the first SIGINT or SIGTERM. Returns on the second.
async fn interrupted_twice(interrupt: &CancellationToken) {
    let signals = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
    let [Ok(mut int), Ok(mut term)] = signals else {
        // The process cannot wait for signals, so each ends it.
        return std::future::pending().await;
    };
    let mut next = async || {
        tokio::select! {
            signal = int.recv() => signal,
            signal = term.recv() => signal,
        }
    };
    if next().await.is_some() {
        complain("ending; Ctrl-C again ends at once");
        interrupt.cancel();
        if next().await.is_some() {
            return;
        }
    }
    std::future::pending::<()>().await;
}
