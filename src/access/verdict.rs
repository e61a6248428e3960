//! Upstream's answers to access requests, and their validity.
pub(super) mod cache;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::time::Instant;

use super::changes::settling::{PASSED_ON_AGE, SETTLED};
use super::identity::Identity;
use super::metrics;
use super::node::GrantReason;
use super::request::AccessRequest;
use crate::atomic_moment::AtomicMoment;

/// Number of lifetimes after which a grant by RBAC is not renewed any more.
const MAX_LIFETIMES: u32 = 24;
/// Age up to which a grant by RBAC is renewed with all others, instead of being reviewed. It bounds
/// what an error of the proxy could do.
const MAX_RENEWED_AGE: Duration = Duration::from_hours(2);
/// Start of the RBAC authorizer's reasons for a grant.
/// Source: `kubernetes/plugin/pkg/auth/authorizer/rbac/rbac.go` (authorizingVisitor.visit).
pub(super) const BY_RBAC: &str = "RBAC: allowed by ";

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

    /// Returns that user.
    pub fn identity(&self) -> &Identity {
        &self.request.identity
    }

    /// Returns the verdict on a request that it covers. What ends one ends the other: changes of RBAC
    /// concern a user's requests in a namespace alike.
    pub(super) fn covering(self, request: &Arc<AccessRequest>) -> Self {
        Self {
            request: Arc::clone(request),
            verdict: self.verdict,
        }
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

    /// Returns `true` for a grant by RBAC.
    pub(super) fn is_grant_by_rbac(&self) -> bool {
        matches!(self, Self::Allowed(reason) if reason.starts_with(BY_RBAC))
    }
}

/// Returns the age up to which grants of this lifetime are renewed at most. It is no shorter than
/// the lifetime.
pub(super) fn max_renewed_age(ttl: Duration) -> Duration {
    ttl.saturating_mul(MAX_LIFETIMES)
        .min(MAX_RENEWED_AGE)
        .max(ttl)
}

/// The basis of a verdict. It decides what ends the verdict, and what prolongs it.
#[derive(Debug)]
pub(super) enum VerdictBasis {
    /// A grant by RBAC.
    Rbac {
        /// Age up to which it is renewed with others. Up to its lifetime, it is not.
        renewed_until: Duration,
    },
    /// A grant to a node. The reason for it is followed instead of RBAC.
    Node {
        reason: GrantReason,
        /// Lifetime while the reason is followed, from the request on.
        lifetime: Duration,
    },
    /// Another grant, or a denial.
    Other,
}

impl VerdictBasis {
    /// Returns what the decision alone says.
    fn of(decision: &Decision) -> Self {
        if decision.is_grant_by_rbac() {
            Self::Rbac {
                renewed_until: Duration::ZERO,
            }
        } else {
            Self::Other
        }
    }
}

/// Upstream's answer to an access request, and the time for which it is valid.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) decision: Decision,
    pub(super) basis: VerdictBasis,
    pub(super) position: ChangePosition,
    /// Time from upstream's decision to the request. It is zero, unless upstream is a proxy that had
    /// the verdict already.
    age_at_request: Duration,
    /// Lifetime while RBAC is followed, from the request on.
    pub(super) ttl: Duration,
    /// Lifetime while RBAC is not followed.
    pub(super) unwatched_ttl: Duration,
    /// Changes of RBAC before this number have been compared with the request. None is compared with a grant
    /// to a node whose reason is followed.
    pub(super) compared: AtomicU64,
    /// The first change after the request that concerns it.
    overtaken: AtomicMoment,
    /// The moment from which on upstream surely knows an earlier change that concerns it.
    settled: AtomicMoment,
}

impl Verdict {
    pub(super) fn new(
        decision: Decision,
        position: ChangePosition,
        ttl: Duration,
        unwatched_ttl: Duration,
    ) -> Self {
        Self {
            basis: VerdictBasis::of(&decision),
            decision,
            age_at_request: Duration::ZERO,
            position,
            ttl,
            unwatched_ttl,
            compared: AtomicU64::new(position.unsettled),
            overtaken: AtomicMoment::default(),
            settled: AtomicMoment::default(),
        }
    }

    /// Returns a verdict that was this old when it was requested.
    pub(super) fn aged(self, age: Duration) -> Self {
        Self {
            age_at_request: age,
            ttl: self.ttl.saturating_sub(age),
            unwatched_ttl: self.unwatched_ttl.saturating_sub(age),
            ..self
        }
    }

    /// Returns the time since upstream's decision.
    pub(super) fn age(&self) -> Duration {
        let since_request = self.position.requested.elapsed();
        self.age_at_request.saturating_add(since_request)
    }

    /// Returns the moment of the review that follows from the changes of RBAC being followed from `at` on,
    /// which shows what has changed before. One that another proxy passes on has to be decided late enough,
    /// so it is asked for later.
    pub(super) fn settles_if_first_followed_at(&self, at: Instant) -> Instant {
        if self.age_at_request.is_zero() {
            at + SETTLED
        } else {
            at + SETTLED + PASSED_ON_AGE
        }
    }

    /// Returns `true` for a grant by RBAC.
    pub(super) fn is_granted_by_rbac(&self) -> bool {
        matches!(self.basis, VerdictBasis::Rbac { .. })
    }

    /// Returns `true` for a grant without a reason, as the node authorizer gives it.
    pub(super) fn is_grant_without_reason(&self) -> bool {
        matches!(&self.decision, Decision::Allowed(reason) if reason.is_empty())
    }

