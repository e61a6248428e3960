//! Options for sending a request.

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
    pub avoid: Vec<Address>,
    /// Prefer the connection of this answer, as it leads to the same server.
    pub beside: Option<ServedBy>,
    /// The purpose it is counted under.
    pub purpose: RequestPurpose,
}
