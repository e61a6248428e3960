//! The verdicts for one use, and the reviews that run for it.
use std::net::IpAddr;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use moka::future::Cache;

use crate::access::error::ReviewError;
use crate::access::node::NodeGrantMode;
use crate::access::request::AccessRequest;
use crate::access::reviews::verdict_form::VerdictAge;
use crate::access::verdict::ReviewedAccess;
use crate::access::verdict::cache::{VerdictExpiry, weight};
use crate::shared_calls::JoinedCalls;

/// Size limit of the cache.
const MAX_BYTES: u64 = 64 << 20;
/// The same with the grants of nodes, which are kept for hours: those of 5,000 nodes take 90 MiB.
const MAX_BYTES_WITH_NODES: u64 = 192 << 20;
/// Size limit of the reviews for other proxies.
const MAX_BYTES_PASSED_ON: u64 = 8 << 20;

/// A review, or the reason why there is none.
pub(super) type ReviewResult = Result<ReviewedAccess, Arc<ReviewError>>;

/// Keeps verdicts, and shares reviews among those who ask the same at the same time.
pub(super) struct Verdicts {
    known: Cache<Arc<AccessRequest>, ReviewedAccess>,
    /// Those for callers without credentials by their addresses, too: each waits for its own turn only.
    running: JoinedCalls<(Arc<AccessRequest>, Option<IpAddr>), ReviewResult>,
}

impl Verdicts {
    /// Returns an empty cache for the requests of this proxy's own callers.
    pub(super) fn of_callers(node_grants: NodeGrantMode) -> Self {
        let max_bytes = match node_grants {
            NodeGrantMode::Review => MAX_BYTES,
            NodeGrantMode::FollowPods => MAX_BYTES_WITH_NODES,
        };
        let known = Cache::builder()
            .weigher(weight)
            .max_capacity(max_bytes)
            .expire_after(VerdictExpiry)
            .build();
        let running = JoinedCalls::default();
        Self { known, running }
    }

    /// Returns an empty cache for what other proxies ask.
    pub(super) fn for_proxies() -> Self {
        let known = Cache::builder()
            .weigher(weight)
            .max_capacity(MAX_BYTES_PASSED_ON)
            .time_to_live(VerdictAge::Old.limit())
            .build();
        let running = JoinedCalls::default();
        Self { known, running }
    }

    /// Returns the last verdict on a request, whatever it is worth now.
    pub(super) async fn get(&self, request: &Arc<AccessRequest>) -> Option<ReviewedAccess> {
        self.known.get(request).await
    }

    pub(super) async fn insert(&self, request: Arc<AccessRequest>, reviewed: ReviewedAccess) {
        self.known.insert(request, reviewed).await;
    }

    /// Notes the result of a review. After one that failed, what was known before does not count any more.
    pub(super) async fn note(&self, request: &Arc<AccessRequest>, result: &ReviewResult) {
        match result {
            Ok(reviewed) => self.insert(Arc::clone(request), reviewed.clone()).await,
            Err(_) => self.known.invalidate(request).await,
        }
    }

    /// Returns the result of the review of a request that runs. If none does, `review` begins one.
    pub(super) async fn review(
        &self,
        request: &Arc<AccessRequest>,
        address: IpAddr,
        review: impl Fn() -> BoxFuture<'static, ReviewResult>,
    ) -> ReviewResult {
        let address = request.identity.is_anonymous().then_some(address);
        let key = (Arc::clone(request), address);
        self.running.join(&key, review).await
    }
}
