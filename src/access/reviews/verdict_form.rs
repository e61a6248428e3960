//! The short form of a verdict that one proxy gives another.
//!
//! A proxy that sends a review accepts this form besides upstream's own. An API server does not know it and
//! answers in its own form. A proxy may answer in the short one: with a verdict on rights of the last minute,
//! with the user of a token that it validated, or with what it knows of upstream's authorizers. It answers 406
//! to a review that it cannot read exactly.
use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::authorization::v1::{
    SelfSubjectRulesReview, SubjectAccessReview, SubjectAccessReviewStatus,
};
use serde::{Deserialize, Serialize};
use watershed_protocol::GroupVersionResource;

use crate::access::changes::settling::{PASSED_ON_AGE, PASSED_ON_AGE_WHILE_QUIET};
use crate::access::error::ReviewError;
use crate::access::reviews::sending::{JSON, post};
use crate::access::reviews::sent::{ReviewAnswer, ReviewEndpoint};
use crate::upstream::UpstreamClient;

/// The media type of the short form.
pub const VERDICT_MEDIA_TYPE: &str = "application/vnd.watershed.verdict+json;layout=1";
/// The forms that a proxy accepts.
const YOUNG: &str = "application/vnd.watershed.verdict+json;layout=1, application/json";
/// The same, of a verdict that may be older.
const OLD: &str = "application/vnd.watershed.verdict+json;layout=1;age=60, application/json";
/// The same, of a verdict that upstream decides after the question.
const NEW: &str = "application/vnd.watershed.verdict+json;layout=1;age=0, application/json";

/// The types of reviews that proxies answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReviewType {
    /// SubjectAccessReview: may this user do that?
    SubjectAccess,
    /// TokenReview: whose token is this?
    Token,
    /// SelfSubjectRulesReview: are these all rules by which I am judged?
    SelfRules,
}

impl ReviewType {
    /// Returns the type of these reviews.
    pub fn of(gvr: &GroupVersionResource) -> Option<Self> {
        let names = (&*gvr.group, &*gvr.version, &*gvr.resource);
        let all = [Self::SubjectAccess, Self::Token, Self::SelfRules];
        all.into_iter().find(|review| review.names() == names)
    }

    pub(in crate::access) fn gvr(self) -> GroupVersionResource {
        let (group, version, plural) = self.names();
        GroupVersionResource::new(group, version, plural)
    }

    /// Returns the group, the version and the plural name.
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::SubjectAccess => ("authorization.k8s.io", "v1", "subjectaccessreviews"),
            Self::Token => ("authentication.k8s.io", "v1", "tokenreviews"),
            Self::SelfRules => ("authorization.k8s.io", "v1", "selfsubjectrulesreviews"),
        }
    }

    pub(in crate::access) fn endpoint(self) -> ReviewEndpoint {
        let (path, kind) = match self {
            Self::SubjectAccess => (
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                "subjectaccessreview",
            ),
            Self::Token => ("/apis/authentication.k8s.io/v1/tokenreviews", "tokenreview"),
            Self::SelfRules => (
                "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
                "selfsubjectrulesreview",
            ),
        };
        ReviewEndpoint { path, kind }
    }
}

/// The age that a verdict may have when it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerdictAge {
    /// None.
    New,
    /// Some seconds: the asking proxy may learn of changes that concern it, or has done so.
    Young,
    /// A minute: the asking proxy knows of no change for so long.
    Old,
}

impl VerdictAge {
    /// Returns the longest time since upstream's decision.
    pub(in crate::access) const fn limit(self) -> Duration {
        match self {
            Self::New => Duration::ZERO,
            Self::Young => PASSED_ON_AGE,
            Self::Old => PASSED_ON_AGE_WHILE_QUIET,
        }
    }

    /// Returns the media types that ask for it.
    const fn accepted(self) -> &'static str {
        match self {
            Self::New => NEW,
            Self::Young => YOUNG,
            Self::Old => OLD,
        }
    }
}

