//! RBAC: the permissions that bindings and roles grant.
use serde::Deserialize;

use super::attributes::{SimulatedAccess, User};
use super::kinds::ResourceKind;
use super::state::ClusterState;

const GROUP: &str = "rbac.authorization.k8s.io";

/// A binding or a role. The two have no field in common.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BindingOrRole {
    metadata: RbacMetadata,
    role_ref: RbacReference,
    subjects: Vec<RbacReference>,
    rules: Vec<RbacRule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RbacMetadata {
    name: String,
    namespace: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RbacReference {
    kind: String,
    name: String,
    namespace: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RbacRule {
    verbs: Vec<String>,
    api_groups: Vec<String>,
    resources: Vec<String>,
    resource_names: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    paths: Vec<String>,
}

/// Returns the reason for a permission in the words of upstream's authorizer, or `None` when no
/// binding grants it.
/// Source: kubernetes `plugin/pkg/auth/authorizer/rbac/rbac.go`,
/// `pkg/registry/rbac/validation/rule.go`.
pub(crate) fn reason(state: &ClusterState, user: &User, asked: &SimulatedAccess) -> Option<String> {
    for resource in ["clusterrolebindings", "rolebindings"] {
        for binding in objects(state, resource) {
            let place = &binding.metadata.namespace;
            let here =
                resource == "clusterrolebindings" || *place == asked.namespace && !place.is_empty();
            let mut subjects = binding.subjects.iter();
            let Some(subject) = subjects.find(|subject| here && subject.is(user, place)) else {
                continue;
            };
            let roles = if binding.role_ref.kind == "Role" {
                "roles"
            } else {
                "clusterroles"
            };
            let role = objects(state, roles).find(|role| {
                role.metadata.name == binding.role_ref.name
                    && (roles == "clusterroles" || role.metadata.namespace == *place)
            });
            if role.is_some_and(|role| role.rules.iter().any(|rule| rule.allows(asked))) {
                let named = binding.name();
                let RbacReference { kind, name, .. } = &binding.role_ref;
                let subject = subject.describe(place);
                return Some(format!(
                    "RBAC: allowed by {named} of {kind} {name:?} to {subject}"
                ));
            }
        }
    }
    None
}

fn objects(state: &ClusterState, resource: &str) -> impl Iterator<Item = BindingOrRole> {
    let view = ResourceKind::find(GROUP, "v1", resource).map(|(index, _)| state.view(index));
    let objects = view.map(|view| view.objects).unwrap_or_default();
    objects
        .into_iter()
        .filter_map(|(_, object)| serde_json::from_slice(&object.bytes).ok())
}

impl BindingOrRole {
    /// Returns the kind and name of a binding, as upstream names it in a reason.
    fn name(&self) -> String {
        let RbacMetadata { name, namespace } = &self.metadata;
        if namespace.is_empty() {
            format!("ClusterRoleBinding {name:?}")
        } else {
            format!("RoleBinding \"{name}/{namespace}\"")
        }
    }
}

impl RbacReference {
    /// Returns the kind and name of a subject, as upstream names it in a reason.
    fn describe(&self, binding_namespace: &str) -> String {
        let Self { kind, name, .. } = self;
        match kind.as_str() {
            "ServiceAccount" => {
                let namespace = self.namespace_in(binding_namespace);
                format!("{kind} \"{name}/{namespace}\"")
            }
            _ => format!("{kind} {name:?}"),
        }
    }

    fn is(&self, user: &User, binding_namespace: &str) -> bool {
        match self.kind.as_str() {
            "User" => user.name == self.name,
            "Group" => user.groups.contains(&self.name),
            "ServiceAccount" => {
                let namespace = self.namespace_in(binding_namespace);
                user.name == format!("system:serviceaccount:{namespace}:{}", self.name)
            }
            _ => false,
        }
    }

    /// Returns the namespace of an account, which is the binding's unless it has one of its own.
    fn namespace_in<'a>(&'a self, binding_namespace: &'a str) -> &'a str {
        if self.namespace.is_empty() {
            binding_namespace
        } else {
            &self.namespace
        }
    }
}

impl RbacRule {
    fn allows(&self, asked: &SimulatedAccess) -> bool {
        let has =
            |list: &[String], wanted: &str| list.iter().any(|item| item == "*" || item == wanted);
        if !has(&self.verbs, &asked.verb) {
            return false;
        }
        if asked.resource.is_empty() {
            return has(&self.paths, &asked.path);
        }
        let resource = match asked.subresource.as_str() {
            "" => asked.resource.clone(),
            subresource => format!("{}/{subresource}", asked.resource),
        };
        has(&self.api_groups, &asked.group)
            && has(&self.resources, &resource)
            && (self.resource_names.is_empty() || self.resource_names.contains(&asked.name))
    }
}
