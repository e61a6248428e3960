//! Tokens, and the permissions of their users.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use http::HeaderMap;
use parking_lot::RwLock;

use super::attributes::{SimulatedAccess, User};
use super::rbac;
use super::state::ClusterState;
use super::status::Failure;

/// A permission. Everything that no rule allows is refused; members of `system:masters` need none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// User or group name.
    pub subject: String,
    /// Verbs as RBAC has them; `*` is all.
    pub verbs: Vec<String>,
    /// Resources (`pods`, `deployments.apps`, `pods/log`) or, when they start with `/`, paths; `*`
    /// is all resources.
    pub resources: Vec<String>,
    /// Only this namespace; everywhere when absent.
    pub namespace: Option<String>,
    /// Only the object of this name; all when absent.
    pub name: Option<String>,
}

/// Tokens, users and rules; may change while the server runs.
#[derive(Debug)]
pub struct AccessRules {
    tables: RwLock<(BTreeMap<String, User>, Vec<AccessRule>)>,
    /// Names that the user may not get, like a webhook that denies single objects.
    denied: RwLock<BTreeSet<(String, String)>>,
    /// Users whose access is reviewed without a verdict.
    undecided: RwLock<BTreeSet<String>>,
    /// Holds the RBAC objects.
    state: Option<Arc<ClusterState>>,
    /// The RBAC objects of an earlier time, while the authorizer is behind.
    outdated: RwLock<Option<ClusterState>>,
}

/// The token of the user `admin` in `system:masters`.
pub(crate) const ADMIN_TOKEN: &str = "admin-token";
/// The token of the user `viewer`, who may get, list and watch a few types.
pub const VIEWER_TOKEN: &str = "viewer-token";

/// Reviews that every caller may ask about themselves. Source: kubernetes
/// `plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go` (system:basic-user).
const OWN_REVIEWS: [&str; 3] = [
    "selfsubjectreviews.authentication.k8s.io",
    "selfsubjectaccessreviews.authorization.k8s.io",
    "selfsubjectrulesreviews.authorization.k8s.io",
];
/// The reason for which they may.
const BASIC_USER: &str = "RBAC: allowed by ClusterRoleBinding \"system:basic-user\" of ClusterRole \
    \"system:basic-user\" to Group \"system:authenticated\"";

impl AccessRule {
    /// Allows get, list and watch of the named resources in all namespaces.
    pub fn read(subject: &str, resources: &[&str]) -> Self {
        Self::new(subject, &["get", "list", "watch"], resources)
    }

    /// Allows verbs on resources in all namespaces.
    pub fn new(subject: &str, verbs: &[&str], resources: &[&str]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect();
        Self {
            subject: subject.to_owned(),
            verbs: owned(verbs),
            resources: owned(resources),
            namespace: None,
            name: None,
        }
    }

    /// Allows verbs on resources in one namespace only.
    pub fn in_namespace(self, namespace: &str) -> Self {
        Self {
            namespace: Some(namespace.to_owned()),
            ..self
        }
    }

    fn allows(&self, user: &User, asked: &SimulatedAccess) -> bool {
        if self.subject != user.name && !user.groups.contains(&self.subject) {
            return false;
        }
        let wanted = if asked.resource.is_empty() {
            asked.path.clone()
        } else {
            asked.qualified()
        };
        self.verbs.iter().any(|v| v == "*" || *v == asked.verb)
            && self.resources.iter().any(|r| match r.strip_suffix('*') {
                Some("") => !asked.resource.is_empty(),
                Some(prefix) => wanted.starts_with(prefix),
                None => *r == wanted,
            })
            && self
                .namespace
                .as_ref()
                .is_none_or(|n| *n == asked.namespace)
            && self.name.as_ref().is_none_or(|n| *n == asked.name)
    }
}

impl Default for AccessRules {
    fn default() -> Self {
        let user = |name: &str, groups: &[&str]| User {
            name: name.to_owned(),
            groups: groups.iter().map(|&g| g.to_owned()).collect(),
        };
        let users = BTreeMap::from([
            (ADMIN_TOKEN.to_owned(), user("admin", &["system:masters"])),
            (VIEWER_TOKEN.to_owned(), user("viewer", &["viewers"])),
        ]);
        let discovery = [
            "/api", "/api/*", "/apis", "/apis/*", "/version", "/healthz", "/livez", "/readyz",
        ];
        let rules = vec![
            AccessRule::new("system:authenticated", &["get"], &discovery),
            AccessRule::new("system:authenticated", &["create"], &OWN_REVIEWS),
            AccessRule::new(
                "system:unauthenticated",
                &["get"],
                &["/version", "/healthz", "/livez", "/readyz"],
            ),
            AccessRule::read(
                "viewer",
                &[
                    "pods",
                    "configmaps",
                    "nodes",
                    "namespaces",
                    "services",
                    "deployments.apps",
                    "widgets.example.com",
                ],
            ),
        ];
        Self {
            tables: RwLock::new((users, rules)),
            denied: RwLock::default(),
            undecided: RwLock::default(),
            state: None,
            outdated: RwLock::default(),
        }
    }
}

impl AccessRules {
    /// With the RBAC objects of a cluster beside the rules.
    pub(crate) fn of(state: &Arc<ClusterState>) -> Self {
        Self {
            state: Some(Arc::clone(state)),
            ..Self::default()
        }
    }

    /// Gives a token to a user.
    pub fn add_user(&self, token: &str, name: &str, groups: &[&str]) {
        let user = User {
            name: name.to_owned(),
            groups: groups.iter().map(|&g| g.to_owned()).collect(),
        };
        self.tables.write().0.insert(token.to_owned(), user);
    }

