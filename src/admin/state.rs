//! The state that the admin listener shows.
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::time::MissedTickBehavior;

use super::history::{History, HistorySample, SAMPLE_INTERVAL};
use super::token::TokenFile;
use crate::catalog::Catalog;
use crate::drain;
use crate::listener::tls::ServerTls;
use crate::scope::Scopes;
use crate::serve::Usage;
use crate::shared_calls::Singleflight;
use crate::upstream::{RequestPurpose, Upstream};

/// Read-only handles on everything that the admin listener shows.
pub struct AdminState {
    /// The resource types of the cluster.
    pub catalog: Catalog,
    /// The open scopes.
    pub scopes: Scopes,
    /// Counters of answers and clients.
    pub usage: Usage,
    /// The API server.
    pub upstream: Upstream,
    /// The certificate of the proxy listener, if it serves TLS.
    pub proxy_tls: Option<ServerTls>,
    /// The certificate of the admin listener, if it serves TLS.
    pub admin_tls: Option<ServerTls>,
    /// Tells if the process is shutting down.
    pub draining: drain::DrainWatch,
    /// Renders the metrics in Prometheus' text format. Looks at each leaf of each scope.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// Lets callers share a rendering of the metrics; `None` if it failed.
    pub rendering: Arc<Singleflight<Option<Bytes>>>,
    /// Samples of the last minutes.
    pub history: History,
    /// Time at which the process started to serve.
    pub started: Instant,
    /// The bearer token that operators present.
    ///
    /// Without a token, everybody sees all pages, but only callers on this machine see user names.
    pub token: Option<TokenFile>,
    /// The configuration in effect, as JSON without secrets.
    pub config: String,
}

impl AdminState {
    /// Adds a sample to the history at every interval, and never returns.
    pub(super) async fn record_history(&self) {
        let mut interval = tokio::time::interval(SAMPLE_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Instant::now();
        loop {
            interval.tick().await;
            let now = Instant::now();
            self.record(now, now - last);
            last = now;
        }
    }

    fn record(&self, now: Instant, elapsed: Duration) {
        self.usage.tick(elapsed);
        self.history.add(now, self.sample());
    }

    /// Returns the present figures.
    pub(super) fn sample(&self) -> HistorySample {
        let mut sample = HistorySample::default();
        for (source, requests, bytes) in self.usage.by_source() {
            if source == "forward" {
                sample.forwarded += requests;
            } else {
                sample.here += requests;
            }
            sample.sent += bytes;
        }
        let traffic = self.upstream.traffic();
        sample.received = RequestPurpose::ALL
            .iter()
            .map(|purpose| traffic.received_bytes(*purpose))
            .sum();
        (sample.watches_here, sample.watches_forwarded) = self.usage.watches();
        sample.resident = self.scopes.budget().measure() as u64;
        for scope in self.scopes.all() {
            let stats = scope.reader.stats();
            sample.held += (stats.object_bytes + stats.event_bytes) as u64;
        }
        sample
    }
}
