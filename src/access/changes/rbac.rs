//! The requests that a change of an RBAC object can concern. Nothing here evaluates RBAC rules.
use std::borrow::Cow;
use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;
use watershed_protocol::GroupVersionResource;

use crate::access::identity::Identity;
use crate::access::request::AccessRequest;

/// A RoleBinding with more subjects than this counts for its whole namespace.
const MAX_SUBJECTS: usize = 16;

/// A type of RBAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::access) enum RbacKind {
    Roles,
    RoleBindings,
    ClusterRoles,
    ClusterRoleBindings,
}

impl RbacKind {
    pub(in crate::access) const ALL: [Self; 4] = [
        Self::Roles,
        Self::RoleBindings,
        Self::ClusterRoles,
        Self::ClusterRoleBindings,
    ];

    pub(in crate::access) fn gvr(self) -> GroupVersionResource {
        let resource = match self {
            Self::Roles => "roles",
            Self::RoleBindings => "rolebindings",
            Self::ClusterRoles => "clusterroles",
            Self::ClusterRoleBindings => "clusterrolebindings",
        };
        GroupVersionResource::new("rbac.authorization.k8s.io", "v1", resource)
    }

    pub(in crate::access) fn name(self) -> &'static str {
        match self {
            Self::Roles => "Role",
            Self::RoleBindings => "RoleBinding",
            Self::ClusterRoles => "ClusterRole",
            Self::ClusterRoleBindings => "ClusterRoleBinding",
        }
    }

    pub(in crate::access) fn is_namespaced(self) -> bool {
        matches!(self, Self::Roles | Self::RoleBindings)
    }
}

/// The requests that the same types of RBAC decide about.
///
/// Source: `kubernetes/pkg/registry/rbac/validation/rule.go` (VisitRulesFor).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::access) enum RequestReach {
    /// Requests about the cluster and about all namespaces: only ClusterRoleBindings grant them.
    Cluster,
    /// Requests in one namespace.
    Namespace,
}

impl RequestReach {
    pub(in crate::access) const ALL: [Self; 2] = [Self::Cluster, Self::Namespace];

    pub(in crate::access) fn of(request: &AccessRequest) -> Self {
        match request.namespace() {
            None | Some("") => Self::Cluster,
            Some(_) => Self::Namespace,
        }
    }

    /// Returns the types that decide about these requests.
    pub(in crate::access) fn kinds(self) -> &'static [RbacKind] {
        match self {
            Self::Cluster => &[RbacKind::ClusterRoles, RbacKind::ClusterRoleBindings],
            Self::Namespace => &RbacKind::ALL,
        }
    }
}

/// The requests to which a change can give another answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::access) enum Affected {
    /// All requests.
    Everything,
    /// All requests of this reach, in a way that is not known: the types that decide about them
    /// are followed from now on, for the first time.
    UnknownPast(RequestReach),
    /// Requests in one namespace.
    Namespace(Box<str>),
    /// Requests of these subjects, in one namespace if it is named.
    Subjects {
        namespace: Option<Box<str>>,
        subjects: Subjects,
    },
}

