//! Requests at a steady rate, whatever the answers take, and how long these take.
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::client::Connection;

/// Everything is done so long after the last of it was due, or a tenth of the whole time, if everybody
/// kept up.
const LATE: Duration = Duration::from_millis(100);

/// Times of requests from when they were due. A request that waits behind a slow answer counts as
/// slow, too.
pub(crate) struct Waits {
    /// Milliseconds, sorted.
    sorted: Vec<f64>,
    /// Requests were answered as fast as they came: the last one was soon after it was due.
    pub(crate) kept_up: bool,
}

impl Waits {
    pub(crate) fn of(mut millis: Vec<f64>) -> anyhow::Result<Self> {
        ensure!(!millis.is_empty(), "nothing was answered");
        millis.sort_unstable_by(f64::total_cmp);
        Ok(Self {
            sorted: millis,
            kept_up: true,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    pub(crate) fn mean(&self) -> f64 {
        self.sorted.iter().sum::<f64>() / self.len() as f64
    }

    /// Returns the 99th percentile; `None` of fewer values than it needs to be one of them.
    pub(crate) fn p99(&self) -> Option<f64> {
        (self.len() >= 100).then(|| self.percentile(99))
    }

    /// So many of a hundred took no longer.
    pub(crate) fn percentile(&self, share: usize) -> f64 {
        self.sorted[(self.len() - 1) * share / 100]
    }
}

/// Sends so many requests a second for `length`, over the connections in turn, and waits for all
/// answers.
pub(crate) async fn open_loop(
    connections: &[Connection],
    rate: f64,
    length: Duration,
    path: impl Fn(usize) -> String,
) -> anyhow::Result<Waits> {
    let wanted = (rate * length.as_secs_f64()).ceil() as usize;
    let (due, mut requests) = mpsc::unbounded_channel();
    let start = Instant::now();
    // The clock has its own thread, as the runtime's timers have steps of a millisecond.
    let clock = std::thread::spawn(move || {
        for number in 0..wanted {
            let at = start + Duration::from_secs_f64(number as f64 / rate);
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if due.send((number, at)).is_err() {
                return;
            }
        }
    });
    let (mut answers, mut millis) = (JoinSet::new(), Vec::with_capacity(wanted));
    let mut open = true;
    while open || !answers.is_empty() {
        tokio::select! {
            request = requests.recv(), if open => match request {
                Some((number, at)) => {
                    let connection = connections[number % connections.len()].clone();
                    let path = path(number);
                    answers.spawn(async move {
                        connection.swallow(&path).await?;
                        anyhow::Ok(at.elapsed().as_secs_f64() * 1e3)
                    });
                }
                None => open = false,
            },
            Some(answer) = answers.join_next() => {
                millis.push(answer.context("a request's task failed")??);
            }
        }
    }
    let _ = clock.join();
    ensure!(
        millis.len() == wanted,
        "{} of {wanted} requests were answered",
        millis.len()
    );
    Ok(Waits {
        kept_up: keeps_up(start.elapsed(), length),
        ..Waits::of(millis)?
    })
}

/// Returns `true` if work that was due over `length` was done soon after that.
pub(crate) fn keeps_up(took: Duration, length: Duration) -> bool {
    took < length + length.max(LATE * 10) / 10
}
