//! Upstream's answers to access requests, and their validity.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::metrics;
use super::node::NodeRight;
use super::request::AccessRequest;

/// Age up to which a grant by RBAC is renewed with all others, instead of being reviewed. It bounds
/// what an error of the proxy could do.
pub(super) const MAX_RENEWED_AGE: Duration = Duration::from_hours(2);

/// An access request and upstream's answer. Equal requests share the cached answer.
#[derive(Clone, Debug)]
pub struct ReviewedAccess {
    pub(super) request: Arc<AccessRequest>,
    pub(super) verdict: Arc<Verdict>,
}

impl ReviewedAccess {
    /// Returns the name of the user whose access was reviewed.
    pub fn user(&self) -> &str {
        &self.request.identity.user
    }

    /// Returns `true` if upstream grants the access.
    pub(super) fn is_allowed(&self) -> bool {
        matches!(self.verdict.decision, Decision::Allowed(_))
    }

    /// Returns upstream's decision.
    pub fn decision(&self) -> &Decision {
        &self.verdict.decision
    }
}

/// Upstream's decision, with the authorizer's reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The access is granted.
    Allowed(Arc<str>),
    /// The access is denied.
    Denied(Arc<str>),
}

impl Decision {
    /// Returns the authorizer's reason, which may be empty.
    pub fn reason(&self) -> &str {
        let (Self::Allowed(reason) | Self::Denied(reason)) = self;
        reason
    }
}

/// The authorizer that explained a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Explanation {
    Rbac,
    /// Another one, or none.
    Other,
}

/// Upstream's answer to an access request, and the time for which it is valid.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) decision: Decision,
    pub(super) position: ChangePosition,
    /// Lifetime while RBAC is followed, from the request on.
    pub(super) ttl: Duration,
    /// Lifetime while RBAC is not followed.
    pub(super) unwatched_ttl: Duration,
    pub(super) explained_by: Explanation,
    /// The base of the grant, if that is followed instead of RBAC.
    pub(super) basis: Option<NodeRight>,
    /// Changes before this number have been compared with the request.
    pub(super) compared: AtomicU64,
    /// Nanoseconds from the request to the first change that concerns it; [`NEVER`] without one.
    overtaken: AtomicU64,
    /// Nanoseconds from the request until upstream surely knows an earlier change that concerns
    /// it; [`NEVER`] without one.
    settled: AtomicU64,
}

impl Verdict {
    pub(super) fn new(
        decision: Decision,
        position: ChangePosition,
        ttl: Duration,
        unwatched_ttl: Duration,
    ) -> Self {
        Self {
            decision,
            position,
            ttl,
            unwatched_ttl,
            explained_by: Explanation::Other,
            basis: None,
            compared: AtomicU64::new(position.unsettled),
            overtaken: AtomicU64::new(NEVER),
            settled: AtomicU64::new(NEVER),
        }
    }

    /// Returns true for a grant without a reason, as the node authorizer gives it.
    pub(super) fn is_unexplained_grant(&self) -> bool {
        matches!(&self.decision, Decision::Allowed(reason) if reason.is_empty())
    }

    /// Returns true for a grant by RBAC that is cached: without other authorizers that can deny what
    /// RBAC grants, nothing but a change of RBAC ends it.
    pub(super) fn is_renewed_by_rules(&self) -> bool {
        matches!(&self.decision, Decision::Allowed(_))
            && self.explained_by == Explanation::Rbac
            && !self.ttl.is_zero()
    }

    /// Returns the moment from which on a grant by RBAC ages, and its lifetime, if upstream said at
    /// `listed` that nothing but RBAC can end it. `None` if that prolongs nothing.
    pub(super) fn renewed_at(&self, listed: Instant) -> Option<(Instant, Duration)> {
        let requested = self.position.requested;
        let left = (requested + MAX_RENEWED_AGE).checked_duration_since(listed)?;
        let lifetime = self.ttl.min(left);
        let is_longer = listed + lifetime > requested + self.ttl;
        (is_longer && self.is_renewed_by_rules()).then_some((listed, lifetime))
    }

