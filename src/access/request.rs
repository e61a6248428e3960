//! Access requests: an identity, and the access that it wants.
pub(super) mod selectors;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReviewSpec,
};
use watershed_protocol::{GroupVersionResource, ResourceRequest, Verb};

use super::identity::Identity;
pub use selectors::ReviewSelectors;

/// Bytes that a further attribute of an identity takes without its text.
const EXTRA_BYTES: usize = size_of::<(String, Vec<String>)>();

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
        self.selectors.size() + size_of_named(&self.resource)
    }

    /// Returns the attributes in the form of a review.
    pub(super) fn for_review(&self) -> ResourceAttributes {
        attributes_of(self.verb.as_str(), &self.resource, &self.selectors)
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
            .map(|(key, values)| EXTRA_BYTES + key.len() + list_size(values));
        let identity = user.len() + text_size([uid]) + list_size(groups) + extra.sum::<usize>();
        self.target.size() + identity
    }

    /// Returns a request that stands for this one and others: for all objects of the type by any token of
    /// the user, if this one is for some of them; otherwise for the same by any token. Whoever is granted
    /// that is granted this.
    pub(super) fn widened(&self) -> Option<Self> {
        let attributes = match &self.target {
            AccessTarget::Resource(attributes) => attributes,
            AccessTarget::Verb { verb, on } => {
                return self.for_any_token(|| (Arc::clone(verb), on.clone()));
            }
            AccessTarget::Path(path) => {
                let get = Verb::Get.as_str();
                return self.for_any_token(|| (get.into(), VerbTarget::Path(path.clone())));
            }
            AccessTarget::AllObjects(_) | AccessTarget::AnyToken { .. } => return None,
        };
        let AccessAttributes {
            verb,
            resource,
            selectors,
        } = attributes;
        if resource.subresource.is_some() {
            return None;
        }
        let whole = ResourceRequest {
            name: None,
            ..resource.clone()
        };
        if resource.name.is_none() && selectors.is_empty() {
            // Without a name: a rule whose only name is empty grants nameless requests alone.
            return self.for_any_token(|| {
                let on = VerbTarget::Resource {
                    resource: whole,
                    selectors: ReviewSelectors::default(),
                };
                (verb.as_str().into(), on)
            });
        }
        Some(Self {
            identity: Identity::of_any_token(&self.identity),
            target: AccessTarget::AllObjects(AccessAttributes {
                verb: *verb,
                resource: whole,
                selectors: ReviewSelectors::default(),
            }),
        })
    }

    /// Returns the request for the same by any token of the user, if this one is told from others by its
    /// token.
    fn for_any_token(&self, target: impl FnOnce() -> (Arc<str>, VerbTarget)) -> Option<Self> {
        self.identity.has_token_attributes().then(|| {
            let (verb, on) = target();
            Self {
                identity: Identity::of_any_token(&self.identity),
                target: AccessTarget::AnyToken { verb, on },
            }
        })
    }

    /// Returns `true` if this stands for all names, selections or tokens.
    pub(super) fn is_wide(&self) -> bool {
        let target = &self.target;
        matches!(
            target,
            AccessTarget::AllObjects(_) | AccessTarget::AnyToken { .. }
        )
    }

    /// Returns `true` if this stands for others of which only the tokens differ.
    pub(super) fn is_for_any_token(&self) -> bool {
        matches!(self.target, AccessTarget::AnyToken { .. })
    }

    /// Returns the namespace that RBAC considers.
    pub(super) fn namespace(&self) -> Option<&str> {
        match &self.target {
            AccessTarget::Resource(attributes) | AccessTarget::AllObjects(attributes) => {
                attributes.resource.namespace.as_deref()
            }
            AccessTarget::Verb { on, .. } | AccessTarget::AnyToken { on, .. } => match on {
                VerbTarget::Resource { resource, .. } => resource.namespace.as_deref(),
                VerbTarget::Path(_) => None,
            },
            AccessTarget::Path(_) => None,
        }
    }

    /// Returns the request of a review, if [`AccessRequest::for_review`] would make the same of it.
    pub(super) fn of_review(review: &SubjectAccessReviewSpec) -> Option<Self> {
        let extra = review.extra.clone().unwrap_or_default();
        let identity = Identity {
            user: review.user.clone()?,
            uid: review.uid.clone(),
            groups: review.groups.clone().unwrap_or_default(),
            extra: extra.into_iter().collect(),
        };
        let request = Self {
            identity: Arc::new(identity),
            target: AccessTarget::of_review(review)?,
        };
        (request.for_review() == *review).then_some(request)
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
            AccessTarget::Verb { verb, on } | AccessTarget::AnyToken { verb, on } => match on {
                VerbTarget::Resource {
                    resource,
                    selectors,
                } => SubjectAccessReviewSpec {
                    resource_attributes: Some(attributes_of(verb, resource, selectors)),
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
            gvr: GroupVersionResource::new("", "v1", "pods"),
            namespace: namespace.map(str::to_owned),
            name: None,
            subresource: None,
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
    /// To do this, or to get a path, by whatever token of the user. It is not the request of a user without a
    /// token: only where no authorizer tells tokens apart does its grant count for them.
    AnyToken {
        /// The verb.
        verb: Arc<str>,
        /// The subject of the verb.
        on: VerbTarget,
    },
    /// To get a path that belongs to no resource.
    Path(String),
}

impl AccessTarget {
    /// Returns what a review asks about, as far as it can be told here.
    fn of_review(review: &SubjectAccessReviewSpec) -> Option<Self> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        if let Some(path) = &review.non_resource_attributes {
            let (verb, path) = (text(&path.verb), text(&path.path));
            return Some(if verb == Verb::Get.as_str() {
                Self::Path(path)
            } else {
                Self::Verb {
                    verb: verb.into(),
                    on: VerbTarget::Path(path),
                }
            });
        }
        let attributes = review.resource_attributes.as_ref()?;
        let named = [&attributes.group, &attributes.version, &attributes.resource];
        let [group, version, plural] = named.map(text);
        let resource = ResourceRequest {
            gvr: GroupVersionResource::new(&group, &version, &plural),
            namespace: attributes.namespace.clone(),
            name: attributes.name.clone(),
            subresource: attributes.subresource.clone(),
        };
        let selectors = ReviewSelectors::of_review(attributes)?;
        let verb = text(&attributes.verb);
        let read = [Verb::Get, Verb::List, Verb::Watch];
        Some(match read.into_iter().find(|read| read.as_str() == verb) {
            Some(verb) => Self::Resource(AccessAttributes {
                verb,
                resource,
                selectors,
            }),
            None => Self::Verb {
                verb: verb.into(),
                on: VerbTarget::Resource {
                    resource,
                    selectors,
                },
            },
        })
    }

    /// Returns the bytes of text that the caller chose.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Resource(attributes) | Self::AllObjects(attributes) => attributes.size(),
            Self::Verb { verb, on } | Self::AnyToken { verb, on } => verb.len() + on.size(),
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
            } => selectors.size() + size_of_named(resource),
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

/// Returns the attributes of a verb on a resource, in the form of a review.
fn attributes_of(
    verb: &str,
    resource: &ResourceRequest,
    selectors: &ReviewSelectors,
) -> ResourceAttributes {
    ResourceAttributes {
        verb: Some(verb.to_owned()),
        field_selector: selectors.for_fields(),
        label_selector: selectors.for_labels(),
        ..named_attributes(resource)
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

/// Returns the bytes of a type and of names.
fn size_of_named(resource: &ResourceRequest) -> usize {
    let ResourceRequest {
        gvr,
        namespace,
        name,
        subresource,
        ..
    } = resource;
    let gvr = gvr.group.len() + gvr.version.len() + gvr.resource.len();
    gvr + text_size([namespace, name, subresource])
}

fn list_size(texts: &[String]) -> usize {
    let sizes = texts.iter().map(|text| size_of::<String>() + text.len());
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::authorization::v1::FieldSelectorAttributes;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::FieldSelectorRequirement;
    use watershed_protocol::{FieldSelector, LabelSelector};

    use super::*;

    #[test]
    fn a_review_is_read_as_the_request_that_it_was_made_of() {
        let read = AccessRequest::example("ann", &["devs"], Some("here"));
        let identity = Arc::new(Identity {
            user: "system:serviceaccount:here:agent".to_owned(),
            uid: Some("1".to_owned()),
            groups: vec!["system:authenticated".to_owned()],
            extra: vec![("key".to_owned(), vec!["value".to_owned()])],
        });
        let AccessTarget::Resource(attributes) = read.target.clone() else {
            unreachable!();
        };
        let labels = LabelSelector::parse("a=b,c in (d,e),f,!g,h!=i").unwrap();
        let fields = FieldSelector::parse("spec.nodeName=east,metadata.name!=web").unwrap();
        let resource = ResourceRequest {
            name: Some("web".to_owned()),
            subresource: Some("log".to_owned()),
            ..attributes.resource.clone()
        };
        let named = VerbTarget::from(resource.clone());
        let verb = |verb: &str, on| AccessTarget::Verb {
            verb: verb.into(),
            on,
        };
        let targets = [
            AccessTarget::Resource(AccessAttributes {
                verb: Verb::Watch,
                selectors: ReviewSelectors::new(&labels, &fields),
                ..attributes
            }),
            AccessTarget::Resource(AccessAttributes {
                verb: Verb::Get,
                resource,
                selectors: ReviewSelectors::default(),
            }),
            verb("impersonate", named),
            verb("post", VerbTarget::Path("/metrics".to_owned())),
            AccessTarget::Path("/healthz".to_owned()),
        ];
        for target in targets.into_iter().chain([read.target.clone()]) {
            let request = AccessRequest {
                identity: Arc::clone(&identity),
                target,
            };
            let review = serde_json::to_string(&request.for_review()).unwrap();
            let review = serde_json::from_str(&review).unwrap();
            assert_eq!(AccessRequest::of_review(&review), Some(request));
        }
    }

    #[test]
    fn a_review_that_says_more_is_not_read() {
        let request = AccessRequest::example("ann", &[], Some("here"));
        let review = || request.for_review();
        let known = AccessRequest::of_review(&review());
        assert_eq!(known.as_ref(), Some(&request));

        let with = |change: fn(&mut SubjectAccessReviewSpec, &mut ResourceAttributes)| {
            let mut review = review();
            let mut attributes = review.resource_attributes.take().unwrap();
            change(&mut review, &mut attributes);
            review.resource_attributes.get_or_insert(attributes);
            AccessRequest::of_review(&review)
        };
        let odd: [fn(&mut SubjectAccessReviewSpec, &mut ResourceAttributes); 5] = [
            |review, _| review.user = None,
            |review, _| review.groups = None,
            |review, _| review.non_resource_attributes = Some(path_attributes("/healthz")),
            |_, attributes| attributes.version = Some(String::new()),
            |_, attributes| {
                attributes.field_selector = Some(FieldSelectorAttributes {
                    raw_selector: Some("a=b".to_owned()),
                    requirements: Some(vec![FieldSelectorRequirement {
                        key: "a".to_owned(),
                        operator: "Near".to_owned(),
                        values: None,
                    }]),
                });
            },
        ];
        for (number, change) in odd.into_iter().enumerate() {
            assert_eq!(with(change), None, "{number}");
        }
    }
}
