//! Verdicts for other proxies, which ask this one as they would ask the API server.
//!
//! The proxies of a thousand nodes ask the same about their clients: may this service account watch
//! pods? Upstream decides once for all that ask within a second, if it grants it by RBAC. Everything
//! else is decided anew for each.
use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::api::authorization::v1::{SubjectAccessReview, SubjectAccessReviewStatus};
use watershed_protocol::{GroupVersionResource, ResourceRequest};

use super::authorize::Authorizer;
use super::error::ReviewError;
use super::identity::Identity;
use super::request::{AccessRequest, VerbTarget};
use super::verdict::{Decision, ReviewedAccess};
use super::verdict_form::VerdictForm;

/// A review that another proxy sent, read exactly.
#[derive(Debug)]
pub struct ProxyReview(Arc<AccessRequest>);

impl ProxyReview {
    /// Reads the JSON of a SubjectAccessReview; `None` if it says more than this proxy would ask.
    pub fn read(json: &[u8]) -> Option<Self> {
        let review: SubjectAccessReview = serde_json::from_slice(json).ok()?;
        AccessRequest::of_review(&review.spec).map(|request| Self(request.into()))
    }

    /// Returns the verdict in the form for proxies.
    pub async fn decide(&self, authorizer: &Authorizer) -> Result<Bytes, Arc<ReviewError>> {
        let ReviewedAccess { verdict, .. } = authorizer.decide_for_proxy(&self.0).await?;
        let status = SubjectAccessReviewStatus {
            allowed: matches!(verdict.decision, Decision::Allowed(_)),
            reason: Some(verdict.decision.reason().to_owned()).filter(|reason| !reason.is_empty()),
            ..SubjectAccessReviewStatus::default()
        };
        let form = VerdictForm::new(status, verdict.age());
        let json = serde_json::to_vec(&form).map_err(ReviewError::not_understood)?;
        Ok(json.into())
    }
}

/// Asks whether a proxy may ask about others, as upstream would when it gets the review.
pub(super) async fn may_review(
    authorizer: &Authorizer,
    proxy: &Arc<Identity>,
) -> Result<ReviewedAccess, Arc<ReviewError>> {
    let reviews = ResourceRequest {
        gvr: GroupVersionResource::new("authorization.k8s.io", "v1", "subjectaccessreviews"),
        namespace: None,
        name: None,
        subresource: None,
        name_from_selector: false,
    };
    let target = VerbTarget::from(reviews);
    authorizer
        .authorize_verb(proxy, "create".into(), target)
        .await
}
