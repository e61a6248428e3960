//! Pool of connections to the API server.
//!
//! hyper-util's client keeps one HTTP/2 connection per host, on which an API server allows a
//! hundred streams. The hundred and first watch would wait forever, so this pool opens more
//! connections. An HTTP/1 connection serves one request at a time.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use http::{Method, Request, Response};
use http_body::Body as _;
use hyper::client::conn::TrySendError;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::body::{End, UpstreamBody};
use super::class::ConnectionClass;
use super::connection::{
    self, Http2Connection, HttpConnection, IdleHttp1, Lease, NotSent, ServedBy,
};
use super::error::UpstreamError;
use super::repeat::{self, Repeatable};
use super::server::Upstream;
use super::traffic::{ReceivedMeter, RequestPurpose};
use crate::body::{self, Body};
use watershed_connect::{Address, Dialer, TlsIdentity};

/// Idle time after which connections are closed, as API servers do.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
const SWEEP_INTERVAL: Duration = Duration::from_secs(15);

/// Age up to which a connection does for requests that want a new one.
const RECENT: Duration = Duration::from_secs(5);

/// Recent connections from which requests that want a new one are shared.
///
/// A restarted API server lets all scopes resume elsewhere at once. One connection for each would
/// stay until their watches end. With a single one for all, a load balancer's one choice would
/// decide if every type is listed again.
const SPREAD: usize = 4;

/// Limit of connections in a group.
///
/// With HTTP/2 they carry tens of thousands of requests. The limit stops a flood before the kernel
/// runs out of ports.
pub(super) const MAX_CONNECTIONS: usize = 1024;

/// Limit of resends of a request on other connections.
///
/// Only reads, and requests that upstream provably has not seen, are sent again.
const MAX_RESENDS: usize = 3;

/// Options for sending a request.
#[derive(Clone, Debug, Default)]
pub struct SendOptions {
    /// Take a connection that was opened a moment ago, or a new one: a load balancer may choose
    /// another API server.
    pub fresh_connection: bool,
    /// Take a connection that is younger than this answer's, as for `fresh_connection`.
    pub instead_of: Option<ServedBy>,
    /// Prefer other addresses to this one (see [`ServedBy`]).
    pub avoid: Option<Address>,
    /// Prefer the connection of this answer, as it leads to the same server.
    pub beside: Option<ServedBy>,
    /// The purpose it is counted under.
    pub purpose: RequestPurpose,
}

/// The connections of one identity.
pub(super) struct Pool {
    groups: [Arc<ConnectionGroup>; 3],
}

/// Connections that share one class and one identity.
pub(super) struct ConnectionGroup {
    class: ConnectionClass,
    identity: TlsIdentity,
    upstream: Upstream,
    dialer: Arc<Dialer>,
    connections: Arc<Semaphore>,
    /// Connections that there may be.
    limit: usize,
    idle_http1: Arc<IdleHttp1>,
    state: Mutex<GroupState>,
}

#[derive(Default)]
struct GroupState {
    http2: Vec<Arc<Http2Connection>>,
    /// The connection being made, for all requests that found no free stream.
    dialing: Option<SharedDial>,
    /// The connections being made for requests that want a new one.
    dialing_elsewhere: Vec<DialElsewhere>,
    /// Numbers given to requests that wanted a new connection and found none.
    dials_elsewhere: usize,
    /// `true` if upstream spoke HTTP/1 last time. Each request then needs its own connection, so
    /// waiting for a shared one is useless.
    exclusive: bool,
}

/// A connection being made for requests that want a new one.
struct DialElsewhere {
    number: usize,
    avoid: Option<Address>,
    dialing: SharedDial,
}

/// The connections that a request wants to avoid.
#[derive(Default)]
struct Elsewhere {
    /// Those to this address.
    avoid: Option<Address>,
    /// Those that are not younger than this.
    opened_after: Option<Instant>,
}

/// Decides whether a request is sent again.
struct ResendPolicy {
    /// `true` for reads without a body.
    is_read: bool,
    /// The chunks sent so far, if the request has a body.
    kept: Option<Repeatable>,
    /// `true` once a pooled connection died before the answer.
    died: bool,
}

