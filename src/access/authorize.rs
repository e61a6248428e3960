//! Verdicts on single reads, by SubjectAccessReview.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    FieldSelectorAttributes, LabelSelectorAttributes, NonResourceAttributes, ResourceAttributes,
    SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldSelectorRequirement, LabelSelectorRequirement};
use moka::Expiry;
use moka::future::Cache;

use super::Identity;
use super::review::{ReviewError, post};
use crate::kube::{FieldOperator, FieldSelector, LabelOperator, LabelSelector, ResourceRequest, Verb};
use crate::upstream::Client;

/// Questions with more text than this are asked anew each time: the cache is bounded by entries.
/// Source of the size: the webhook authorizer's (plugin/pkg/authorizer/webhook/webhook.go).
const MAX_CACHED_BYTES: usize = 10_000;
/// All verdicts together, and what one takes besides its text.
const MAX_BYTES: u64 = 64 << 20;
const VERDICT_BYTES: usize = 512;

/// How long verdicts stand.
#[derive(Clone, Debug)]
pub struct Config {
    /// A grant.
    pub allowed_ttl: Duration,
    /// A denial.
    pub denied_ttl: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            // Source: the delegated authorizer's default (apiserver/pkg/server/options/authorization.go).
            allowed_ttl: Duration::from_secs(10),
            // A program is often let in just after it was refused, and tries again.
            denied_ttl: Duration::from_secs(1),
        }
    }
}

/// What upstream's authorizers look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// Get, list or watch.
    pub verb: Verb,
    /// Type, namespace and name asked for.
    pub resource: ResourceRequest,
    /// The selectors, for list and watch.
    pub selectors: Selectors,
}

impl Attributes {
    /// Bytes of text that the caller chose.
    fn size(&self) -> usize {
        let requirement = |(key, _, values): &(String, &str, Vec<String>)| {
            key.len() + values.iter().map(String::len).sum::<usize>()
        };
        let name = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let Selectors { labels, fields } = &self.selectors;
        labels.iter().chain(fields).map(requirement).sum::<usize>()
            + name(&self.resource.namespace)
            + name(&self.resource.name)
    }
}

/// Selector requirements in the form of a review.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selectors {
    labels: Vec<(String, &'static str, Vec<String>)>,
    fields: Vec<(String, &'static str, Vec<String>)>,
}

impl Selectors {
    /// What kube-apiserver itself would send a webhook for these selectors: `=` and `!=` become In and
    /// NotIn, greater and less than are left out, which can only make the question wider.
    /// Source: plugin/pkg/authorizer/webhook/webhook.go (labelSelectorAsSelector and the like).
    pub fn new(labels: Option<&LabelSelector>, fields: Option<&FieldSelector>) -> Self {
        let labels = labels.map_or(&[][..], LabelSelector::requirements).iter().filter_map(|requirement| {
            let operator = match requirement.operator {
                LabelOperator::In | LabelOperator::Equals | LabelOperator::DoubleEquals => "In",
                LabelOperator::NotIn | LabelOperator::NotEquals => "NotIn",
                LabelOperator::Exists => "Exists",
                LabelOperator::DoesNotExist => "DoesNotExist",
                LabelOperator::GreaterThan | LabelOperator::LessThan => return None,
            };
            Some((requirement.key.clone(), operator, requirement.values.clone()))
        });
        let fields = fields.map_or(&[][..], FieldSelector::requirements).iter().map(|requirement| {
            let operator = match requirement.operator {
                FieldOperator::Equals => "In",
                FieldOperator::NotEquals => "NotIn",
            };
            (requirement.field.clone(), operator, vec![requirement.value.clone()])
        });
        Self { labels: labels.collect(), fields: fields.collect() }
    }
}

/// Upstream's verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// They may.
    Allowed,
    /// They may not, and perhaps why.
    Denied(Arc<str>),
}

/// What may be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Asked {
    Resource(Attributes),
    /// To get a path that is no resource's.
    Path(String),
}

impl Asked {
    fn size(&self) -> usize {
        match self {
            Self::Resource(attributes) => attributes.size(),
            Self::Path(path) => path.len(),
        }
    }
}

type Question = (Arc<Identity>, Asked);

/// Asks for verdicts and remembers them for a short time.
pub struct Authorizer {
    client: Client,
    verdicts: Cache<Question, Decision>,
}

struct Lifetime(Config);

