//! Verdicts on single reads, by SubjectAccessReview.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    FieldSelectorAttributes, LabelSelectorAttributes, NonResourceAttributes, ResourceAttributes,
    SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    FieldSelectorRequirement, LabelSelectorRequirement,
};
use moka::Expiry;
use moka::future::Cache;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

use super::changes::{Changes, Place};
use super::rbac::Subjects;
use super::review::{ReviewError, Unavailable, post};
use super::{Identity, guard, metrics};
use crate::upstream::UpstreamClient;
use watershed_protocol::{
    FieldOperator, FieldSelector, LabelOperator, LabelSelector, ResourceRequest, Verb,
};

/// Questions with more text than this are asked anew each time: the cache is bounded by entries.
/// Source of the size: the webhook authorizer's (plugin/pkg/authorizer/webhook/webhook.go).
const MAX_CACHED_BYTES: usize = 10_000;
/// All verdicts together, and what one takes besides its text.
const MAX_BYTES: u64 = 64 << 20;
const VERDICT_BYTES: usize = 512;

/// How the RBAC authorizer's grants begin.
/// Source: `kubernetes/plugin/pkg/auth/authorizer/rbac/rbac.go` (authorizingVisitor.visit).
const BY_RBAC: &str = "RBAC: allowed by ";
/// What nodes may read follows their pods, and is known to the node authorizer only.
/// Source: `apiserver/pkg/authentication/user/user.go` (NodesGroup).
const NODES: &str = "system:nodes";

/// Questions of open watches that upstream is asked at a time, and how long each takes at least:
/// some two thousand a second at most, however many watches there are.
const RECHECKS: usize = 16;
const RECHECK_PACE: Duration = Duration::from_millis(8);

/// How long verdicts stand, at most.
#[derive(Clone, Debug)]
pub struct Config {
    /// A grant by RBAC, while the changes of RBAC are followed. Zero asks each time.
    pub allowed_ttl: Duration,
    /// A denial, while the changes of RBAC are followed. Zero asks each time.
    pub denied_ttl: Duration,
    /// A grant that may be gone without a sign: not by RBAC, or while RBAC is not followed.
    pub unwatched_allowed_ttl: Duration,
    /// A denial that may be gone without a sign: of nodes, or while RBAC is not followed.
    pub unwatched_denied_ttl: Duration,
    /// What is done while upstream cannot be asked.
    pub unavailable: Unavailable,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            // Source of both: kube-apiserver's own flags of these names
            // (kubeapiserver/options/authorization.go).
            allowed_ttl: Duration::from_mins(5),
            denied_ttl: Duration::from_secs(30),
            // Source: the delegated authorizer's default
            // (apiserver/pkg/server/options/authorization.go).
            unwatched_allowed_ttl: Duration::from_secs(10),
            // A program is often let in just after it was refused, and tries again.
            unwatched_denied_ttl: Duration::from_secs(1),
            unavailable: Unavailable::default(),
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
    /// What kube-apiserver itself would send a webhook for these selectors: `=` and `!=` become In
    /// and NotIn, greater and less than are left out, which can only make the question wider.
    /// Source: plugin/pkg/authorizer/webhook/webhook.go (labelSelectorAsSelector and the like).
    pub fn new(labels: Option<&LabelSelector>, fields: Option<&FieldSelector>) -> Self {
        let labels = labels
            .map_or(&[][..], LabelSelector::requirements)
            .iter()
            .filter_map(|requirement| {
                let operator = match requirement.operator {
                    LabelOperator::In | LabelOperator::Equals | LabelOperator::DoubleEquals => "In",
                    LabelOperator::NotIn | LabelOperator::NotEquals => "NotIn",
                    LabelOperator::Exists => "Exists",
                    LabelOperator::DoesNotExist => "DoesNotExist",
                    LabelOperator::GreaterThan | LabelOperator::LessThan => return None,
                };
                Some((
                    requirement.key.clone(),
                    operator,
                    requirement.values.clone(),
                ))
            });
        let fields = fields
            .map_or(&[][..], FieldSelector::requirements)
            .iter()
            .map(|requirement| {
                let operator = match requirement.operator {
                    FieldOperator::Equals => "In",
                    FieldOperator::NotEquals => "NotIn",
                };
                (
                    requirement.field.clone(),
                    operator,
                    vec![requirement.value.clone()],
                )
            });
        Self {
            labels: labels.collect(),
            fields: fields.collect(),
        }
    }
}

