//! Waits until a scope is as fresh as the answer has to be.
use std::time::{Duration, Instant};

use tokio::time;
use watershed_protocol::{Freshness, ResourceVersion};

use super::open::OpenedScope;
use crate::proof::{MAX_WAIT, ProofDemand, ProofError, ProvenState, Provers, WatchedObjects};
use crate::scope::ScopePhase;
use crate::serve::plan::{ReadKind, ReadPlan, SelectedSize};
use crate::serve::source::{AnswerSource, ForwardReason};

/// Longest wait of a get or list for a version that is ahead of the cache. Then upstream answers,
/// which waits by its own rule (3 s) and refuses in its own words. Events are milliseconds behind; a
/// type on which nothing happens would not get there before its next bookmark.
const VERSION_WAIT: Duration = Duration::from_millis(100);
/// The same of a watch, which would take a connection to upstream for seconds.
const WATCH_VERSION_WAIT: Duration = Duration::from_secs(1);

/// The least version of any state. A scope that was not listed yet, or that forgot everything, is
/// at version zero.
const ANY_VERSION: ResourceVersion = ResourceVersion(1);

/// A scope that is fresh enough for the answer.
pub(in crate::serve) struct FreshScope {
    pub(in crate::serve) opened: OpenedScope,
    /// The version that a snapshot must have at least to be the answer. That the scope has reached
    /// it does not mean that it stays there: it may be listed anew at another server.
    pub(in crate::serve) min_version: ResourceVersion,
    /// The proven state of what the read selects, if the rest of the snapshot may be older.
    pub(in crate::serve) proven: Option<ProvenState>,
    /// Source of answers from the scope's snapshot.
    pub(in crate::serve) source: AnswerSource,
}

/// The place of a read among others.
#[derive(Clone, Copy, Debug)]
pub(in crate::serve) enum ReadOrigin {
    /// A request.
    Request {
        /// Requests with the same number would share a request to upstream.
        number: u64,
        /// The answer may be as old as this.
        arrived: Instant,
    },
    /// One of many gets of its type, of which so many are expected in a second.
    Crowd(f64),
}

/// Waits until the scope is as fresh as the read demands.
pub(in crate::serve) async fn wait_until_fresh(
    provers: &Provers,
    opened: OpenedScope,
    read: &ReadPlan,
    origin: ReadOrigin,
) -> Result<FreshScope, ForwardReason> {
    let mut proven = None;
    let (min_version, source) = match read.freshness {
        Freshness::Any => (ANY_VERSION, AnswerSource::Snapshot),
        Freshness::MostRecent if read.may_be_stale => (ANY_VERSION, AnswerSource::Stale),
        Freshness::NotOlderThan(version) | Freshness::Exact(version) => {
            let wait = match read.kind {
                ReadKind::Watch(_) => WATCH_VERSION_WAIT,
                ReadKind::Get { .. } | ReadKind::List(_) => VERSION_WAIT,
            };
            if !opened.scope.catch_up_with(version, wait).await {
                return Err(ForwardReason::VersionAhead);
            }
            (version, AnswerSource::Snapshot)
        }
        Freshness::MostRecent => {
            let (version, state) = prove(provers, &opened, read, origin).await.map_err(|why| {
                let resource = &opened.scope.key.gvr;
                tracing::debug!(%resource, %why, "a consistent read is forwarded");
                ForwardReason::Unproven
            })?;
            proven = state;
            (version, AnswerSource::Linearizable)
        }
    };
    // Upstream's versions may have gone back meanwhile.
    if !opened.scope.is_current() {
        return Err(ForwardReason::Syncing);
    }
    if matches!(opened.scope.phase(), ScopePhase::SchemaChanged) {
        return Err(ForwardReason::SchemaChanged);
    }
    Ok(FreshScope {
        opened,
        min_version,
        proven,
        source,
    })
}

/// Returns the reason for which a read is forwarded whose scope did not get fresh enough in time.
pub(in crate::serve) fn reason_if_late(read: &ReadPlan) -> ForwardReason {
    match read.freshness {
        Freshness::MostRecent => ForwardReason::Unproven,
        Freshness::Any | Freshness::NotOlderThan(_) | Freshness::Exact(_) => {
            ForwardReason::VersionAhead
        }
    }
}

/// Proves that memory is no older than this call. Returns the version that it has at least, and the
/// state of what the read selects if only that was proven.
async fn prove(
    provers: &Provers,
    opened: &OpenedScope,
    read: &ReadPlan,
    origin: ReadOrigin,
) -> Result<(ResourceVersion, Option<ProvenState>), ProofError> {
    let scope = &opened.scope;
    let (number, arrived) = match origin {
        ReadOrigin::Crowd(rate) => return Ok((provers.prove_gets(scope, rate).await?, None)),
        ReadOrigin::Request { number, arrived } => (number, arrived),
    };
    // Watches do not share requests.
    let selection = match &read.kind {
        ReadKind::Watch(watch) => Some((&read.selection, &watch.filter)),
        ReadKind::Get { .. } | ReadKind::List(_) => None,
    };
    let SelectedSize { objects, bytes } = read.selected_size(&scope.reader.snapshot());
    let demand = ProofDemand {
        representation: opened.representation,
        objects,
        bytes,
        identity: selection.is_none().then_some(number),
    };
    let began = time::Instant::now();
    match (provers.prove(scope, demand, arrived).await, selection) {
        (Err(ProofError::Cheap), Some((selection, filter))) => {
            let mut selection = selection.clone();
            // The proxy may have no access to other namespaces.
            let own = || scope.key.selection.namespace.clone();
            selection.namespace = selection.namespace.or_else(own);
            // Upstream is asked for all shards of the selection.
            let filter = filter.of_all_shards();
            let by = began + MAX_WAIT;
            let watched = WatchedObjects {
                selection: &selection,
                filter: &filter,
                count: objects,
            };
            provers.prove_selection(scope, watched, by).await
        }
        (proven, _) => Ok((proven?, None)),
    }
}
