//! Verdicts for other proxies, which ask this one as they would ask the API server.
//!
//! The proxies of a thousand nodes ask the same about their clients: may this service account watch
//! pods? Upstream decides once for all that ask within a minute, if it grants it by RBAC. Everything
//! else is decided after the question. Whose token is this? A proxy that validates tokens itself knows it
//! from upstream's review of another one of its kind. Can upstream's authorizers all list their rules? That is
//! asked for all proxies at once.
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewStatus};
use k8s_openapi::api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewStatus};
use moka::sync::Cache;
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::time::Instant;
use watershed_protocol::{ResourceRequest, Verb};

use super::authenticate::Authenticator;
use super::authorize::Authorizer;
use super::error::ReviewError;
use super::identity::Identity;
use super::own::rights::rules_review;
use super::request::{AccessRequest, AccessTarget};
use super::reviews::sending::{token_review, user_info};
use super::reviews::verdict_form::{ReviewType, RulesStatus, VerdictAge, VerdictForm};
use super::verdict::ReviewedAccess;

/// Time for which the reviews of a proxy are forwarded without asking whether it may review.
const FORWARDED_FOR: Duration = Duration::from_mins(5);
/// Number of such proxies that are remembered.
const MAX_FORWARDED: u64 = 10_000;

/// A review that another proxy sent, read exactly. It is not `Debug`, because it may have a token.
pub struct ProxyReview(ProxyQuestion);

enum ProxyQuestion {
    /// May somebody do this?
    Access(Arc<AccessRequest>),
    /// Whose token is this?
    Token(String),
    /// Are the rules that upstream lists complete?
    Rules,
}

impl ProxyReview {
    /// Reads the JSON of a review; `None` if it is not what this proxy would send.
    pub fn read(review: ReviewType, json: &[u8]) -> Option<Self> {
        let sent: Value = serde_json::from_slice(json).ok()?;
        let (question, understood) = match review {
            ReviewType::SubjectAccess => access_asked_for(&sent)?,
            ReviewType::Token => token_asked_for(&sent)?,
            ReviewType::SelfRules => (
                ProxyQuestion::Rules,
                serde_json::to_value(rules_review()).ok()?,
            ),
        };
        // It may have members that this version does not know.
        (understood == sent).then_some(Self(question))
    }

    /// Returns the answer to `proxy` at this address in the form for proxies.
    pub(super) async fn decide(
        self,
        authenticator: &Authenticator,
        authorizer: &Arc<Authorizer>,
        proxy: &Identity,
        address: IpAddr,
        age: VerdictAge,
    ) -> Result<Bytes, Arc<ReviewError>> {
        let json = match self.0 {
            ProxyQuestion::Access(request) => {
                let form = decided(authorizer, &request, address, age).await?;
                serde_json::to_vec(&form)
            }
            ProxyQuestion::Token(token) => {
                let user = authenticator.user_for_proxy(&token, proxy).await?;
                serde_json::to_vec(&json!({"status": status_of(user.as_deref())}))
            }
            ProxyQuestion::Rules => {
                let age = authorizer.rules_for_proxy(proxy).await?;
                let complete = RulesStatus { incomplete: false };
                serde_json::to_vec(&VerdictForm::new(complete, age))
            }
        };
        Ok(json.map_err(ReviewError::not_understood)?.into())
    }
}

/// Returns the status of a review of a token of `user`; upstream refused the token if there is none.
fn status_of(user: Option<&Identity>) -> TokenReviewStatus {
    TokenReviewStatus {
        authenticated: Some(user.is_some()),
        user: user.map(user_info),
        ..TokenReviewStatus::default()
    }
}

fn access_asked_for(sent: &Value) -> Option<(ProxyQuestion, Value)> {
    let review = SubjectAccessReview::deserialize(sent).ok()?;
    let request = AccessRequest::of_review(&review.spec)?;
    let understood = SubjectAccessReview {
        spec: request.for_review(),
        ..SubjectAccessReview::default()
    };
    let understood = serde_json::to_value(understood).ok()?;
    Some((ProxyQuestion::Access(request.into()), understood))
}

fn token_asked_for(sent: &Value) -> Option<(ProxyQuestion, Value)> {
    let token = TokenReview::deserialize(sent).ok()?.spec.token;
    let understood = serde_json::to_value(token_review(token.clone(), None)).ok()?;
    Some((ProxyQuestion::Token(token), understood))
}

async fn decided(
    authorizer: &Arc<Authorizer>,
    request: &Arc<AccessRequest>,
    address: IpAddr,
    age: VerdictAge,
) -> Result<VerdictForm, Arc<ReviewError>> {
    let arrived = Instant::now();
    match authorizer.decide_for_proxy(request, address, age).await {
        Ok(reviewed) => Ok(form_of(&reviewed, arrived)),
        Err(error) => undecided(&error).ok_or(error),
    }
}

