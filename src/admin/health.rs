//! The liveness and readiness probes.
use std::fmt::Write;

use http::{Response, StatusCode};

use super::response::plain;
use super::state::AdminState;
use crate::body::Body;
use crate::metric::{Declaration, Gauge, Metric};

/// All metrics of this module.
pub(super) const METRICS: &[Declaration] = &[READY.declaration()];

const READY: Metric<Gauge> = Metric::new(
    "watershed_ready",
    &[],
    "1 while the readiness probe (/readyz) passes, else 0.",
);

/// Returns 200: a process that answers is alive.
pub(super) fn livez() -> Response<Body> {
    plain(StatusCode::OK, "ok")
}

/// Returns 200 while all checks pass.
///
/// The process is ready while upstream's types are known, custom ones included, while a scope is
/// young enough to be served, and no shutdown has begun. Scopes that are still syncing do not
/// count: their requests wait or are forwarded. Nor does a single scope that is too old, because
/// one type that fails upstream would take all replicas away.
pub(super) fn readyz(state: &AdminState, verbose: bool) -> Response<Body> {
    let checks = checks(state);
    let ready = checks.iter().all(|(_, passed)| *passed);
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    if ready && !verbose {
        return plain(status, "ok");
    }
    let mut report = String::new();
    for (name, passed) in checks {
        let (sign, word) = if passed { ('+', "ok") } else { ('-', "failed") };
        let _ = writeln!(report, "[{sign}]{name} {word}");
    }
    report.push_str(if ready {
        "readyz check passed\n"
    } else {
        "readyz check failed\n"
    });
    plain(status, report)
}

/// Sets the metrics to the present verdict.
pub(super) fn publish(state: &AdminState) {
    let ready = checks(state).iter().all(|(_, passed)| *passed);
    READY.with([]).set(f64::from(u8::from(ready)));
}

/// Returns the checks of the readiness probe, and which of them pass.
fn checks(state: &AdminState) -> [(&'static str, bool); 4] {
    [
        ("discovery", !state.catalog.is_empty()),
        ("custom-resource-definitions", state.catalog.is_settled()),
        ("max-staleness", !state.scopes.are_stale()),
        ("shutdown", !state.draining.is_draining()),
    ]
}