type SharedDial = Shared<BoxFuture<'static, Result<(), UpstreamError>>>;

// === impl Pool ===

impl Pool {
    pub(super) fn new(upstream: &Upstream, identity: TlsIdentity, dialer: &Arc<Dialer>) -> Pool {
        Self::limited(upstream, identity, dialer, MAX_CONNECTIONS)
    }

    /// Creates a pool with so many connections in a group.
    pub(super) fn limited(
        upstream: &Upstream,
        identity: TlsIdentity,
        dialer: &Arc<Dialer>,
        limit: usize,
    ) -> Pool {
        let groups = [
            ConnectionClass::Watch,
            ConnectionClass::Short,
            ConnectionClass::LongForward,
        ]
        .map(|class| {
            Arc::new(ConnectionGroup {
                class,
                identity,
                upstream: upstream.clone(),
                dialer: Arc::clone(dialer),
                connections: Arc::new(Semaphore::new(limit)),
                limit,
                idle_http1: Arc::new(IdleHttp1::new(upstream.clone())),
                state: Mutex::default(),
            })
        });
        let weak = groups.each_ref().map(Arc::downgrade);
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
        let [watch, short, long] = &self.groups;
        match class {
            ConnectionClass::Watch => watch,
            ConnectionClass::Short => short,
            ConnectionClass::LongForward => long,
        }
    }

    /// Returns `true` if each request has a connection of its own.
    pub(super) fn is_exclusive(&self) -> bool {
        let mut groups = self.groups.iter();
        groups.any(|group| group.state.lock().exclusive)
    }

    /// Sends a request whose URI is path and query.
    ///
    /// The request is sent again if its connection died before the request had left, or if upstream
    /// did not process it. A read without a body is also sent again if the connection died before
    /// the answer.
    pub(super) async fn send(
        &self,
        class: ConnectionClass,
        mut request: Request<Body>,
        options: SendOptions,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        let group = self.group(class);
        let uri = request.uri().clone();
        let mut elsewhere = Elsewhere::wanted(&options);
        let mut resends = 0;
        let mut policy = ResendPolicy::new(&mut request);
        loop {
            let beside = options.beside.as_ref().filter(|_| elsewhere.is_none());
            let mut lease = match (beside.and_then(|it| group.lease_beside(it)), &elsewhere) {
                (Some(lease), _) => lease,
                // Shared connections may end again and again: upstream closes those on which it
                // refuses a caller.
                (None, Some(elsewhere)) if resends == MAX_RESENDS => {
                    group.open_or_lease(elsewhere).await?
                }
                (None, Some(elsewhere)) => group.lease_elsewhere(elsewhere).await?,
                (None, None) => group.lease().await?,
            };
            *request.uri_mut() = uri.clone();
            let again = policy.copy(&request);
            let mut error = match lease.send(request).await {
                Ok(response) => {
                    let received = group.upstream.traffic().answered(options.purpose);
                    return Ok(answer(response, lease, policy.is_read, received));
                }
                Err(NotSent::Failed(error)) => error,
                Err(NotSent::Ended(unsent)) if resends < MAX_RESENDS => {
                    request = unsent;
                    resends += 1;
                    continue;
                }
                Err(NotSent::Ended(_)) => {
                    return Err(UpstreamError::NoStreams {
                        address: lease.address().clone(),
                    });
                }
            };
            match policy.resend(&mut error, again, lease.pooled) {
                Some(next) if resends < MAX_RESENDS => request = next,
                _ => {
                    return Err(UpstreamError::Closed {
                        address: lease.address().clone(),
                        source: Arc::new(error.into_error()),
                    });
                }
            }
            resends += 1;
            // Other pooled connections may have died too: after two, open a new one.
            if resends >= 2 {
                elsewhere.get_or_insert_default().opened_after = lease.opened();
            }
        }
    }
}

// === impl Elsewhere ===

