//! Access requests: an identity, and the access that it wants.
pub(super) mod selectors;

use std::borrow::Cow;
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
/// The verbs of reads.
const READS: [Verb; 3] = [Verb::Get, Verb::List, Verb::Watch];

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
    /// Returns the access that an authorizer is asked about.
    pub fn target(&self) -> AccessTarget {
        let on = VerbTarget::Resource {
            resource: self.resource.clone(),
            selectors: self.selectors.clone(),
        };
        AccessTarget::new(self.verb.as_str(), on)
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
        let target = self.target.widened(self.identity.has_token_attributes())?;
        Some(Self {
            identity: Identity::of_any_token(&self.identity),
            target,
        })
    }

    /// Returns `true` if this stands for all names, selections or tokens.
    pub(super) fn is_wide(&self) -> bool {
        self.target.width != TargetWidth::Exact
    }

    /// Returns `true` if this stands for others of which only the tokens differ.
    pub(super) fn is_for_any_token(&self) -> bool {
        self.target.width == TargetWidth::AnyToken
    }

    /// Returns the namespace that RBAC considers.
    pub(super) fn namespace(&self) -> Option<&str> {
        match &self.target.on {
            VerbTarget::Resource { resource, .. } => resource.namespace.as_deref(),
            VerbTarget::Path(_) => None,
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
        let AccessTarget { verb, on, width } = &self.target;
        match on {
            VerbTarget::Resource {
                resource,
                selectors,
            } => {
                let mut attributes = attributes_of(verb, resource, selectors);
                if *width == TargetWidth::AnyName {
                    attributes.name = Some(unknowable_name());
                }
                SubjectAccessReviewSpec {
                    resource_attributes: Some(attributes),
                    ..spec
                }
            }
            VerbTarget::Path(path) => SubjectAccessReviewSpec {
                non_resource_attributes: Some(NonResourceAttributes {
                    verb: Some(verb.to_string()),
                    path: Some(path.clone()),
                }),
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
        Self {
            identity: Arc::new(identity),
            target: AccessTarget::new(Verb::List.as_str(), resource),
        }
    }
}

/// The access that a caller wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccessTarget {
    /// The verb, such as `list` or `impersonate`.
    pub(super) verb: Cow<'static, str>,
    /// The subject of the verb.
    pub(super) on: VerbTarget,
    /// The names and tokens that it is wanted for.
    width: TargetWidth,
}

impl AccessTarget {
    /// Returns exactly this access.
    pub(super) fn new(verb: impl Into<Cow<'static, str>>, on: impl Into<VerbTarget>) -> Self {
        Self {
            verb: verb.into(),
            on: on.into(),
            width: TargetWidth::Exact,
        }
    }

    /// Returns a GET of a path that belongs to no resource.
    pub fn get_of_path(path: &str) -> Self {
        Self::new(Verb::Get.as_str(), VerbTarget::Path(path.to_owned()))
    }

    /// Returns what a review asks about, as far as it can be told here.
    fn of_review(review: &SubjectAccessReviewSpec) -> Option<Self> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        if let Some(path) = &review.non_resource_attributes {
            return Some(Self::new(
                text(&path.verb),
                VerbTarget::Path(text(&path.path)),
            ));
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
        let on = VerbTarget::Resource {
            resource,
            selectors,
        };
        Some(Self::new(text(&attributes.verb), on))
    }

    /// Returns the parts of a read of a resource, unless this stands for others.
    pub(super) fn exact_read(&self) -> Option<ExactRead<'_>> {
        let VerbTarget::Resource {
            resource,
            selectors,
        } = &self.on
        else {
            return None;
        };
        let verb = READS.into_iter().find(|read| read.as_str() == self.verb)?;
        (self.width == TargetWidth::Exact).then_some(ExactRead {
            verb,
            resource,
            selectors,
        })
    }

    /// Returns the target of [`AccessRequest::widened`].
    fn widened(&self, has_token_attributes: bool) -> Option<Self> {
        if self.width != TargetWidth::Exact {
            return None;
        }
        if let Some(read) = self.exact_read() {
            if read.resource.subresource.is_some() {
                return None;
            }
            if read.resource.name.is_some() || !read.selectors.is_empty() {
                let whole = ResourceRequest {
                    name: None,
                    ..read.resource.clone()
                };
                return Some(Self {
                    width: TargetWidth::AnyName,
                    ..Self::new(read.verb.as_str(), whole)
                });
            }
        }
        // A read that gets here has no name, and its review has none either: a rule whose only name is empty
        // grants nameless requests alone.
        has_token_attributes.then(|| Self {
            width: TargetWidth::AnyToken,
            ..self.clone()
        })
    }

    /// Returns the bytes of text that the caller chose.
    pub(super) fn size(&self) -> usize {
        self.verb.len() + self.on.size()
    }
}

