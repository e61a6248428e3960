//! Metrics of the memory budget.
use super::account::MemoryBudget;
use super::class::MemoryClass;
use super::pressure::PressureStep;
use crate::metric::{Counter, Declaration, Gauge, Metric};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[
    BYTES.declaration(),
    LIMIT.declaration(),
    STEP.declaration(),
    RELEASES.declaration(),
    RELEASED_BYTES.declaration(),
];

const BYTES: Metric<Gauge, 1> = Metric::new(
    "watershed_memory_bytes",
    &["class"],
    "Bytes that are counted, by class: objects, history, derived (compressed lists), documents, \
     answers (and watches), connections. Connections, watches and answers are estimates.",
);
const LIMIT: Metric<Gauge> = Metric::new(
    "watershed_memory_limit_bytes",
    &[],
    "The memory budget in bytes (--memory-limit); 0 for none.",
);
const STEP: Metric<Gauge> = Metric::new(
    "watershed_memory_pressure_step",
    &[],
    "The step against a shortage of memory: 0 none, 1 release-derived, 2 release-history, \
     3 close-idle, 4 refuse-scopes, 5 close-largest, 6 refuse-answers. Each includes those before.",
);
const RELEASES: Metric<Counter, 1> = Metric::new(
    "watershed_memory_releases_total",
    &["step"],
    "Releases of memory, and refusals for lack of it, by step.",
);
const RELEASED_BYTES: Metric<Counter, 1> = Metric::new(
    "watershed_memory_released_bytes_total",
    &["step"],
    "Bytes that were released for lack of memory, by step.",
);

/// Sets the gauges to the present figures.
pub fn publish(budget: &MemoryBudget) {
    for class in MemoryClass::ALL {
        let gauge = BYTES.with([class.as_str().into()]);
        gauge.set(budget.counted(class) as f64);
    }
    LIMIT.with([]).set(budget.limit().unwrap_or(0) as f64);
    STEP.with([]).set(f64::from(budget.step() as u8));
}

/// Counts a release of so many bytes, or a refusal.
pub fn released(step: PressureStep, bytes: usize) {
    RELEASES.with([step.as_str().into()]).increment(1);
    RELEASED_BYTES
        .with([step.as_str().into()])
        .increment(bytes as u64);
}
