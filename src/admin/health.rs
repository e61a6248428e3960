//! Whether the process lives, and whether it should get requests.
use std::fmt::Write;

use http::{Response, StatusCode};

use super::{State, text};
use crate::body::Body;

const PLAIN: &str = "text/plain; charset=utf-8";

/// The process answers, so it lives.
pub(super) fn alive() -> Response<Body> {
    text(StatusCode::OK, PLAIN, "ok".into())
}

/// Ready while upstream's types are known, custom ones included, and no shutdown has begun. Scopes
/// that are still syncing do not make it unready: their requests wait or are forwarded.
pub(super) fn ready(state: &State, verbose: bool) -> Response<Body> {
    let checks = [
        ("discovery", !state.catalog.is_empty()),
        ("custom-resource-definitions", state.catalog.is_settled()),
        ("shutdown", !state.draining.is_draining()),
    ];
    let ready = checks.iter().all(|(_, passed)| *passed);
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    if ready && !verbose {
        return text(status, PLAIN, "ok".into());
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
    text(status, PLAIN, report)
}
