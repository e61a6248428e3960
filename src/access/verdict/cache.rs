//! The weights and lifetimes of verdicts in the cache.
use std::sync::Arc;
use std::time::Duration;

use moka::Expiry;

use super::ReviewedAccess;
use crate::access::error::ReviewError;
use crate::access::request::AccessRequest;

/// Size of one cached verdict without its text.
const VERDICT_BYTES: usize = 512;

/// A review, or the reason why there is none.
pub(in crate::access) type ReviewResult = Result<ReviewedAccess, Arc<ReviewError>>;

/// Evicts verdicts that cannot be valid any more. [`Verdict::is_valid`] decides about the others at
/// each use.
pub(in crate::access) struct VerdictExpiry;

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
pub(in crate::access) fn weight(request: &Arc<AccessRequest>, reviewed: &ReviewResult) -> u32 {
    let reason = reviewed
        .as_ref()
        .map_or(0, |reviewed| reviewed.decision().reason().len());
    u32::try_from(VERDICT_BYTES + request.size() + reason).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tokio::time::Instant;
    use watershed_protocol::LabelSelector;

    use super::*;
    use crate::access::request::{AccessTarget, ReviewSelectors};
    use crate::access::verdict::{ChangePosition, Decision, Verdict};

    /// Returns the time for which the cache keeps a grant that is renewed up to `age`.
    fn kept(ttl: Duration, age: Duration) -> Option<Duration> {
        let position = ChangePosition {
            requested: Instant::now(),
            timeline: 0,
            head: 0,
            unsettled: 0,
        };
        let verdict = Verdict::new(Decision::Allowed("".into()), position, ttl, ttl);
        let request = Arc::new(AccessRequest::example("ann", &[], None));
        let reviewed = ReviewedAccess {
            request: Arc::clone(&request),
            verdict: Arc::new(verdict.renewed_until(age)),
        };
        expires(&request, &Ok(reviewed))
    }

    /// Returns the time for which the cache keeps a review, as its first one and as a later one.
    fn expires(request: &Arc<AccessRequest>, reviewed: &ReviewResult) -> Option<Duration> {
        let now = std::time::Instant::now();
        let first = VerdictExpiry.expire_after_create(request, reviewed, now);
        let left = Some(Duration::from_secs(1));
        let later = VerdictExpiry.expire_after_update(request, reviewed, now, left);
        assert_eq!(first, later);
        first
    }

    #[test]
    fn verdicts_are_kept_for_as_long_as_they_can_be_valid() {
        let (ttl, age) = (Duration::from_mins(5), Duration::from_hours(2));
        assert_eq!(kept(ttl, Duration::ZERO), Some(ttl));
        assert_eq!(kept(ttl, ttl / 2), Some(ttl));
        assert_eq!(kept(ttl, age), Some(age));
        assert_eq!(kept(Duration::ZERO, Duration::ZERO), Some(Duration::ZERO));
    }

    #[test]
    fn verdicts_weigh_what_their_selectors_take() {
        let labels = LabelSelector::parse(&vec!["a="; 200].join(",")).unwrap();
        let mut request = AccessRequest::example("ann", &[], None);
        let AccessTarget::Resource(attributes) = &mut request.target else {
            panic!("{request:?} is about a resource");
        };
        attributes.selectors = ReviewSelectors::new(Some(&labels), None);
        let refused = Arc::new(ReviewError::Refused(StatusCode::FORBIDDEN));
        let requirements = labels.requirements();
        let held = requirements.len() * (size_of_val(&requirements[0]) + size_of::<String>());
        let weight = weight(&Arc::new(request), &Err(refused));
        assert!(weight as usize > held, "{weight} of {held}");
    }

    #[test]
    fn errors_are_not_kept() {
        let request = Arc::new(AccessRequest::example("ann", &[], None));
        let refused = Arc::new(ReviewError::Refused(StatusCode::FORBIDDEN));
        assert_eq!(expires(&request, &Err(refused)), Some(Duration::ZERO));
    }
}