/// The parts of a read of a resource.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExactRead<'a> {
    /// Get, list or watch.
    pub(super) verb: Verb,
    pub(super) resource: &'a ResourceRequest,
    pub(super) selectors: &'a ReviewSelectors,
}

/// The names and tokens that an access is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TargetWidth {
    /// Just these.
    Exact,
    /// Any objects of a type in a namespace, by whatever name, selector or token. Only reads have it.
    AnyName,
    /// Just these names, by whatever token of the user. It is not the request of a user without a token:
    /// only where no authorizer tells tokens apart does its grant count for them.
    AnyToken,
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
        let pods = read.target.exact_read().unwrap().resource;
        let labels = LabelSelector::parse("a=b,c in (d,e),f,!g,h!=i").unwrap();
        let fields = FieldSelector::parse("spec.nodeName=east,metadata.name!=web").unwrap();
        let resource = ResourceRequest {
            name: Some("web".to_owned()),
            subresource: Some("log".to_owned()),
            ..pods.clone()
        };
        let watch = AccessAttributes {
            verb: Verb::Watch,
            resource: pods.clone(),
            selectors: ReviewSelectors::new(&labels, &fields),
        };
        let targets = [
            watch.target(),
            AccessTarget::new("get", resource.clone()),
            AccessTarget::new("impersonate", resource),
            AccessTarget::new("post", VerbTarget::Path("/metrics".to_owned())),
            AccessTarget::get_of_path("/healthz"),
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
    fn only_reads_of_whole_objects_stand_for_all_names_and_all_else_for_all_tokens() {
        let pods = AccessRequest::example("web", &[], Some("here"));
        let pods = pods.target.exact_read().unwrap().resource.clone();
        let named = ResourceRequest {
            name: Some("web".to_owned()),
            ..pods.clone()
        };
        let log = ResourceRequest {
            subresource: Some("log".to_owned()),
            ..named.clone()
        };
        let labels = LabelSelector::parse("a=b").unwrap();
        let selected = |resource: &ResourceRequest| VerbTarget::Resource {
            resource: resource.clone(),
            selectors: ReviewSelectors::new(&labels, &FieldSelector::default()),
        };
        let path = || VerbTarget::Path("/metrics".to_owned());
        let key = "authentication.kubernetes.io/pod-name".to_owned();
        let user = AccessRequest::example("web", &[], None).identity;
        let token = Arc::new(Identity {
            extra: vec![(key, vec!["web-1".to_owned()])],
            ..Identity::clone(&user)
        });
        let (any_name, any_token) = (TargetWidth::AnyName, TargetWidth::AnyToken);
        for (verb, on, with_token, without) in [
            ("get", named.clone().into(), Some(any_name), Some(any_name)),
            ("list", named.clone().into(), Some(any_name), Some(any_name)),
            ("watch", selected(&pods), Some(any_name), Some(any_name)),
            ("list", selected(&named), Some(any_name), Some(any_name)),
            ("list", pods.clone().into(), Some(any_token), None),
            ("get", log.clone().into(), None, None),
            ("create", log.into(), Some(any_token), None),
            ("impersonate", named.into(), Some(any_token), None),
            ("deletecollection", selected(&pods), Some(any_token), None),
            ("get", path(), Some(any_token), None),
            ("post", path(), Some(any_token), None),
        ] {
            let target = AccessTarget::new(verb, on);
            for (identity, expected) in [(&token, with_token), (&user, without)] {
                let request = AccessRequest {
                    identity: Arc::clone(identity),
                    target: target.clone(),
                };
                let wide = request.widened();
                let width = wide.as_ref().map(|wide| wide.target.width);
                assert_eq!(width, expected, "{request:?}");
                let Some(wide) = wide else {
                    continue;
                };
                assert_eq!(wide.identity, user);
                assert_eq!((wide.is_wide(), wide.widened()), (true, None));
                assert_eq!(wide.is_for_any_token(), width == Some(any_token));
                assert!(wide.target.exact_read().is_none());
                let all = AccessTarget::new(verb, pods.clone());
                let exact = if width == Some(any_name) {
                    &all
                } else {
                    &target
                };
                assert_eq!(
                    (&wide.target.verb, &wide.target.on),
                    (&exact.verb, &exact.on)
                );
            }
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
