//! The connection of a request, as far as the service that answers it has to do with it.
use std::fmt;
use std::sync::Arc;

use super::activity::Activity;

/// Bytes that an unknown client may cause at a server behind this one, for each byte it sends.
///
/// HPACK names a field of 4 KB with a byte, and proxies write it out each time.
const MAX_AMPLIFICATION: u64 = 20;

/// The connection that a request came by. Cheap to clone.
#[derive(Clone)]
pub struct PeerConnection(Arc<Activity>);

impl PeerConnection {
    pub(super) fn new(activity: &Arc<Activity>) -> Self {
        Self(Arc::clone(activity))
    }

    /// Notes that the client is known. When the listener is full, others make room first.
    pub fn set_known(&self) {
        self.0.set_known();
    }

    /// Returns `false` if the peer's address is that of a load balancer, which did not tell that of
    /// the client (`UNKNOWN` in the PROXY protocol).
    pub fn has_client_address(&self) -> bool {
        !self.0.is_unaddressed()
    }

    /// Counts bytes that are about to be sent to another server for this client. Returns `false`
    /// if they are too many for what it has sent itself: then they are not counted.
    pub fn may_send_on(&self, bytes: u64) -> bool {
        self.0.send_on(bytes, MAX_AMPLIFICATION)
    }
}

impl Default for PeerConnection {
    /// Returns a connection by which nothing has come.
    fn default() -> Self {
        Self(Activity::alone())
    }
}

impl fmt::Debug for PeerConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerConnection").finish_non_exhaustive()
    }
}