impl Affected {
    /// Returns the requests that a change of an object from `old` to `new` can concern. `None`
    /// stands for an absent object. The result is `None` if the authorizer ignores the change.
    ///
    /// Source of what the authorizer considers: `kubernetes/pkg/registry/rbac/validation/rule.go`
    /// (VisitRulesFor).
    pub(in crate::access) fn by(
        kind: RbacKind,
        namespace: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Option<Self> {
        let (Ok(old), Ok(new)) = (RbacObject::parse(old), RbacObject::parse(new)) else {
            return Some(Self::Everything);
        };
        let (old, new) = (old.as_ref(), new.as_ref());
        match kind {
            RbacKind::Roles => rules_differ(old, new).then(|| Self::Namespace(namespace.into())),
            RbacKind::ClusterRoles => rules_differ(old, new).then_some(Self::Everything),
            RbacKind::RoleBindings => {
                let subjects = affected_subjects(old, new, namespace);
                match subjects.len() {
                    0 => None,
                    1..=MAX_SUBJECTS => Some(Self::Subjects {
                        namespace: Some(namespace.into()),
                        subjects,
                    }),
                    // A user with write access to one namespace must not be able to fill the log.
                    _ => Some(Self::Namespace(namespace.into())),
                }
            }
            RbacKind::ClusterRoleBindings => {
                let subjects = affected_subjects(old, new, namespace);
                (subjects.len() > 0).then_some(Self::Subjects {
                    namespace: None,
                    subjects,
                })
            }
        }
    }

    /// Returns `true` if the change can concern a request.
    pub(in crate::access) fn concerns(&self, request: &AccessRequest) -> bool {
        match self {
            Self::Everything => true,
            Self::UnknownPast(reach) => *reach == RequestReach::of(request),
            Self::Namespace(namespace) => request.namespace() == Some(namespace),
            Self::Subjects {
                namespace,
                subjects,
            } => {
                let is_here = namespace
                    .as_deref()
                    .is_none_or(|own| request.namespace() == Some(own));
                is_here && subjects.include(&request.identity)
            }
        }
    }

    /// Returns the only namespace that the change can concern, if there is one.
    pub(in crate::access) fn namespace(&self) -> Option<&str> {
        match self {
            Self::Everything | Self::UnknownPast(_) => None,
            Self::Namespace(namespace) => Some(namespace),
            Self::Subjects { namespace, .. } => namespace.as_deref(),
        }
    }

    /// Returns the only users that the change can concern, if it concerns no groups.
    pub(in crate::access) fn users(&self) -> Option<&HashSet<Box<str>>> {
        match self {
            Self::Subjects { subjects, .. } if subjects.groups.is_empty() => Some(&subjects.users),
            _ => None,
        }
    }

    /// Returns the memory use, in units of some hundred bytes.
    pub(in crate::access) fn weight(&self) -> usize {
        match self {
            Self::Everything | Self::UnknownPast(_) | Self::Namespace(_) => 1,
            Self::Subjects { subjects, .. } => 1 + subjects.len(),
        }
    }
}

/// Subjects of bindings. A service account is recorded as its user name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::access) struct Subjects {
    pub(in crate::access) users: HashSet<Box<str>>,
    pub(in crate::access) groups: HashSet<Box<str>>,
}

impl Subjects {
    fn len(&self) -> usize {
        self.users.len() + self.groups.len()
    }

    /// Returns `true` if a user is among the subjects.
    fn include(&self, identity: &Identity) -> bool {
        self.users.contains(identity.user.as_str())
            || (!self.groups.is_empty()
                && identity
                    .groups
                    .iter()
                    .any(|group| self.groups.contains(group.as_str())))
    }

    /// Returns the subjects that are in either of both.
    fn union(&self, other: &Self) -> Self {
        Self {
            users: &self.users | &other.users,
            groups: &self.groups | &other.groups,
        }
    }

    /// Returns the subjects that are in exactly one of both.
    fn symmetric_difference(&self, other: &Self) -> Self {
        Self {
            users: &self.users ^ &other.users,
            groups: &self.groups ^ &other.groups,
        }
    }
}

/// The parts of the four types that the authorizer considers.
#[derive(Deserialize)]
pub(super) struct RbacObject<'a> {
    #[serde(borrow, default)]
    rules: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "aggregationRule")]
    aggregation: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "roleRef")]
    role: Option<&'a RawValue>,
    #[serde(default)]
    subjects: Option<Vec<BindingSubject>>,
}

impl<'a> RbacObject<'a> {
    pub(super) fn parse(bytes: Option<&'a [u8]>) -> Result<Option<Self>, serde_json::Error> {
        bytes.map(serde_json::from_slice).transpose()
    }

    /// Returns the rules and what they are gathered by, as text. Upstream writes equal ones as equal text.
    pub(super) fn rules(&self) -> (Option<&str>, Option<&str>) {
        (
            self.rules.map(RawValue::get),
            self.aggregation.map(RawValue::get),
        )
    }

    /// Returns the reference to the role of a binding, as text.
    pub(super) fn role(&self) -> Option<&str> {
        self.role.map(RawValue::get)
    }

    /// Returns the subjects. Those of unknown kinds match no user.
    fn subjects(&self, binding_namespace: &str) -> Subjects {
        let mut subjects = Subjects::default();
        for subject in self.subjects.iter().flatten() {
            match subject.resolve(binding_namespace) {
                Some(ResolvedSubject::User(name)) => drop(subjects.users.insert(name.into())),
                Some(ResolvedSubject::Group(name)) => drop(subjects.groups.insert(name.into())),
                None => {}
            }
        }
        subjects
    }

