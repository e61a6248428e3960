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
use std::time::{Duration, Instant};

use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::sync;
use tokio::time::timeout;

use super::own::OwnRights;
use super::request::AccessRequest;
use crate::scope::Timeline;
use crate::upstream::UpstreamClient;

/// Names and selections that are reviewed one by one before all are.
const FEW_NAMES: usize = 2;
/// Callers and types whose reviewed names and selections are counted.
const MAX_COUNTED: u64 = 10_000;
/// Time for which they are counted.
const COUNTED_FOR: Duration = Duration::from_mins(5);
/// Time after which upstream is asked about its authorizers again.
const KNOWN_TTL: Duration = Duration::from_mins(1);
/// Time after which it is asked again if it did not answer.
const RETRY: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(2);

/// Decides when all names of a type are reviewed at once.
pub(super) struct EveryName {
    own: OwnRights,
    /// Hashes of the requests that were reviewed lately, by a hash of the request for all names.
    reviewed: Cache<u64, Arc<Mutex<Vec<u64>>>>,
    hasher: RandomState,
    timeline: Timeline,
    /// The lock is held while upstream is asked.
    lists_rules: sync::Mutex<Option<RulesAnswer>>,
}

/// Upstream's last answer to the question about its authorizers.
struct RulesAnswer {
    lists_rules: bool,
    /// Another cluster has other authorizers.
    timeline: u64,
    until: Instant,
}

impl EveryName {
    pub(super) fn new(client: UpstreamClient, timeline: Timeline) -> Self {
        let reviewed = Cache::builder()
            .max_capacity(MAX_COUNTED)
            .time_to_live(COUNTED_FOR)
            .build();
        Self {
            own: OwnRights::new(client),
            reviewed,
            hasher: RandomState::new(),
            timeline,
            lists_rules: sync::Mutex::default(),
        }
    }

    /// Notes a name or selection that no cached verdict covers. Returns `true` if all should be
    /// reviewed, and a review of all is possible at this upstream.
    pub(super) async fn should_review(&self, one: &AccessRequest, all: &AccessRequest) -> bool {
        let reviewed = self
            .reviewed
            .get_with(self.hasher.hash_one(all), Arc::default);
        self.is_beyond_few(one, &reviewed) && self.lists_rules().await
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

    /// Returns `true` if all of upstream's authorizers can list the rules by which they judge the
    /// proxy. One caller at a time asks, and the others wait for the answer.
    async fn lists_rules(&self) -> bool {
        let mut known = self.lists_rules.lock().await;
        let timeline = self.timeline.number();
        if let Some(answer) = &*known
            && answer.timeline == timeline
            && Instant::now() < answer.until
        {
            return answer.lists_rules;
        }
        let answer = timeout(TIMEOUT, self.own.are_rules_complete()).await;
        let (lists_rules, ttl) = match answer {
            Ok(Ok(lists_rules)) => (lists_rules, KNOWN_TTL),
            Ok(Err(error)) => {
                tracing::debug!(%error, "upstream does not list the proxy's rules");
                (false, RETRY)
            }
            Err(_) => (false, RETRY),
        };
        *known = Some(RulesAnswer {
            lists_rules,
            timeline,
            until: Instant::now() + ttl,
        });
        lists_rules
    }
}
