//! The proxy's own requests.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::{HeaderValue, USER_AGENT};
use http::{Request, Response, StatusCode};

use super::body::UpstreamBody;
use super::class::ConnectionClass;
use super::connection::ServedBy;
use super::error::UpstreamError;
use super::pool::{Pool, PoolLimits, SendOptions};
use super::server::Upstream;
use crate::body::Body;
use watershed_connect::{Dialer, TlsIdentity};

/// Sends the proxy's own requests, with its own credentials: lists, watches, reviews, discovery.
/// Cheap to clone.
#[derive(Clone)]
pub struct UpstreamClient {
    shared: Arc<ClientShared>,
    /// The server to ask, if it matters.
    server: Option<Arc<ServedBy>>,
}

struct ClientShared {
    upstream: Upstream,
    pool: Pool,
    user_agent: HeaderValue,
    /// The server is upstream, and not a replica beside this process.
    is_above: bool,
}

impl UpstreamClient {
    /// Creates a client of this upstream. Needs a running runtime.
    pub fn new(upstream: &Upstream) -> UpstreamClient {
        Self::create(upstream, true)
    }

    /// Creates a client of other replicas. Its requests carry no marks of the tree, and their
    /// answers say nothing about the proxies between this process and the API server.
    pub(super) fn beside_the_tree(replicas: &Upstream) -> UpstreamClient {
        Self::create(replicas, false)
    }

    fn create(upstream: &Upstream, is_above: bool) -> UpstreamClient {
        // Not the first address: that would be the same server for all proxies of a fleet.
        let dialer = Dialer::starting_at(fastrand::usize(..));
        let limits = PoolLimits::within(upstream.capacity().own);
        let identity = TlsIdentity::ProxyCertificate;
        let pool = Pool::new(upstream, identity, &Arc::new(dialer), &limits);
        let user_agent = HeaderValue::from_str(&upstream.user_agent())
            .unwrap_or_else(|_| HeaderValue::from_static("watershed"));
        UpstreamClient {
            shared: Arc::new(ClientShared {
                upstream: upstream.clone(),
                pool,
                user_agent,
                is_above,
            }),
            server: None,
        }
    }

    /// Returns a client that prefers the server of an answer, while its connection lasts.
    #[must_use]
    pub fn beside(&self, server: &ServedBy) -> UpstreamClient {
        UpstreamClient {
            shared: Arc::clone(&self.shared),
            server: Some(Arc::new(server.clone())),
        }
    }

    /// Returns the server that this client prefers.
    pub fn server(&self) -> Option<&ServedBy> {
        self.server.as_deref()
    }

    /// Sends a request whose URI is path and query. Dropping the answer cancels it at upstream.
    ///
    /// It applies no timeout: only the caller knows how long the answer may take.
    ///
    /// Boxed: it is three kilobytes, and the future of each client's request would have room for it,
    /// several times.
    pub fn send(
        &self,
        class: ConnectionClass,
        request: Request<Body>,
        options: SendOptions,
    ) -> BoxFuture<'_, Result<Response<UpstreamBody>, UpstreamError>> {
        self.send_unboxed(class, request, options).boxed()
    }

    async fn send_unboxed(
        &self,
        class: ConnectionClass,
        mut request: Request<Body>,
        mut options: SendOptions,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        options.beside = options.beside.or_else(|| self.server().cloned());
        let headers = request.headers_mut();
        headers
            .entry(USER_AGENT)
            .or_insert_with(|| self.shared.user_agent.clone());
        let plain = std::mem::take(headers);
        let credentials = self.shared.upstream.current();
        *headers = credentials.attach(plain).await?;
        let chain = self.shared.upstream.chain();
        if self.shared.is_above {
            chain.mark_own(headers);
        }
        let answer = self.shared.pool.send(class, request, options).await?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            credentials.mark_refused();
        }
        if self.shared.is_above {
            chain.note(answer.status(), answer.headers());
        }
        Ok(answer)
    }

    #[cfg(test)]
    pub(super) fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// Returns the addresses and credentials in use.
    pub fn upstream(&self) -> &Upstream {
        &self.shared.upstream
    }
}

impl std::fmt::Debug for UpstreamClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamClient")
            .field("upstream", &self.shared.upstream)
            .finish_non_exhaustive()
    }
}
