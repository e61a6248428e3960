//! The first things that are known of a request.
use std::net::IpAddr;
use std::time::Instant;

use http::HeaderValue;

use crate::audit::AuditRecord;

/// A request whose sender is not known yet.
pub(super) struct ReceivedRequest {
    pub(super) arrived: Instant,
    pub(super) audit_id: HeaderValue,
    /// The address of the client, which may be behind trusted proxies.
    pub(super) client: IpAddr,
    pub(super) record: Option<AuditRecord>,
}