/// The parts of an answer to a review that count, in both forms. The review is a SubjectAccessReview, unless
/// the status says otherwise.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::access) struct VerdictForm<S = SubjectAccessReviewStatus> {
    /// Upstream's decision.
    pub(in crate::access) status: Option<S>,
    /// Time from the API server's decision to the arrival of the question; zero if it decided later. It is
    /// only in the short form.
    #[serde(default)]
    age_milliseconds: u64,
}

/// The part of the status of a SelfSubjectRulesReview that counts.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::access) struct RulesStatus {
    /// Some authorizer did not list its rules.
    pub(in crate::access) incomplete: bool,
}

impl VerdictForm {
    /// Returns the error of an authorizer, if no other one granted the access.
    pub(in crate::access) fn failure(&self) -> Option<&str> {
        let status = self.status.as_ref()?;
        let error = status.evaluation_error.as_deref()?;
        (!is_granted(status) && !error.is_empty()).then_some(error)
    }

    /// Returns `true` if upstream grants the access. If no authorizer has an opinion, it is denied, as in
    /// upstream's own filter.
    pub(in crate::access) fn is_granted(&self) -> bool {
        self.status.as_ref().is_some_and(is_granted)
    }
}

fn is_granted(status: &SubjectAccessReviewStatus) -> bool {
    status.allowed && status.denied != Some(true)
}

impl ReviewAnswer for VerdictForm {
    fn is_undecided(&self) -> bool {
        self.failure().is_some()
    }
}

impl ReviewAnswer for VerdictForm<RulesStatus> {}

impl<S> VerdictForm<S> {
    pub(in crate::access) fn new(status: S, age: Duration) -> Self {
        Self {
            status: Some(status),
            age_milliseconds: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        }
    }

    pub(in crate::access) fn age(&self) -> Duration {
        Duration::from_millis(self.age_milliseconds)
    }
}

/// Returns the age of the verdict that a request accepts in the short form, and upstream's own form next.
/// `None` if it does not.
pub fn wanted_verdict(headers: &HeaderMap) -> Option<VerdictAge> {
    let mut lines = headers.get_all(header::ACCEPT).iter();
    let only = lines.next().filter(|_| lines.next().is_none())?;
    match only.to_str() {
        Ok(YOUNG) => Some(VerdictAge::Young),
        Ok(NEW) => Some(VerdictAge::New),
        Ok(OLD) => Some(VerdictAge::Old),
        _ => None,
    }
}

/// Asks upstream, or a proxy in front of it, for a verdict on rights.
pub(in crate::access) async fn ask(
    client: &UpstreamClient,
    review: &SubjectAccessReview,
    age: VerdictAge,
) -> Result<VerdictForm, ReviewError> {
    let asked = ReviewType::SubjectAccess;
    let answer: VerdictForm = post_to_any(client, asked, review, age.accepted()).await?;
    if answer.age() <= age.limit() {
        return Ok(answer);
    }
    // A proxy of another release may pass on an older one.
    post(client, asked.endpoint(), review, JSON).await
}

/// Asks upstream, or a proxy in front of it, for the user of a token. A proxy's answer is a review's status
/// alone.
pub(in crate::access) async fn ask_for_user(
    client: &UpstreamClient,
    review: &TokenReview,
) -> Result<TokenReview, ReviewError> {
    post_to_any(client, ReviewType::Token, review, YOUNG).await
}

/// Asks upstream, or a proxy in front of it, whether the rules that it lists for the sender are complete. A proxy's
/// answer may be a minute old.
pub(in crate::access) async fn ask_about_rules(
    client: &UpstreamClient,
    review: &SelfSubjectRulesReview,
) -> Result<VerdictForm<RulesStatus>, ReviewError> {
    post_to_any(client, ReviewType::SelfRules, review, OLD).await
}