impl Expiry<Question, Decision> for Lifetime {
    fn expire_after_create(
        &self,
        _: &Question,
        decision: &Decision,
        _: std::time::Instant,
    ) -> Option<Duration> {
        Some(if *decision == Decision::Allowed { self.0.allowed_ttl } else { self.0.denied_ttl })
    }
}

impl Authorizer {
    pub(super) fn new(client: Client, config: Config) -> Self {
        let weigh = |(_, asked): &Question, _: &Decision| {
            u32::try_from(VERDICT_BYTES + asked.size()).unwrap_or(u32::MAX)
        };
        let verdicts =
            Cache::builder().weigher(weigh).max_capacity(MAX_BYTES).expire_after(Lifetime(config)).build();
        Self { client, verdicts }
    }

    /// May `identity` do this?
    pub async fn authorize(
        &self,
        identity: &Arc<Identity>,
        attributes: &Attributes,
    ) -> Result<Decision, Arc<ReviewError>> {
        self.decide(identity, Asked::Resource(attributes.clone())).await
    }

    /// May `identity` get this path, which is no resource's?
    pub async fn authorize_path(
        &self,
        identity: &Arc<Identity>,
        path: &str,
    ) -> Result<Decision, Arc<ReviewError>> {
        self.decide(identity, Asked::Path(path.to_owned())).await
    }

    async fn decide(&self, identity: &Arc<Identity>, asked: Asked) -> Result<Decision, Arc<ReviewError>> {
        if asked.size() > MAX_CACHED_BYTES {
            return Box::pin(self.review(identity, &asked)).await.map_err(Arc::new);
        }
        let question = (Arc::clone(identity), asked);
        if let Some(decision) = self.verdicts.get(&question).await {
            return Ok(decision);
        }
        // Concurrent questions that are equal share one review. Boxed: it is large and rare.
        let asked = question.1.clone();
        let review = Box::pin(async move { self.review(identity, &asked).await });
        Box::pin(self.verdicts.try_get_with(question, review)).await
    }

    async fn review(&self, identity: &Identity, asked: &Asked) -> Result<Decision, ReviewError> {
        let mut spec = spec(identity);
        match asked {
            Asked::Resource(attributes) => spec.resource_attributes = Some(resource(attributes)),
            Asked::Path(path) => {
                let verb = Some(Verb::Get.as_str().to_owned());
                spec.non_resource_attributes = Some(NonResourceAttributes { path: Some(path.clone()), verb });
            }
        }
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let review: SubjectAccessReview = post(&self.client, path, &review).await?;
        let status = review.status.unwrap_or_default();
        // No opinion of any authorizer is a refusal, as in upstream's own filter.
        if status.allowed && status.denied != Some(true) {
            return Ok(Decision::Allowed);
        }
        Ok(Decision::Denied(status.reason.unwrap_or_default().into()))
    }
}

fn spec(identity: &Identity) -> SubjectAccessReviewSpec {
    SubjectAccessReviewSpec {
        user: Some(identity.user.clone()),
        uid: identity.uid.clone(),
        groups: Some(identity.groups.clone()),
        extra: Some(identity.extra.iter().cloned().collect::<BTreeMap<_, _>>()),
        ..SubjectAccessReviewSpec::default()
    }
}

fn resource(attributes: &Attributes) -> ResourceAttributes {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let Attributes { verb, resource, selectors } = attributes;
    let labels = selectors.labels.iter().map(|(key, operator, values)| LabelSelectorRequirement {
        key: key.clone(),
        operator: (*operator).to_owned(),
        values: Some(values.clone()).filter(|values| !values.is_empty()),
    });
    let fields = selectors.fields.iter().map(|(key, operator, values)| FieldSelectorRequirement {
        key: key.clone(),
        operator: (*operator).to_owned(),
        values: Some(values.clone()),
    });
    ResourceAttributes {
        verb: Some(verb.as_str().to_owned()),
        group: some(&resource.gvr.group),
        version: some(&resource.gvr.version),
        resource: some(&resource.gvr.resource),
        namespace: resource.namespace.clone(),
        name: resource.name.clone(),
        subresource: resource.subresource.clone(),
        field_selector: (!selectors.fields.is_empty())
            .then(|| FieldSelectorAttributes { requirements: Some(fields.collect()), raw_selector: None }),
        label_selector: (!selectors.labels.is_empty())
            .then(|| LabelSelectorAttributes { requirements: Some(labels.collect()), raw_selector: None }),
    }
}