/// Upstream's verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// They may, and perhaps why.
    Allowed(Arc<str>),
    /// They may not, and perhaps why.
    Denied(Arc<str>),
}

impl Decision {
    /// The authorizer's reason; may be empty.
    pub fn reason(&self) -> &str {
        let (Self::Allowed(reason) | Self::Denied(reason)) = self;
        reason
    }
}

/// What may be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Asked {
    Resource(Attributes),
    /// To act as what is named.
    Impersonation(ResourceRequest),
    /// To get a path that is no resource's.
    Path(String),
}

impl Asked {
    fn size(&self) -> usize {
        match self {
            Self::Resource(attributes) => attributes.size(),
            Self::Impersonation(named) => {
                let texts = [&named.namespace, &named.name, &named.subresource];
                texts.into_iter().flatten().map(String::len).sum()
            }
            Self::Path(path) => path.len(),
        }
    }
}

/// Who asks for what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Question {
    identity: Arc<Identity>,
    asked: Asked,
}

impl Question {
    /// Bytes of text in it. An identity is shared between questions at best.
    fn size(&self) -> usize {
        let Identity {
            user,
            uid,
            groups,
            extra,
        } = &*self.identity;
        let all = |texts: &[String]| texts.iter().map(String::len).sum::<usize>();
        let extra = extra
            .iter()
            .map(|(key, values)| key.len() + all(values))
            .sum::<usize>();
        self.asked.size() + user.len() + uid.as_ref().map_or(0, String::len) + all(groups) + extra
    }

    /// The namespace that RBAC looks at.
    pub(super) fn namespace(&self) -> Option<&str> {
        match &self.asked {
            Asked::Resource(attributes) => attributes.resource.namespace.as_deref(),
            Asked::Impersonation(named) => named.namespace.as_deref(),
            Asked::Path(_) => None,
        }
    }

    /// Whether one of these is who asks.
    pub(super) fn is_asked_by(&self, subjects: &Subjects) -> bool {
        let Identity { user, groups, .. } = &*self.identity;
        subjects.users.contains(user.as_str())
            || (!subjects.groups.is_empty()
                && groups
                    .iter()
                    .any(|group| subjects.groups.contains(group.as_str())))
    }

    #[cfg(test)]
    pub(super) fn example(user: &str, groups: &[&str], namespace: Option<&str>) -> Self {
        let resource = ResourceRequest {
            gvr: watershed_protocol::GroupVersionResource::new("", "v1", "pods"),
            namespace: namespace.map(str::to_owned),
            name: None,
            subresource: None,
            name_from_selector: false,
        };
        let identity = Identity {
            user: user.to_owned(),
            uid: None,
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            extra: Vec::new(),
        };
        let asked = Asked::Resource(Attributes {
            verb: Verb::List,
            resource,
            selectors: Selectors::default(),
        });
        Self {
            identity: Arc::new(identity),
            asked,
        }
    }
}

/// What upstream said to a question, and how long that may be relied on.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) decision: Decision,
    pub(super) place: Place,
    /// How long it stands while RBAC is followed, and while it is not. From when it was asked.
    pub(super) ttl: Duration,
    pub(super) unwatched_ttl: Duration,
    /// Changes up to this number were looked at.
    pub(super) compared: AtomicU64,
    /// Nanoseconds after it was asked that a change concerned it; the largest number for none.
    overtaken: AtomicU64,
    /// Nanoseconds after it was asked from which on upstream surely knows an earlier change that
    /// concerns it.
    settles: AtomicU64,
}

