//! Grants by RBAC that the followed objects explain.
//!
//! Upstream names a binding as the reason for a grant. If the binding is here, with its role, and both give what
//! upstream granted, then it does not matter if the API server lags behind changes that are known here.
use k8s_openapi::api::rbac::v1::PolicyRule;
use parking_lot::RwLock;
use serde::Deserialize;
use watershed_protocol::{ItemBytes, object_key};

use super::rbac::{RbacKind, RbacObject};
use super::rules;
use crate::access::request::AccessRequest;
use crate::access::verdict::BY_RBAC;
use crate::store::{ObjectPeek, StoreReader};

/// The objects of the types that are followed.
#[derive(Debug, Default)]
pub(super) struct FollowedRoles([RwLock<Option<StoreReader>>; RbacKind::ALL.len()]);

impl FollowedRoles {
    /// Sets the objects of a type, or that it has none.
    pub(super) fn set(&self, kind: RbacKind, objects: Option<StoreReader>) {
        *self.0[kind as usize].write() = objects;
    }

    /// Returns `true` if the binding that upstream gave as its reason grants a request, by these objects.
    pub(super) fn explain(&self, reason: &str, request: &AccessRequest) -> bool {
        NamedBinding::of(reason)
            .is_some_and(|binding| binding.grants(request, |kind, key| self.get(kind, key)))
    }

    fn get(&self, kind: RbacKind, key: &str) -> Option<ItemBytes> {
        let reader = self.0[kind as usize].read().clone();
        let objects = reader?.followed();
        // Nobody reads the objects beside it, which may be compressed.
        Some(ObjectPeek::default().bytes(objects.get(key)?))
    }
}

/// A binding that a reason names.
#[derive(Debug, PartialEq, Eq)]
enum NamedBinding<'a> {
    Cluster { name: &'a str },
    Namespaced { namespace: &'a str, name: &'a str },
}

impl<'a> NamedBinding<'a> {
    /// Returns the binding that a reason names. Go would escape some names; none is returned for these.
    ///
    /// Source of the form: `kubernetes/pkg/registry/rbac/validation/rule.go`
    /// (clusterRoleBindingDescriber.String, roleBindingDescriber.String).
    fn of(reason: &'a str) -> Option<Self> {
        let (kind, rest) = reason.strip_prefix(BY_RBAC)?.split_once(" \"")?;
        let (name, _) = rest.split_once("\" of ")?;
        if name.contains(['"', '\\']) {
            return None;
        }
        match kind {
            "ClusterRoleBinding" => Some(Self::Cluster { name }),
            "RoleBinding" => {
                let (name, namespace) = name.rsplit_once('/')?;
                Some(Self::Namespaced { namespace, name })
            }
            _ => None,
        }
    }

    fn namespace(&self) -> &'a str {
        match self {
            Self::Cluster { .. } => "",
            Self::Namespaced { namespace, .. } => namespace,
        }
    }

    /// Returns `true` if the binding and its role are among these objects, and grant a request.
    ///
    /// Source: `kubernetes/pkg/registry/rbac/validation/rule.go` (VisitRulesFor, GetRoleReferenceRules).
    fn grants(
        &self,
        request: &AccessRequest,
        get: impl Fn(RbacKind, &str) -> Option<ItemBytes>,
    ) -> bool {
        let binding = match self {
            Self::Cluster { name } => get(RbacKind::ClusterRoleBindings, name),
            Self::Namespaced { namespace, name } => (request.namespace() == Some(namespace))
                .then(|| get(RbacKind::RoleBindings, &object_key(Some(namespace), name)))
                .flatten(),
        };
        let Some(binding) = binding else {
            return false;
        };
        let namespace = self.namespace();
        let Some(role) = role_for(&binding.text(), namespace, request) else {
            return false;
        };
        let role = match role.kind.as_str() {
            "Role" if !namespace.is_empty() => {
                get(RbacKind::Roles, &object_key(Some(namespace), &role.name))
            }
            "ClusterRole" => get(RbacKind::ClusterRoles, &role.name),
            _ => None,
        };
        let review = request.for_review();
        role.is_some_and(|role| {
            let rules = rules_of(&role.text());
            rules.iter().any(|rule| rules::allows(rule, &review))
        })
    }
}

/// The role that a binding refers to.
#[derive(Deserialize)]
struct RoleReference {
    kind: String,
    name: String,
}

/// Returns the role that a binding gives the user of a request.
fn role_for(binding: &[u8], namespace: &str, request: &AccessRequest) -> Option<RoleReference> {
    let binding = RbacObject::parse(Some(binding)).ok()??;
    if !binding.names(&request.identity, namespace) {
        return None;
    }
    serde_json::from_str(binding.role()?).ok()
}

