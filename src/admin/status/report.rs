//! What the page and the JSON say.
use std::cmp::Reverse;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::admin::State;
use crate::admin::history::Sums;
use crate::listener::tls::ServerTls;
use crate::scope::{Scope, ScopePhase};
use crate::serve::{ClientUsage, TopClients};
use crate::upstream::{ConnectionPurpose, RequestPurpose};
use watershed_protocol::{Encoding, Representation};

/// Clients shown.
const CLIENTS: usize = 50;
/// Characters shown of what upstream says.
const WORDS: usize = 300;

/// Whether users and their programs are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Users {
    Shown,
    Hidden,
}

/// Everything. Durations are in seconds.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) version: &'static str,
    pub(super) uptime_seconds: f64,
    pub(super) health: Health,
    pub(super) upstream: Upstream,
    pub(super) totals: Totals,
    pub(super) sources: Vec<Source>,
    pub(super) forwarded: Vec<Forwarded>,
    pub(super) scopes: Vec<Row>,
    /// `None` where they are not for the one who asks.
    pub(super) clients: Option<Clients>,
    pub(super) certificates: Vec<Certificate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Health {
    Ready,
    /// Upstream's types are not known yet.
    Starting,
    ShuttingDown,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Upstream {
    pub(super) addresses: Vec<String>,
    pub(super) types: usize,
    pub(super) connections: u64,
    pub(super) traffic: Vec<Traffic>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Traffic {
    pub(super) purpose: &'static str,
    pub(super) requests: u64,
    pub(super) received_bytes: u64,
}

/// Since the start of the process, or of this moment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Totals {
    pub(super) requests_here: u64,
    pub(super) requests_forwarded: u64,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) watches_here: u64,
    pub(super) watches_forwarded: u64,
    pub(super) resident_bytes: u64,
    pub(super) held_bytes: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Source {
    #[serde(rename = "source")]
    pub(super) name: &'static str,
    pub(super) requests: u64,
    pub(super) sent_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Forwarded {
    pub(super) reason: &'static str,
    pub(super) requests: u64,
}

/// One scope.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) resource: String,
    pub(super) encoding: &'static str,
    pub(super) content: &'static str,
    /// Which objects of the type; empty for all.
    pub(super) selection: String,
    pub(super) phase: PhaseName,
    /// Why it is not held.
    pub(super) why: Option<String>,
    pub(super) following: bool,
    pub(super) objects: usize,
    pub(super) object_bytes: usize,
    pub(super) window_events: usize,
    pub(super) window_bytes: usize,
    pub(super) resource_version: u64,
    pub(super) last_heard_seconds: f64,
    pub(super) watchers: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PhaseName {
    Syncing,
    Failing,
    Ready,
    Stopped,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Clients {
    pub(super) known: usize,
    pub(super) let_go: u64,
    pub(super) top: Vec<Client>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Client {
    /// `None` where upstream was not asked who it is.
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
pub(super) struct Certificate {
    pub(super) listener: &'static str,
    /// Negative when it has ended.
    pub(super) ends_in_seconds: i64,
}

impl Report {
    pub(super) fn of(state: &State, users: Users) -> Self {
        let sums = Sums::of(state);
        let traffic = state.upstream.traffic();
        let mut scopes: Vec<_> = state
            .scopes
            .all()
            .iter()
            .map(|scope| Row::of(scope))
            .collect();
        scopes.sort_by(|a, b| {
            let name = |row: &Row| {
                (
                    row.resource.clone(),
                    row.group.clone(),
                    row.version.clone(),
                    row.encoding,
                    row.selection.clone(),
                )
            };
            b.bytes()
                .cmp(&a.bytes())
                .then_with(|| name(a).cmp(&name(b)))
        });
        let sources = state.usage.by_source();
        let sources = sources.map(|(name, requests, sent_bytes)| Source {
            name,
            requests,
            sent_bytes,
        });
        let mut sources: Vec<_> = sources.filter(|source| source.requests > 0).collect();
        sources.sort_by_key(|source| Reverse(source.requests));
        let reasons = state
            .usage
            .by_reason()
            .filter(|(_, requests)| *requests > 0);
        let mut forwarded: Vec<_> = reasons
            .map(|(reason, requests)| Forwarded { reason, requests })
            .collect();
        forwarded.sort_by_key(|forwarded| Reverse(forwarded.requests));
        Self {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: state.started.elapsed().as_secs_f64(),
            health: Health::of(state),
            upstream: Upstream {
                addresses: state
                    .upstream
                    .addresses()
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
                types: state.catalog.len(),
                connections: ConnectionPurpose::ALL
                    .iter()
                    .map(|kind| traffic.connections(*kind))
                    .sum(),
                traffic: RequestPurpose::ALL
                    .map(|purpose| Traffic {
                        purpose: purpose.as_str(),
                        requests: traffic.requests(purpose),
                        received_bytes: traffic.received_bytes(purpose),
                    })
                    .into(),
            },
            totals: Totals {
                requests_here: sums.here,
                requests_forwarded: sums.forwarded,
                sent_bytes: sums.sent,
                received_bytes: sums.received,
                watches_here: sums.watches_here,
                watches_forwarded: sums.watches_forwarded,
                resident_bytes: sums.resident,
                held_bytes: sums.held,
            },
            sources,
            forwarded,
            scopes,
            clients: (users == Users::Shown).then(|| state.usage.top(CLIENTS).into()),
            certificates: certificates(state),
        }
    }
}

impl Health {
    fn of(state: &State) -> Self {
        if state.draining.is_draining() {
            Self::ShuttingDown
        } else if state.catalog.is_empty() || !state.catalog.is_settled() {
            Self::Starting
        } else {
            Self::Ready
        }
    }
}

impl Row {
    fn of(scope: &Scope) -> Self {
        let figures = scope.reader.stats();
        let Representation {
            encoding,
            metadata_only,
        } = scope.key.representation;
        let (phase, why) = match scope.phase() {
            ScopePhase::Syncing => (PhaseName::Syncing, None),
            ScopePhase::Failing => (PhaseName::Failing, None),
            ScopePhase::Ready(_) => (PhaseName::Ready, None),
            ScopePhase::Stopped(why) => (
                PhaseName::Stopped,
                Some(why.to_string().chars().take(WORDS).collect()),
            ),
        };
        let heard: Instant = *scope.last_heard.lock();
        Self {
            group: scope.key.gvr.group.to_string(),
            version: scope.key.gvr.version.to_string(),
            resource: scope.key.gvr.resource.to_string(),
            encoding: match encoding {
                Encoding::Json => "json",
                Encoding::Protobuf => "protobuf",
            },
            content: if metadata_only { "metadata" } else { "objects" },
            selection: scope.key.selection.to_string(),
            phase,
            why,
            following: scope.is_following(),
            objects: figures.objects,
            object_bytes: figures.object_bytes,
            window_events: figures.events,
            window_bytes: figures.event_bytes,
            resource_version: figures.version.0,
            last_heard_seconds: heard.elapsed().as_secs_f64(),
            watchers: figures.watchers,
        }
    }

    fn bytes(&self) -> usize {
        self.object_bytes + self.window_bytes
    }

    /// Answers from memory that keep up with upstream.
    pub(super) fn is_well(&self) -> bool {
        self.phase == PhaseName::Ready && self.following
    }

    pub(super) fn last_heard(&self) -> Duration {
        Duration::from_secs_f64(self.last_heard_seconds)
    }
}

impl From<TopClients> for Clients {
    fn from(top: TopClients) -> Self {
        let client = |row: ClientUsage| Client {
            user: row.user,
            agent: row.agent,
            share: row.share,
            requests_per_second: row.requests_per_second,
            bytes_per_second: row.bytes_per_second,
            requests: row.requests,
            forwarded: row.forwarded,
            sent_bytes: row.bytes,
            watches: row.watches,
        };
        Self {
            known: top.known,
            let_go: top.evicted,
            top: top.rows.into_iter().map(client).collect(),
        }
    }
}

fn certificates(state: &State) -> Vec<Certificate> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    let listeners = [("proxy", &state.proxy_tls), ("admin", &state.admin_tls)];
    let ends = listeners
        .into_iter()
        .filter_map(|(listener, tls)| Some((listener, tls.as_ref().and_then(ServerTls::ends)?)));
    ends.map(|(listener, ends)| Certificate {
        listener,
        ends_in_seconds: ends - now,
    })
    .collect()
}
