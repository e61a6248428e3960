//! Forwards callers' requests as they are.
mod early_answer;

use std::sync::Arc;

use futures_util::FutureExt as _;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName};
use http::{HeaderValue, Method, Request, Response, Version};
use hyper::body::Incoming;

use super::body::{held_by, to_client};
use super::class::ConnectionClass;
use super::error::UpstreamError;
use super::hop_by_hop;
use super::pool::{MAX_CONNECTIONS, Pool, PoolLimits, SendOptions};
use super::server::Upstream;
use super::traffic::RequestPurpose;
use super::tunnel::Tunnels;
use super::upgrade::UpgradeForwarder;
use super::user_headers::UserHeaders;
use crate::body::{self, Body, BodyEnd};
use crate::fairness::Share;
use watershed_connect::{Address, ConnectError, Dialer, TlsIdentity};

/// Limit of connections for unknown callers. On HTTP/1.1 each of their requests needs one.
const MAX_UNKNOWN_CONNECTIONS: usize = 512;
/// Divisor: these are a part of all connections, at least two, so that they leave some to known callers.
const UNKNOWN_DIVISOR: usize = 4;

/// The credentials that a request is forwarded with.
#[derive(Clone, Debug)]
pub enum ForwardIdentity {
    /// The caller's, as in its headers. The connection shows no certificate.
    Caller,
    /// The same, of a caller that upstream has not accepted lately. Its connections are not those
    /// of known callers: upstream ends a connection by which it was sent bad credentials.
    UnknownCaller,
    /// The proxy's, acting as the user in these headers. Such headers of the caller are removed.
    Impersonated(Arc<HeaderMap>),
    /// The proxy's, for everyone who can reach it. Impersonation headers of the caller are kept.
    Proxy,
}

/// The way in which a request is forwarded.
pub struct ForwardOptions {
    /// The requests that it shares connections with.
    pub class: ConnectionClass,
    /// The credentials that it is forwarded with.
    pub identity: ForwardIdentity,
    /// The share that the caller holds until its answer or its tunnel has ended.
    pub share: Option<Share>,
}

/// Forwards callers' requests to upstream. Cheap to clone.
///
/// Invariant: a request with the caller's own credentials cannot reach the proxy's token, nor a
/// connection that shows its certificate. Any other names the caller it is for, except
/// [`ForwardIdentity::Proxy`].
#[derive(Clone)]
pub struct Forwarder {
    shared: Arc<ForwarderShared>,
    user_headers: Arc<UserHeaders>,
}

struct ForwarderShared {
    upstream: Upstream,
    limits: PoolLimits,
    /// Connections for known callers, which show no certificate.
    known: Pool,
    /// The same, for unknown callers.
    unknown: Pool,
    /// Connections that show the proxy's certificate, if it has one.
    as_proxy: Pool,
    upgrades: UpgradeForwarder,
}

impl Forwarder {
    /// Creates a forwarder to this upstream. Needs a running runtime.
    pub fn new(upstream: &Upstream) -> Forwarder {
        let dialer = Arc::new(Dialer::starting_at(fastrand::usize(..)));
        let connections = upstream.capacity().forwarded;
        let limits = PoolLimits::within(connections);
        // Each refused request ends its connection, so none of these is for a single request.
        let part = MAX_UNKNOWN_CONNECTIONS.min(connections / UNKNOWN_DIVISOR);
        let of_unknown = limits.part(part.max(2));
        let [known, unknown, as_proxy] = [
            (TlsIdentity::NoCertificate, &limits),
            (TlsIdentity::NoCertificate, &of_unknown),
            (TlsIdentity::ProxyCertificate, &limits),
        ]
        .map(|(identity, limits)| Pool::new(upstream, identity, &dialer, limits));
        Forwarder {
            shared: Arc::new(ForwarderShared {
                upstream: upstream.clone(),
                limits,
                known,
                unknown,
                as_proxy,
                upgrades: UpgradeForwarder {
                    upstream: upstream.clone(),
                    dialer,
                    tunnels: Tunnels::default(),
                },
            }),
            user_headers: Arc::default(),
        }
    }

    /// Removes these fields, too, from requests that carry the proxy's credentials.
    #[must_use]
    pub fn removing(self, user_headers: UserHeaders) -> Forwarder {
        Forwarder {
            user_headers: Arc::new(user_headers),
            ..self
        }
    }