/// Returns the rules of a role; none if they cannot be read.
fn rules_of(role: &[u8]) -> Vec<PolicyRule> {
    let role = RbacObject::parse(Some(role)).ok().flatten();
    let rules = role.as_ref().and_then(|role| role.rules().0);
    rules
        .and_then(|rules| serde_json::from_str(rules).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const BY_CLUSTER: &str =
        r#"RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "r" to User "ann""#;
    const BY_NAMESPACE: &str =
        r#"RBAC: allowed by RoleBinding "b/here" of Role "r" to ServiceAccount "ann/here""#;

    fn binding(role_kind: &str, subject: &Value) -> Value {
        json!({"roleRef": {"kind": role_kind, "name": "r"}, "subjects": [subject]})
    }

    fn role() -> Value {
        json!({"rules": [
            {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]},
            {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]},
        ]})
    }

    /// Returns `true` if the list of pods as `ann` or her service account is explained by these objects.
    fn explains(reason: &str, objects: &[(RbacKind, &str, &Value)]) -> bool {
        let (user, namespace) = if reason.contains("here") {
            ("system:serviceaccount:here:ann", Some("here"))
        } else {
            ("ann", None)
        };
        let request = AccessRequest::example(user, &["readers"], namespace);
        grants(reason, &request, objects)
    }

    fn grants(reason: &str, request: &AccessRequest, objects: &[(RbacKind, &str, &Value)]) -> bool {
        let get = |kind, key: &str| {
            let found = objects
                .iter()
                .find(|(of, named, _)| *of == kind && *named == key);
            found.map(|(_, _, object)| ItemBytes::new(object.to_string().into()))
        };
        NamedBinding::of(reason).is_some_and(|binding| binding.grants(request, get))
    }

    #[test]
    fn a_reason_names_a_binding() {
        let named = |reason| NamedBinding::of(reason);
        assert_eq!(named(BY_CLUSTER), Some(NamedBinding::Cluster { name: "b" }));
        let (namespace, name) = ("here", "b");
        assert_eq!(
            named(BY_NAMESPACE),
            Some(NamedBinding::Namespaced { namespace, name })
        );
        for other in [
            "",
            "RBAC: allowed by RoleBinding",
            r#"RBAC: allowed by RoleBinding "b" of Role "r""#,
            r#"RBAC: allowed by ClusterRoleBinding "a\"b" of ClusterRole "r""#,
            r#"RBAC: allowed by Shrug "b" of ClusterRole "r""#,
            r#"a webhook: allowed by ClusterRoleBinding "b" of ClusterRole "r""#,
        ] {
            assert_eq!(named(other), None, "{other}");
        }
    }

    #[test]
    fn a_binding_in_the_cluster_explains_a_grant_with_its_role() {
        use RbacKind::{ClusterRoleBindings, ClusterRoles, Roles};
        let ann = binding("ClusterRole", &json!({"kind": "User", "name": "ann"}));
        let group = binding("ClusterRole", &json!({"kind": "Group", "name": "readers"}));
        let bob = binding("ClusterRole", &json!({"kind": "User", "name": "bob"}));
        let of_role = binding("Role", &json!({"kind": "User", "name": "ann"}));
        let role = role();
        let role_here = (ClusterRoles, "r", &role);
        for binding in [&ann, &group] {
            let bound = (ClusterRoleBindings, "b", binding);
            assert!(explains(BY_CLUSTER, &[bound, role_here]));
            assert!(!explains(BY_CLUSTER, &[bound]), "the role is gone");
        }
        assert!(!explains(BY_CLUSTER, &[role_here]), "the binding is gone");
        let renamed = (ClusterRoleBindings, "c", &ann);
        assert!(!explains(BY_CLUSTER, &[renamed, role_here]));
        for other in [&bob, &of_role] {
            let bound = (ClusterRoleBindings, "b", other);
            assert!(!explains(
                BY_CLUSTER,
                &[bound, role_here, (Roles, "/r", &role)]
            ));
        }
        let bound = (ClusterRoleBindings, "b", &ann);
        for less in [json!({"rules": [role["rules"][0]]}), json!({"rules": null})] {
            let role = (ClusterRoles, "r", &less);
            assert!(!explains(BY_CLUSTER, &[bound, role]), "{less}");
        }
        let odd = json!({"rules": {}, "subjects": 1});
        assert!(!explains(BY_CLUSTER, &[bound, (ClusterRoles, "r", &odd)]));
        let bound = (ClusterRoleBindings, "b", &odd);
        assert!(!explains(BY_CLUSTER, &[bound, role_here]));
    }

    #[test]
    fn a_binding_in_a_namespace_explains_grants_there() {
        use RbacKind::{ClusterRoles, RoleBindings, Roles};
        let account = json!({"kind": "ServiceAccount", "name": "ann"});
        let (of_role, of_cluster_role) =
            (binding("Role", &account), binding("ClusterRole", &account));
        let role = role();
        let bound = (RoleBindings, "here/b", &of_role);
        assert!(explains(BY_NAMESPACE, &[bound, (Roles, "here/r", &role)]));
        assert!(!explains(BY_NAMESPACE, &[bound, (Roles, "there/r", &role)]));
        assert!(!explains(
            BY_NAMESPACE,
            &[bound, (ClusterRoles, "r", &role)]
        ));
        let bound = (RoleBindings, "here/b", &of_cluster_role);
        assert!(explains(BY_NAMESPACE, &[bound, (ClusterRoles, "r", &role)]));
        let bound = (RoleBindings, "there/b", &of_cluster_role);
        assert!(!explains(
            BY_NAMESPACE,
            &[bound, (ClusterRoles, "r", &role)]
        ));

        let bound = (RoleBindings, "here/b", &of_cluster_role);
        for namespace in [Some("there"), None] {
            let user = "system:serviceaccount:here:ann";
            let request = AccessRequest::example(user, &[], namespace);
            assert!(!grants(
                BY_NAMESPACE,
                &request,
                &[bound, (ClusterRoles, "r", &role)]
            ));
        }
    }
}