/// Returns the form of a verdict, with its age at the arrival of the question: the other proxy adds the time
/// since it asked.
fn form_of(reviewed: &ReviewedAccess, arrived: Instant) -> VerdictForm {
    let reason = reviewed.decision().reason();
    let status = SubjectAccessReviewStatus {
        allowed: reviewed.is_allowed(),
        reason: (!reason.is_empty()).then(|| reason.to_owned()),
        ..SubjectAccessReviewStatus::default()
    };
    let age = reviewed.verdict.age().saturating_sub(arrived.elapsed());
    VerdictForm::new(status, age)
}

/// Returns the form of upstream's answer that an authorizer failed.
fn undecided(error: &ReviewError) -> Option<VerdictForm> {
    let ReviewError::Undecided(failure) = error else {
        return None;
    };
    let status = SubjectAccessReviewStatus {
        evaluation_error: Some(failure.clone()),
        ..SubjectAccessReviewStatus::default()
    };
    Some(VerdictForm::new(status, Duration::ZERO))
}

/// Knows which proxies get verdicts here: those that RBAC lets create such reviews. Whether others may would
/// have to be asked anew every few seconds, which costs more than it saves.
#[derive(Debug)]
pub(super) struct ReviewingProxies {
    others: Cache<(ReviewType, String), ()>,
}

impl Default for ReviewingProxies {
    fn default() -> Self {
        let others = Cache::builder()
            .max_capacity(MAX_FORWARDED)
            .time_to_live(FORWARDED_FOR)
            .build();
        Self { others }
    }
}

impl ReviewingProxies {
    /// Returns upstream's decision about a proxy's right to review, or `None` if its reviews are to be
    /// forwarded.
    pub(super) async fn may_review(
        &self,
        authorizer: &Arc<Authorizer>,
        proxy: &Arc<Identity>,
        address: IpAddr,
        review: ReviewType,
    ) -> Result<Option<ReviewedAccess>, Arc<ReviewError>> {
        let asked = (review, proxy.user.clone());
        if self.others.contains_key(&asked) {
            return Ok(None);
        }
        let reviews = ResourceRequest {
            gvr: review.gvr(),
            namespace: None,
            name: None,
            subresource: None,
        };
        let target = AccessTarget::new(Verb::Create.as_str(), reviews);
        let reviewed = authorizer.authorize(proxy, address, target).await?;
        if reviewed.verdict.is_granted_by_rbac() {
            return Ok(Some(reviewed));
        }
        self.others.insert(asked, ());
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_with_audiences_or_unknown_members_is_not_read() {
        let read = |sent: &Value| ProxyReview::read(ReviewType::Token, sent.to_string().as_bytes());
        let sent = serde_json::to_value(token_review("t".to_owned(), None)).unwrap();
        assert!(matches!(
            read(&sent),
            Some(ProxyReview(ProxyQuestion::Token(token))) if token == "t"
        ));
        let of_audiences = token_review("t".to_owned(), Some(vec!["vault".to_owned()]));
        assert!(read(&serde_json::to_value(of_audiences).unwrap()).is_none());
        for (at, member) in [("", "dryRun"), ("/metadata", "labels"), ("/spec", "tenant")] {
            let mut odd = sent.clone();
            odd.pointer_mut(at).unwrap()[member] = Value::from("x");
            assert!(read(&odd).is_none(), "{odd}");
        }
    }

    #[test]
    fn a_review_with_unknown_members_is_not_read() {
        let request = AccessRequest::example("ann", &[], Some("here"));
        let review = SubjectAccessReview {
            spec: request.for_review(),
            ..SubjectAccessReview::default()
        };
        let sent = serde_json::to_value(&review).unwrap();
        let read = |sent: &Value| {
            ProxyReview::read(ReviewType::SubjectAccess, sent.to_string().as_bytes())
        };
        let Some(ProxyReview(ProxyQuestion::Access(known))) = read(&sent) else {
            panic!("{sent} is not read");
        };
        assert_eq!(*known, request);
        for (at, member) in [
            ("", "dryRun"),
            ("/metadata", "labels"),
            ("/spec", "tenant"),
            ("/spec/resourceAttributes", "shard"),
        ] {
            let mut odd = sent.clone();
            odd.pointer_mut(at).unwrap()[member] = Value::from("x");
            assert!(read(&odd).is_none(), "{odd}");
        }
        for review in [
            ReviewType::SubjectAccess,
            ReviewType::Token,
            ReviewType::SelfRules,
        ] {
            for json in [
                "",
                "{}",
                "null",
                "[]",
                r#"{"spec":{"user":"ann","token":"t"}}"#,
            ] {
                assert!(
                    ProxyReview::read(review, json.as_bytes()).is_none(),
                    "{json}"
                );
            }
        }
    }
}
