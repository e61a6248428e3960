//! Tells in the log whose requests are refused: metrics name the reason alone.
use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};

use super::exceeded::LimitExceeded;
use crate::access::Identity;
use crate::log_throttle::LogThrottle;
use crate::upstream::ChainError;

/// Time for which one line stands for all requests.
const PAUSE: Duration = Duration::from_secs(10);

/// Bytes of a user agent that are logged.
const MAX_AGENT: usize = 200;

static REFUSED: LogThrottle = LogThrottle::new(PAUSE);
static MALFORMED: LogThrottle = LogThrottle::new(PAUSE);

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

/// Logs that a request has a malformed header of proxies, with the address of its client. A loop is logged by the chain
/// of proxies.
pub(in crate::serve) fn refused_chain(error: &ChainError, headers: &HeaderMap, address: IpAddr) {
    if let ChainError::Malformed = error
        && let Some(requests) = MALFORMED.count(1)
    {
        let agent = headers.get(header::USER_AGENT).map(HeaderValue::as_bytes);
        let agent = agent.map(|agent| agent[..agent.len().min(MAX_AGENT)].escape_ascii());
        tracing::info!(
            %address,
            user_agent = agent.map(tracing::field::display),
            requests,
            "malformed x-watershed-via header: no watershed wrote it"
        );
    }
}
