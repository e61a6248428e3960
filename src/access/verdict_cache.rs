//! The weights and lifetimes of verdicts in the cache.
use std::sync::Arc;
use std::time::Duration;

use moka::Expiry;

use super::error::ReviewError;
use super::request::AccessRequest;
use super::verdict::ReviewedAccess;

/// Size of one cached verdict without its text.
const VERDICT_BYTES: usize = 512;

/// A review, or the reason why there is none.
pub(super) type ReviewResult = Result<ReviewedAccess, Arc<ReviewError>>;

/// Evicts verdicts that cannot be valid any more. [`Verdict::is_valid`] decides about the others at
/// each use.
pub(super) struct VerdictExpiry;

impl Expiry<Arc<AccessRequest>, ReviewResult> for VerdictExpiry {
    fn expire_after_create(
        &self,
        _: &Arc<AccessRequest>,
        reviewed: &ReviewResult,
        _: std::time::Instant,
    ) -> Option<Duration> {
        // Errors are shared by concurrent requests only.
        let Ok(ReviewedAccess { verdict, .. }) = reviewed else {
            return Some(Duration::ZERO);
        };
        Some(verdict.longest_use())
    }

    fn expire_after_update(
        &self,
        request: &Arc<AccessRequest>,
        reviewed: &ReviewResult,
        now: std::time::Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        self.expire_after_create(request, reviewed, now)
    }
}

/// Returns the bytes that a cached verdict takes.
pub(super) fn weight(request: &Arc<AccessRequest>, reviewed: &ReviewResult) -> u32 {
    let reason = reviewed
        .as_ref()
        .map_or(0, |reviewed| reviewed.decision().reason().len());
    u32::try_from(VERDICT_BYTES + request.size() + reason).unwrap_or(u32::MAX)
}
