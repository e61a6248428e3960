//! Metrics of the catalog.
use super::Catalog;
use crate::metric::{Declaration, Gauge, Metric};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[TYPES.declaration()];

const TYPES: Metric<Gauge> = Metric::new(
    "watershed_types",
    &[],
    "Resource types that can be listed and watched, from upstream's discovery. A node's proxy that \
     caches nothing but pods, nodes, leases and service accounts begins without it, with the types \
     that each API server has.",
);

/// Sets the metrics to the present figures.
pub fn publish(catalog: &Catalog) {
    TYPES.with([]).set(catalog.len() as f64);
}