    /// Forwards a request.
    ///
    /// The answer's body is a stream. Bytes that the client does not read are not read from
    /// upstream, and a client that goes away cancels the request there. A cut answer ends with an
    /// error, which hyper's server passes on as a cut.
    pub async fn forward(
        &self,
        request: Request<Incoming>,
        options: ForwardOptions,
    ) -> Result<Response<Body>, UpstreamError> {
        self.forward_body(body::from_client(request), options).await
    }

    /// Forwards a request like [`Forwarder::forward`], whose body is ready to be sent on.
    pub async fn forward_body(
        &self,
        request: Request<Body>,
        options: ForwardOptions,
    ) -> Result<Response<Body>, UpstreamError> {
        let Some(end) = request.extensions().get::<BodyEnd>().cloned() else {
            return self.forward_with(request, options).await;
        };
        let is_stream = request.version() == Version::HTTP_2;
        match self.forward_with(request, options).await {
            Ok(response) if is_stream && end.is_unfinished() => {
                Ok(early_answer::gathered(response).await)
            }
            // Upstream cannot have got a whole request, and its sender is at fault.
            Err(_) if end.is_broken() => Err(UpstreamError::Refused {
                reason: "the body of the request broke off".to_owned(),
            }),
            forwarded => forwarded,
        }
    }

    async fn forward_with(
        &self,
        mut request: Request<Body>,
        options: ForwardOptions,
    ) -> Result<Response<Body>, UpstreamError> {
        if let Some(refusal) = self.refusal(&request) {
            return Err(refusal);
        }
        let protocol = upgrade_of(&request);
        hop_by_hop::clean_request(request.headers_mut())?;
        let ForwardOptions {
            class,
            identity,
            share,
        } = options;
        let shown = self
            .attach_credentials(request.headers_mut(), &identity)
            .await?;
        let chain = self.shared.upstream.chain();
        chain.mark_forwarded(request.headers_mut());
        if let Some(protocol) = protocol {
            // Boxed: few requests need the memory of a handshake.
            let upgrades = &self.shared.upgrades;
            return Box::pin(upgrades.forward(shown, share, request, protocol)).await;
        }
        // hyper's extensions belong to the client's connection.
        request.extensions_mut().clear();
        let pool = match identity {
            ForwardIdentity::Caller => &self.shared.known,
            ForwardIdentity::UnknownCaller => &self.shared.unknown,
            ForwardIdentity::Impersonated(_) | ForwardIdentity::Proxy => &self.shared.as_proxy,
        };
        let options = SendOptions {
            purpose: RequestPurpose::Forward,
            ..SendOptions::default()
        };
        // Boxed: the requests that are answered from memory need no room for it.
        let response = pool.send(class, request, options).boxed().await?;
        Ok(held_by(to_client(response), share))
    }

    /// Returns why a request must not be forwarded, if so.
    fn refusal(&self, request: &Request<Body>) -> Option<UpstreamError> {
        if request.method() == Method::CONNECT {
            return Some(UpstreamError::Refused {
                reason: "API servers have no CONNECT: use Upgrade over HTTP/1.1".to_owned(),
            });
        }
        let path = request.uri().path();
        let has_base = || {
            let addresses = self.shared.upstream.addresses();
            addresses.iter().any(Address::has_base)
        };
        (has_dot_segments(path) && has_base()).then(|| UpstreamError::Refused {
            reason: format!("{path:?} has dot segments, which could lead out of the base path"),
        })
    }

