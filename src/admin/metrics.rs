//! Gauges of the scopes, read when somebody asks. The names stand here and nowhere else.
use std::collections::HashSet;
use std::sync::Arc;

use metrics::{describe_counter, describe_gauge, gauge};
use parking_lot::Mutex;

use super::State;
use crate::kube::{Encoding, Representation};
use crate::scope::{Phase, ScopeKey};

/// Always 1; its labels say what runs.
pub const BUILD_INFO: &str = "watershed_build_info";
/// Types that discovery shows as listable and watchable.
pub const TYPES: &str = "watershed_types";
/// 1 when the scope answers, 0 while it syncs or is not cached.
pub const READY: &str = "watershed_scope_ready";
/// 1 while upstream's changes arrive, 0 while upstream cannot be followed.
pub const FOLLOWING: &str = "watershed_scope_following";
/// Objects of the newest snapshot.
pub const OBJECTS: &str = "watershed_scope_objects";
/// Their bytes.
pub const OBJECT_BYTES: &str = "watershed_scope_object_bytes";
/// Bytes of what is kept compressed beside them.
pub const COMPRESSED_BYTES: &str = "watershed_scope_compressed_bytes";
/// Events in the window.
pub const WINDOW_EVENTS: &str = "watershed_scope_window_events";
/// Their bytes.
pub const WINDOW_BYTES: &str = "watershed_scope_window_bytes";
/// The resourceVersion reached.
pub const VERSION: &str = "watershed_scope_resource_version";
/// Seconds since upstream last said something.
pub const SILENCE: &str = "watershed_scope_last_heard_seconds";
/// Watches that follow the scope.
pub const WATCHERS: &str = "watershed_scope_watchers";

/// Tells the recorder what the metrics mean.
pub fn describe() {
    metrics_process::Collector::default().describe();
    describe_gauge!(BUILD_INFO, "Always 1. The labels say which version runs, and on what.");
    describe_gauge!(TYPES, "Types that upstream's discovery shows as listable and watchable.");
    describe_gauge!(READY, "1 when the scope answers from memory, 0 while it syncs or is not cached.");
    describe_gauge!(
        FOLLOWING,
        "1 while upstream's changes arrive, 0 while upstream cannot be followed and is tried again."
    );
    describe_gauge!(OBJECTS, "Objects in the scope's newest snapshot.");
    describe_gauge!(OBJECT_BYTES, "Bytes held for the objects of the scope's newest snapshot.");
    describe_gauge!(
        COMPRESSED_BYTES,
        "Bytes held beside the objects of the scope's newest snapshot for clients that take gzip."
    );
    describe_gauge!(WINDOW_EVENTS, "Events in the scope's window of recent events.");
    describe_gauge!(WINDOW_BYTES, "Bytes held for the scope's window of recent events.");
    describe_gauge!(VERSION, "The resourceVersion that the scope has reached.");
    describe_gauge!(SILENCE, "Seconds since upstream last sent an event, bookmark or list for the scope.");
    describe_gauge!(WATCHERS, "Watches that follow the scope.");
    describe_counter!(
        crate::scope::UPSTREAM_LISTS,
        "Times a scope was listed at upstream, first and after a loss of history."
    );
    describe_counter!(crate::scope::UPSTREAM_EVENTS, "Events received from upstream.");
    describe_counter!(
        crate::scope::UPSTREAM_RESUMES,
        "Times an interrupted upstream watch went on without a loss."
    );
}

const OF_A_SCOPE: &[&str] = &[
    READY,
    FOLLOWING,
    OBJECTS,
    OBJECT_BYTES,
    COMPRESSED_BYTES,
    WINDOW_EVENTS,
    WINDOW_BYTES,
    VERSION,
    SILENCE,
    WATCHERS,
];

/// Sets the gauges when somebody asks.
#[derive(Debug, Default)]
pub struct Gauges {
    /// CPU, memory and file descriptors, under the names every Prometheus client library uses.
    process: metrics_process::Collector,
    /// The scopes shown last: those that are gone must not stay at what they were.
    shown: Mutex<HashSet<ScopeKey>>,
}

impl Gauges {
    /// Sets all of them to what is so now.
    pub(super) fn collect(&self, state: &State) {
        self.process.collect();
        gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION"), "os" => std::env::consts::OS,
            "architecture" => std::env::consts::ARCH)
        .set(1.0);
        gauge!(TYPES).set(state.catalog.len() as f64);
        crate::http::metrics::publish_certificates(state.proxy_tls.as_ref(), state.admin_tls.as_ref());
        crate::serve::metrics::publish(&state.usage);
        crate::upstream::metrics::publish(state.upstream.traffic());
        let scopes = state.scopes.all();
        let now: HashSet<_> = scopes.iter().map(|scope| scope.key.clone()).collect();
        let gone = std::mem::replace(&mut *self.shown.lock(), now.clone());
        for key in gone.difference(&now) {
            for name in OF_A_SCOPE {
                of_scope(name, key).set(0.0);
            }
        }
        for scope in scopes {
            let figures = scope.reader.figures();
            let set = |name: &'static str, value: f64| of_scope(name, &scope.key).set(value);
            set(READY, f64::from(u8::from(matches!(scope.phase(), Phase::Ready(_)))));
            set(FOLLOWING, f64::from(u8::from(scope.is_following())));
            set(OBJECTS, figures.objects as f64);
            set(OBJECT_BYTES, figures.object_bytes as f64);
            set(COMPRESSED_BYTES, scope.reader.snapshot().compressed_size() as f64);
            set(WINDOW_EVENTS, figures.events as f64);
            set(WINDOW_BYTES, figures.event_bytes as f64);
            set(VERSION, figures.version.0 as f64);
            set(SILENCE, scope.last_heard.lock().elapsed().as_secs_f64());
            set(WATCHERS, figures.watchers as f64);
        }
    }
}

fn of_scope(name: &'static str, key: &ScopeKey) -> metrics::Gauge {
    let Representation { encoding, metadata_only } = key.representation;
    let content = if metadata_only { "metadata" } else { "objects" };
    let encoding = match encoding {
        Encoding::Json => "json",
        Encoding::Protobuf => "protobuf",
    };
    gauge!(name, "group" => Arc::clone(&key.gvr.group), "version" => Arc::clone(&key.gvr.version),
        "resource" => Arc::clone(&key.gvr.resource), "encoding" => encoding, "content" => content, "selection" => key.selection.to_string())
}
