//! Whom a change of an RBAC object can concern. Nothing here decides who may what.
use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::authorize::Question;
use watershed_protocol::GroupVersionResource;

/// The types that RBAC consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Roles,
    RoleBindings,
    ClusterRoles,
    ClusterRoleBindings,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [
        Self::Roles,
        Self::RoleBindings,
        Self::ClusterRoles,
        Self::ClusterRoleBindings,
    ];

    pub(super) fn gvr(self) -> GroupVersionResource {
        let resource = match self {
            Self::Roles => "roles",
            Self::RoleBindings => "rolebindings",
            Self::ClusterRoles => "clusterroles",
            Self::ClusterRoleBindings => "clusterrolebindings",
        };
        GroupVersionResource::new("rbac.authorization.k8s.io", "v1", resource)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Roles => "Role",
            Self::RoleBindings => "RoleBinding",
            Self::ClusterRoles => "ClusterRole",
            Self::ClusterRoleBindings => "ClusterRoleBinding",
        }
    }

    pub(super) fn is_namespaced(self) -> bool {
        matches!(self, Self::Roles | Self::RoleBindings)
    }
}

/// Which questions a change can have another answer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Affected {
    /// All of them.
    Everything,
    /// Those about one namespace.
    Namespace(Box<str>),
    /// Those of these users and members of these groups, about one namespace if one is named.
    Subjects {
        namespace: Option<Box<str>>,
        subjects: Subjects,
    },
}

/// Whom bindings name. A service account is the user it is known as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subjects {
    pub(super) users: HashSet<Box<str>>,
    pub(super) groups: HashSet<Box<str>>,
}

impl Subjects {
    fn len(&self) -> usize {
        self.users.len() + self.groups.len()
    }

    /// Who stands in one of both; with `shared`, or in both.
    fn joined(&self, other: &Self, shared: bool) -> Self {
        let join = |a: &HashSet<Box<str>>, b: &HashSet<Box<str>>| {
            if shared {
                a.union(b).cloned().collect()
            } else {
                a.symmetric_difference(b).cloned().collect()
            }
        };
        Self {
            users: join(&self.users, &other.users),
            groups: join(&self.groups, &other.groups),
        }
    }
}

/// Bindings of a namespace with more subjects than this count for all of the namespace.
const MAX_SUBJECTS: usize = 16;

impl Affected {
    pub(super) fn concerns(&self, question: &Question) -> bool {
        match self {
            Self::Everything => true,
            Self::Namespace(namespace) => question.namespace() == Some(namespace),
            Self::Subjects {
                namespace,
                subjects,
            } => {
                let here = namespace
                    .as_deref()
                    .is_none_or(|own| question.namespace() == Some(own));
                here && question.is_asked_by(subjects)
            }
        }
    }

    /// How much memory it takes, in pieces of some hundred bytes.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Everything | Self::Namespace(_) => 1,
            Self::Subjects { subjects, .. } => 1 + subjects.len(),
        }
    }

    /// What a change of an object from `old` to `new` can affect; `None` stands for its absence. A
    /// change that the authorizer does not look at affects nothing.
    ///
    /// Source of what it looks at: `kubernetes/pkg/registry/rbac/validation/rule.go`
    /// (VisitRulesFor).
    pub(super) fn by(
        kind: Kind,
        namespace: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Option<Self> {
        let parse = |bytes| Option::map(bytes, Parsed::new).transpose();
        let (Ok(old), Ok(new)) = (parse(old), parse(new)) else {
            return Some(Self::Everything);
        };
        match kind {
            Kind::Roles | Kind::ClusterRoles => {
                let same_rules = old.as_ref().map(Parsed::rules) == new.as_ref().map(Parsed::rules);
                (!same_rules).then(|| match kind {
                    Kind::Roles => Self::Namespace(namespace.into()),
                    _ => Self::Everything,
                })
            }
            Kind::RoleBindings | Kind::ClusterRoleBindings => {
                let same_role = match (&old, &new) {
                    (Some(old), Some(new)) => old.role() == new.role(),
                    // Whoever stands in one that is new or gone.
                    _ => true,
                };
                let subjects = |binding: &Option<Parsed>| {
                    binding
                        .as_ref()
                        .map_or_else(Subjects::default, |binding| binding.subjects(namespace))
                };
                // Who stands in both keeps what the binding gave, if it gives the same.
                let subjects = subjects(&old).joined(&subjects(&new), !same_role);
                (subjects.len() > 0).then(|| match kind {
                    // Whoever may write in one namespace must not be able to fill the record.
                    Kind::RoleBindings if subjects.len() > MAX_SUBJECTS => {
                        Self::Namespace(namespace.into())
                    }
                    Kind::RoleBindings => Self::Subjects {
                        namespace: Some(namespace.into()),
                        subjects,
                    },
                    _ => Self::Subjects {
                        namespace: None,
                        subjects,
                    },
                })
            }
        }
    }
}

