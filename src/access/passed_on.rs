//! Verdicts for other proxies, which ask this one as they would ask the API server.
//!
//! The proxies of a thousand nodes ask the same about their clients: may this service account watch
//! pods? Upstream decides once for all that ask within a few seconds, if it grants it by RBAC. Everything
//! else is decided after the question.
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewStatus};
use moka::sync::Cache;
use serde::Deserialize as _;
use serde_json::Value;
use tokio::time::Instant;
use watershed_protocol::{GroupVersionResource, ResourceRequest};

use super::authorize::Authorizer;
use super::error::ReviewError;
use super::identity::Identity;
use super::request::{AccessRequest, VerbTarget};
use super::verdict::ReviewedAccess;
use super::verdict_form::{VerdictAge, VerdictForm};

/// Time for which the reviews of a proxy are forwarded without asking whether it may review.
const FORWARDED_FOR: Duration = Duration::from_mins(5);
/// Number of such proxies that are remembered.
const MAX_FORWARDED: u64 = 10_000;

/// A review that another proxy sent, read exactly.
#[derive(Debug)]
pub struct ProxyReview(Arc<AccessRequest>);

impl ProxyReview {
    /// Reads the JSON of a SubjectAccessReview; `None` if it is not what this proxy would send.
    pub fn read(json: &[u8]) -> Option<Self> {
        let sent: Value = serde_json::from_slice(json).ok()?;
        let review = SubjectAccessReview::deserialize(&sent).ok()?;
        let request = AccessRequest::of_review(&review.spec)?;
        let understood = SubjectAccessReview {
            spec: request.for_review(),
            ..SubjectAccessReview::default()
        };
        // It may have members that this version does not know.
        let is_all = serde_json::to_value(understood).ok()? == sent;
        is_all.then(|| Self(request.into()))
    }

    /// Returns the verdict in the form for proxies.
    pub async fn decide(
        &self,
        authorizer: &Authorizer,
        age: VerdictAge,
    ) -> Result<Bytes, Arc<ReviewError>> {
        let arrived = Instant::now();
        let form = match authorizer.decide_for_proxy(&self.0, age).await {
            Ok(reviewed) => form_of(&reviewed, arrived),
            Err(error) => undecided(&error).ok_or(error)?,
        };
        let json = serde_json::to_vec(&form).map_err(ReviewError::not_understood)?;
        Ok(json.into())
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

/// Knows which proxies get verdicts here: those that RBAC lets create SubjectAccessReviews. Whether others
/// may would have to be asked anew every few seconds, which costs more than it saves.
#[derive(Debug)]
pub(super) struct ReviewingProxies {
    others: Cache<String, ()>,
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
        authorizer: &Authorizer,
        proxy: &Arc<Identity>,
    ) -> Result<Option<ReviewedAccess>, Arc<ReviewError>> {
        if self.others.contains_key(&proxy.user) {
            return Ok(None);
        }
        let reviews = ResourceRequest {
            gvr: GroupVersionResource::new("authorization.k8s.io", "v1", "subjectaccessreviews"),
            namespace: None,
            name: None,
            subresource: None,
            name_from_selector: false,
        };
        let target = VerbTarget::from(reviews);
        let reviewed = authorizer.authorize_verb(proxy, "create".into(), target);
        let reviewed = reviewed.await?;
        if reviewed.verdict.is_granted_by_rbac() {
            return Ok(Some(reviewed));
        }
        self.others.insert(proxy.user.clone(), ());
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_review_with_unknown_members_is_not_read() {
        let request = AccessRequest::example("ann", &[], Some("here"));
        let review = SubjectAccessReview {
            spec: request.for_review(),
            ..SubjectAccessReview::default()
        };
        let sent = serde_json::to_value(&review).unwrap();
        let read = |sent: &Value| ProxyReview::read(sent.to_string().as_bytes());
        let known = read(&sent).unwrap();
        assert_eq!(*known.0, request);
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
        for json in ["", "{}", "null", "[]", r#"{"spec":{"user":"ann"}}"#] {
            assert!(ProxyReview::read(json.as_bytes()).is_none(), "{json}");
        }
    }
}
