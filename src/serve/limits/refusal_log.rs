//! Tells in the log who exceeds limits: metrics name the limit alone.
use std::net::IpAddr;
use std::time::Duration;

use super::requests::LimitExceeded;
use crate::access::Identity;
use crate::log_throttle::LogThrottle;

static REFUSED: LogThrottle = LogThrottle::new(Duration::from_secs(10));

/// Logs that a request exceeded a limit, with its user and the address of its client as far as they are
/// known. One line stands for the requests of all callers in some seconds.
pub(in crate::serve) fn refused(
    exceeded: LimitExceeded,
    user: Option<&Identity>,
    address: Option<IpAddr>,
) {
    if let Some(requests) = REFUSED.count(1) {
        tracing::info!(
            limit = exceeded.as_str(),
            user = user.map(|user| user.user.as_str()),
            address = address.map(tracing::field::display),
            requests,
            "a caller exceeds a limit"
        );
    }
}