    /// Revokes a token.
    pub fn revoke(&self, token: &str) {
        self.tables.write().0.remove(token);
    }

    /// Adds a permission.
    pub fn allow(&self, rule: AccessRule) {
        self.tables.write().1.push(rule);
    }

    /// Removes every permission of a subject.
    pub fn deny_all(&self, subject: &str) {
        self.tables.write().1.retain(|r| r.subject != subject);
    }

    /// Denies a user all objects of a name, whatever rules grant, as an authorization webhook can.
    pub fn deny_name(&self, user: &str, name: &str) {
        self.denied
            .write()
            .insert((user.to_owned(), name.to_owned()));
    }

    /// Judges by the RBAC objects of this moment from now on, as an API server whose cache is behind.
    pub fn fall_behind(&self) {
        *self.outdated.write() = self.state.as_deref().map(ClusterState::branch);
    }

    /// Judges by the present RBAC objects again.
    pub fn catch_up(&self) {
        *self.outdated.write() = None;
    }

    /// Has reviews of a user's access end without a verdict, as where a webhook does not answer. The
    /// user's own requests are not concerned.
    pub fn set_undecided(&self, user: &str, is_undecided: bool) {
        let mut undecided = self.undecided.write();
        if is_undecided {
            undecided.insert(user.to_owned());
        } else {
            undecided.remove(user);
        }
    }

    /// Returns `true` if reviews of a user's access end without a verdict.
    pub(crate) fn is_undecided(&self, user: &User) -> bool {
        self.undecided.read().contains(&user.name)
    }

    /// Returns `true` if all permissions follow from rules that can be listed.
    pub(crate) fn lists_rules(&self) -> bool {
        self.denied.read().is_empty()
    }

    /// Returns the user of a token.
    pub(crate) fn user(&self, token: &str) -> Option<User> {
        let mut user = self.tables.read().0.get(token).cloned()?;
        user.groups.push("system:authenticated".to_owned());
        Some(user)
    }

    /// Returns the user of a request, with impersonation applied.
    pub(crate) fn authenticate(&self, headers: &HeaderMap) -> Result<User, Failure> {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
        let user = match text("authorization") {
            None => User {
                name: "system:anonymous".to_owned(),
                groups: vec!["system:unauthenticated".to_owned()],
            },
            Some(value) => {
                let token = value
                    .split_once(' ')
                    .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
                token
                    .and_then(|(_, t)| self.user(t.trim()))
                    .ok_or_else(Failure::unauthorized)?
            }
        };
        let Some(other) = text("impersonate-user") else {
            return Ok(user);
        };
        let asked = SimulatedAccess {
            verb: "impersonate".to_owned(),
            resource: "users".to_owned(),
            name: other.to_owned(),
            ..SimulatedAccess::default()
        };
        if !self.allowed(&user, &asked) {
            return Err(asked.forbidden(&user));
        }
        let groups = headers
            .get_all("impersonate-group")
            .iter()
            .filter_map(|v| v.to_str().ok());
        let mut groups: Vec<_> = groups.map(str::to_owned).collect();
        let class = if other == "system:anonymous" {
            "system:unauthenticated"
        } else {
            "system:authenticated"
        };
        if !groups.iter().any(|g| g == class) {
            groups.push(class.to_owned());
        }
        Ok(User {
            name: other.to_owned(),
            groups,
        })
    }

    /// The authorizers.
    pub(crate) fn allowed(&self, user: &User, asked: &SimulatedAccess) -> bool {
        self.reason(user, asked).is_some()
    }

    /// Returns the reason for a permission in the authorizer's words, or `None` for a refusal.
    pub(crate) fn reason(&self, user: &User, asked: &SimulatedAccess) -> Option<String> {
        let named = (user.name.clone(), asked.name.clone());
        if self.denied.read().contains(&named) {
            return None;
        }
        if user.groups.iter().any(|g| g == "system:masters")
            || self
                .tables
                .read()
                .1
                .iter()
                .any(|rule| rule.allows(user, asked))
        {
            let by_default = OWN_REVIEWS.contains(&&*asked.qualified());
            return Some(if by_default { BASIC_USER } else { "" }.to_owned());
        }
        match &*self.outdated.read() {
            Some(outdated) => rbac::reason(outdated, user, asked),
            None => rbac::reason(self.state.as_ref()?, user, asked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(verb: &str, resource: &str, namespace: &str) -> SimulatedAccess {
        SimulatedAccess {
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            ..SimulatedAccess::default()
        }
    }

    #[test]
    fn a_rule_grants_only_its_verbs_and_resources() {
        let access = AccessRules::default();
        let (admin, viewer) = (
            access.user(ADMIN_TOKEN).unwrap(),
            access.user(VIEWER_TOKEN).unwrap(),
        );
        assert!(access.allowed(&admin, &asked("delete", "secrets", "n")));
        assert!(access.allowed(&viewer, &asked("watch", "pods", "")));
        assert!(!access.allowed(&viewer, &asked("watch", "secrets", "")));
        assert!(!access.allowed(&viewer, &asked("delete", "pods", "n")));
        access.deny_all("viewer");
        access.allow(AccessRule::read("viewers", &["pods"]).in_namespace("n"));
        assert!(access.allowed(&viewer, &asked("list", "pods", "n")));
        assert!(!access.allowed(&viewer, &asked("list", "pods", "")));
    }
}
