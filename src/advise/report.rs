//! The report of a replay.
use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;

use super::line_counts::LineCounts;
use super::tally::{Load, RowKey, Tally};
use crate::serve::AnswerSource;

/// The assumptions of the replay, for people.
const ASSUMPTIONS: &[&str] = &[
    "The log has every request: requests that the audit policy leaves out are not in the report.",
    "Audit logs have no Accept headers: kubectl asks for Tables, a client whose name has \
     metadata-informer for metadata, Kubernetes' own programs and Go programs for protobuf where \
     the type is built in, and others for JSON.",
    "Types of groups that end in metrics.k8s.io are aggregated APIs, which are forwarded. All \
     other types are served by kube-apiserver, and custom types have no selectable fields.",
    "The proxy is warm: types are listed, upstream is followed, memory suffices, and proofs of \
     freshness arrive in time. Small parts of large types that are read without a resourceVersion \
     may be forwarded (unproven), as upstream's answer costs less than a proof.",
    "Callers use bearer tokens, or certificates that the proxy verifies (--client-ca-file).",
    "The API server's own requests to itself (system:apiserver) do not pass a proxy, and are left \
     out.",
];

/// The answers that a proxy would have given.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub(super) log: LogSummary,
    pub(super) total: LoadSplit,
    /// Lists and watches that the proxy would keep at upstream: one of each for each scope.
    pub(super) upstream_scopes: usize,
    /// Requests that wait for a proof of freshness, which costs upstream a request for all that
    /// wait at the same time.
    pub(super) proofs: u64,
    pub(super) reasons: Vec<ReasonShare>,
    pub(super) clients: Vec<ClientShare>,
    pub(super) types: Vec<TypeShare>,
    pub(super) answers: Vec<AnswerRow>,
    pub(super) assumptions: &'static [&'static str],
}

/// The logs that were read.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LogSummary {
    pub(super) files: u64,
    pub(super) lines: u64,
    pub(super) damaged_lines: u64,
    pub(super) too_long_lines: u64,
    pub(super) internal_requests: u64,
    pub(super) first: Option<String>,
    pub(super) last: Option<String>,
    pub(super) seconds: f64,
}

/// Load, and the part of it that does not reach upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LoadSplit {
    pub(super) requests: u64,
    pub(super) requests_from_memory: u64,
    /// Seconds that upstream took for requests that are not long-running.
    pub(super) seconds: f64,
    pub(super) seconds_from_memory: f64,
    /// Seconds of the log for which watches and sessions were open that ended within it.
    pub(super) open_seconds: f64,
    pub(super) open_seconds_from_memory: f64,
}

/// The requests that are forwarded for one reason.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReasonShare {
    pub(super) reason: &'static str,
    pub(super) requests: u64,
    pub(super) seconds: f64,
}

/// The load of one client.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClientShare {
    pub(super) user: String,
    pub(super) agent: String,
    #[serde(flatten)]
    pub(super) load: LoadSplit,
    pub(super) reasons: Vec<ReasonShare>,
}

/// The load of one type.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TypeShare {
    pub(super) group: String,
    pub(super) resource: String,
    #[serde(flatten)]
    pub(super) load: LoadSplit,
    pub(super) reasons: Vec<ReasonShare>,
}

/// The requests that `watershed_requests_total` would count under the same labels, of one client.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AnswerRow {
    pub(super) user: String,
    pub(super) agent: String,
    pub(super) verb: &'static str,
    pub(super) group: String,
    pub(super) resource: String,
    pub(super) source: &'static str,
    pub(super) reason: &'static str,
    pub(super) requests: u64,
    pub(super) seconds: f64,
    pub(super) open_seconds: f64,
}

/// Sums that are not sorted yet.
#[derive(Default)]
struct GroupSums {
    load: LoadSplit,
    reasons: BTreeMap<&'static str, Load>,
}

