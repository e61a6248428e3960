//! Who the proxy itself is to upstream, and what it may.
use http::StatusCode;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};

use super::authorize::{named_attributes, resource};
use super::review::post;
use super::{Attributes, Identity, ReviewError, review};
use crate::upstream::UpstreamClient;
use watershed_protocol::{GroupVersionResource, ResourceRequest};

/// Asks upstream about the proxy. Every authenticated user may (system:basic-user).
#[derive(Clone, Debug)]
pub struct OwnRights {
    client: UpstreamClient,
}

impl OwnRights {
    /// Asks through `client`, with the proxy's own identity.
    pub fn new(client: UpstreamClient) -> Self {
        Self { client }
    }

    /// Who the proxy is.
    pub async fn identity(&self) -> Result<Identity, ReviewError> {
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let review: SelfSubjectReview =
            post(&self.client, path, &SelfSubjectReview::default()).await?;
        let user = review
            .status
            .and_then(|status| status.user_info)
            .unwrap_or_default();
        let missing = || ReviewError::NotUnderstood("there is no name in it".to_owned());
        review::identity(user).ok_or_else(missing)
    }

    /// Whether it may read what a scope holds.
    pub async fn may(&self, attributes: &Attributes) -> Result<bool, ReviewError> {
        self.ask(SelfSubjectAccessReviewSpec {
            resource_attributes: Some(resource(attributes)),
            ..SelfSubjectAccessReviewSpec::default()
        })
        .await
    }

    /// Whether it may do this to a type as a whole, in all namespaces.
    pub async fn may_do(&self, verb: &str, gvr: GroupVersionResource) -> Result<bool, ReviewError> {
        let named = ResourceRequest {
            gvr,
            namespace: None,
            name: None,
            subresource: None,
            name_from_selector: false,
        };
        let attributes = ResourceAttributes {
            verb: Some(verb.to_owned()),
            ..named_attributes(&named)
        };
        self.ask(SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        })
        .await
    }

    /// Whether it may get a path that is no resource.
    pub async fn may_get(&self, path: &str) -> Result<bool, ReviewError> {
        let attributes = NonResourceAttributes {
            path: Some(path.to_owned()),
            verb: Some("get".to_owned()),
        };
        self.ask(SelfSubjectAccessReviewSpec {
            non_resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        })
        .await
    }

    async fn ask(&self, spec: SelfSubjectAccessReviewSpec) -> Result<bool, ReviewError> {
        let review = SelfSubjectAccessReview {
            spec,
            ..SelfSubjectAccessReview::default()
        };
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let review: SelfSubjectAccessReview = post(&self.client, path, &review).await?;
        let status = review.status.unwrap_or_default();
        Ok(status.allowed && status.denied != Some(true))
    }
}

impl ReviewError {
    /// Whether upstream does not know who asks.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Refused(StatusCode::UNAUTHORIZED))
    }
}