/// Posts a review, and once more where a proxy leaves the answer to upstream.
async fn post_to_any<T: ReviewAnswer>(
    client: &UpstreamClient,
    asked: ReviewType,
    review: &impl Serialize,
    accepted: &'static str,
) -> Result<T, ReviewError> {
    match post(client, asked.endpoint(), review, accepted).await {
        Err(ReviewError::Refused(StatusCode::NOT_ACCEPTABLE)) => {
            post(client, asked.endpoint(), review, JSON).await
        }
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{Api, HTTP2, Pki, text, typed, upstream_of};

    #[test]
    fn both_forms_are_read() {
        let own = r#"{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1",
            "metadata":{"managedFields":[]},"spec":{"user":"alice"},
            "status":{"allowed":true,"reason":"RBAC: allowed by it"}}"#;
        let own: VerdictForm = serde_json::from_str(own).unwrap();
        let status = own.status.clone().unwrap();
        assert_eq!((own.age(), status.allowed), (Duration::ZERO, true));

        let short = VerdictForm::new(status.clone(), Duration::from_millis(250));
        let short = serde_json::to_string(&short).unwrap();
        let expected =
            r#"{"status":{"allowed":true,"reason":"RBAC: allowed by it"},"ageMilliseconds":250}"#;
        assert_eq!(short, expected);
        let read: VerdictForm = serde_json::from_str(&short).unwrap();
        assert_eq!(
            (read.age(), read.status),
            (Duration::from_millis(250), Some(status))
        );
    }

    #[test]
    fn the_short_form_is_wanted_by_proxies_only() {
        let wanted = |lines: &[&'static str]| {
            let lines = lines
                .iter()
                .map(|line| (header::ACCEPT, http::HeaderValue::from_static(line)));
            wanted_verdict(&lines.collect())
        };
        assert!(
            [YOUNG, NEW, OLD]
                .iter()
                .all(|it| it.starts_with(VERDICT_MEDIA_TYPE))
        );
        assert_eq!(wanted(&[YOUNG]), Some(VerdictAge::Young));
        assert_eq!(wanted(&[NEW]), Some(VerdictAge::New));
        assert_eq!(wanted(&[OLD]), Some(VerdictAge::Old));
        for others in [
            &[JSON][..],
            &["*/*"],
            &[],
            &[YOUNG, JSON],
            &[VERDICT_MEDIA_TYPE],
        ] {
            assert_eq!(wanted(others), None, "{others:?}");
        }
    }

    #[tokio::test]
    async fn a_review_that_only_the_api_server_can_answer_is_sent_again_in_its_form() {
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, |request, _| async move {
            if wanted_verdict(request.headers()).is_some() {
                return typed(406, "text/plain", "");
            }
            assert_eq!(request.headers()[header::ACCEPT], JSON);
            text(r#"{"status":{"allowed":true}}"#)
        })
        .await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let review = SubjectAccessReview::default();
        let verdict = ask(&client, &review, VerdictAge::Young);
        let verdict = verdict.await.unwrap();
        assert!(verdict.status.unwrap().allowed);
    }

    #[tokio::test]
    async fn a_verdict_that_is_older_than_asked_for_is_not_taken() {
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, |request, _| async move {
            let age = match wanted_verdict(request.headers()) {
                Some(_) => PASSED_ON_AGE + Duration::from_millis(1),
                None => Duration::ZERO,
            };
            let verdict = VerdictForm::new(SubjectAccessReviewStatus::default(), age);
            text(serde_json::to_string(&verdict).unwrap())
        })
        .await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let review = SubjectAccessReview::default();
        for (age, is_taken) in [
            (VerdictAge::New, false),
            (VerdictAge::Young, false),
            (VerdictAge::Old, true),
        ] {
            let verdict = ask(&client, &review, age).await.unwrap();
            assert_eq!(verdict.age() > Duration::ZERO, is_taken, "{age:?}");
        }
    }
}
