//! By what each metric is told apart. A test holds this to what a running proxy shows.
use crate::{access, admin, audit, listener, scope, serve, upstream};

/// A type of upstream's.
const TYPE: &[&str] = &["group", "resource"];
/// One list and watch at upstream.
const SCOPE: &[&str] = &[
    "group",
    "version",
    "resource",
    "encoding",
    "content",
    "selection",
];

/// The labels of metrics that have some.
const LABELS: &[(&str, &[&str])] = &[
    (listener::metrics::CONNECTIONS, &["listener"]),
    (listener::metrics::REJECTED, &["listener", "reason"]),
    (listener::metrics::CUT, &["listener", "reason"]),
    (listener::metrics::ANSWERS_CUT, &["reason"]),
    (listener::metrics::CERTIFICATE_ENDS, &["listener"]),
    (
        serve::metrics::REQUESTS,
        &["verb", "group", "resource", "source", "reason", "code"],
    ),
    (serve::metrics::RESPONSE_BYTES, &["source"]),
    (serve::metrics::DURATION, &["verb", "source"]),
    (serve::metrics::LIMITED, &["reason"]),
    (serve::metrics::IN_FLIGHT, &["verb"]),
    (serve::metrics::WATCHES, TYPE),
    (serve::metrics::EVENTS, TYPE),
    (serve::metrics::EVENT_BYTES, TYPE),
    (serve::metrics::ENDED, &["group", "resource", "how"]),
    (serve::metrics::FENCED, &["group", "resource", "step"]),
    (serve::metrics::FENCE_DURATION, &["step"]),
    (
        serve::metrics::FENCE_REQUESTS,
        &["group", "resource", "request"],
    ),
    (access::metrics::REVIEWS, &["kind", "result"]),
    (access::metrics::CACHE, &["result"]),
    (access::metrics::CHANGES, &["resource"]),
    (
        admin::metrics::BUILD_INFO,
        &["version", "os", "architecture"],
    ),
    (admin::metrics::READY, SCOPE),
    (admin::metrics::FOLLOWING, SCOPE),
    (admin::metrics::OBJECTS, SCOPE),
    (admin::metrics::OBJECT_BYTES, SCOPE),
    (admin::metrics::COMPRESSED_BYTES, SCOPE),
    (admin::metrics::WINDOW_EVENTS, SCOPE),
    (admin::metrics::WINDOW_BYTES, SCOPE),
    (admin::metrics::VERSION, SCOPE),
    (admin::metrics::SILENCE, SCOPE),
    (admin::metrics::WATCHERS, SCOPE),
    (admin::metrics::COUNT, SCOPE),
    (upstream::metrics::REQUESTS, &["purpose"]),
    (upstream::metrics::RECEIVED_BYTES, &["purpose"]),
    (upstream::metrics::CONNECTIONS, &["kind"]),
    (scope::UPSTREAM_LISTS, TYPE),
    (scope::UPSTREAM_EVENTS, TYPE),
    (scope::UPSTREAM_RESUMES, TYPE),
    (scope::STOPPED, &["group", "resource", "reason"]),
    (audit::metrics::DROPPED, &["sink"]),
];

/// The labels of a metric; none, if it is one number.
pub(super) fn of(name: &str) -> &'static [&'static str] {
    LABELS
        .iter()
        .find(|(labelled, _)| *labelled == name)
        .map_or(&[], |(_, labels)| labels)
}
