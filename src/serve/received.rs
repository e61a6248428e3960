//! The facts about a request that are known first.
use std::net::IpAddr;
use std::time::Instant;

use http::HeaderValue;

use crate::audit::AuditRecord;

/// The facts about a request that are known before its sender is.
pub(super) struct ReceivedRequest {
    pub(super) arrived: Instant,
    pub(super) audit_id: HeaderValue,
    /// The address of the client, which may be behind trusted proxies.
    pub(super) client: IpAddr,
    pub(super) record: Option<AuditRecord>,
}
