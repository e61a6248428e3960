//! The report that the page and the JSON show.
use std::cmp::Reverse;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::admin::history::HistorySample;
use crate::admin::state::AdminState;
use crate::budget::{MemoryBudget, MemoryClass, PressureStep};
use crate::listener::tls::ServerTls;
use crate::scope::{Scope, ScopePhase, Scopes};
use crate::serve::{ClientUsage, TopClients, Usage};
use crate::upstream::{ConnectionPurpose, RequestPurpose};

/// Number of clients shown.
const CLIENTS: usize = 50;
/// Characters shown of an error text of upstream.
const ERROR_CHARS: usize = 300;

/// The whole status. Durations are in seconds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusReport {
    pub(super) version: &'static str,
    pub(super) uptime_seconds: f64,
    pub(super) health: Health,
    pub(super) upstream: UpstreamStatus,
    pub(super) totals: StatusTotals,
    pub(super) memory: MemoryStatus,
    pub(super) sources: Vec<SourceTotals>,
    pub(super) forwarded: Vec<ReasonTotals>,
    pub(super) scopes: Vec<ScopeStatus>,
    pub(super) clients: ClientsStatus,
    pub(super) certificates: Vec<CertificateStatus>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Health {
    Ready,
    /// Upstream's types are not all known yet.
    Starting,
    /// Upstream was not followed for longer than allowed.
    Stale,
    ShuttingDown,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UpstreamStatus {
    pub(super) addresses: Vec<String>,
    pub(super) types: usize,
    pub(super) connections: u64,
    /// Id of this proxy in a tree of proxies.
    pub(super) id: String,
    /// Ids of the proxies between this one and the API server, the nearest first.
    pub(super) proxies: Vec<String>,
    /// `true` if upstream leads back to this proxy.
    pub(super) is_loop: bool,
    pub(super) traffic: Vec<PurposeTotals>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PurposeTotals {
    pub(super) purpose: &'static str,
    pub(super) requests: u64,
    pub(super) received_bytes: u64,
}

/// Counters since the start of the process, and levels of this moment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusTotals {
    pub(super) requests_here: u64,
    pub(super) requests_forwarded: u64,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) watches_here: u64,
    pub(super) watches_forwarded: u64,
    pub(super) resident_bytes: u64,
    pub(super) held_bytes: u64,
}

/// The memory budget.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MemoryStatus {
    /// `None` for no limit.
    pub(super) limit_bytes: Option<usize>,
    /// The step against a shortage.
    pub(super) step: &'static str,
    pub(super) is_short: bool,
    pub(super) classes: Vec<MemoryClassStatus>,
}