    /// Puts credentials into a request's headers. Returns the identity its connection must have.
    async fn attach_credentials(
        &self,
        headers: &mut HeaderMap,
        identity: &ForwardIdentity,
    ) -> Result<TlsIdentity, UpstreamError> {
        let acting = match identity {
            ForwardIdentity::Caller | ForwardIdentity::UnknownCaller => {
                return Ok(TlsIdentity::NoCertificate);
            }
            ForwardIdentity::Impersonated(acting) => Some(acting),
            ForwardIdentity::Proxy => None,
        };
        let claims = |name: &HeaderName| {
            let name = name.as_str();
            *name == *AUTHORIZATION.as_str()
                || self.user_headers.contains(name)
                || (acting.is_some() && name.starts_with("impersonate-"))
        };
        let claimed: Vec<_> = headers
            .keys()
            .filter(|name| claims(name))
            .cloned()
            .collect();
        for name in claimed {
            headers.remove(name);
        }
        if let Some(acting) = acting {
            headers.extend(
                acting
                    .iter()
                    .map(|(name, value)| (name.clone(), value.clone())),
            );
        }
        let wished: HeaderMap = headers
            .iter()
            .filter(|(name, _)| name.as_str().starts_with("impersonate-"))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let plain = std::mem::take(headers);
        *headers = self.shared.upstream.current().attach(plain).await?;
        if !wished.is_empty() && !is_exactly(headers, &wished) {
            // Otherwise the groups of that user would become the caller's.
            let reason = "the proxy's kubeconfig impersonates a user (as:), \
                          so the proxy cannot impersonate its callers";
            return Err(ConnectError::Credentials(reason.to_owned()).into());
        }
        Ok(TlsIdentity::ProxyCertificate)
    }

    /// The requests that fit on a connection over HTTP/2.
    const STREAMS: usize = ConnectionClass::LongForward.windows().streams;
    /// The number of requests that fit on all connections at a time over HTTP/2, where there are enough files.
    pub const CAPACITY: u64 = (MAX_CONNECTIONS * Self::STREAMS) as u64;

    /// Returns the number of requests of a class that fit on all connections at a time. On HTTP/1.1, each
    /// needs one.
    pub fn capacity(&self, class: ConnectionClass) -> u64 {
        let connections = self.shared.limits.of_class(class);
        let is_exclusive = self.shared.known.is_exclusive() || self.shared.as_proxy.is_exclusive();
        let requests = match class {
            _ if is_exclusive => 1,
            ConnectionClass::Relayed => class.windows().streams,
            ConnectionClass::Watch | ConnectionClass::Short | ConnectionClass::LongForward => {
                Self::STREAMS
            }
        };
        (connections * requests) as u64
    }

    /// Returns the number of tunnels that fit into the files.
    pub fn tunnel_capacity(&self) -> u64 {
        self.shared.upstream.capacity().tunnels as u64
    }

    /// Waits until all tunnels (exec, attach, port-forward) have ended.
    ///
    /// A drain does not end them, as their protocols cannot be ended from outside. The caller sets
    /// the deadline.
    pub async fn tunnels_ended(&self) {
        self.shared.upgrades.tunnels.ended().await;
    }

    /// Ends all tunnels.
    pub fn cut_tunnels(&self) {
        self.shared.upgrades.tunnels.cut();
    }

    /// Returns the number of open tunnels.
    pub fn tunnels(&self) -> usize {
        self.shared.upgrades.tunnels.len()
    }
}

/// Returns `true` if a request asks for a tunnel.
pub fn is_upgrade<B>(request: &Request<B>) -> bool {
    upgrade_of(request).is_some()
}

/// Returns the protocol that a request asks for.
fn upgrade_of<B>(request: &Request<B>) -> Option<HeaderValue> {
    // Only HTTP/1.1 has upgrades. HTTP/2's extended CONNECT is not offered in our settings.
    match request.version() {
        Version::HTTP_11 => hop_by_hop::upgrade(request.headers()),
        _ => None,
    }
}

/// Returns `true` if a path has segments that a server may take for the folder itself or the one
/// above it.
fn has_dot_segments(path: &str) -> bool {
    path.split(['/', '\\']).any(|segment| {
        let plain = segment.to_ascii_lowercase().replace("%2e", ".");
        let first = plain.split("%2f").chain(plain.split("%5c"));
        first
            .chain([&*plain])
            .any(|part| matches!(part, "." | ".."))
    })
}

/// Returns `true` if the impersonation headers are exactly those of `acting`.
fn is_exactly(headers: &HeaderMap, acting: &HeaderMap) -> bool {
    let count = headers
        .keys()
        .filter(|name| name.as_str().starts_with("impersonate-"))
        .count();
    let same = |name| headers.get_all(name).iter().eq(acting.get_all(name));
    count == acting.keys_len() && acting.keys().all(same)
}

impl std::fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forwarder")
            .field("upstream", &self.shared.upstream)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