    /// Returns `true` if a user is among the subjects of a binding. The user then has what its role gives, so
    /// this must be no wider than upstream's own rule.
    pub(super) fn names(&self, identity: &Identity, binding_namespace: &str) -> bool {
        let mut subjects = self.subjects.iter().flatten();
        subjects.any(|subject| match subject.resolve(binding_namespace) {
            Some(ResolvedSubject::User(name)) => *name == *identity.user,
            Some(ResolvedSubject::Group(name)) => identity.is_in(name),
            None => false,
        })
    }
}

/// `rbac/v1.Subject`.
#[derive(Deserialize)]
struct BindingSubject {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: Option<String>,
}

/// The users that a subject stands for.
enum ResolvedSubject<'a> {
    User(Cow<'a, str>),
    Group(&'a str),
}

impl BindingSubject {
    /// Returns the users that the subject of a binding stands for; `None` if it is of an unknown kind, or an
    /// account without a namespace.
    ///
    /// Source: `kubernetes/pkg/registry/rbac/validation/rule.go` (appliesToUser).
    fn resolve(&self, binding_namespace: &str) -> Option<ResolvedSubject<'_>> {
        let name = self.name.as_str();
        Some(match self.kind.as_str() {
            "User" => ResolvedSubject::User(name.into()),
            "Group" => ResolvedSubject::Group(name),
            "ServiceAccount" => {
                let own = self.namespace.as_deref();
                let namespace = own
                    .filter(|namespace| !namespace.is_empty())
                    .unwrap_or(binding_namespace);
                if namespace.is_empty() {
                    return None;
                }
                ResolvedSubject::User(format!("system:serviceaccount:{namespace}:{name}").into())
            }
            _ => return None,
        })
    }
}

fn rules_differ(old: Option<&RbacObject<'_>>, new: Option<&RbacObject<'_>>) -> bool {
    old.map(RbacObject::rules) != new.map(RbacObject::rules)
}

