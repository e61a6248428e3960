//! Identities of callers.
use std::net::IpAddr;
use std::sync::Arc;

use super::token_attribute;
use crate::fairness::CallerKey;

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

    /// Returns `true` for the name of callers without credentials.
    pub fn is_anonymous(&self) -> bool {
        self.user == ANONYMOUS
    }

    /// Returns the key under which the caller's work counts as a user's; `None` without credentials:
    /// those callers are many, and count by their addresses.
    pub fn user_key(&self) -> Option<CallerKey> {
        (!self.is_anonymous()).then(|| CallerKey::user(&self.user))
    }

    /// Returns the key under which the work of this caller at an address counts.
    pub fn caller_key(&self, address: IpAddr) -> CallerKey {
        self.user_key().unwrap_or(CallerKey::Address(address))
    }

    /// Returns `true` for that name outside of their group.
    pub(super) fn is_anonymous_without_group(&self) -> bool {
        self.is_anonymous() && !self.is_in(UNAUTHENTICATED)
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

    /// Returns `true` if other tokens of the user may have other attributes.
    pub(super) fn has_token_attributes(&self) -> bool {
        self.extra.iter().any(|(key, _)| is_token_attribute(key))
    }

    /// Returns the identity without what tells one token of the user from another.
    pub(super) fn of_any_token(identity: &Arc<Self>) -> Arc<Self> {
        if !identity.has_token_attributes() {
            return Arc::clone(identity);
        }
        let extra = identity
            .extra
            .iter()
            .filter(|(key, _)| !is_token_attribute(key));
        Arc::new(Self {
            user: identity.user.clone(),
            uid: identity.uid.clone(),
            groups: identity.groups.clone(),
            extra: extra.cloned().collect(),
        })
    }

    /// Returns `true` if the user may do everything, whatever the API server's authorizers say.
    pub(super) fn is_master(&self) -> bool {
        self.is_in(MASTERS)
    }

    /// Returns `true` if the user is a member of a group.
    pub(super) fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}

fn is_token_attribute(key: &str) -> bool {
    token_attribute::ALL.contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(extra: &[(&str, &str)]) -> Arc<Identity> {
        let extra = extra.iter();
        Arc::new(Identity {
            user: "system:serviceaccount:apps:web".to_owned(),
            uid: Some("1".to_owned()),
            groups: vec!["system:serviceaccounts".to_owned()],
            extra: extra
                .map(|(key, value)| ((*key).to_owned(), vec![(*value).to_owned()]))
                .collect(),
        })
    }

    #[test]
    fn only_the_origin_of_a_token_is_left_out() {
        let scopes = ("scopes.authorization.openshift.io", "user:info");
        let pod = ("authentication.kubernetes.io/pod-name", "web-1");
        let both = with(&[pod, scopes]);
        assert!(both.has_token_attributes());
        assert_eq!(Identity::of_any_token(&both), with(&[scopes]));

        for plain in [with(&[]), with(&[scopes])] {
            assert!(!plain.has_token_attributes());
            assert_eq!(Identity::of_any_token(&plain), plain);
        }
    }
}
