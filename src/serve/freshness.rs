//! Waits until a scope is as fresh as the answer has to be.
use std::time::Duration;

use watershed_protocol::{Freshness, ResourceVersion};

use super::fence::Fences;
use super::open::OpenedScope;
use super::plan::ReadPlan;
use super::source::{AnswerSource, ForwardReason};

/// Longest wait for a version that is ahead of the cache. Then upstream answers, which waits by its
/// own rule (3 s) and refuses in its own words. Events are milliseconds behind; a type on which
/// nothing happens would not get there before its next bookmark.
const VERSION_WAIT: Duration = Duration::from_secs(1);

/// The least version of any state. A scope that was not listed yet, or that forgot everything, is
/// at version zero.
const ANY: ResourceVersion = ResourceVersion(1);

/// A scope that is fresh enough for the answer.
pub(super) struct FreshScope {
    pub(super) opened: OpenedScope,
    /// The version that a snapshot must have at least to be the answer. That the scope has reached
    /// it does not mean that it stays there: it may be listed anew at another server.
    pub(super) min_version: ResourceVersion,
    /// Source of answers from the scope's snapshot.
    pub(super) source: AnswerSource,
}

/// Waits until the scope is as fresh as the read demands.
pub(super) async fn wait_until_fresh(
    fences: &Fences,
    opened: OpenedScope,
    read: &ReadPlan,
) -> Result<FreshScope, ForwardReason> {
    let (min_version, source) = match read.freshness {
        Freshness::Any => (ANY, AnswerSource::Snapshot),
        Freshness::MostRecent if read.may_be_stale => (ANY, AnswerSource::Stale),
        Freshness::NotOlderThan(version) | Freshness::Exact(version) => {
            if !opened.scope.wait_until_version(version, VERSION_WAIT).await {
                return Err(ForwardReason::VersionAhead);
            }
            (version, AnswerSource::Snapshot)
        }
        Freshness::MostRecent => {
            let proven = fences
                .prove(&opened.scope, |snapshot| read.is_cheap_upstream(snapshot))
                .await;
            let version = proven.map_err(|why| {
                let resource = &opened.scope.key.gvr;
                tracing::debug!(%resource, %why, "a consistent read is forwarded");
                ForwardReason::Unproven
            })?;
            (version, AnswerSource::Linearizable)
        }
    };
    // Upstream's versions may have gone back meanwhile.
    if !opened.scope.is_current() {
        return Err(ForwardReason::Syncing);
    }
    Ok(FreshScope {
        opened,
        min_version,
        source,
    })
}
