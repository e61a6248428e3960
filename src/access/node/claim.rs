//! The requests of nodes of which the proxy can see why the node authorizer grants them.
use watershed_protocol::Verb;

use crate::access::identity::Identity;
use crate::access::request::{AccessRequest, ExactRead};

/// The group of nodes. Their rights follow their pods, and only the node authorizer knows them.
/// Source: `apiserver/pkg/authentication/user/user.go` (NodesGroup).
pub(in crate::access) const NODES: &str = "system:nodes";
/// Start of the user name of a node; its name follows.
/// Source: `kubernetes/pkg/auth/nodeidentifier/default.go`.
const NODE_USER: &str = "system:node:";

/// A request of a node that the node authorizer grants for a reason that the proxy can see.
///
/// Source: `kubernetes/plugin/pkg/auth/authorizer/node/node_authorizer.go`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::access) enum NodeClaim<'a> {
    /// Each node may always do this. No object can end the right.
    Always,
    /// The node may read an object if one of its pods names it.
    IfNamed(NamedObject<'a>),
}

/// An object that pods can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::access) struct NamedObject<'a> {
    /// The node that wants to read it.
    pub(super) node: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) kind: ReferenceKind,
}

/// A type of objects that pods name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReferenceKind {
    Secret,
    ConfigMap,
}

impl<'a> NodeClaim<'a> {
    /// Returns the claim of a request, if it is one. Everything else that nodes may do is left to
    /// reviews: it also depends on other objects, or on upstream's release.
    pub(in crate::access) fn of(request: &'a AccessRequest) -> Option<Self> {
        let node = node_name(&request.identity)?;
        let ExactRead {
            verb,
            resource,
            selectors,
        } = request.target.exact_read()?;
        if resource.subresource.is_some() {
            return None;
        }
        let (namespace, name) = (resource.namespace.as_deref(), resource.name.as_deref());
        let named = |kind| {
            let (namespace, name) = (namespace?, name?);
            (!namespace.is_empty() && !name.is_empty()).then_some(Self::IfNamed(NamedObject {
                node,
                namespace,
                name,
                kind,
            }))
        };
        let always = |is_so: bool| is_so.then_some(Self::Always);
        match (&*resource.gvr.group, &*resource.gvr.resource) {
            ("", "secrets") => named(ReferenceKind::Secret),
            ("", "configmaps") => named(ReferenceKind::ConfigMap),
            ("", "nodes") => always(name == Some(node)),
            ("", "pods") => {
                let are_own = selectors.require_field("spec.nodeName", node);
                always(verb != Verb::Get && are_own)
            }
            ("", "services")
            | ("node.k8s.io", "runtimeclasses")
            | ("storage.k8s.io", "csidrivers") => always(true),
            _ => None,
        }
    }
}

/// Returns the user name of a node.
pub(super) fn user_of(node: &str) -> String {
    format!("{NODE_USER}{node}")
}

/// Returns `true` if this is the user name of a node.
pub(super) fn is_node_user(user: &str) -> bool {
    user.starts_with(NODE_USER)
}

/// Returns the name of the node with this identity.
fn node_name(identity: &Identity) -> Option<&str> {
    let name = identity.user.strip_prefix(NODE_USER)?;
    (!name.is_empty() && identity.is_in(NODES)).then_some(name)
}
