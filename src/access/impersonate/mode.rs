//! The modes of impersonation: the identities that each allows, and what the caller must be allowed.
//!
//! Source: `apiserver/pkg/endpoints/filters/impersonation/mode.go`.
use std::sync::Arc;

use watershed_protocol::{GroupVersionResource, ResourceRequest};

use super::ImpersonationRequest;
use super::extra_key;
use crate::access::identity::Identity;

const AUTHENTICATION: &str = "authentication.k8s.io";
const PRIVILEGED: &str = "system:masters";
const NODES: &str = "system:nodes";
/// The attribute of a service account's token that names the node of its pod.
/// Source: `apiserver/pkg/authentication/serviceaccount/util.go` (`NodeNameKey`).
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const NODE_KEYS: &str = "authentication.kubernetes.io/associated-node-keys";
/// Number of groups or attributes from which on one permission for all of them is asked for first.
const MANY: usize = 4;

/// A mode of impersonation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::access) enum ImpersonationMode {
    /// A service account acts as the node of its pod.
    AssociatedNode,
    /// Anybody acts as a node.
    ArbitraryNode,
    /// Anybody acts as a service account.
    ServiceAccount,
    /// Anybody acts as another user, with groups and attributes.
    UserInfo,
    /// Impersonation as before Kubernetes 1.36: in all requests, and with any group.
    Legacy,
}

/// A condition of a mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::access) enum ModeCheck {
    /// The caller must be allowed to act as this user, group or attribute.
    Named(ResourceRequest),
    /// The caller must be allowed to act as all groups or attributes, or as each of these.
    AllOrEach(ResourceRequest, Vec<ResourceRequest>),
    /// Nobody may, for this reason.
    Refused(ResourceRequest, String),
}

impl ImpersonationMode {
    /// All modes, in the order in which upstream tries them.
    pub(in crate::access) const ALL: [Self; 5] = [
        Self::AssociatedNode,
        Self::ArbitraryNode,
        Self::ServiceAccount,
        Self::UserInfo,
        Self::Legacy,
    ];

