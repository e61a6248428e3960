//! Knowledge of whether upstream's authorizers can all list the rules by which they judge.
//!
//! Those of an API server either grant by rules that only add up (RBAC among them), which they can
//! list, or are webhooks, which can deny whatever others grant and list nothing. The node authorizer
//! lists nothing for nodes. Upstream tells in a SelfSubjectRulesReview whether its list is complete.
//!
//! While it is, nothing takes away what RBAC grants but a change of RBAC, and that is followed. So
//! one such answer renews all grants by RBAC, in place of a review of each.
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::moment::LatestMoment;
use super::own::OwnRights;
use crate::scope::Timeline;
use crate::upstream::UpstreamClient;

/// Time for which an answer counts for new questions about names.
const KNOWN_TTL: Duration = Duration::from_mins(1);
/// Time after a "no" for which no grants are renewed. Such a cluster would be asked in vain each
/// time that a grant ends.
const NO_RENEWAL: Duration = Duration::from_hours(1);
/// Time after which upstream is asked again if it did not answer.
const RETRY: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(2);

/// Asks upstream if its authorizers can list their rules, and remembers the answer.
pub(super) struct AuthorizerRules {
    own: OwnRights,
    timeline: Timeline,
    /// The last answer. The lock is held while upstream is asked.
    answer: Mutex<Option<RulesAnswer>>,
    /// The last question that was answered with yes.
    listed: LatestMoment,
}

/// Upstream's last answer, or the lack of one.
#[derive(Clone, Copy)]
struct RulesAnswer {
    /// A moment before the question.
    asked: Instant,
    lists: ListsRules,
    /// Another cluster has other authorizers.
    timeline: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ListsRules {
    Yes,
    No,
    /// Upstream did not answer.
    Unknown,
}

impl AuthorizerRules {
    pub(super) fn new(client: UpstreamClient, timeline: Timeline) -> Self {
        Self {
            own: OwnRights::new(client),
            timeline,
            answer: Mutex::default(),
            listed: LatestMoment::default(),
        }
    }

    /// Returns `true` if all of upstream's authorizers can list their rules, by an answer of the
    /// last minute. One caller at a time asks, and the others wait for the answer.
    pub(super) async fn are_listed(&self) -> bool {
        let is_known = |answer: &RulesAnswer| match answer.lists {
            ListsRules::Unknown => answer.asked.elapsed() < RETRY,
            ListsRules::Yes | ListsRules::No => answer.asked.elapsed() < KNOWN_TTL,
        };
        self.ask_unless(is_known).await
    }

    /// Asks again, unless the answer was no lately. [`AuthorizerRules::last_listed`] has the result.
    pub(super) async fn look_again(&self) {
        let arrived = Instant::now();
        let is_known = |answer: &RulesAnswer| match answer.lists {
            ListsRules::Yes => answer.asked >= arrived,
            ListsRules::No => answer.asked.elapsed() < NO_RENEWAL,
            ListsRules::Unknown => answer.asked.elapsed() < RETRY,
        };
        self.ask_unless(is_known).await;
    }

    /// Returns a moment before the last question that upstream answered with yes.
    pub(super) fn last_listed(&self) -> Option<Instant> {
        self.listed.get()
    }

    async fn ask_unless(&self, is_known: impl Fn(&RulesAnswer) -> bool) -> bool {
        let mut last = self.answer.lock().await;
        let timeline = self.timeline.number();
        let known = last.filter(|answer| answer.timeline == timeline && is_known(answer));
        let answer = match known {
            Some(known) => known,
            None => *last.insert(self.ask(timeline).await),
        };
        answer.lists == ListsRules::Yes
    }

    async fn ask(&self, timeline: u64) -> RulesAnswer {
        let asked = Instant::now();
        let lists = match timeout(TIMEOUT, self.own.are_rules_complete()).await {
            Ok(Ok(true)) => ListsRules::Yes,
            Ok(Ok(false)) => ListsRules::No,
            Ok(Err(error)) => {
                tracing::debug!(%error, "upstream does not list the proxy's rules");
                ListsRules::Unknown
            }
            Err(_) => ListsRules::Unknown,
        };
        if lists == ListsRules::Yes {
            self.listed.note(asked);
        }
        RulesAnswer {
            asked,
            lists,
            timeline,
        }
    }
}
