//! The shares that callers have of what reads take here beyond their answers.
use super::exceeded::LimitExceeded;
use super::limit::Limit;
use crate::fairness::{CallerKey, Share, ShareLimits, Shares};
use crate::serve::metrics;
use crate::serve::policy::UserLimits;

/// Counts the scans of each user, the states kept for its pages, and the scopes opened for it.
///
/// All callers without credentials are one user here: nothing else bounds what they take together.
pub(in crate::serve) struct ReadLimits {
    scans: Limit,
    pages: Shares,
    scopes: Shares,
}

impl ReadLimits {
    pub(in crate::serve) fn new(limits: UserLimits) -> Self {
        let shares = |name, each: u32| {
            let each = u64::from(each);
            let [held, _] = metrics::limited_number(name, 0);
            Shares::new(ShareLimits { all: 0, each }, held)
        };
        Self {
            scans: Limit::new(LimitExceeded::Scans, 0, limits.scans.into()),
            pages: shares("page-states", limits.page_states),
            scopes: shares("on-demand-scopes", limits.scopes),
        }
    }

    /// Counts a list of a user that looks at objects one by one, until its answer is put together.
    pub(in crate::serve) fn scan(&self, user: &str) -> Result<Share, LimitExceeded> {
        self.scans.take(CallerKey::user(user), 1)
    }

    /// Counts a state that is kept for the next page of a user. Without a share that page is
    /// forwarded.
    pub(in crate::serve) fn page_state(&self, user: &str) -> Option<Share> {
        self.pages.take(CallerKey::user(user), 1)
    }

    /// Counts a scope that is opened for a user's selectors, while it is open. Without a share the
    /// read is forwarded.
    pub(in crate::serve) fn scope(&self, user: &str) -> Option<Share> {
        self.scopes.take(CallerKey::user(user), 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_at_a_limit_affects_no_other() {
        let limits = ReadLimits::new(UserLimits {
            scans: 2,
            page_states: 1,
            scopes: 1,
            ..UserLimits::default()
        });
        let scans: Vec<_> = (0..3).map(|_| limits.scan("ann")).collect();
        assert!(matches!(
            &scans[..],
            [Ok(_), Ok(_), Err(LimitExceeded::Scans)]
        ));
        let (state, scope) = (limits.page_state("ann"), limits.scope("ann"));
        assert!(state.is_some() && limits.page_state("ann").is_none());
        assert!(scope.is_some() && limits.scope("ann").is_none());
        assert!(limits.scan("bob").is_ok());
        assert!(limits.page_state("bob").is_some() && limits.scope("bob").is_some());
        drop((scans, state, scope));
        assert!(limits.scan("ann").is_ok());
        assert!(limits.page_state("ann").is_some() && limits.scope("ann").is_some());
    }
}
