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

use crate::access::moment::LatestMoment;
use crate::access::own::rights::OwnRights;
use crate::scope::Timeline;
use crate::upstream::UpstreamClient;

/// Time for which an answer counts for new questions about names.
const KNOWN_TTL: Duration = Duration::from_mins(1);
/// Time after a "no" for which no grants are renewed. Such a cluster would be asked in vain each
/// time that a grant ends.
const NO_RENEWAL: Duration = Duration::from_hours(1);
/// The same after a refusal to say. API servers that have just started refuse it, too.
const REFUSAL: Duration = Duration::from_mins(5);
/// Time after which upstream is asked again if it did not answer.
const RETRY: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(2);

/// Asks upstream if its authorizers can list their rules, and remembers the answer.
pub(in crate::access) struct AuthorizerRules {
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
    /// A moment before the question that the API server answered.
    asked: Instant,
    /// The moment of the question of this proxy, which another one may have answered from memory.
    sent: Instant,
    lists: ListsRules,
    /// Another cluster has other authorizers.
    timeline: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ListsRules {
    Yes,
    No,
    /// Upstream refused to say.
    Refused,
    /// Upstream did not answer.
    Unknown,
}

impl AuthorizerRules {
    pub(in crate::access) fn new(client: UpstreamClient, timeline: Timeline) -> Self {
        Self {
            own: OwnRights::new(client),
            timeline,
            answer: Mutex::default(),
            listed: LatestMoment::default(),
        }
    }

    /// Returns `true` if all of upstream's authorizers can list their rules, by an answer of the
    /// last minute. One caller at a time asks, and the others wait for the answer.
    pub(in crate::access) async fn are_listed(&self) -> bool {
        self.listed_lately().await.is_some()
    }

    /// Returns `true` if that is known without a question.
    pub(in crate::access) fn are_known_to_be_listed(&self) -> bool {
        let last = self.answer.try_lock().ok().and_then(|last| *last);
        last.is_some_and(|answer| {
            answer.lists == ListsRules::Yes
                && answer.timeline == self.timeline.number()
                && answer.asked.elapsed() < KNOWN_TTL
        })
    }

    /// Returns a moment before the question that upstream answered so, if [`AuthorizerRules::are_listed`].
    pub(in crate::access) async fn listed_lately(&self) -> Option<Instant> {
        let is_known = |answer: &RulesAnswer| match answer.lists {
            ListsRules::Unknown => answer.asked.elapsed() < RETRY,
            ListsRules::Yes | ListsRules::No | ListsRules::Refused => {
                answer.asked.elapsed() < KNOWN_TTL
            }
        };
        let answer = self.ask_unless(is_known).await;
        (answer.lists == ListsRules::Yes).then_some(answer.asked)
    }

    /// Asks again, unless the answer was no lately. [`AuthorizerRules::last_listed`] has the result.
    ///
    /// `suffices` says whether that is new enough by now: a question may be under way that began
    /// before this call.
    pub(in crate::access) async fn look_again(&self, suffices: impl Fn() -> bool) {
        let arrived = Instant::now();
        let is_known = |answer: &RulesAnswer| match answer.lists {
            ListsRules::Yes => answer.sent >= arrived || suffices(),
            ListsRules::No => answer.asked.elapsed() < NO_RENEWAL,
            ListsRules::Refused => answer.asked.elapsed() < REFUSAL,
            ListsRules::Unknown => answer.asked.elapsed() < RETRY,
        };
        self.ask_unless(is_known).await;
    }

    /// Returns a moment before the last question that upstream answered with yes.
    pub(in crate::access) fn last_listed(&self) -> Option<Instant> {
        self.listed.get()
    }

    async fn ask_unless(&self, is_known: impl Fn(&RulesAnswer) -> bool) -> RulesAnswer {
        let mut last = self.answer.lock().await;
        let timeline = self.timeline.number();
        let known = last.filter(|answer| answer.timeline == timeline && is_known(answer));
        match known {
            Some(known) => known,
            None => *last.insert(self.ask(timeline).await),
        }
    }

