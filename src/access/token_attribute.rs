//! Names of the attributes by which the tokens or certificates of one user differ: where they came from.
//!
//! RBAC, and the node authorizer, do not look at them. Others can be trusted with less, such as the scopes
//! of OpenShift's tokens.
//!
//! Source: `apiserver/pkg/authentication/serviceaccount/util.go`,
//! `apiserver/pkg/authentication/user/user.go` (CredentialIDKey).

/// The credential itself.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// The node that a token is bound to, or its pod's.
pub(super) const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
pub(super) const NODE_UID: &str = "authentication.kubernetes.io/node-uid";
/// The pod that a token is bound to.
pub(super) const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
pub(super) const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
/// All of them, sorted.
pub(super) const ALL: [&str; 5] = [CREDENTIAL_ID, NODE_NAME, NODE_UID, POD_NAME, POD_UID];