#[derive(Debug, Serialize)]
pub(super) struct MemoryClassStatus {
    pub(super) class: &'static str,
    pub(super) bytes: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SourceTotals {
    #[serde(rename = "source")]
    pub(super) name: &'static str,
    pub(super) requests: u64,
    pub(super) sent_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct ReasonTotals {
    pub(super) reason: &'static str,
    pub(super) requests: u64,
}

/// One scope.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ScopeStatus {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) resource: String,
    pub(super) encoding: &'static str,
    pub(super) content: &'static str,
    /// Selector of the objects; empty for all objects of the type.
    pub(super) selection: String,
    pub(super) phase: PhaseName,
    /// Error that stopped the scope, or by which the last attempt to follow upstream failed.
    pub(super) why: Option<String>,
    pub(super) following: bool,
    /// Its JSON is printed from the scope in protobuf, whose watch feeds both.
    pub(super) derived: bool,
    pub(super) objects: usize,
    pub(super) object_bytes: usize,
    pub(super) window_events: usize,
    pub(super) window_bytes: usize,
    pub(super) resource_version: u64,
    pub(super) last_heard_seconds: f64,
    /// Time since upstream was last followed; 0 while it is.
    pub(super) staleness_seconds: f64,
    pub(super) watchers: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PhaseName {
    Syncing,
    Failing,
    Ready,
    Stale,
    Quarantined,
    SchemaChanged,
    Stopped,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClientsStatus {
    pub(super) known: usize,
    pub(super) let_go: u64,
    pub(super) top: Vec<ClientStatus>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClientStatus {
    /// `None` if upstream was not asked for the user.
    pub(super) user: Option<String>,
    pub(super) agent: String,
    pub(super) share: f64,
    pub(super) requests_per_second: f64,
    pub(super) bytes_per_second: f64,
    pub(super) requests: u64,
    pub(super) forwarded: u64,
    pub(super) sent_bytes: u64,
    pub(super) watches: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CertificateStatus {
    pub(super) listener: &'static str,
    /// Negative after the end.
    pub(super) ends_in_seconds: i64,
}

impl StatusReport {
    /// Collects the report of this moment.
    pub(super) fn new(state: &AdminState) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: state.started.elapsed().as_secs_f64(),
            health: Health::new(state),
            upstream: UpstreamStatus::new(state),
            totals: state.sample().into(),
            memory: MemoryStatus::new(state.scopes.budget()),
            sources: sources(&state.usage),
            forwarded: reasons(&state.usage),
            scopes: scopes(&state.scopes),
            clients: state.usage.top(CLIENTS).into(),
            certificates: certificates(state),
        }
    }
}

impl Health {
    fn new(state: &AdminState) -> Self {
        if state.draining.is_draining() {
            Self::ShuttingDown
        } else if state.catalog.is_empty() || !state.catalog.is_settled() {
            Self::Starting
        } else if state.scopes.are_stale() {
            Self::Stale
        } else {
            Self::Ready
        }
    }
}

impl MemoryStatus {
    fn new(budget: &MemoryBudget) -> Self {
        let step = budget.step();
        Self {
            limit_bytes: budget.limit(),
            step: step.as_str(),
            is_short: step > PressureStep::Relaxed,
            classes: MemoryClass::ALL
                .map(|class| MemoryClassStatus {
                    class: class.as_str(),
                    bytes: budget.counted(class),
                })
                .into(),
        }
    }
}

impl UpstreamStatus {
    fn new(state: &AdminState) -> Self {
        let traffic = state.upstream.traffic();
        let chain = state.upstream.chain();
        Self {
            addresses: state
                .upstream
                .addresses()
                .iter()
                .map(ToString::to_string)
                .collect(),
            types: state.catalog.len(),
            id: chain.id().to_owned(),
            proxies: chain.upstream(),
            is_loop: chain.is_loop(),
            connections: ConnectionPurpose::ALL
                .iter()
                .map(|purpose| traffic.connections(*purpose))
                .sum(),
            traffic: RequestPurpose::ALL
                .map(|purpose| PurposeTotals {
                    purpose: purpose.as_str(),
                    requests: traffic.requests(purpose),
                    received_bytes: traffic.received_bytes(purpose),
                })
                .into(),
        }
    }
}

impl From<HistorySample> for StatusTotals {
    fn from(sample: HistorySample) -> Self {
        Self {
            requests_here: sample.here,
            requests_forwarded: sample.forwarded,
            sent_bytes: sample.sent,
            received_bytes: sample.received,
            watches_here: sample.watches_here,
            watches_forwarded: sample.watches_forwarded,
            resident_bytes: sample.resident,
            held_bytes: sample.held,
        }
    }
}

impl ScopeStatus {
    fn new(scope: &Scope) -> Self {
        let stats = scope.reader.stats();
        let mut why = scope.upstream.failure();
        let phase = match scope.phase() {
            ScopePhase::Syncing => PhaseName::Syncing,
            ScopePhase::Failing => PhaseName::Failing,
            ScopePhase::Ready(_) => PhaseName::Ready,
            ScopePhase::Stale(_) => PhaseName::Stale,
            ScopePhase::Quarantined => PhaseName::Quarantined,
            ScopePhase::SchemaChanged => PhaseName::SchemaChanged,
            ScopePhase::Stopped(reason) => {
                why = Some(reason.to_string());
                PhaseName::Stopped
            }
        };
        Self {
            group: scope.key.gvr.group.to_string(),
            version: scope.key.gvr.version.to_string(),
            resource: scope.key.gvr.resource.to_string(),
            encoding: scope.key.representation.encoding.as_str(),
            content: scope.content(),
            selection: scope.key.selection.to_string(),
            phase,
            why: why.map(|why| why.chars().take(ERROR_CHARS).collect()),
            following: scope.upstream.is_delivering(),
            derived: scope.is_derived(),
            objects: stats.objects,
            object_bytes: stats.object_bytes,
            window_events: stats.events,
            window_bytes: stats.event_bytes,
            resource_version: stats.version.0,
            last_heard_seconds: scope.upstream.silence().as_secs_f64(),
            staleness_seconds: scope.age().unwrap_or_default().as_secs_f64(),
            watchers: stats.watchers,
        }
    }

    fn bytes(&self) -> usize {
        self.object_bytes + self.window_bytes
    }

    fn sort_name(&self) -> (&str, &str, &str, &str, &str) {
        (
            &self.resource,
            &self.group,
            &self.version,
            self.encoding,
            &self.selection,
        )
    }

    /// Returns `true` if the scope is ready and follows upstream.
    pub(super) fn is_well(&self) -> bool {
        self.phase == PhaseName::Ready && self.following
    }

    pub(super) fn last_heard(&self) -> Duration {
        Duration::from_secs_f64(self.last_heard_seconds)
    }
}

impl From<TopClients> for ClientsStatus {
    fn from(top: TopClients) -> Self {
        Self {
            known: top.known,
            let_go: top.evicted,
            top: top.rows.into_iter().map(ClientStatus::from).collect(),
        }
    }
}

impl From<ClientUsage> for ClientStatus {
    fn from(usage: ClientUsage) -> Self {
        Self {
            user: usage.user,
            agent: usage.agent,
            share: usage.share,
            requests_per_second: usage.requests_per_second,
            bytes_per_second: usage.bytes_per_second,
            requests: usage.requests,
            forwarded: usage.forwarded,
            sent_bytes: usage.bytes,
            watches: usage.watches,
        }
    }
}

/// Returns the sources of answers, the most frequent first.
fn sources(usage: &Usage) -> Vec<SourceTotals> {
    let mut rows: Vec<_> = usage
        .by_source()
        .map(|(name, requests, sent_bytes)| SourceTotals {
            name,
            requests,
            sent_bytes,
        })
        .filter(|source| source.requests > 0)
        .collect();
    rows.sort_by_key(|source| Reverse(source.requests));
    rows
}

/// Returns the reasons for forwarding, the most frequent first.
fn reasons(usage: &Usage) -> Vec<ReasonTotals> {
    let mut rows: Vec<_> = usage
        .by_reason()
        .filter(|(_, requests)| *requests > 0)
        .map(|(reason, requests)| ReasonTotals { reason, requests })
        .collect();
    rows.sort_by_key(|row| Reverse(row.requests));
    rows
}

/// Returns the open scopes, the largest first.
fn scopes(scopes: &Scopes) -> Vec<ScopeStatus> {
    let mut rows: Vec<_> = scopes
        .all()
        .iter()
        .map(|scope| ScopeStatus::new(scope))
        .collect();
    rows.sort_by(|a, b| {
        b.bytes()
            .cmp(&a.bytes())
            .then_with(|| a.sort_name().cmp(&b.sort_name()))
    });
    rows
}

fn certificates(state: &AdminState) -> Vec<CertificateStatus> {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
    [("proxy", &state.proxy_tls), ("admin", &state.admin_tls)]
        .into_iter()
        .filter_map(|(listener, tls)| {
            let valid = tls.as_ref().and_then(ServerTls::validity)?;
            Some(CertificateStatus {
                listener,
                ends_in_seconds: valid.not_after.as_second() - now,
            })
        })
        .collect()
}