impl Report {
    pub(super) fn new(tally: &Tally, counts: &LineCounts) -> Self {
        let mut all = GroupSums::default();
        let mut clients: BTreeMap<_, GroupSums> = BTreeMap::new();
        let mut types: BTreeMap<_, GroupSums> = BTreeMap::new();
        let mut proofs = 0;
        for (key, load) in tally.rows() {
            all.add(key.source, *load);
            let of_client = clients.entry(&key.client).or_default();
            of_client.add(key.source, *load);
            let of_type = types.entry(type_name(key)).or_default();
            of_type.add(key.source, *load);
            if key.source == AnswerSource::Linearizable {
                proofs += load.requests;
            }
        }
        let clients = clients.into_iter().map(|(client, sums)| ClientShare {
            user: client.user.clone(),
            agent: client.agent.clone(),
            load: sums.load,
            reasons: sums.reasons(),
        });
        let types = types
            .into_iter()
            .map(|((group, resource), sums)| TypeShare {
                group,
                resource,
                load: sums.load,
                reasons: sums.reasons(),
            });
        let mut clients: Vec<_> = clients.collect();
        clients.sort_by_key(|it| Reverse(it.load.requests));
        let mut types: Vec<_> = types.collect();
        types.sort_by_key(|it| Reverse(it.load.requests));
        Self {
            log: LogSummary::new(counts),
            total: all.load,
            upstream_scopes: tally.scopes(),
            proofs,
            reasons: all.reasons(),
            clients,
            types,
            answers: answers(tally),
            assumptions: ASSUMPTIONS,
        }
    }
}

impl LogSummary {
    fn new(counts: &LineCounts) -> Self {
        let times = counts.first.zip(counts.last);
        let seconds = times.map_or(0.0, |(first, last)| {
            last.duration_since(first).as_secs_f64()
        });
        Self {
            files: counts.files,
            lines: counts.lines,
            damaged_lines: counts.damaged,
            too_long_lines: counts.too_long,
            internal_requests: counts.internal,
            first: times.map(|(first, _)| first.to_string()),
            last: times.map(|(_, last)| last.to_string()),
            seconds,
        }
    }
}

impl GroupSums {
    fn add(&mut self, source: AnswerSource, load: Load) {
        let all = &mut self.load;
        all.requests += load.requests;
        all.seconds += load.seconds;
        all.open_seconds += load.open_seconds;
        if let AnswerSource::Forward(reason) = source {
            self.reasons.entry(reason.as_str()).or_default().add(load);
        } else {
            all.requests_from_memory += load.requests;
            all.seconds_from_memory += load.seconds;
            all.open_seconds_from_memory += load.open_seconds;
        }
    }

    /// Returns the reasons, the most frequent first.
    fn reasons(&self) -> Vec<ReasonShare> {
        let reasons = self.reasons.iter().map(|(reason, load)| ReasonShare {
            reason,
            requests: load.requests,
            seconds: load.seconds,
        });
        let mut reasons: Vec<_> = reasons.collect();
        reasons.sort_by_key(|it| Reverse(it.requests));
        reasons
    }
}

/// Returns group and resource; both empty if the type is not known.
fn type_name(key: &RowKey) -> (String, String) {
    key.resource.as_ref().map_or_else(Default::default, |gvr| {
        (gvr.group.to_string(), gvr.resource.to_string())
    })
}

/// Returns the rows, sorted by their labels.
fn answers(tally: &Tally) -> Vec<AnswerRow> {
    let rows = tally.rows().map(|(key, load)| {
        let (group, resource) = type_name(key);
        AnswerRow {
            user: key.client.user.clone(),
            agent: key.client.agent.clone(),
            verb: key.verb,
            group,
            resource,
            source: key.source.as_str(),
            reason: key.source.reason(),
            requests: load.requests,
            seconds: load.seconds,
            open_seconds: load.open_seconds,
        }
    });
    let mut rows: Vec<_> = rows.collect();
    let labels = |row: &AnswerRow| {
        (
            row.user.clone(),
            row.agent.clone(),
            row.group.clone(),
            row.resource.clone(),
            (row.verb, row.source, row.reason),
        )
    };
    rows.sort_by_cached_key(labels);
    rows
}