impl Verdict {
    pub(super) fn new(
        decision: Decision,
        place: Place,
        ttl: Duration,
        unwatched_ttl: Duration,
    ) -> Self {
        let compared = AtomicU64::new(place.unsettled);
        let never = || AtomicU64::new(u64::MAX);
        Self {
            decision,
            place,
            ttl,
            unwatched_ttl,
            compared,
            overtaken: never(),
            settles: never(),
        }
    }

    pub(super) fn overtaken(&self, after: Duration) {
        if self
            .overtaken
            .fetch_min(nanoseconds(after), Ordering::AcqRel)
            == u64::MAX
        {
            metrics::dropped();
        }
    }

    pub(super) fn settles(&self, after: Duration) {
        self.settles.fetch_min(nanoseconds(after), Ordering::AcqRel);
    }

    /// When a change overtook it, if one did.
    pub(super) fn overtaken_at(&self) -> Option<Instant> {
        let after = self.overtaken.load(Ordering::Acquire);
        (after != u64::MAX).then(|| self.place.asked + Duration::from_nanos(after))
    }

    /// When it should be asked again for the sake of an earlier change, if there was one.
    pub(super) fn settles_at(&self) -> Option<Instant> {
        let after = self.settles.load(Ordering::Acquire);
        (after != u64::MAX).then(|| self.place.asked + Duration::from_nanos(after))
    }

    pub(super) fn stands(&self, now: Instant, followed: bool) -> bool {
        let ttl = if followed {
            self.ttl
        } else {
            self.unwatched_ttl
        };
        now.saturating_duration_since(self.place.asked) < ttl
            && self.overtaken_at().is_none()
            && self.settles_at().is_none_or(|at| now < at)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX - 1)
}

/// A question and upstream's answer. What is remembered of equal questions is one and the same.
#[derive(Clone, Debug)]
pub struct Judged {
    pub(super) question: Arc<Question>,
    pub(super) verdict: Arc<Verdict>,
}

impl Judged {
    /// What upstream said.
    pub fn decision(&self) -> &Decision {
        &self.verdict.decision
    }
}

type Reviewed = Result<Judged, Arc<ReviewError>>;

/// Asks for verdicts and remembers them.
pub struct Authorizer {
    client: UpstreamClient,
    config: Config,
    verdicts: Cache<Arc<Question>, Reviewed>,
    changes: Arc<Changes>,
    rechecks: Arc<Semaphore>,
}

/// How long the cache holds what may still be of use. What stands is decided at each look.
struct Lifetime;

impl Expiry<Arc<Question>, Reviewed> for Lifetime {
    fn expire_after_create(
        &self,
        _: &Arc<Question>,
        reviewed: &Reviewed,
        _: std::time::Instant,
    ) -> Option<Duration> {
        Some(
            reviewed
                .as_ref()
                .map_or(Duration::ZERO, |judged| judged.verdict.ttl),
        )
    }

    fn expire_after_update(
        &self,
        question: &Arc<Question>,
        reviewed: &Reviewed,
        now: std::time::Instant,
        _: Option<Duration>,
    ) -> Option<Duration> {
        self.expire_after_create(question, reviewed, now)
    }
}