impl Elsewhere {
    /// Returns what these options avoid; `None` if any connection will do.
    fn wanted(options: &SendOptions) -> Option<Self> {
        let instead_of = options.instead_of.as_ref();
        let any = !options.fresh_connection && options.avoid.is_none() && instead_of.is_none();
        (!any).then(|| Self {
            avoid: options.avoid.clone(),
            opened_after: instead_of.and_then(ServedBy::opened),
        })
    }

    fn avoids(&self, connection: &Http2Connection) -> bool {
        self.avoid.as_ref() == Some(&connection.address)
    }

    /// Returns `true` if the connection was opened a moment ago, and after the one to avoid.
    fn is_younger(&self, connection: &Http2Connection) -> bool {
        let opened = connection.opened;
        opened.elapsed() < RECENT && self.opened_after.is_none_or(|bad| opened > bad)
    }
}

// === impl ResendPolicy ===

impl ResendPolicy {
    /// Prepares the request's body for being sent more than once.
    fn new(request: &mut Request<Body>) -> Self {
        let bodyless = request.body().is_end_stream();
        let is_read = bodyless
            && matches!(
                *request.method(),
                Method::GET | Method::HEAD | Method::OPTIONS
            );
        let mut kept = None;
        if !bodyless {
            let body = std::mem::replace(request.body_mut(), body::empty());
            let (repeatable, body) = Repeatable::begin(body);
            kept = Some(repeatable);
            *request.body_mut() = body;
        } else if !is_read {
            *request.body_mut() = repeat::open_end();
        }
        Self {
            is_read,
            kept,
            died: false,
        }
    }

    /// Copies the request, with an empty body.
    fn copy(&self, request: &Request<Body>) -> Request<Body> {
        let body = if self.is_read {
            body::empty()
        } else {
            repeat::open_end()
        };
        let mut copy = Request::new(body);
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.headers_mut() = request.headers().clone();
        copy
    }

    /// Returns the request to send after this error.
    ///
    /// `None` means that a resend might be carried out twice, or would fail the same way.
    fn resend(
        &mut self,
        error: &mut TrySendError<Request<Body>>,
        again: Request<Body>,
        pooled: bool,
    ) -> Option<Request<Body>> {
        if let Some(unsent) = error.take_message() {
            return Some(unsent);
        }
        if is_unprocessed(error.error()) {
            return match &mut self.kept {
                Some(kept) => kept.again().map(|body| again.map(|_| body)),
                None => Some(again),
            };
        }
        // Only once: this very request may be what crashes upstream.
        if self.is_read && pooled && !self.died {
            self.died = true;
            return Some(again);
        }
        None
    }
}

/// Returns `true` if upstream did not process the request: it refused the stream or sent GOAWAY.
///
/// With a GOAWAY, h2 fails only streams above the last one it names. RFC 9113, 6.8: upstream has
/// not acted on those. An API server sends GOAWAY with each answer to an unknown caller, while
/// requests of others are on the connection.
/// Source: `apiserver/pkg/endpoints/filters/authentication.go`.
fn is_unprocessed(error: &hyper::Error) -> bool {
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        if let Some(error) = cause.downcast_ref::<h2::Error>() {
            return error.is_remote()
                && (error.reason() == Some(h2::Reason::REFUSED_STREAM) || error.is_go_away());
        }
        next = cause.source();
    }
    false
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

// === impl ConnectionGroup ===

impl ConnectionGroup {
    /// Leases a stream on an open connection, or on a new one.
    async fn lease(self: &Arc<Self>) -> Result<Lease, UpstreamError> {
        loop {
            let dialing = {
                let mut state = self.state.lock();
                if let Some(lease) = self.take(&mut state) {
                    return Ok(lease);
                }
                if state.exclusive {
                    None
                } else {
                    Some(self.shared_dial(&mut state))
                }
            };
            match dialing {
                // The new connection may be full already: look again.
                Some(dialing) => dialing.await?,
                None => return self.open(None).await,
            }
        }
    }

