//! All metrics of the proxy, and the update of those that are computed at each scrape.
use metrics_exporter_prometheus::PrometheusHandle;

use crate::catalog::Catalog;
use crate::listener::tls::ServerTls;
use crate::metric::Declaration;
use crate::scope::Scopes;
use crate::scope::gauges::ScopeGauges;
use crate::serve::Usage;
use crate::upstream::Upstream;
use crate::{
    access, admin, audit, budget, catalog, listener, proof, scope, serve, telemetry, upstream,
};

/// Returns the declarations of all metrics, by name.
pub fn metrics() -> Vec<Declaration> {
    let mut all = [
        listener::metrics::METRICS,
        serve::metrics::METRICS,
        proof::metrics::METRICS,
        access::metrics::METRICS,
        audit::metrics::METRICS,
        budget::metrics::METRICS,
        scope::metrics::METRICS,
        &scope::gauges::declarations(),
        catalog::metrics::METRICS,
        upstream::metrics::METRICS,
        telemetry::process::METRICS,
        telemetry::queue::METRICS,
        admin::METRICS,
    ]
    .concat();
    all.sort_by_key(|declaration| declaration.name);
    all
}

/// Renderer of the metrics of one proxy.
pub(super) struct Scraper {
    pub(super) registry: PrometheusHandle,
    pub(super) catalog: Catalog,
    pub(super) scopes: Scopes,
    pub(super) usage: Usage,
    pub(super) upstream: Upstream,
    pub(super) proxy_tls: Option<ServerTls>,
    pub(super) admin_tls: Option<ServerTls>,
    pub(super) gauges: ScopeGauges,
}

impl Scraper {
    /// Updates the metrics and returns all of them in Prometheus' text format.
    pub(super) fn scrape(&self) -> String {
        let cpu_time = telemetry::process::publish();
        listener::metrics::publish_certificates(self.proxy_tls.as_ref(), self.admin_tls.as_ref());
        catalog::metrics::publish(&self.catalog);
        self.gauges.publish(&self.scopes);
        budget::metrics::publish(self.scopes.budget());
        serve::metrics::publish(&self.usage);
        upstream::metrics::publish(&self.upstream);
        self.registry.render() + &cpu_time
    }
}
