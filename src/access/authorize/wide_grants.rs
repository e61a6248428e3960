//! Grants of all objects of a type in a namespace, whatever their names, to all tokens of a user.
//!
//! A caller that gets a thousand objects by name would cost upstream a thousand reviews. So would the
//! proxies of a thousand nodes that each watch the pods of their own, with a token of their own. A
//! review of a name that nobody can know stands for all of them:
//!
//! - A rule of RBAC that has names grants those names and no other, so a rule without names must
//!   have granted this one. Rules only add up, so nothing takes a name out of it again.
//! - The other authorizers of an API server grant everything, or a namespace, or nothing. Neither
//!   they nor RBAC look at selectors, or at which token of the user it was.
//! - Webhooks can judge each name, selector and token, and the node authorizer judges nodes so.
//!   Neither can list its rules, which upstream tells (SelfSubjectRulesReview). Then each is reviewed.
//!
//! Once such a grant has run out, it is reviewed for all again. What rests on it is reviewed by itself
//! once it is gone: a narrower grant may have taken its place. A denial counts for itself alone, unless
//! only the tokens differ: then the review has the same name, or none.
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use parking_lot::Mutex;

use super::authorizer_rules::AuthorizerRules;
use crate::access::request::AccessRequest;

/// Names and selections that are reviewed one by one before all are: a user may be granted just these.
const MAX_SINGLE_REVIEWS: usize = 2;
/// The same for requests of which only the tokens differ.
const MAX_SINGLE_TOKENS: usize = 1;
/// Users and types whose reviewed requests are counted.
const MAX_COUNTED: u64 = 10_000;
/// Time for which they are counted.
const COUNTED_FOR: Duration = Duration::from_mins(5);

/// Decides when a wider request is reviewed in place of many.
pub(in crate::access) struct WideGrants {
    rules: Arc<AuthorizerRules>,
    /// Hashes of the requests that were reviewed lately, by a hash of the wider request.
    reviewed: Cache<u64, Arc<Mutex<Vec<u64>>>>,
    hasher: RandomState,
}

impl WideGrants {
    pub(in crate::access) fn new(rules: Arc<AuthorizerRules>) -> Self {
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

    /// Notes a request that no cached verdict covers. Returns `true` if the wider one should be
    /// reviewed, and its grant would cover this one at this upstream.
    pub(in crate::access) async fn should_review(
        &self,
        one: &AccessRequest,
        wide: &AccessRequest,
    ) -> bool {
        let reviewed = self
            .reviewed
            .get_with(self.hasher.hash_one(wide), Arc::default);
        let few = if wide.is_for_any_token() {
            MAX_SINGLE_TOKENS
        } else {
            MAX_SINGLE_REVIEWS
        };
        self.is_beyond_few(one, few, &reviewed) && self.rules.are_listed().await
    }

    /// Notes a request. Returns `true` if it is none of the first few.
    fn is_beyond_few(&self, one: &AccessRequest, few: usize, reviewed: &Mutex<Vec<u64>>) -> bool {
        let hash = self.hasher.hash_one(one);
        let mut reviewed = reviewed.lock();
        if reviewed.contains(&hash) {
            return false;
        }
        let is_beyond = reviewed.len() >= few;
        if !is_beyond {
            reviewed.push(hash);
        }
        is_beyond
    }
}