    /// Returns the verb of the permission to act as another user. Upstream audits it, unless it is the
    /// legacy one.
    pub(in crate::access) fn verb(self) -> &'static str {
        match self {
            Self::AssociatedNode => "impersonate:associated-node",
            Self::ArbitraryNode => "impersonate:arbitrary-node",
            Self::ServiceAccount => "impersonate:serviceaccount",
            Self::UserInfo => "impersonate:user-info",
            Self::Legacy => "impersonate",
        }
    }

    /// Returns the verb of the permission to make such a request in this mode, if it needs one.
    pub(in crate::access) fn request_verb(self, verb: &str) -> Option<String> {
        let (_, mode) = self.verb().split_once(':')?;
        Some(format!("impersonate-on:{mode}:{verb}"))
    }

    /// Returns `true` if the mode is for such an identity.
    pub(in crate::access) fn is_for(
        self,
        wanted: &ImpersonationRequest,
        caller: &Identity,
    ) -> bool {
        let (node, account) = (wanted.node(), wanted.service_account());
        match self {
            Self::AssociatedNode => {
                wanted.is_user_only() && node.is_some_and(|node| runs_on(caller, node))
            }
            Self::ArbitraryNode => wanted.is_user_only() && node.is_some(),
            Self::ServiceAccount => wanted.is_user_only() && account.is_some(),
            Self::UserInfo => node.is_none() && account.is_none(),
            Self::Legacy => true,
        }
    }

    /// Returns the caller as authorizers see it.
    pub(in crate::access) fn asking(self, caller: &Arc<Identity>) -> Arc<Identity> {
        if self != Self::AssociatedNode {
            return Arc::clone(caller);
        }
        // The verdict is for all nodes, so the attributes that differ between them are left out.
        let mut keys: Vec<_> = caller.extra.iter().map(|(key, _)| key.clone()).collect();
        keys.sort();
        Arc::new(Identity {
            extra: vec![(NODE_KEYS.to_owned(), keys)],
            ..Identity::clone(caller)
        })
    }

    /// Returns the conditions on the identity, in upstream's order.
    pub(in crate::access) fn checks(self, wanted: &ImpersonationRequest) -> Vec<ModeCheck> {
        let mut checks = vec![ModeCheck::Named(self.user(wanted))];
        if !wanted.uid.is_empty() {
            let uid = named(AUTHENTICATION, "uids", &wanted.uid);
            checks.push(ModeCheck::Named(uid));
        }
        if !wanted.groups.is_empty() {
            checks.extend(self.groups(&wanted.groups));
        }
        if !wanted.extra.is_empty() {
            checks.extend(self.extra(wanted));
        }
        checks
    }

    /// Returns the conditions in the order of releases that have the legacy mode only.
    /// Source: `apiserver/pkg/endpoints/filters/impersonation/impersonation.go`.
    pub(in crate::access) fn checks_before_modes(wanted: &ImpersonationRequest) -> Vec<ModeCheck> {
        let mut checks = Self::Legacy.checks(wanted);
        let is_uid = |check: &ModeCheck| matches!(check, ModeCheck::Named(named) if &*named.gvr.resource == "uids");
        checks.sort_by_key(is_uid);
        checks
    }

    /// Returns the identity that the caller gets.
    pub(in crate::access) fn identity(self, wanted: &ImpersonationRequest) -> Identity {
        let mut groups = wanted.groups.clone();
        if self != Self::Legacy && wanted.node().is_some() {
            groups = vec![NODES.to_owned()];
        } else if let Some((namespace, _)) = wanted.service_account()
            && groups.is_empty()
        {
            groups = vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
            ];
        }
        let extra = wanted.extra.iter();
        Identity {
            user: wanted.user.clone(),
            uid: Some(wanted.uid.clone()).filter(|uid| !uid.is_empty()),
            groups,
            extra: extra
                .map(|(key, values)| (key.clone(), values.clone()))
                .collect(),
        }
        .with_implicit_group()
    }

    /// Returns the API group of users, groups and service accounts.
    fn api_group(self) -> &'static str {
        if self == Self::Legacy {
            ""
        } else {
            AUTHENTICATION
        }
    }

    fn user(self, wanted: &ImpersonationRequest) -> ResourceRequest {
        let group = self.api_group();
        if let Some((namespace, name)) = wanted.service_account() {
            return ResourceRequest {
                namespace: Some(namespace.to_owned()),
                ..named(group, "serviceaccounts", name)
            };
        }
        match wanted.node().filter(|_| self != Self::Legacy) {
            // The verdict is for all nodes.
            Some(_) if self == Self::AssociatedNode => named(group, "nodes", "*"),
            Some(node) => named(group, "nodes", node),
            None => named(group, "users", &wanted.user),
        }
    }

    fn groups(self, groups: &[String]) -> Vec<ModeCheck> {
        let of = |name: &str| named(self.api_group(), "groups", name);
        let each = groups.iter().map(|group| of(group));
        if self == Self::Legacy {
            return each.map(ModeCheck::Named).collect();
        }
        if groups.iter().any(String::is_empty) {
            let reason = "impersonating the empty string group is not allowed";
            return vec![ModeCheck::Refused(of(""), reason.to_owned())];
        }
        if groups.iter().any(|group| group == PRIVILEGED) {
            let reason = "impersonating the system:masters group is not allowed";
            return vec![ModeCheck::Refused(of(PRIVILEGED), reason.to_owned())];
        }
        if groups.len() >= MANY {
            return vec![ModeCheck::AllOrEach(of("*"), each.collect())];
        }
        each.map(ModeCheck::Named).collect()
    }

    fn extra(self, wanted: &ImpersonationRequest) -> Vec<ModeCheck> {
        let of = |key: &str, value: &str| ResourceRequest {
            subresource: Some(key.to_owned()).filter(|key| !key.is_empty()),
            ..named(AUTHENTICATION, "userextras", value)
        };
        let pairs = wanted.extra.iter();
        let each: Vec<_> = pairs
            .flat_map(|(key, values)| values.iter().map(move |value| of(key, value)))
            .collect();
        if self == Self::Legacy {
            return each.into_iter().map(ModeCheck::Named).collect();
        }
        if let Err(reason) = extra_key::check(&wanted.extra) {
            return vec![ModeCheck::Refused(of("", ""), reason)];
        }
        if wanted.extra.len() >= MANY || each.len() >= MANY {
            return vec![ModeCheck::AllOrEach(of("*", "*"), each)];
        }
        each.into_iter().map(ModeCheck::Named).collect()
    }
}

/// Returns `true` if a caller is a service account whose pod runs on this node.
fn runs_on(caller: &Identity, node: &str) -> bool {
    let asking = ImpersonationRequest {
        user: caller.user.clone(),
        ..ImpersonationRequest::default()
    };
    let values = caller.extra.iter().find(|(key, _)| key == NODE_NAME);
    asking.service_account().is_some()
        && values.is_some_and(|(_, values)| matches!(&values[..], [name] if name == node))
}

fn named(group: &str, resource: &str, name: &str) -> ResourceRequest {
    ResourceRequest {
        gvr: GroupVersionResource::new(group, "v1", resource),
        namespace: None,
        name: Some(name.to_owned()).filter(|name| !name.is_empty()),
        subresource: None,
    }
}

#[cfg(test)]
mod tests;
