//! Counters of requests and answers: the numbers that the proxy is judged by.
use std::collections::BTreeMap;
use std::fmt::Write as _;

use parking_lot::Mutex;

/// The counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// Requests by verb (`GET`, `LIST`, `WATCH`, `POST` …), resource (`pods`, `deployments.apps`,
    /// empty for paths) and status code. A watch counts when it starts.
    pub requests: BTreeMap<(String, String, u16), u64>,
    /// Lists, and watches that began with the state because that was asked for, by resource.
    pub states: BTreeMap<String, u64>,
    /// Gets, lists and watches that were not of metadata alone, by verb and resource.
    pub whole: BTreeMap<(String, String), u64>,
    /// Watches open now, by resource.
    pub open_watches: BTreeMap<String, u64>,
    /// Watch events sent, bookmarks and initial ones included, by resource.
    pub watch_events: BTreeMap<String, u64>,
    /// Body bytes sent, by verb and resource.
    pub bytes: BTreeMap<(String, String), u64>,
    /// Connections accepted.
    pub connections: u64,
}

/// The live counters.
#[derive(Debug, Default)]
pub(crate) struct Stats(Mutex<TrafficCounts>);

impl TrafficCounts {
    /// Requests of a verb over all resources and codes.
    pub fn requests_of(&self, verb: &str) -> u64 {
        self.requests
            .iter()
            .filter(|((v, _, _), _)| v == verb)
            .map(|(_, n)| n)
            .sum()
    }

    /// Requests of a verb on one resource, over all codes.
    pub fn requests_on(&self, verb: &str, resource: &str) -> u64 {
        self.requests
            .iter()
            .filter(|((v, r, _), _)| v == verb && r == resource)
            .map(|(_, n)| n)
            .sum()
    }

    /// Answers that began with the state of a resource: lists, and such watches.
    pub fn states_of(&self, resource: &str) -> u64 {
        self.states.get(resource).copied().unwrap_or_default()
    }

    /// Body bytes sent in all.
    pub fn total_bytes(&self) -> u64 {
        self.bytes.values().sum()
    }

    /// Watch events sent in all.
    pub fn total_events(&self) -> u64 {
        self.watch_events.values().sum()
    }

    /// Watches open now.
    pub fn total_open_watches(&self) -> u64 {
        self.open_watches.values().sum()
    }

    /// Writes Prometheus' text format, with kube-apiserver's names where it has them.
    pub fn prometheus(&self) -> String {
        let requests = self.requests.iter().map(|((verb, resource, code), n)| {
            let (resource, group) = split(resource);
            let code = format!(r#"code="{code}","#);
            let labels = format!(r#"group="{group}",resource="{resource}",verb="{verb}""#);
            (format!("{{{code}{labels}}}"), *n)
        });
        let watches = self.open_watches.iter().map(|(resource, n)| {
            let (resource, group) = split(resource);
            let labels = format!(r#"{{group="{group}",resource="{resource}",verb="WATCH"}}"#);
            (labels, *n)
        });
        let events = self.watch_events.iter().map(|(resource, n)| {
            let (resource, group) = split(resource);
            (format!(r#"{{group="{group}",resource="{resource}"}}"#), *n)
        });
        let bytes = self.bytes.iter().map(|((verb, resource), n)| {
            let (resource, group) = split(resource);
            let labels = format!(r#"{{group="{group}",resource="{resource}",verb="{verb}"}}"#);
            (labels, *n)
        });
        [
            family(
                "apiserver_request_total counter Requests by verb, resource and code.",
                requests,
            ),
            family(
                "apiserver_longrunning_requests gauge Watches open now.",
                watches,
            ),
            family(
                "apiserver_watch_events_total counter Watch events sent.",
                events,
            ),
            family(
                "apiserver_response_bytes_total counter Body bytes sent.",
                bytes,
            ),
            family(
                "apiserver_connections_total counter Connections accepted.",
                [(String::new(), self.connections)].into_iter(),
            ),
        ]
        .concat()
    }
}

/// Writes a family of metrics, described as `name kind help`.
fn family(description: &str, series: impl Iterator<Item = (String, u64)>) -> String {
    let mut words = description.splitn(3, ' ');
    let mut word = || words.next().unwrap_or_default();
    let (name, kind, help) = (word(), word(), word());
    let mut out = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
    for (labels, value) in series {
        let _ = writeln!(out, "{name}{labels} {value}");
    }
    out
}

fn split(resource: &str) -> (&str, &str) {
    resource.split_once('.').unwrap_or((resource, ""))
}

impl Stats {
    pub(crate) fn counts(&self) -> TrafficCounts {
        self.0.lock().clone()
    }

    pub(crate) fn request(&self, verb: &str, resource: &str, code: u16) {
        *self
            .0
            .lock()
            .requests
            .entry((verb.to_owned(), resource.to_owned(), code))
            .or_default() += 1;
    }

    pub(crate) fn state(&self, resource: &str) {
        *self.0.lock().states.entry(resource.to_owned()).or_default() += 1;
    }

    pub(crate) fn whole(&self, verb: &str, resource: &str) {
        *self
            .0
            .lock()
            .whole
            .entry((verb.to_owned(), resource.to_owned()))
            .or_default() += 1;
    }

    pub(crate) fn sent(&self, verb: &str, resource: &str, bytes: u64) {
        *self
            .0
            .lock()
            .bytes
            .entry((verb.to_owned(), resource.to_owned()))
            .or_default() += bytes;
    }

    pub(crate) fn watch_opened(&self, resource: &str) {
        *self
            .0
            .lock()
            .open_watches
            .entry(resource.to_owned())
            .or_default() += 1;
    }

    pub(crate) fn watch_closed(&self, resource: &str) {
        let mut counts = self.0.lock();
        let open = counts.open_watches.entry(resource.to_owned()).or_default();
        *open = open.saturating_sub(1);
    }

    pub(crate) fn events(&self, resource: &str, events: u64, bytes: u64) {
        let mut counts = self.0.lock();
        *counts.watch_events.entry(resource.to_owned()).or_default() += events;
        *counts
            .bytes
            .entry(("WATCH".to_owned(), resource.to_owned()))
            .or_default() += bytes;
    }

    pub(crate) fn connection(&self) {
        self.0.lock().connections += 1;
    }
}
