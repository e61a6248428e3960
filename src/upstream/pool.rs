//! Pool of connections to the API server.
//!
//! hyper-util's client keeps one HTTP/2 connection per host, on which an API server allows a
//! hundred streams. The hundred and first watch would wait forever, so this pool opens more
//! connections. An HTTP/1 connection serves one request at a time.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};

use super::body::{End, UpstreamBody};
use super::class::ConnectionClass;
use super::connection::{AwaitedBy, Lease, NotSent};
use super::error::UpstreamError;
use super::server::Upstream;
use super::traffic::{ReceivedMeter, RequestPurpose, SentRequest};
use crate::body::Body;
use watershed_connect::{Dialer, TlsIdentity};

mod elsewhere;
mod group;
mod limits;
mod options;
mod resend;

use elsewhere::Elsewhere;
use group::ConnectionGroup;
use limits::IdleConnections;
use resend::{FailedAttempt, ResendPolicy};

pub(super) use limits::{MAX_CONNECTIONS, PoolLimits};
pub use options::SendOptions;

/// Idle time after which connections are closed, as API servers do.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
const SWEEP_INTERVAL: Duration = Duration::from_secs(15);

/// Limit of resends of a request on other connections.
///
/// Only reads, and requests that upstream provably has not seen, are sent again.
const MAX_RESENDS: usize = 3;

/// The connections of one identity.
pub(super) struct Pool {
    groups: [Arc<ConnectionGroup>; 4],
}

impl Pool {
    /// Creates a pool without connections.
    pub(super) fn new(
        upstream: &Upstream,
        identity: TlsIdentity,
        dialer: &Arc<Dialer>,
        limits: &PoolLimits,
    ) -> Pool {
        let groups = [
            ConnectionClass::Watch,
            ConnectionClass::Short,
            ConnectionClass::LongForward,
            ConnectionClass::Relayed,
        ]
        .map(|class| {
            let group = ConnectionGroup::new(class, identity, upstream, dialer, limits);
            Arc::new(group)
        });
        let weak = groups.each_ref().map(Arc::downgrade);
        for group in weak.clone() {
            limits.shared.join(group);
        }
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP_INTERVAL).await;
                for group in &weak {
                    let Some(group) = group.upgrade() else { return };
                    group.sweep(IDLE_TIMEOUT);
                }
            }
        });
        Pool { groups }
    }

    pub(super) fn group(&self, class: ConnectionClass) -> &Arc<ConnectionGroup> {
        let [watch, short, long, relayed] = &self.groups;
        match class {
            ConnectionClass::Watch => watch,
            ConnectionClass::Short => short,
            ConnectionClass::LongForward => long,
            ConnectionClass::Relayed => relayed,
        }
    }

    /// Returns `true` if each request has a connection of its own.
    pub(super) fn is_exclusive(&self) -> bool {
        let mut groups = self.groups.iter();
        groups.any(|group| group.is_exclusive())
    }

    /// Sends a request whose URI is path and query.
    ///
    /// The request is sent again if its connection died before the request had left, or if upstream
    /// did not process it. A read without a body is also sent again if the connection died before
    /// the answer.
    pub(super) async fn send(
        &self,
        class: ConnectionClass,
        request: Request<Body>,
        options: SendOptions,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        let group = self.group(class);
        let mut sent = group.upstream.traffic().send(options.purpose);
        let answer = self.send_until_answered(class, request, options, &mut sent);
        answer.await.inspect_err(|error| sent.failed(error))
    }

    async fn send_until_answered(
        &self,
        class: ConnectionClass,
        mut request: Request<Body>,
        options: SendOptions,
        sent: &mut SentRequest,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        let group = self.group(class);
        let uri = request.uri().clone();
        let mut elsewhere = Elsewhere::wanted(&options);
        let mut resends = 0;
        let by = match (options.purpose, class) {
            (RequestPurpose::Forward, ConnectionClass::LongForward | ConnectionClass::Relayed) => {
                AwaitedBy::Reader
            }
            (RequestPurpose::Forward, _) => AwaitedBy::Client,
            _ => AwaitedBy::Proxy,
        };
        let mut policy = ResendPolicy::new(&mut request);
        loop {
            let mut lease = lease(group, &options, elsewhere.as_ref(), resends).await?;
            *request.uri_mut() = uri.clone();
            let again = policy.copy(&request);
            let mut error = match lease.send(request, by).await {
                Ok(response) => {
                    // A balancer may lead elsewhere by now, but not by a connection that is open.
                    let is_loop = response.status() == StatusCode::LOOP_DETECTED
                        && group.upstream.chain().is_loop();
                    if is_loop {
                        lease.retire();
                    }
                    let received = sent.answered(response.status());
                    return Ok(answer(response, lease, policy.is_read, received));
                }
                Err(NotSent::Failed(error)) => error,
                Err(NotSent::Ended(unsent)) if resends < MAX_RESENDS => {
                    request = unsent;
                    resends += 1;
                    continue;
                }
                Err(NotSent::Refused(error)) => {
                    lease.finish();
                    return Err(error);
                }
                Err(NotSent::Ended(_)) => {
                    return Err(UpstreamError::EndedUnsent {
                        address: lease.address().clone(),
                    });
                }
            };
            let failed = policy.after(&mut error, again, lease.is_pooled);
            match failed {
                FailedAttempt::Unprocessed(Some(next)) | FailedAttempt::Unknown(Some(next))
                    if resends < MAX_RESENDS =>
                {
                    request = next;
                }
                FailedAttempt::Unprocessed(_) => {
                    return Err(UpstreamError::EndedUnsent {
                        address: lease.address().clone(),
                    });
                }
                FailedAttempt::Unknown(_) => {
                    return Err(UpstreamError::Closed {
                        address: lease.address().clone(),
                        source: Arc::new(error.into_error()),
                    });
                }
            }
            resends += 1;
            // Other pooled connections may have died too: after two, open a new one.
            if resends >= 2 || class.is_alone() {
                elsewhere.get_or_insert_default().opened_after = lease.opened();
            }
        }
    }
}

/// Leases a connection, or a stream of one, for the next attempt of a request.
async fn lease(
    group: &Arc<ConnectionGroup>,
    options: &SendOptions,
    elsewhere: Option<&Elsewhere>,
    resends: usize,
) -> Result<Lease, UpstreamError> {
    let Some(elsewhere) = elsewhere else {
        let server = options.beside.as_ref();
        let beside = server.and_then(|server| group.lease_beside(server, options.purpose));
        return match beside {
            Some(lease) => Ok(lease),
            None => group.lease().await,
        };
    };
    // Shared connections may end again and again: upstream closes those on which it refuses a caller.
    if resends == MAX_RESENDS {
        group.open_or_lease(elsewhere).await
    } else {
        group.lease_elsewhere(elsewhere).await
    }
}

fn answer(
    response: Response<hyper::body::Incoming>,
    lease: Lease,
    bodyless: bool,
    received: ReceivedMeter,
) -> Response<UpstreamBody> {
    let end = match (response.version(), bodyless) {
        (http::Version::HTTP_2, true) => End::Marked,
        (http::Version::HTTP_2, false) => End::MarkedOrReset,
        _ => End::Reported,
    };
    let (mut parts, incoming) = response.into_parts();
    parts.extensions.insert(lease.served_by());
    Response::from_parts(parts, UpstreamBody::new(incoming, lease, end, received))
}

#[cfg(test)]
mod tests;
