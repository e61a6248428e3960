//! Identities of callers.

const ANONYMOUS: &str = "system:anonymous";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group that may do everything. Source: `apiserver/pkg/authentication/user/user.go`.
const MASTERS: &str = "system:masters";

/// A caller as upstream knows them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The user name.
    pub user: String,
    /// The user's unique id, if any.
    pub uid: Option<String>,
    /// The groups, in upstream's order.
    pub groups: Vec<String>,
    /// Further attributes, sorted by key.
    pub extra: Vec<(String, Vec<String>)>,
}

impl Identity {
    /// Returns the identity of a caller without credentials.
    pub(super) fn anonymous() -> Self {
        Self {
            user: ANONYMOUS.to_owned(),
            uid: None,
            groups: vec![UNAUTHENTICATED.to_owned()],
            extra: Vec::new(),
        }
    }

    /// Adds the group that upstream puts every user into: `system:authenticated` or
    /// `system:unauthenticated`.
    pub(super) fn with_implicit_group(mut self) -> Self {
        let group = if self.user == ANONYMOUS || self.is_in(UNAUTHENTICATED) {
            UNAUTHENTICATED
        } else {
            AUTHENTICATED
        };
        if !self.is_in(group) {
            self.groups.push(group.to_owned());
        }
        self
    }

    /// Returns whether the user may do everything, whatever the API server's authorizers say.
    pub(super) fn is_master(&self) -> bool {
        self.is_in(MASTERS)
    }

    /// Returns whether the user is a member of a group.
    pub(super) fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}