/// Returns the subjects to which a changed binding gives other rights than before.
fn affected_subjects(
    old: Option<&RbacObject<'_>>,
    new: Option<&RbacObject<'_>>,
    namespace: &str,
) -> Subjects {
    let before = old.map_or_else(Subjects::default, |binding| binding.subjects(namespace));
    let after = new.map_or_else(Subjects::default, |binding| binding.subjects(namespace));
    match (old, new) {
        (Some(old), Some(new)) if old.role() != new.role() => before.union(&after),
        // A subject of both keeps the role, so its rights are the same.
        _ => before.symmetric_difference(&after),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(label: &str, role: &str, subjects: &[(&str, &str, &str)]) -> Vec<u8> {
        let subjects: Vec<_> = subjects
            .iter()
            .map(|(kind, name, namespace)| {
                serde_json::json!({"kind": kind, "name": name, "namespace": namespace})
            })
            .collect();
        serde_json::json!({
            "metadata": {"name": "b", "labels": {"l": label}}, "subjects": subjects,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
        })
        .to_string()
        .into_bytes()
    }

    fn role(label: &str, verb: &str) -> Vec<u8> {
        serde_json::json!({
            "metadata": {"name": "r", "labels": {"l": label}},
            "rules": [{"verbs": [verb], "apiGroups": [""], "resources": ["pods"]}],
        })
        .to_string()
        .into_bytes()
    }

    /// Returns the names of the example requests that a change affects.
    fn affects(
        kind: RbacKind,
        namespace: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Vec<&'static str> {
        let requests = [
            ("ann here", "ann", &["readers"][..], Some("here")),
            ("ann there", "ann", &["readers"], Some("there")),
            ("ann everywhere", "ann", &["readers"], None),
            ("bob here", "bob", &[], Some("here")),
            (
                "robot here",
                "system:serviceaccount:here:robot",
                &[],
                Some("here"),
            ),
            (
                "robot there",
                "system:serviceaccount:here:robot",
                &[],
                Some("there"),
            ),
        ];
        let affected = Affected::by(kind, namespace, old, new);
        let concerned = requests.into_iter().filter(|(_, user, groups, namespace)| {
            affected.as_ref().is_some_and(|affected| {
                affected.concerns(&AccessRequest::example(user, groups, *namespace))
            })
        });
        concerned.map(|(name, ..)| name).collect()
    }

    const ALL: [&str; 6] = [
        "ann here",
        "ann there",
        "ann everywhere",
        "bob here",
        "robot here",
        "robot there",
    ];

    #[test]
    fn a_binding_that_comes_or_goes_affects_its_subjects_where_it_holds() {
        let of = |subject| binding("", "r", &[subject]);
        for (subject, here, cluster) in [
            (
                ("User", "ann", ""),
                &["ann here"][..],
                &["ann here", "ann there", "ann everywhere"][..],
            ),
            (
                ("Group", "readers", ""),
                &["ann here"],
                &["ann here", "ann there", "ann everywhere"],
            ),
            (("User", "readers", ""), &[], &[]),
            (("Group", "ann", ""), &[], &[]),
            (
                ("ServiceAccount", "robot", "here"),
                &["robot here"],
                &["robot here", "robot there"],
            ),
            // Without a namespace the binding's own counts; a ClusterRoleBinding has none.
            (("ServiceAccount", "robot", ""), &["robot here"], &[]),
            (("ServiceAccount", "robot", "there"), &[], &[]),
            (("Robot", "ann", ""), &[], &[]),
        ] {
            let object = of(subject);
            for (old, new) in [(None, Some(&object[..])), (Some(&object[..]), None)] {
                assert_eq!(
                    affects(RbacKind::RoleBindings, "here", old, new),
                    here,
                    "{subject:?}"
                );
                assert_eq!(
                    affects(RbacKind::ClusterRoleBindings, "", old, new),
                    cluster,
                    "{subject:?}"
                );
            }
        }
    }

    #[test]
    fn a_binding_that_changes_affects_old_and_new_subjects() {
        let changed =
            |old: &[u8], new: &[u8]| affects(RbacKind::RoleBindings, "here", Some(old), Some(new));
        let (ann, bob) = (("User", "ann", ""), ("User", "bob", ""));
        let before = binding("a", "r", &[ann]);
        assert_eq!(
            changed(&before, &binding("a", "r", &[bob])),
            ["ann here", "bob here"]
        );
        assert_eq!(
            changed(&before, &binding("a", "r", &[ann, bob])),
            ["bob here"],
            "ann keeps what she had"
        );
        assert_eq!(changed(&before, &binding("a", "r", &[])), ["ann here"]);
        assert_eq!(
            changed(&before, &binding("a", "other", &[ann])),
            ["ann here"],
            "another role"
        );
        assert!(
            changed(&before, &binding("b", "r", &[ann])).is_empty(),
            "metadata only"
        );
    }

    #[test]
    fn a_role_affects_its_namespace_and_a_cluster_role_everything() {
        let (get, list, labelled) = (role("a", "get"), role("a", "list"), role("b", "get"));
        for (old, new) in [
            (None, Some(&get[..])),
            (Some(&get[..]), None),
            (Some(&get[..]), Some(&list[..])),
        ] {
            let here = ["ann here", "bob here", "robot here"];
            assert_eq!(affects(RbacKind::Roles, "here", old, new), here);
            assert_eq!(affects(RbacKind::ClusterRoles, "", old, new), ALL);
        }
        for kind in [RbacKind::Roles, RbacKind::ClusterRoles] {
            assert!(
                affects(kind, "here", Some(&get), Some(&labelled)).is_empty(),
                "metadata only"
            );
        }
        let aggregated = br#"{"aggregationRule":{"clusterRoleSelectors":[]},"rules":null}"#;
        assert_eq!(
            affects(
                RbacKind::ClusterRoles,
                "",
                Some(br#"{"rules":null}"#),
                Some(aggregated)
            ),
            ALL
        );
    }

    #[test]
    fn an_object_that_cannot_be_parsed_affects_everything() {
        for text in [&b"{"[..], b"null", b"\xff", br#"{"subjects":{}}"#] {
            assert_eq!(
                affects(RbacKind::RoleBindings, "here", None, Some(text)),
                ALL
            );
        }
    }
}