    /// Returns a grant that follows from RBAC as it was known after the request, and is renewed up to this age.
    /// It does not matter if upstream knew of earlier changes.
    pub(super) fn explained_until(self, age: Duration) -> Self {
        let compared = AtomicU64::new(self.position.head);
        Self {
            compared,
            ..self.renewed_until(age)
        }
    }

    /// Returns a grant by RBAC that is renewed up to this age.
    pub(super) fn renewed_until(self, age: Duration) -> Self {
        Self {
            basis: VerdictBasis::Rbac { renewed_until: age },
            ..self
        }
    }

    /// Returns the moment from which on the verdict ages, and its lifetime, if it is known that
    /// nothing had ended it at `known`. `None` if that prolongs nothing. A verdict that was renewed
    /// for as long as it may be has ended then, and not before.
    pub(super) fn renewed_at(&self, known: Instant) -> Option<(Instant, Duration)> {
        let VerdictBasis::Rbac { renewed_until } = self.basis else {
            return None;
        };
        let requested = self.position.requested;
        let end = requested + renewed_until;
        let from = known.min(end);
        let lifetime = self.ttl.min(end - from);
        let is_longer = from + lifetime > requested + self.ttl;
        is_longer.then_some((from, lifetime))
    }

    /// Returns the time for which the verdict may be used at most.
    pub(super) fn longest_use(&self) -> Duration {
        match self.basis {
            VerdictBasis::Rbac { renewed_until } => self.ttl.max(renewed_until),
            VerdictBasis::Node { lifetime, .. } => lifetime,
            VerdictBasis::Other => self.ttl,
        }
    }

    /// Returns the grant with the reason for it. Changes of RBAC do not concern it.
    pub(super) fn with_node_reason(self, reason: GrantReason) -> Self {
        Self {
            basis: VerdictBasis::Node {
                reason,
                lifetime: GrantReason::lifetime(),
            },
            ..self
        }
    }

    /// Notes a later change that concerns the request.
    pub(super) fn set_overtaken(&self, at: Instant) {
        if self.overtaken.set_earliest(self.position.requested, at) {
            metrics::dropped();
        }
    }

    /// Notes how long after the request upstream surely knows an earlier change that concerns it.
    pub(super) fn set_settled(&self, after: Duration) {
        let requested = self.position.requested;
        self.settled.set_earliest(requested, requested + after);
    }

    /// Returns the time of the first later change that concerns the request, if there was one.
    pub(super) fn overtaken_at(&self) -> Option<Instant> {
        self.overtaken.get(self.position.requested)
    }

    /// Returns the time of the next review that an earlier change makes necessary, if there was
    /// one.
    pub(super) fn settled_at(&self) -> Option<Instant> {
        self.settled.get(self.position.requested)
    }

    /// Returns the lifetime, which depends on whether RBAC is followed.
    pub(super) fn lifetime(&self, is_followed: bool) -> Duration {
        if is_followed {
            self.ttl
        } else {
            self.unwatched_ttl
        }
    }

    /// Returns `true` if the verdict can still be relied on, if its lifetime ends at `end`.
    pub(super) fn is_valid(&self, now: Instant, end: Instant) -> bool {
        now < end && self.overtaken_at().is_none() && self.settled_at().is_none_or(|at| now < at)
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
    /// Changes from this number on may not have reached upstream's authorizers by then, or before a verdict
    /// that is passed on.
    pub(super) unsettled: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_mins(5);

    fn grant(requested: Instant, renewed_until: Duration) -> Verdict {
        let position = ChangePosition {
            requested,
            timeline: 0,
            head: 0,
            unsettled: 0,
        };
        let granted = Decision::Allowed(BY_RBAC.into());
        Verdict::new(granted, position, TTL, TTL).renewed_until(renewed_until)
    }

    #[test]
    fn a_grant_is_renewed_until_it_is_too_old() {
        let requested = Instant::now();
        let grant = grant(requested, MAX_RENEWED_AGE);
        let renewed = |after: Duration| grant.renewed_at(requested + after);
        let (last, left) = (Duration::from_mins(119), Duration::from_mins(1));
        assert_eq!(last + left, MAX_RENEWED_AGE);
        assert_eq!(renewed(Duration::ZERO), None, "it lasts as long by itself");
        assert_eq!(renewed(TTL), Some((requested + TTL, TTL)));
        assert_eq!(renewed(last), Some((requested + last, left)));
        let end = Some((requested + MAX_RENEWED_AGE, Duration::ZERO));
        assert_eq!(renewed(MAX_RENEWED_AGE + TTL), end);
        assert_eq!(grant.longest_use(), MAX_RENEWED_AGE);
    }

    #[test]
    fn a_grant_is_not_renewed_up_to_an_age_before_its_end() {
        let requested = Instant::now();
        for age in [Duration::ZERO, TTL / 2, TTL] {
            let grant = grant(requested, age);
            for known in [Duration::ZERO, TTL / 4, TTL / 2, TTL, MAX_RENEWED_AGE] {
                assert_eq!(grant.renewed_at(requested + known), None, "{age:?}");
            }
            assert_eq!(grant.longest_use(), TTL);
        }
    }

    #[test]
    fn the_longest_age_follows_from_the_lifetime() {
        for (ttl, longest) in [
            (Duration::ZERO, Duration::ZERO),
            (Duration::from_secs(30), Duration::from_mins(12)),
            (TTL, MAX_RENEWED_AGE),
            (Duration::from_hours(1), MAX_RENEWED_AGE),
            (Duration::from_hours(3), Duration::from_hours(3)),
            (Duration::MAX, Duration::MAX),
        ] {
            assert_eq!(max_renewed_age(ttl), longest, "{ttl:?}");
        }
    }
}
