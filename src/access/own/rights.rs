//! The proxy's own identity and rights at upstream.
use std::time::Duration;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
    SelfSubjectRulesReview, SelfSubjectRulesReviewSpec,
};
use watershed_protocol::{GroupVersionResource, ResourceRequest};

use crate::access::error::ReviewError;
use crate::access::identity::Identity;
use crate::access::request::{AccessAttributes, named_attributes, path_attributes};
use crate::access::reviews::sending::{JSON, identity, post};
use crate::access::reviews::sent::ReviewEndpoint;
use crate::access::reviews::verdict_form;
use crate::upstream::UpstreamClient;

/// A rules review needs a namespace. This one is in every cluster.
const ANY_NAMESPACE: &str = "default";
/// The resource that tells the sender's identity.
const OWN_IDENTITY: ReviewEndpoint = ReviewEndpoint {
    path: "/apis/authentication.k8s.io/v1/selfsubjectreviews",
    kind: "selfsubjectreview",
};
/// The resource that tells the sender's rights. The metrics count these reviews with those of callers.
const OWN_ACCESS: ReviewEndpoint = ReviewEndpoint {
    path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    kind: "subjectaccessreview",
};

/// Returns the question for the rules by which upstream judges the sender.
pub(in crate::access) fn rules_review() -> SelfSubjectRulesReview {
    SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec {
            namespace: Some(ANY_NAMESPACE.to_owned()),
        },
        ..SelfSubjectRulesReview::default()
    }
}

/// Asks upstream about the proxy itself. Every authenticated user may (system:basic-user).
#[derive(Clone, Debug)]
pub struct OwnRights {
    client: UpstreamClient,
}

impl OwnRights {
    /// Creates an instance that sends reviews through `client`, with the proxy's own identity.
    pub fn new(client: UpstreamClient) -> Self {
        Self { client }
    }

    /// Returns the proxy's identity.
    pub async fn identity(&self) -> Result<Identity, ReviewError> {
        let review = SelfSubjectReview::default();
        let review: SelfSubjectReview = post(&self.client, OWN_IDENTITY, &review, JSON).await?;
        let user = review
            .status
            .and_then(|status| status.user_info)
            .unwrap_or_default();
        identity(user).ok_or_else(|| ReviewError::not_understood("there is no name in it"))
    }

    /// Returns `true` if the proxy may do a read.
    pub async fn may(&self, attributes: &AccessAttributes) -> Result<bool, ReviewError> {
        self.ask(SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes.for_review()),
            ..SelfSubjectAccessReviewSpec::default()
        })
        .await
    }

    /// Returns `true` if the proxy may do this to a type in all namespaces.
    pub async fn may_do(&self, verb: &str, gvr: GroupVersionResource) -> Result<bool, ReviewError> {
        self.may_do_to(verb, gvr, None).await
    }

    /// Returns `true` if the proxy may act as users with this: the resource that stands for it, and the
    /// key of extra data.
    ///
    /// Source: `apiserver/pkg/endpoints/filters/impersonation` (the checks of a request's headers).
    pub async fn may_impersonate(
        &self,
        group: &str,
        resource: &str,
        key: Option<&str>,
    ) -> Result<bool, ReviewError> {
        let gvr = GroupVersionResource::new(group, "v1", resource);
        self.may_do_to("impersonate", gvr, key).await
    }

    async fn may_do_to(
        &self,
        verb: &str,
        gvr: GroupVersionResource,
        subresource: Option<&str>,
    ) -> Result<bool, ReviewError> {
        let named = ResourceRequest {
            gvr,
            namespace: None,
            name: None,
            subresource: subresource.map(str::to_owned),
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

    /// Returns `true` if upstream can list all rules by which it judges the proxy, and the age of that
    /// answer. It cannot where a webhook is among its authorizers, or where the proxy is a node.
    ///
    /// Source: `RulesFor` of each authorizer in `kubernetes/pkg/kubeapiserver/authorizer`.
    pub(in crate::access) async fn are_rules_complete(
        &self,
    ) -> Result<(bool, Duration), ReviewError> {
        let review = rules_review();
        let answer = verdict_form::ask_about_rules(&self.client, &review).await?;
        let age = answer.age();
        let status = answer.status.ok_or_else(ReviewError::without_status)?;
        Ok((!status.incomplete, age))
    }

    /// Returns `true` if the proxy may get a path that belongs to no resource.
    pub async fn may_get(&self, path: &str) -> Result<bool, ReviewError> {
        self.ask(SelfSubjectAccessReviewSpec {
            non_resource_attributes: Some(path_attributes(path)),
            ..SelfSubjectAccessReviewSpec::default()
        })
        .await
    }

    async fn ask(&self, spec: SelfSubjectAccessReviewSpec) -> Result<bool, ReviewError> {
        let review = SelfSubjectAccessReview {
            spec,
            ..SelfSubjectAccessReview::default()
        };
        let review: SelfSubjectAccessReview = post(&self.client, OWN_ACCESS, &review, JSON).await?;
        let status = review.status.ok_or_else(ReviewError::without_status)?;
        Ok(status.allowed && status.denied != Some(true))
    }
}
