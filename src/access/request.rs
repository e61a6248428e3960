//! Access requests: an identity, and the access that it wants.
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::authorization::v1::{
    FieldSelectorAttributes, LabelSelectorAttributes, NonResourceAttributes, ResourceAttributes,
    SubjectAccessReviewSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    FieldSelectorRequirement, LabelSelectorRequirement,
};
use watershed_protocol::{
    FieldOperator, FieldSelector, LabelOperator, LabelSelector, ResourceRequest, Verb,
};

use super::identity::Identity;

/// Bytes that a requirement takes without its values and its text.
const REQUIREMENT_BYTES: usize = 128;
/// Bytes that a value takes without its text.
const VALUE_BYTES: usize = 48;

/// The attributes of a read that upstream's authorizers consider.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccessAttributes {
    /// Get, list or watch.
    pub verb: Verb,
    /// The requested type, namespace and name.
    pub resource: ResourceRequest,
    /// The selectors of a list or watch.
    pub selectors: ReviewSelectors,
}

impl AccessAttributes {
    /// Returns the bytes that the caller's choices take.
    fn size(&self) -> usize {
        let ResourceRequest {
            namespace, name, ..
        } = &self.resource;
        self.selectors.size() + text_size([namespace, name])
    }

    /// Returns the attributes in the form of a review.
    pub(super) fn for_review(&self) -> ResourceAttributes {
        self.selectors
            .attributes(self.verb.as_str(), &self.resource)
    }
}

/// Selector requirements in the form of a review.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReviewSelectors {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

impl ReviewSelectors {
    /// Converts selectors as kube-apiserver does for an authorization webhook.
    ///
    /// `=` and `!=` become In and NotIn. Greater and less than are left out: without them a review
    /// is about more objects, never about fewer.
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
                Some(Requirement {
                    key: requirement.key.clone(),
                    operator,
                    values: requirement.values.clone(),
                })
            });
        let fields = fields
            .map_or(&[][..], FieldSelector::requirements)
            .iter()
            .map(|requirement| Requirement {
                key: requirement.field.clone(),
                operator: match requirement.operator {
                    FieldOperator::Equals => "In",
                    FieldOperator::NotEquals => "NotIn",
                },
                values: vec![requirement.value.clone()],
            });
        Self {
            labels: labels.collect(),
            fields: fields.collect(),
        }
    }

    /// Returns `true` if a field must have this value.
    pub(super) fn require_field(&self, field: &str, value: &str) -> bool {
        self.fields.iter().any(|required| {
            required.key == field && required.operator == "In" && required.values == [value]
        })
    }

    fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns the bytes that the selectors take. Those of many short terms take a hundred times as
    /// much as their text.
    fn size(&self) -> usize {
        let requirements = self.labels.iter().chain(&self.fields);
        requirements.map(Requirement::size).sum()
    }

    /// Returns the attributes of a verb on a resource, in the form of a review.
    fn attributes(&self, verb: &str, resource: &ResourceRequest) -> ResourceAttributes {
        let Self { labels, fields } = self;
        ResourceAttributes {
            verb: Some(verb.to_owned()),
            field_selector: (!fields.is_empty()).then(|| FieldSelectorAttributes {
                requirements: Some(fields.iter().map(Requirement::for_field).collect()),
                raw_selector: None,
            }),
            label_selector: (!labels.is_empty()).then(|| LabelSelectorAttributes {
                requirements: Some(labels.iter().map(Requirement::for_label).collect()),
                raw_selector: None,
            }),
            ..named_attributes(resource)
        }
    }
}

/// An identity, and the access that it wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct AccessRequest {
    pub(super) identity: Arc<Identity>,
    pub(super) target: AccessTarget,
}

impl AccessRequest {
    /// Returns the bytes that the request takes. Requests may share the identity; it is counted in
    /// each of them.
    pub(super) fn size(&self) -> usize {
        let Identity {
            user,
            uid,
            groups,
            extra,
        } = &*self.identity;
        let extra = extra
            .iter()
            .map(|(key, values)| key.len() + list_size(values));
        let identity = user.len() + text_size([uid]) + list_size(groups) + extra.sum::<usize>();
        self.target.size() + identity
    }

    /// Returns the request for all objects of the type by any token of the user, if this one is for
    /// some of them, or is told from others by its token. Whoever is granted that is granted this.
    pub(super) fn widened(&self) -> Option<Self> {
        let AccessTarget::Resource(attributes) = &self.target else {
            return None;
        };
        let resource = &attributes.resource;
        let is_part = resource.name.is_some() || !attributes.selectors.is_empty();
        if resource.subresource.is_some() || !(is_part || self.identity.has_token_attributes()) {
            return None;
        }
        let mut attributes = attributes.clone();
        attributes.resource.name = None;
        attributes.resource.name_from_selector = false;
        attributes.selectors = ReviewSelectors::default();
        Some(Self {
            identity: Identity::of_any_token(&self.identity),
            target: AccessTarget::AllObjects(attributes),
        })
    }

    /// Returns the namespace that RBAC considers.
    pub(super) fn namespace(&self) -> Option<&str> {
        match &self.target {
            AccessTarget::Resource(attributes) | AccessTarget::AllObjects(attributes) => {
                attributes.resource.namespace.as_deref()
            }
            AccessTarget::Verb { on, .. } => match on {
                VerbTarget::Resource { resource, .. } => resource.namespace.as_deref(),
                VerbTarget::Path(_) => None,
            },
            AccessTarget::Path(_) => None,
        }
    }

