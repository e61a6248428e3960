//! Logs and the metrics registry.
mod lines;
pub mod process;
pub mod queue;
mod traces;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;
use std::{panic, thread};

use anyhow::Context;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::metric::Declaration;
use lines::OneLineEach;
use queue::LogQueue;

pub use queue::LastLines;
pub use traces::{Traces, traced, traces};

/// Longest wait for the line of a panic.
const PANIC_WRITTEN: Duration = Duration::from_millis(100);

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    #[default]
    Text,
    /// One JSON object a line, for programs.
    Json,
}

/// Checks the syntax of a log filter. EnvFilter takes a word that is not a level for a target's name:
/// `warning` would silence everything else.
pub fn check_filter(filter: &str) -> anyhow::Result<()> {
    EnvFilter::try_new(filter)?;
    let is_target = |word: &str| word.contains("::") || word.contains(['=', '[']);
    for word in filter.split(',') {
        let is_known = word.is_empty() || is_target(word) || word.parse::<LevelFilter>().is_ok();
        anyhow::ensure!(
            is_known,
            "{word:?} is not a level (error, warn, info, debug, trace, off); write {word}=LEVEL for a module"
        );
    }
    Ok(())
}

/// Sends logs to standard error. `filter` has the syntax of tracing's EnvFilter.
pub fn logs(format: LogFormat, filter: &str) -> anyhow::Result<()> {
    logs_to(std::io::stderr, format, filter)
}

/// Sends logs to standard error. A thread of its own writes them, so that a slow reader blocks nothing else.
/// The caller keeps what is returned to the end.
pub fn queued_logs(format: LogFormat, filter: &str) -> anyhow::Result<LastLines> {
    let (queue, last) = LogQueue::start(std::io::stderr()).context("cannot start the log")?;
    let log = queue.clone();
    logs_to(move || log.clone(), format, filter)?;
    log_panics(queue);
    Ok(last)
}

/// Has panics logged as other events are. The usual hook writes to standard error itself: several lines that
/// are no JSON, and it waits for whoever reads them. It is used if errors are not logged.
fn log_panics(queue: LogQueue) {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !tracing::enabled!(tracing::Level::ERROR) {
            return usual(panic);
        }
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
        tracing::error!(
            location = panic.location().map(tracing::field::display),
            thread = thread::current().name(),
            backtrace = backtrace.map(tracing::field::display),
            "panicked: {}",
            panic.payload_as_str().unwrap_or("the message is no text")
        );
        // The process may be about to abort.
        queue.wait(PANIC_WRITTEN);
    }));
}

fn logs_to<W: Write + 'static>(
    log: impl Fn() -> W + Send + Sync + 'static,
    format: LogFormat,
    filter: &str,
) -> anyhow::Result<()> {
    // The certificate verifier logs failures that the returned errors report anyway.
    let mut env_filter =
        EnvFilter::try_new(filter)?.add_directive("rustls_platform_verifier=off".parse()?);
    // They warn of what clients do again and again: connections that break the rules of HTTP/2, or end TLS
    // with a warning, as Java's do.
    for noisy in ["h2", "rustls"] {
        if !filter.contains(&format!("{noisy}=")) {
            env_filter = env_filter.add_directive(format!("{noisy}=error").parse()?);
        }
    }
    let builder = tracing_subscriber::fmt()
        .with_env_filter(env_filter)
        .with_writer(move || OneLineEach(log()))
        // Otherwise a log that cannot be written ends the process: that error would go to the same
        // place, by a macro that panics.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    let set = match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    set.map_err(|error| anyhow::anyhow!("cannot set up logging: {error}"))
}

/// Buckets of durations, in seconds.
///
/// Answers from memory take a quarter of a millisecond. kube-apiserver ends requests after a
/// minute.
const SECONDS: &[f64] = &[
    0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0,
];

/// Returns the process's metrics registry. The first call installs it and gives it the help texts.
pub fn registry(metrics: &[Declaration]) -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| install(metrics)).clone()
}

fn install(metrics: &[Declaration]) -> PrometheusHandle {
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_duration_seconds".into()), SECONDS)
        .expect("the buckets are not empty")
        .build_recorder();
    let handle = recorder.handle();
    // Another recorder can only be there when this library is part of a larger program.
    if metrics::set_global_recorder(recorder).is_err() {
        tracing::warn!("another metrics recorder is installed; /metrics will be empty");
    }
    metrics.iter().for_each(Declaration::describe);
    handle
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn words_that_are_neither_level_nor_module_are_refused() {
        for filter in [
            "info",
            "WARN",
            "off",
            "info,watershed::upstream=debug",
            "watershed::scope",
            "hyper=debug,h2=off",
            "",
        ] {
            assert!(check_filter(filter).is_ok(), "{filter}");
        }
        for filter in ["warning", "info,debugg", "hyper", "foo=bar=baz"] {
            assert!(check_filter(filter).is_err(), "{filter}");
        }
    }

    /// The hook is that of a process. So the test runs itself once more, as a process that panics.
    #[test]
    fn a_panic_is_a_line_of_the_log() {
        const FILTER: &str = "WATERSHED_TEST_PANIC";
        if let Ok(filter) = std::env::var(FILTER) {
            let _last = queued_logs(LogFormat::Json, &filter).unwrap();
            let planted = thread::Builder::new().name("planted".to_owned());
            let planted = planted.spawn(|| panic!("two\nlines")).unwrap();
            assert!(planted.join().is_err());
            return;
        }
        let log = |filter: &str| {
            let this = "telemetry::tests::a_panic_is_a_line_of_the_log";
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", this, "--nocapture"]);
            command.env(FILTER, filter).env("RUST_BACKTRACE", "0");
            let output = command.output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stderr).unwrap()
        };
        let logged = log("info");
        let line: serde_json::Value = serde_json::from_str(logged.trim()).expect(&logged);
        assert_eq!(line["level"], "ERROR");
        assert_eq!(line["fields"]["message"], "panicked: two\nlines");
        assert_eq!(line["fields"]["thread"], "planted");
        let location = line["fields"]["location"].as_str().unwrap();
        assert!(location.starts_with("src/telemetry.rs:"), "{location}");
        // Where errors are not logged, the usual hook tells it.
        let told = log("off");
        assert!(told.contains("two\nlines"), "{told}");
    }
}
