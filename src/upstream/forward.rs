//! Callers' requests, sent on as they are.

use std::sync::Arc;

use http::{Method, Request, Response, Version};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio_util::task::TaskTracker;

use super::body::UpstreamBody;
use super::connect::Dialer;
use super::credentials::{Identity, Upstream};
use super::error::UpstreamError;
use super::hop_by_hop;
use super::pool::{Class, Pool, SendOptions};
use super::upgrade;
use crate::http::body::{self, Body, BoxError};

/// Sends callers' requests to upstream with their own credentials and brings back the answers.
/// Cheap to clone.
///
/// Invariant: everything here goes over connections of `Identity::Bare`, which show no client
/// certificate, and nothing here can reach the proxy's token.
#[derive(Clone)]
pub struct Forwarder {
    shared: Arc<Shared>,
}

struct Shared {
    upstream: Upstream,
    pool: Pool,
    dialer: Arc<Dialer>,
    tunnels: TaskTracker,
}

impl Forwarder {
    /// A forwarder to this upstream. Needs a running runtime.
    pub fn new(upstream: &Upstream) -> Forwarder {
        let dialer = Arc::new(Dialer::default());
        let pool = Pool::new(upstream, Identity::Bare, &dialer);
        let tunnels = TaskTracker::new();
        Forwarder { shared: Arc::new(Shared { upstream: upstream.clone(), pool, dialer, tunnels }) }
    }

    /// Sends a request on; `long` for watches, logs and all that may stay open.
    ///
    /// The answer's body is a stream: what the client does not read is not read from upstream, and a
    /// client that goes away cancels the request there. A cut answer ends with an error, which
    /// hyper's server passes on as a cut.
    pub async fn forward(
        &self,
        request: Request<Incoming>,
        long: bool,
    ) -> Result<Response<Body>, UpstreamError> {
        let version = request.version();
        self.forward_body(request.map(|incoming| body::from_client(incoming, version)), long).await
    }

    /// As [`Forwarder::forward`], for a request whose body was looked at already.
    pub async fn forward_body(
        &self,
        mut request: Request<Body>,
        long: bool,
    ) -> Result<Response<Body>, UpstreamError> {
        if request.method() == Method::CONNECT {
            return Err(UpstreamError::Refused {
                reason: "CONNECT makes no sense to an API server; a protocol is changed with Upgrade over HTTP/1.1"
                    .to_owned(),
            });
        }
        // Only HTTP/1.1 has upgrades. HTTP/2's extended CONNECT is not offered in our settings.
        let protocol = match request.version() {
            Version::HTTP_11 => hop_by_hop::upgrade(request.headers()),
            _ => None,
        };
        hop_by_hop::clean_request(request.headers_mut())?;
        if let Some(protocol) = protocol {
            // Boxed: few requests need the room for a handshake.
            return Box::pin(upgrade::forward(
                &self.shared.upstream,
                &self.shared.dialer,
                &self.shared.tunnels,
                request,
                protocol,
            ))
            .await;
        }
        // What hyper keeps here belongs to the client's connection.
        request.extensions_mut().clear();
        let class = if long { Class::LongForward } else { Class::Short };
        let response = self.shared.pool.send(class, request, SendOptions::default()).await?;
        Ok(to_client(response))
    }

    /// Waits until all tunnels (exec, attach, port-forward) have ended. They are not ended by a
    /// drain, as no protocol in them can be ended from outside: the caller sets the time.
    pub async fn tunnels_ended(&self) {
        self.shared.tunnels.close();
        self.shared.tunnels.wait().await;
    }

    /// Tunnels open now.
    pub fn tunnels(&self) -> usize {
        self.shared.tunnels.len()
    }
}

impl std::fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forwarder").field("upstream", &self.shared.upstream).finish_non_exhaustive()
    }
}

/// Makes upstream's answer ours.
pub(super) fn to_client(response: Response<UpstreamBody>) -> Response<Body> {
    let (mut parts, upstream_body) = response.into_parts();
    hop_by_hop::clean_response(&mut parts.headers);
    let mut answer = Response::new(upstream_body.map_err(BoxError::from).boxed_unsync());
    *answer.status_mut() = parts.status;
    *answer.headers_mut() = parts.headers;
    answer
}

#[cfg(test)]
mod tests;
