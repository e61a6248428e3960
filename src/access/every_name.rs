//! Grants of all objects of a type in a namespace, whatever their names.
//!
//! A caller that gets a thousand objects by name would cost upstream a thousand reviews, and so
//! would the proxies of a thousand nodes that each list the pods of their own. A review of a name
//! that nobody can know stands for all of them. Watches have reviews of their own, as they are
//! judged again while they are open:
//!
//! - A rule of RBAC that has names grants those names and no other, so a rule without names must
//!   have granted this one. Rules only add up, so nothing takes a name out of it again.
//! - The other authorizers of an API server grant everything, or a namespace, or nothing. Neither
//!   they nor RBAC look at selectors.
//! - Webhooks can judge each name and selector, and the node authorizer judges nodes so. Neither can
//!   list its rules, which upstream tells (SelfSubjectRulesReview). Then each is reviewed.
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use parking_lot::Mutex;

use super::authorizer_rules::AuthorizerRules;
use super::request::AccessRequest;

/// Names and selections that are reviewed one by one before all are.
const FEW_NAMES: usize = 2;
/// Callers and types whose reviewed names and selections are counted.
const MAX_COUNTED: u64 = 10_000;
/// Time for which they are counted.
const COUNTED_FOR: Duration = Duration::from_mins(5);

/// Decides when all names of a type are reviewed at once.
pub(super) struct EveryName {
    rules: Arc<AuthorizerRules>,
    /// Hashes of the requests that were reviewed lately, by a hash of the request for all names.
    reviewed: Cache<u64, Arc<Mutex<Vec<u64>>>>,
    hasher: RandomState,
}

impl EveryName {
    pub(super) fn new(rules: Arc<AuthorizerRules>) -> Self {
        let reviewed = Cache::builder()
            .max_capacity(MAX_COUNTED)
            .time_to_live(COUNTED_FOR)
            .build();
        Self {
            rules,
            reviewed,
            hasher: RandomState::new(),
        }
    }

    /// Notes a name or selection that no cached verdict covers. Returns `true` if all should be
    /// reviewed, and a review of all is possible at this upstream.
    pub(super) async fn should_review(&self, one: &AccessRequest, all: &AccessRequest) -> bool {
        let reviewed = self
            .reviewed
            .get_with(self.hasher.hash_one(all), Arc::default);
        self.is_beyond_few(one, &reviewed) && self.rules.are_listed().await
    }

    /// Notes a request. Returns `true` if it is none of the first few.
    fn is_beyond_few(&self, one: &AccessRequest, reviewed: &Mutex<Vec<u64>>) -> bool {
        let hash = self.hasher.hash_one(one);
        let mut reviewed = reviewed.lock();
        if reviewed.contains(&hash) {
            return false;
        }
        let is_beyond = reviewed.len() >= FEW_NAMES;
        if !is_beyond {
            reviewed.push(hash);
        }
        is_beyond
    }
}
