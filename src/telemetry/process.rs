//! Metrics of the process, under the names that every Prometheus client library uses.
use metrics_process::collector;
use tokio::runtime::Handle;

use crate::metric::{Counter, Declaration, Gauge, Metric};

/// All metrics of this module.
pub const METRICS: &[Declaration] = &[
    BUILD_INFO.declaration(),
    CPU_SECONDS.declaration(),
    OPEN_FDS.declaration(),
    MAX_FDS.declaration(),
    VIRTUAL_MEMORY.declaration(),
    MAX_VIRTUAL_MEMORY.declaration(),
    RESIDENT_MEMORY.declaration(),
    START_TIME.declaration(),
    THREADS.declaration(),
    TASKS.declaration(),
];

const BUILD_INFO: Metric<Gauge, 3> = Metric::new(
    "watershed_build_info",
    &["version", "os", "architecture"],
    "Always 1. The labels name the version, operating system and architecture.",
);
const CPU_SECONDS: Metric<Counter> = Metric::new(
    "process_cpu_seconds_total",
    &[],
    "Total user and system CPU time spent in seconds.",
);
const OPEN_FDS: Metric<Gauge> =
    Metric::new("process_open_fds", &[], "Number of open file descriptors.");
const MAX_FDS: Metric<Gauge> = Metric::new(
    "process_max_fds",
    &[],
    "Maximum number of open file descriptors.",
);
const VIRTUAL_MEMORY: Metric<Gauge> = Metric::new(
    "process_virtual_memory_bytes",
    &[],
    "Virtual memory size in bytes.",
);
const MAX_VIRTUAL_MEMORY: Metric<Gauge> = Metric::new(
    "process_virtual_memory_max_bytes",
    &[],
    "Maximum amount of virtual memory available in bytes.",
);
const RESIDENT_MEMORY: Metric<Gauge> = Metric::new(
    "process_resident_memory_bytes",
    &[],
    "Resident memory size in bytes.",
);
const START_TIME: Metric<Gauge> = Metric::new(
    "process_start_time_seconds",
    &[],
    "Start time of the process since unix epoch in seconds.",
);
const THREADS: Metric<Gauge> = Metric::new(
    "process_threads",
    &[],
    "Number of OS threads in the process.",
);
const TASKS: Metric<Gauge> = Metric::new(
    "watershed_tasks",
    &[],
    "Number of the runtime's tasks that have not ended.",
);

/// Sets the metrics to the current figures. Returns the CPU time in Prometheus' text format, or nothing if
/// the platform does not report it: the registry's counters are integers, and the rate of an idle proxy would
/// be zero.
pub fn publish() -> String {
    let labels = [
        env!("CARGO_PKG_VERSION").into(),
        std::env::consts::OS.into(),
        std::env::consts::ARCH.into(),
    ];
    BUILD_INFO.with(labels).set(1.0);
    let now = collector::collect();
    set(&START_TIME, now.start_time_seconds);
    set(&OPEN_FDS, now.open_fds);
    set(&MAX_FDS, now.max_fds);
    set(&VIRTUAL_MEMORY, now.virtual_memory_bytes);
    // Go's programs show a missing limit as this.
    let max = now.virtual_memory_max_bytes;
    let max = max.map(|max| if max == 0 { u64::MAX } else { max });
    set(&MAX_VIRTUAL_MEMORY, max);
    set(&RESIDENT_MEMORY, now.resident_memory_bytes);
    set(&THREADS, now.threads);
    let runtime = Handle::try_current().ok();
    set(
        &TASKS,
        runtime.map(|runtime| runtime.metrics().num_alive_tasks() as u64),
    );
    let cpu = now.cpu_seconds_total;
    cpu.map_or_else(String::new, |seconds| counter(&CPU_SECONDS, seconds))
}

/// Returns a counter's lines in Prometheus' text format.
fn counter(metric: &Metric<Counter>, value: f64) -> String {
    let Declaration {
        name, kind, help, ..
    } = metric.declaration();
    let kind = kind.as_str();
    format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n\n")
}

/// Sets a gauge if the platform reports the figure.
fn set(gauge: &Metric<Gauge>, figure: Option<u64>) {
    if let Some(figure) = figure {
        gauge.with([]).set(figure as f64);
    }
}
