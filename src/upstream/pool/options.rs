//! Options for sending a request.
use std::sync::Arc;

use watershed_connect::Address;

use crate::upstream::connection::ServedBy;
use crate::upstream::traffic::RequestPurpose;

/// Options for sending a request.
#[derive(Clone, Debug, Default)]
pub struct SendOptions {
    /// Take a connection that was opened a moment ago, or a new one: a load balancer may choose
    /// another API server.
    pub fresh_connection: bool,
    /// Take a connection that is younger than this answer's, as for `fresh_connection`.
    pub instead_of: Option<ServedBy>,
    /// Prefer other addresses to these (see [`ServedBy`]), and the first of them to the last.
    pub avoid: AvoidedAddresses,
    /// Prefer the connection of this answer, as it leads to the same server.
    pub beside: Option<ServedBy>,
    /// The purpose it is counted under.
    pub purpose: RequestPurpose,
}

/// Addresses to which others are preferred, the first of them to the last. It is small, as each
/// request's future holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AvoidedAddresses(Option<Arc<Vec<Address>>>);

impl AvoidedAddresses {
    /// Returns them.
    pub(super) fn as_slice(&self) -> &[Address] {
        self.0
            .as_ref()
            .map_or(&[], |addresses| addresses.as_slice())
    }
}

impl From<Vec<Address>> for AvoidedAddresses {
    fn from(addresses: Vec<Address>) -> Self {
        Self((!addresses.is_empty()).then(|| Arc::new(addresses)))
    }
}
