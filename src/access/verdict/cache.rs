//! The weights and lifetimes of verdicts in the cache.
use std::sync::Arc;
use std::time::Duration;

use moka::Expiry;

use super::ReviewedAccess;
use crate::access::request::AccessRequest;

/// Size of one cached verdict without its text.
const VERDICT_BYTES: usize = 512;

/// Time for which a grant of a wide request is known after it has run out. When what rested on it is
/// reviewed meanwhile, the wide one is reviewed in place of all.
const RUN_OUT_KEPT: Duration = Duration::from_mins(1);

/// Evicts verdicts that cannot be valid any more, and are of no other use. [`Verdict::is_valid`]
/// decides about the others at each use.
pub(in crate::access) struct VerdictExpiry;

impl Expiry<Arc<AccessRequest>, ReviewedAccess> for VerdictExpiry {
    fn expire_after_create(
        &self,
        request: &Arc<AccessRequest>,
        reviewed: &ReviewedAccess,
        _: std::time::Instant,
    ) -> Option<Duration> {
        let is_reviewed_again = request.is_wide() && reviewed.is_allowed();
        let after = if is_reviewed_again {
            RUN_OUT_KEPT
        } else {
            Duration::ZERO
        };
        Some(reviewed.verdict.longest_use() + after)
    }

    fn expire_after_update(
        &self,
        request: &Arc<AccessRequest>,
        reviewed: &ReviewedAccess,
        now: std::time::Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        self.expire_after_create(request, reviewed, now)
    }
}

/// Returns the bytes that a cached verdict takes.
pub(in crate::access) fn weight(request: &Arc<AccessRequest>, reviewed: &ReviewedAccess) -> u32 {
    let reason = reviewed.decision().reason().len();
    u32::try_from(VERDICT_BYTES + request.size() + reason).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use watershed_protocol::{FieldSelector, LabelSelector};

    use super::*;
    use crate::access::request::{ReviewSelectors, VerbTarget};
    use crate::access::verdict::{ChangePosition, Decision, Verdict};

    fn decided(decision: Decision, ttl: Duration) -> Verdict {
        let position = ChangePosition {
            requested: Instant::now(),
            timeline: 0,
            head: 0,
            unsettled: 0,
        };
        Verdict::new(decision, position, ttl, ttl)
    }

    /// Returns the time for which the cache keeps a grant that is renewed up to `age`.
    fn kept(ttl: Duration, age: Duration) -> Option<Duration> {
        let verdict = decided(Decision::Allowed("".into()), ttl);
        let request = Arc::new(AccessRequest::example("ann", &[], None));
        let reviewed = ReviewedAccess {
            request: Arc::clone(&request),
            verdict: Arc::new(verdict.renewed_until(age)),
        };
        expires(&request, &reviewed)
    }

    /// Returns the time for which the cache keeps a review, as its first one and as a later one.
    fn expires(request: &Arc<AccessRequest>, reviewed: &ReviewedAccess) -> Option<Duration> {
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
    fn wide_grants_are_known_for_a_while_after_they_have_run_out() {
        let ttl = Duration::from_mins(5);
        let mut request = AccessRequest::example("ann", &[], None);
        let VerbTarget::Resource { resource, .. } = &mut request.target.on else {
            panic!("{request:?} is about a resource");
        };
        resource.name = Some("web-1".to_owned());
        let wide = Arc::new(request.widened().unwrap());
        let kept = |decision| {
            let reviewed = ReviewedAccess {
                request: Arc::clone(&wide),
                verdict: Arc::new(decided(decision, ttl)),
            };
            expires(&wide, &reviewed)
        };
        assert_eq!(kept(Decision::Denied("".into())), Some(ttl));
        assert!(kept(Decision::Allowed("".into())) > Some(ttl));
    }

    #[test]
    fn verdicts_weigh_what_their_selectors_take() {
        let labels = LabelSelector::parse(&vec!["a="; 200].join(",")).unwrap();
        let mut request = AccessRequest::example("ann", &[], None);
        let VerbTarget::Resource { selectors, .. } = &mut request.target.on else {
            panic!("{request:?} is about a resource");
        };
        *selectors = ReviewSelectors::new(&labels, &FieldSelector::default());
        let requirements = labels.requirements();
        let held = requirements.len() * (size_of_val(&requirements[0]) + size_of::<String>());
        let request = Arc::new(request);
        let reviewed = ReviewedAccess {
            request: Arc::clone(&request),
            verdict: Arc::new(decided(Decision::Denied("".into()), Duration::ZERO)),
        };
        let weight = weight(&request, &reviewed);
        assert!(weight as usize > held, "{weight} of {held}");
    }
}