    /// Leases a stream on the connection of an answer, if it is one of this group's and has room.
    /// The streams that the class leaves free are for this.
    fn lease_beside(&self, server: &ServedBy) -> Option<Lease> {
        let wanted = server.shared()?;
        // Streams are taken under this lock only.
        let state = self.state.lock();
        let is_wanted = |it: &&Arc<Http2Connection>| Arc::ptr_eq(it, &wanted);
        let found = state.http2.iter().find(is_wanted)?;
        let is_usable = !found.is_closed() && found.take_stream(usize::MAX);
        is_usable.then(|| Lease::http2(Arc::clone(found), true))
    }

    /// Leases a stream on an open connection, the oldest first, so that younger ones can go idle.
    fn take(&self, state: &mut GroupState) -> Option<Lease> {
        let generation = self.upstream.current().generation;
        state.http2.retain(|connection| !connection.is_closed());
        let limit = self.class.windows().streams;
        let found = state.http2.iter().find(|connection| {
            connection.generation == generation && connection.take_stream(limit)
        });
        if let Some(connection) = found {
            return Some(Lease::http2(Arc::clone(connection), true));
        }
        let connection = self.idle_http1.take(generation)?;
        Some(Lease::http1(connection, Arc::clone(&self.idle_http1), true))
    }

    /// Returns the connection being made, or begins one.
    ///
    /// It is a task of its own: the first request may be cancelled while others wait for it.
    fn shared_dial(self: &Arc<Self>, state: &mut GroupState) -> SharedDial {
        if let Some(dialing) = &state.dialing {
            return dialing.clone();
        }
        let dialing = self.spawn_dial(None, |state| state.dialing = None);
        state.dialing = Some(dialing.clone());
        dialing
    }