    /// Returns the time for which the verdict may be used at most.
    pub(super) fn longest_use(&self) -> Duration {
        if self.is_renewed_by_rules() {
            self.ttl.max(MAX_RENEWED_AGE)
        } else {
            self.ttl
        }
    }

    /// Returns a grant that rests on `basis`. Changes of RBAC do not concern it.
    pub(super) fn resting_on(self, basis: NodeRight) -> Self {
        Self {
            ttl: NodeRight::lifetime(),
            basis: Some(basis),
            ..self
        }
    }

    /// Notes a later change that concerns the request.
    pub(super) fn set_overtaken(&self, after: Duration) {
        let before = self
            .overtaken
            .fetch_min(nanoseconds(after), Ordering::AcqRel);
        if before == NEVER {
            metrics::dropped();
        }
    }

    /// Notes when upstream surely knows an earlier change that concerns the request.
    pub(super) fn set_settled(&self, after: Duration) {
        self.settled.fetch_min(nanoseconds(after), Ordering::AcqRel);
    }

    /// Returns the time of the first later change that concerns the request, if there was one.
    pub(super) fn overtaken_at(&self) -> Option<Instant> {
        self.moment(&self.overtaken)
    }

    /// Returns the time of the next review that an earlier change makes necessary, if there was
    /// one.
    pub(super) fn settled_at(&self) -> Option<Instant> {
        self.moment(&self.settled)
    }

    /// Returns the lifetime, which depends on whether RBAC is followed.
    pub(super) fn lifetime(&self, is_followed: bool) -> Duration {
        if is_followed {
            self.ttl
        } else {
            self.unwatched_ttl
        }
    }

    /// Returns whether the verdict can still be relied on, if its lifetime ends at `end`.
    pub(super) fn is_valid(&self, now: Instant, end: Instant) -> bool {
        now < end && self.overtaken_at().is_none() && self.settled_at().is_none_or(|at| now < at)
    }

    fn moment(&self, after: &AtomicU64) -> Option<Instant> {
        let after = after.load(Ordering::Acquire);
        (after != NEVER).then(|| self.position.requested + Duration::from_nanos(after))
    }
}

/// The time of a request, and its position among the changes of RBAC.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChangePosition {
    pub(super) requested: Instant,
    /// The timeline of upstream's versions at that time.
    pub(super) timeline: u64,
    /// Changes from this number on came after the request.
    pub(super) head: u64,
    /// Changes from this number on may not have reached upstream's authorizers by then.
    pub(super) unsettled: u64,
}

const NEVER: u64 = u64::MAX;

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_mins(5);

    fn grant(requested: Instant, explained_by: Explanation) -> Verdict {
        let position = ChangePosition {
            requested,
            timeline: 0,
            head: 0,
            unsettled: 0,
        };
        let mut verdict = Verdict::new(Decision::Allowed("".into()), position, TTL, TTL);
        verdict.explained_by = explained_by;
        verdict
    }

    #[test]
    fn a_grant_by_rbac_is_renewed_until_it_is_too_old() {
        let requested = Instant::now();
        let grant = grant(requested, Explanation::Rbac);
        let renewed = |after: Duration| grant.renewed_at(requested + after);
        let (last, left) = (Duration::from_mins(119), Duration::from_mins(1));
        assert_eq!(last + left, MAX_RENEWED_AGE);
        assert_eq!(renewed(Duration::ZERO), None, "it lasts as long by itself");
        assert_eq!(renewed(TTL), Some((requested + TTL, TTL)));
        assert_eq!(renewed(last), Some((requested + last, left)));
        assert_eq!(renewed(MAX_RENEWED_AGE + TTL), None);
        assert_eq!(grant.longest_use(), MAX_RENEWED_AGE);
    }

    #[test]
    fn grants_of_other_authorizers_are_not_renewed() {
        let requested = Instant::now();
        let grant = grant(requested, Explanation::Other);
        assert_eq!(grant.renewed_at(requested + TTL), None);
        assert_eq!(grant.longest_use(), TTL);
    }
}