    /// Returns the request in the form of a review.
    pub(super) fn for_review(&self) -> SubjectAccessReviewSpec {
        let Identity {
            user,
            uid,
            groups,
            extra,
        } = &*self.identity;
        let spec = SubjectAccessReviewSpec {
            user: Some(user.clone()),
            uid: uid.clone(),
            groups: Some(groups.clone()),
            extra: Some(extra.iter().cloned().collect::<BTreeMap<_, _>>()),
            ..SubjectAccessReviewSpec::default()
        };
        match &self.target {
            AccessTarget::Resource(attributes) => SubjectAccessReviewSpec {
                resource_attributes: Some(attributes.for_review()),
                ..spec
            },
            AccessTarget::AllObjects(attributes) => SubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    name: Some(unknowable_name()),
                    ..attributes.for_review()
                }),
                ..spec
            },
            AccessTarget::Verb { verb, on } => match on {
                VerbTarget::Resource {
                    resource,
                    selectors,
                } => SubjectAccessReviewSpec {
                    resource_attributes: Some(selectors.attributes(verb, resource)),
                    ..spec
                },
                VerbTarget::Path(path) => SubjectAccessReviewSpec {
                    non_resource_attributes: Some(NonResourceAttributes {
                        verb: Some(verb.to_string()),
                        ..path_attributes(path)
                    }),
                    ..spec
                },
            },
            AccessTarget::Path(path) => SubjectAccessReviewSpec {
                non_resource_attributes: Some(path_attributes(path)),
                ..spec
            },
        }
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
        let target = AccessTarget::Resource(AccessAttributes {
            verb: Verb::List,
            resource,
            selectors: ReviewSelectors::default(),
        });
        Self {
            identity: Arc::new(identity),
            target,
        }
    }
}

/// The access that a caller wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum AccessTarget {
    /// To read objects.
    Resource(AccessAttributes),
    /// To read any objects of a type in a namespace, by whatever name or selector.
    AllObjects(AccessAttributes),
    /// To do something whose verb is none of a read's.
    Verb {
        /// The verb, such as `impersonate`.
        verb: Arc<str>,
        /// The subject of the verb.
        on: VerbTarget,
    },
    /// To get a path that belongs to no resource.
    Path(String),
}

impl AccessTarget {
    /// Returns the bytes of text that the caller chose.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Resource(attributes) | Self::AllObjects(attributes) => attributes.size(),
            Self::Verb { verb, on } => verb.len() + on.size(),
            Self::Path(path) => path.len(),
        }
    }
}

/// The subject of any verb.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum VerbTarget {
    /// A resource, or a named thing that authorizers treat like one.
    Resource {
        /// Type, namespace and name.
        resource: ResourceRequest,
        /// The selectors of a request for a collection.
        selectors: ReviewSelectors,
    },
    /// A path that belongs to no resource.
    Path(String),
}

impl VerbTarget {
    /// Returns the bytes of text that the caller chose.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Resource {
                resource,
                selectors,
            } => {
                let ResourceRequest {
                    namespace,
                    name,
                    subresource,
                    ..
                } = resource;
                selectors.size() + text_size([namespace, name, subresource])
            }
            Self::Path(path) => path.len(),
        }
    }
}

impl From<ResourceRequest> for VerbTarget {
    fn from(resource: ResourceRequest) -> Self {
        Self::Resource {
            resource,
            selectors: ReviewSelectors::default(),
        }
    }
}

/// One requirement of a selector, in the form of a review.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Requirement {
    key: String,
    operator: &'static str,
    values: Vec<String>,
}

impl Requirement {
    fn size(&self) -> usize {
        let values = self.values.len() * VALUE_BYTES + list_size(&self.values);
        REQUIREMENT_BYTES + self.key.len() + values
    }

    fn for_label(&self) -> LabelSelectorRequirement {
        LabelSelectorRequirement {
            key: self.key.clone(),
            operator: self.operator.to_owned(),
            values: Some(self.values.clone()).filter(|values| !values.is_empty()),
        }
    }

    fn for_field(&self) -> FieldSelectorRequirement {
        FieldSelectorRequirement {
            key: self.key.clone(),
            operator: self.operator.to_owned(),
            values: Some(self.values.clone()),
        }
    }
}

/// Returns type, namespace and names in the form of a review, without a verb.
pub(super) fn named_attributes(named: &ResourceRequest) -> ResourceAttributes {
    ResourceAttributes {
        group: non_empty(&named.gvr.group),
        version: non_empty(&named.gvr.version),
        resource: non_empty(&named.gvr.resource),
        namespace: named.namespace.clone(),
        name: named.name.clone(),
        subresource: named.subresource.clone(),
        ..ResourceAttributes::default()
    }
}

/// Returns the attributes of a GET for a path that belongs to no resource.
pub(super) fn path_attributes(path: &str) -> NonResourceAttributes {
    NonResourceAttributes {
        path: Some(path.to_owned()),
        verb: Some(Verb::Get.as_str().to_owned()),
    }
}

/// Returns a name that no rule mentions: nobody could know it.
fn unknowable_name() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    format!("any-name-{:032x}", u128::from_ne_bytes(bytes))
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn text_size<const N: usize>(texts: [&Option<String>; N]) -> usize {
    texts.into_iter().flatten().map(String::len).sum()
}

fn list_size(texts: &[String]) -> usize {
    texts.iter().map(String::len).sum()
}