impl Authorizer {
    pub(super) fn new(client: UpstreamClient, config: Config) -> Self {
        let weigh = |question: &Arc<Question>, reviewed: &Reviewed| {
            let reason = reviewed
                .as_ref()
                .map_or(0, |judged| judged.decision().reason().len());
            u32::try_from(VERDICT_BYTES + question.size() + reason).unwrap_or(u32::MAX)
        };
        let verdicts = Cache::builder()
            .weigher(weigh)
            .max_capacity(MAX_BYTES)
            .expire_after(Lifetime)
            .build();
        let longest = config.allowed_ttl.max(config.denied_ttl).max(guard::LEAST);
        let changes = Arc::new(Changes::new(longest.mul_f32(guard::LONGEST)));
        let rechecks = Arc::new(Semaphore::new(RECHECKS));
        Self {
            client,
            config,
            verdicts,
            changes,
            rechecks,
        }
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn changes(&self) -> &Arc<Changes> {
        &self.changes
    }

    /// May `identity` do this?
    pub async fn authorize(
        &self,
        identity: &Arc<Identity>,
        attributes: &Attributes,
    ) -> Result<Judged, Arc<ReviewError>> {
        self.decide(identity, Asked::Resource(attributes.clone()))
            .await
    }

    /// May `identity` act as what is named?
    pub async fn authorize_impersonation(
        &self,
        identity: &Arc<Identity>,
        named: &ResourceRequest,
    ) -> Result<Judged, Arc<ReviewError>> {
        self.decide(identity, Asked::Impersonation(named.clone()))
            .await
    }

    /// May `identity` get this path, which is no resource's?
    pub async fn authorize_path(
        &self,
        identity: &Arc<Identity>,
        path: &str,
    ) -> Result<Judged, Arc<ReviewError>> {
        self.decide(identity, Asked::Path(path.to_owned())).await
    }

    async fn decide(
        &self,
        identity: &Arc<Identity>,
        asked: Asked,
    ) -> Result<Judged, Arc<ReviewError>> {
        let question = Arc::new(Question {
            identity: Arc::clone(identity),
            asked,
        });
        let known = self.remembered(&question).await;
        metrics::remembered(known.is_some());
        match known {
            Some(judged) => Ok(judged),
            // Boxed: it is large and rare.
            None => Box::pin(self.judge(&question)).await,
        }
    }

    /// The verdict that is known and stands.
    async fn remembered(&self, question: &Arc<Question>) -> Option<Judged> {
        let known = self.verdicts.get(question).await.and_then(Result::ok);
        known.filter(|judged| self.stands(judged))
    }

    fn stands(&self, Judged { question, verdict }: &Judged) -> bool {
        self.changes.tell(verdict, question);
        verdict.stands(Instant::now(), self.changes.are_followed())
    }

    /// A verdict that stands, or one that was asked for after this was called.
    async fn judge(&self, question: &Arc<Question>) -> Reviewed {
        let arrived = Instant::now();
        if question.asked.size() <= MAX_CACHED_BYTES {
            // Equal questions at the same time share one review. Who joins one that was under way
            // may find it overtaken when it is answered, and joins or makes the next, which is
            // younger than the question.
            for _ in 0..2 {
                let fits = |reviewed: &Reviewed| {
                    let known = reviewed.as_ref().ok();
                    known.is_some_and(|known| {
                        known.verdict.place.asked >= arrived || self.stands(known)
                    })
                };
                let entry = self.verdicts.entry(Arc::clone(question));
                let reviewed = entry
                    .or_insert_with_if(self.review(question), |known| !fits(known))
                    .await
                    .into_value();
                if reviewed.is_err() || fits(&reviewed) {
                    return reviewed;
                }
            }
        }
        self.review(question).await
    }

    /// For a watch that is open. All of them together are asked about at a bounded pace.
    pub(super) async fn ask_again(&self, question: &Arc<Question>) -> Reviewed {
        if let Some(judged) = self.remembered(question).await {
            return Ok(judged);
        }
        let permit = Arc::clone(&self.rechecks).acquire_owned().await.ok();
        // Somebody else may have asked the same meanwhile.
        if let Some(judged) = self.remembered(question).await {
            return Ok(judged);
        }
        let next = Instant::now() + RECHECK_PACE;
        let reviewed = self.judge(question).await;
        tokio::spawn(async move {
            sleep_until(next).await;
            drop(permit);
        });
        reviewed
    }

    async fn review(&self, question: &Arc<Question>) -> Reviewed {
        let Question { identity, asked } = &**question;
        let mut spec = spec(identity);
        match asked {
            Asked::Resource(attributes) => spec.resource_attributes = Some(resource(attributes)),
            Asked::Impersonation(named) => {
                let verb = Some("impersonate".to_owned());
                spec.resource_attributes = Some(ResourceAttributes {
                    verb,
                    ..named_attributes(named)
                });
            }
            Asked::Path(path) => {
                let verb = Some(Verb::Get.as_str().to_owned());
                spec.non_resource_attributes = Some(NonResourceAttributes {
                    path: Some(path.clone()),
                    verb,
                });
            }
        }
        let review = SubjectAccessReview {
            spec,
            ..SubjectAccessReview::default()
        };
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let place = self.changes.place();
        let review: SubjectAccessReview = post(&self.client, path, &review).await?;
        let status = review.status.unwrap_or_default();
        let reason = status.reason.unwrap_or_default();
        // No opinion of any authorizer is a refusal, as in upstream's own filter.
        let allowed = status.allowed && status.denied != Some(true);
        let (ttl, unwatched_ttl) = self.ttls(identity, allowed, &reason);
        let decision = if allowed {
            Decision::Allowed(reason.into())
        } else {
            Decision::Denied(reason.into())
        };
        let verdict = Arc::new(Verdict::new(decision, place, ttl, unwatched_ttl));
        Ok(Judged {
            question: Arc::clone(question),
            verdict,
        })
    }

    /// How long a verdict stands while RBAC is followed, and while it is not. Of changes of mind of
    /// other authorizers (nodes', webhooks') there is no sign; members of system:masters are asked
    /// for no reason.
    fn ttls(&self, identity: &Identity, allowed: bool, reason: &str) -> (Duration, Duration) {
        let Config {
            allowed_ttl,
            denied_ttl,
            unwatched_allowed_ttl,
            unwatched_denied_ttl,
            ..
        } = self.config;
        let (ttl, unwatched, watched) = if allowed {
            (
                allowed_ttl,
                unwatched_allowed_ttl,
                reason.starts_with(BY_RBAC),
            )
        } else {
            (
                denied_ttl,
                unwatched_denied_ttl,
                !identity.groups.iter().any(|group| group == NODES),
            )
        };
        let unwatched = unwatched.min(ttl);
        (if watched { ttl } else { unwatched }, unwatched)
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

pub(super) fn resource(attributes: &Attributes) -> ResourceAttributes {
    let Attributes {
        verb,
        resource,
        selectors,
    } = attributes;
    let labels = selectors
        .labels
        .iter()
        .map(|(key, operator, values)| LabelSelectorRequirement {
            key: key.clone(),
            operator: (*operator).to_owned(),
            values: Some(values.clone()).filter(|values| !values.is_empty()),
        });
    let fields = selectors
        .fields
        .iter()
        .map(|(key, operator, values)| FieldSelectorRequirement {
            key: key.clone(),
            operator: (*operator).to_owned(),
            values: Some(values.clone()),
        });
    ResourceAttributes {
        verb: Some(verb.as_str().to_owned()),
        field_selector: (!selectors.fields.is_empty()).then(|| FieldSelectorAttributes {
            requirements: Some(fields.collect()),
            raw_selector: None,
        }),
        label_selector: (!selectors.labels.is_empty()).then(|| LabelSelectorAttributes {
            requirements: Some(labels.collect()),
            raw_selector: None,
        }),
        ..named_attributes(resource)
    }
}

pub(super) fn named_attributes(named: &ResourceRequest) -> ResourceAttributes {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    ResourceAttributes {
        group: some(&named.gvr.group),
        version: some(&named.gvr.version),
        resource: some(&named.gvr.resource),
        namespace: named.namespace.clone(),
        name: named.name.clone(),
        subresource: named.subresource.clone(),
        ..ResourceAttributes::default()
    }
}