/// The parts of the four types that matter.
#[derive(Deserialize)]
struct Parsed<'a> {
    #[serde(borrow, default)]
    rules: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "aggregationRule")]
    aggregation: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "roleRef")]
    role: Option<&'a RawValue>,
    #[serde(default)]
    subjects: Option<Vec<Named>>,
}

/// `rbac/v1.Subject`.
#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: Option<String>,
}

impl<'a> Parsed<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// As text: upstream writes what is equal in the same way.
    fn rules(&self) -> (Option<&str>, Option<&str>) {
        (
            self.rules.map(RawValue::get),
            self.aggregation.map(RawValue::get),
        )
    }

    fn role(&self) -> Option<&str> {
        self.role.map(RawValue::get)
    }

    /// Source: `kubernetes/pkg/registry/rbac/validation/rule.go` (appliesToUser). Other kinds are
    /// nobody.
    fn subjects(&self, binding_namespace: &str) -> Subjects {
        let mut subjects = Subjects::default();
        for named in self.subjects.iter().flatten() {
            match named.kind.as_str() {
                "User" => drop(subjects.users.insert(named.name.as_str().into())),
                "Group" => drop(subjects.groups.insert(named.name.as_str().into())),
                "ServiceAccount" => {
                    let own = named
                        .namespace
                        .as_deref()
                        .filter(|namespace| !namespace.is_empty());
                    let namespace = own.unwrap_or(binding_namespace);
                    if !namespace.is_empty() {
                        let user = format!("system:serviceaccount:{namespace}:{}", named.name);
                        subjects.users.insert(user.into());
                    }
                }
                _ => {}
            }
        }
        subjects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(label: &str, role: &str, subjects: &[(&str, &str, &str)]) -> Vec<u8> {
        let subjects: Vec<_> = subjects
            .iter()
            .map(|(kind, name, namespace)| serde_json::json!({"kind": kind, "name": name, "namespace": namespace}))
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

    /// Which of some questions a change affects.
    fn affects(
        kind: Kind,
        namespace: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Vec<&'static str> {
        let questions = [
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
        let concerned = questions
            .into_iter()
            .filter(|(_, user, groups, namespace)| {
                affected.as_ref().is_some_and(|affected| {
                    affected.concerns(&Question::example(user, groups, *namespace))
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
            // The binding's own namespace is meant; a ClusterRoleBinding has none.
            (("ServiceAccount", "robot", ""), &["robot here"], &[]),
            (("ServiceAccount", "robot", "there"), &[], &[]),
            (("Robot", "ann", ""), &[], &[]),
        ] {
            let object = of(subject);
            for (old, new) in [(None, Some(&object[..])), (Some(&object[..]), None)] {
                assert_eq!(
                    affects(Kind::RoleBindings, "here", old, new),
                    here,
                    "{subject:?}"
                );
                assert_eq!(
                    affects(Kind::ClusterRoleBindings, "", old, new),
                    cluster,
                    "{subject:?}"
                );
            }
        }
    }

    #[test]
    fn a_binding_that_changes_affects_old_and_new_subjects() {
        let changed =
            |old: &[u8], new: &[u8]| affects(Kind::RoleBindings, "here", Some(old), Some(new));
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
            assert_eq!(affects(Kind::Roles, "here", old, new), here);
            assert_eq!(affects(Kind::ClusterRoles, "", old, new), ALL);
        }
        for kind in [Kind::Roles, Kind::ClusterRoles] {
            assert!(
                affects(kind, "here", Some(&get), Some(&labelled)).is_empty(),
                "metadata only"
            );
        }
        let aggregated = br#"{"aggregationRule":{"clusterRoleSelectors":[]},"rules":null}"#;
        assert_eq!(
            affects(
                Kind::ClusterRoles,
                "",
                Some(br#"{"rules":null}"#),
                Some(aggregated)
            ),
            ALL
        );
    }

    #[test]
    fn what_is_not_understood_affects_everything() {
        for text in [&b"{"[..], b"null", b"\xff", br#"{"subjects":{}}"#] {
            assert_eq!(affects(Kind::RoleBindings, "here", None, Some(text)), ALL);
        }
    }
}