    async fn ask(&self, timeline: u64) -> RulesAnswer {
        let sent = Instant::now();
        let mut asked = sent;
        let lists = match timeout(TIMEOUT, self.own.are_rules_complete()).await {
            Ok(Ok((true, age))) => match sent.checked_sub(age) {
                Some(answered) => {
                    asked = answered;
                    ListsRules::Yes
                }
                None => ListsRules::Unknown,
            },
            Ok(Ok((false, _))) => ListsRules::No,
            // Where nobody has the rights of system:basic-user, it will be refused again. But an API
            // server that has just started refuses it once.
            Ok(Err(error)) if error.is_refused() => ListsRules::Refused,
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
            sent,
            lists,
            timeline,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::StatusCode;
    use tokio::time::sleep;

    use super::*;
    use crate::test_support::{Api, HTTP2, Pki, text, upstream_of};

    const COMPLETE: &str = r#"{"spec":{},"status":{"incomplete":false}}"#;

    /// Returns what knows the rules of an upstream that gives this answer, and the number of
    /// questions that it got.
    async fn rules_of(
        status: StatusCode,
        answer: &'static str,
    ) -> (AuthorizerRules, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, move |_, _| {
            count.fetch_add(1, Ordering::AcqRel);
            async move {
                let mut response = text(answer);
                *response.status_mut() = status;
                response
            }
        })
        .await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        (AuthorizerRules::new(client, Timeline::default()), asked)
    }

    #[tokio::test]
    async fn nothing_is_asked_again_once_an_answer_suffices() {
        let (rules, asked) = rules_of(StatusCode::CREATED, COMPLETE).await;
        rules.look_again(|| false).await;
        assert_eq!(asked.load(Ordering::Acquire), 1);
        assert!(rules.last_listed().is_some());
        // The question was under way when this one arrived.
        rules.look_again(|| true).await;
        assert_eq!(asked.load(Ordering::Acquire), 1);
        rules.look_again(|| false).await;
        assert_eq!(asked.load(Ordering::Acquire), 2);
    }

    /// Upstream is a proxy that knew the answer.
    #[tokio::test]
    async fn an_answer_that_is_passed_on_counts_from_when_it_was_given() {
        const AGED: &str = r#"{"status":{"incomplete":false},"ageMilliseconds":1000}"#;
        let (rules, asked) = rules_of(StatusCode::CREATED, AGED).await;
        sleep(Duration::from_millis(1_100)).await;
        let before = Instant::now();
        let listed = rules.listed_lately().await.unwrap();
        let age = Duration::from_secs(1);
        assert!(listed.elapsed() >= age && listed + age >= before);
        let noted = rules.last_listed().unwrap();
        assert!(noted <= listed && noted + Duration::from_millis(2) >= listed);
        rules.are_listed().await;
        assert_eq!(asked.load(Ordering::Acquire), 1);
    }

    #[tokio::test]
    async fn a_refusal_is_an_answer_and_a_failure_is_none() {
        for (status, lists) in [
            (StatusCode::FORBIDDEN, ListsRules::Refused),
            (StatusCode::NOT_FOUND, ListsRules::Refused),
            (StatusCode::UNAUTHORIZED, ListsRules::Unknown),
            (StatusCode::TOO_MANY_REQUESTS, ListsRules::Unknown),
            (StatusCode::SERVICE_UNAVAILABLE, ListsRules::Unknown),
        ] {
            let (rules, asked) = rules_of(status, "{}").await;
            for _ in 0..2 {
                rules.look_again(|| false).await;
            }
            let answer = rules.answer.lock().await.unwrap();
            assert!(answer.lists == lists, "{status}");
            assert_eq!(asked.load(Ordering::Acquire), 1, "{status}");
            assert_eq!(rules.last_listed(), None, "{status}");
        }
    }
}
