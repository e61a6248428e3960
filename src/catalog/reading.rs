//! Reads discovery regularly.
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep_until};

use super::discovery::{self, DiscoveredType, DiscoveryError};
use super::origin::Origins;
use crate::upstream::{Backoff, UpstreamClient};

/// Interval between readings. Custom types are followed without waiting for it.
pub(super) const REFRESH: Duration = Duration::from_mins(1);
/// First and longest pause after a reading that failed.
const RETRIES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// The types that discovery named.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) types: Vec<DiscoveredType>,
    pub(super) origins: Origins,
}

impl Reading {
    /// Returns the reading of an upstream that has no types.
    pub(super) fn empty() -> Self {
        Self {
            types: Vec::new(),
            origins: Origins::NotReadable,
        }
    }

    async fn take(client: UpstreamClient) -> Result<Self, DiscoveryError> {
        let types = discovery::read(&client).await?;
        // Read afterwards: what was discovered of another server has its APIService by then.
        let origins = Origins::read(&client).await?;
        Ok(Self { types, origins })
    }
}

/// Reads discovery.
pub(super) struct DiscoveryReader {
    client: UpstreamClient,
    /// Interval between readings.
    pub(super) refresh: Duration,
    retries: Backoff,
    /// The moment of the next reading.
    due: Instant,
    job: Option<BoxFuture<'static, Result<Reading, DiscoveryError>>>,
}

impl DiscoveryReader {
    /// Creates a reader whose first reading is due.
    pub(super) fn new(client: UpstreamClient) -> Self {
        Self {
            client,
            refresh: REFRESH,
            retries: Backoff::new(RETRIES.0, RETRIES.1),
            due: Instant::now(),
            job: None,
        }
    }

    /// Reads at once. A reading that is under way does not count.
    pub(super) fn read_anew(&mut self) {
        self.job = None;
        self.due = Instant::now();
    }

    /// Returns the next reading, once it is due. Cancelling a call loses nothing.
    pub(super) async fn next(&mut self) -> Result<Reading, DiscoveryError> {
        if self.job.is_none() {
            sleep_until(self.due).await;
        }
        let job = self
            .job
            .get_or_insert_with(|| Reading::take(self.client.clone()).boxed());
        let read = job.await;
        self.job = None;
        let pause = if read.is_ok() {
            self.retries.reset();
            self.refresh.mul_f64(0.9 + fastrand::f64() / 5.0)
        } else {
            self.retries.pause()
        };
        self.due = Instant::now() + pause;
        read
    }
}