    /// Begins to make a connection. `done` is called when that has succeeded or failed.
    fn spawn_dial(
        self: &Arc<Self>,
        avoid: Option<Address>,
        done: impl FnOnce(&mut GroupState) + Send + 'static,
    ) -> SharedDial {
        let group = Arc::clone(self);
        let task = tokio::spawn(async move {
            let made = group.connect(avoid.as_ref()).await;
            let mut state = group.state.lock();
            done(&mut state);
            match made? {
                HttpConnection::Http2(connection) => {
                    state.exclusive = false;
                    state.http2.push(connection);
                }
                HttpConnection::Http1(connection) => {
                    state.exclusive = true;
                    group.idle_http1.put_back(connection);
                }
            }
            Ok(())
        });
        task.map(|joined| match joined {
            Ok(result) => result,
            // Only the end of the runtime cancels it.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(UpstreamError::Ending),
            },
        })
        .boxed()
        .shared()
    }

    /// Opens a connection and leases its first stream.
    async fn open(&self, avoid: Option<&Address>) -> Result<Lease, UpstreamError> {
        let made = self.connect(avoid).await?;
        let mut state = self.state.lock();
        match made {
            HttpConnection::Http2(connection) => {
                state.exclusive = false;
                // Always succeeds: its limit is above zero, and nobody else knows it yet.
                connection.take_stream(1);
                state.http2.push(Arc::clone(&connection));
                Ok(Lease::http2(connection, false))
            }
            HttpConnection::Http1(connection) => {
                state.exclusive = true;
                Ok(Lease::http1(
                    connection,
                    Arc::clone(&self.idle_http1),
                    false,
                ))
            }
        }
    }

    /// Leases a stream on a recent or new connection, or on any where the limit is reached.
    async fn lease_elsewhere(self: &Arc<Self>, wanted: &Elsewhere) -> Result<Lease, UpstreamError> {
        let dialing = {
            let mut state = self.state.lock();
            let recent = self.recent(&state, wanted, false);
            let enough = recent.len() + state.dialing_elsewhere.len() >= SPREAD;
            if enough && let Some(lease) = self.take_of(recent) {
                return Ok(lease);
            }
            (!state.exclusive).then(|| self.dial_elsewhere(&mut state, wanted, enough))
        };
        let opened = match dialing {
            Some(dialing) => dialing.await,
            None => Ok(()),
        };
        if opened.is_ok() {
            let state = self.state.lock();
            // The other addresses were tried first.
            if let Some(lease) = self.take_of(self.recent(&state, wanted, true)) {
                return Ok(lease);
            }
        }
        match opened {
            // It is full already, or speaks HTTP/1.
            Ok(()) => self.open_or_lease(wanted).await,
            // A new connection is preferred, not required.
            Err(UpstreamError::Exhausted { .. }) => self.lease().await,
            Err(error) => Err(error),
        }
    }

    /// Opens a connection for one request, or leases a stream on any where the limit is reached.
    async fn open_or_lease(self: &Arc<Self>, wanted: &Elsewhere) -> Result<Lease, UpstreamError> {
        match self.open(wanted.avoid.as_ref()).await {
            Err(UpstreamError::Exhausted { .. }) => self.lease().await,
            opened => opened,
        }
    }

    /// Returns the connections that do for a request that wants a new one, the best first.
    ///
    /// Those to the avoided address are among them if there is no other, or `any_address`.
    fn recent(
        &self,
        state: &GroupState,
        wanted: &Elsewhere,
        any_address: bool,
    ) -> Vec<Arc<Http2Connection>> {
        let credentials = self.upstream.current();
        let any_address = any_address || credentials.addresses.len() < 2;
        let does = |it: &&Arc<Http2Connection>| {
            it.generation == credentials.generation
                && !it.is_closed()
                && wanted.is_younger(it)
                && (any_address || !wanted.avoids(it))
        };
        let mut recent: Vec<_> = state.http2.iter().filter(does).cloned().collect();
        recent.sort_by_key(|it| (wanted.avoids(it), it.streams(), Reverse(it.opened)));
        recent
    }

    /// Leases a stream on the first of these that has one. Called under the group's lock.
    fn take_of(&self, connections: Vec<Arc<Http2Connection>>) -> Option<Lease> {
        let limit = self.class.windows().streams;
        let mut connections = connections.into_iter();
        let found = connections.find(|connection| connection.take_stream(limit))?;
        Some(Lease::http2(found, true))
    }

    /// Begins to make a new connection, or returns one being made if there are enough of them.
    fn dial_elsewhere(
        self: &Arc<Self>,
        state: &mut GroupState,
        wanted: &Elsewhere,
        enough: bool,
    ) -> SharedDial {
        state.dials_elsewhere += 1;
        let number = state.dials_elsewhere;
        let dials = state.dialing_elsewhere.iter();
        let same: Vec<_> = dials.filter(|it| it.avoid == wanted.avoid).collect();
        if enough && !same.is_empty() {
            return same[number % same.len()].dialing.clone();
        }
        let dialing = self.spawn_dial(wanted.avoid.clone(), move |state| {
            state.dialing_elsewhere.retain(|it| it.number != number);
        });
        state.dialing_elsewhere.push(DialElsewhere {
            number,
            avoid: wanted.avoid.clone(),
            dialing: dialing.clone(),
        });
        dialing
    }

    async fn connect(&self, avoid: Option<&Address>) -> Result<HttpConnection, UpstreamError> {
        let permit = Arc::clone(&self.connections).try_acquire_owned();
        let permit = permit.map_err(|_| UpstreamError::Exhausted { limit: self.limit })?;
        let credentials = self.upstream.current();
        // Boxed: the state of a handshake is 20 KB, and every request's future would hold it.
        let dialed = Box::pin(self.dialer.dial(&credentials, self.identity, false, avoid)).await?;
        tracing::debug!(
            address = %dialed.address,
            http2 = dialed.http2,
            class = ?self.class,
            "connected to upstream"
        );
        let open = self.upstream.traffic().connected(self.class.into());
        Box::pin(connection::handshake(
            dialed,
            self.class,
            credentials.generation,
            permit,
            open,
        ))
        .await
    }

    /// Drops connections that are dead, idle for this long, or unused with old credentials.
    fn sweep(&self, idle: Duration) {
        let generation = self.upstream.current().generation;
        let mut state = self.state.lock();
        state.http2.retain(|connection| {
            let rest = connection.idle();
            let done = rest.is_some_and(|rest| rest >= idle || connection.generation != generation);
            !connection.is_closed() && !done
        });
        drop(state);
        self.idle_http1.sweep(generation, idle);
    }
}

#[cfg(test)]
mod tests;
