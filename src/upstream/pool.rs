//! Connections to the API server, kept and shared.
//!
//! hyper-util's client keeps one HTTP/2 connection per host, and an API server allows a hundred
//! streams on it: the hundred and first watch would wait for ever. So the pool is our own. HTTP/2
//! connections are filled up to a limit, then another is opened; HTTP/1 connections serve one
//! request at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use http::{Method, Request, Response};
use http_body::Body as _;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::body::{End, UpstreamBody};
use super::connection::{self, Connection, Http1, Http2, Lease, NotSent};
use super::error::UpstreamError;
use super::repeat::{self, Repeatable};
use super::server::Upstream;
use super::traffic::{Received, RequestPurpose};
use crate::body::{self, Body};
use watershed_connect::{Address, Dialer, TlsIdentity};

/// Connections without requests are closed after this time, as API servers do.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
const SWEEP_INTERVAL: Duration = Duration::from_secs(15);

/// Connections a group may have. With HTTP/2 that is tens of thousands of requests at a time; it is
/// there so that a flood meets a wall here instead of in the kernel.
const MAX_CONNECTIONS: usize = 1024;

/// How often a request is sent anew on another connection, when it provably was not seen by
/// upstream, or is only a read.
const MAX_RESENDS: usize = 3;

/// Requests that may share connections. Long ones that their reader may leave lying are apart from
/// short ones that everybody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionClass {
    /// The proxy's own watches and lists.
    Watch,
    /// Short requests, own or forwarded (on connections of their own each).
    Short,
    /// Forwarded watches and logs, read as fast or slowly as a client likes.
    LongForward,
}

/// How a request is to be sent.
#[derive(Clone, Debug, Default)]
pub struct SendOptions {
    /// Open a new connection for it: another API server may be behind a balancer.
    pub fresh_connection: bool,
    /// Prefer another address than this one (see [`ServedBy`]), where there are several.
    pub avoid: Option<Address>,
    /// What it is counted as.
    pub purpose: RequestPurpose,
}

/// The address an answer came from: an extension of every answer.
#[derive(Clone, Debug)]
pub struct ServedBy(pub Address);

/// What a class allows on an HTTP/2 connection.
pub(super) struct Windows {
    /// Streams; kube-apiserver's default limit is 100.
    pub(super) streams: usize,
    /// Bytes upstream may send ahead on a stream.
    pub(super) stream: u32,
    /// And on the connection. More than all streams together, so that streams nobody reads can't
    /// use it up: their neighbours never wait for them.
    pub(super) connection: u32,
}

const WATCH: Windows = Windows {
    streams: 100,
    stream: MIB,
    connection: 128 * MIB,
};
const SHORT: Windows = Windows {
    streams: 100,
    stream: MIB / 2,
    connection: 64 * MIB,
};
/// Fewer to a connection, and little of each: what a client leaves lying is held in memory here.
const LONG_FORWARD: Windows = Windows {
    streams: 50,
    stream: MIB / 4,
    connection: 16 * MIB,
};
const MIB: u32 = 1024 * 1024;

// Invariant: streams nobody reads leave room on their connection.
const _: () = assert!(WATCH.is_roomy() && SHORT.is_roomy() && LONG_FORWARD.is_roomy());

impl Windows {
    const fn is_roomy(&self) -> bool {
        self.streams * (self.stream as usize) < self.connection as usize
    }
}

impl ConnectionClass {
    pub(super) const fn windows(self) -> &'static Windows {
        match self {
            ConnectionClass::Watch => &WATCH,
            ConnectionClass::Short => &SHORT,
            ConnectionClass::LongForward => &LONG_FORWARD,
        }
    }
}

/// The connections of one identity.
pub(super) struct Pool {
    groups: [Arc<Group>; 3],
}

/// Connections that share one class and one identity.
pub(super) struct Group {
    class: ConnectionClass,
    identity: TlsIdentity,
    upstream: Upstream,
    dialer: Arc<Dialer>,
    connections: Arc<Semaphore>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    http2: Vec<Arc<Http2>>,
    /// Waiting HTTP/1 connections, the youngest last.
    http1: VecDeque<Http1>,
    /// The connection being made, for everyone who found no room.
    dialing: Option<SharedDial>,
    /// Upstream spoke HTTP/1 last time: everyone needs a connection of their own, so there is no
    /// use in waiting for one.
    exclusive: bool,
}

type SharedDial = Shared<BoxFuture<'static, Result<(), UpstreamError>>>;

// === impl Pool ===

impl Pool {
    pub(super) fn new(upstream: &Upstream, identity: TlsIdentity, dialer: &Arc<Dialer>) -> Pool {
        let groups = [
            ConnectionClass::Watch,
            ConnectionClass::Short,
            ConnectionClass::LongForward,
        ]
        .map(|class| {
            Arc::new(Group {
                class,
                identity,
                upstream: upstream.clone(),
                dialer: Arc::clone(dialer),
                connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
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

    pub(super) fn group(&self, class: ConnectionClass) -> &Arc<Group> {
        let [watch, short, long] = &self.groups;
        match class {
            ConnectionClass::Watch => watch,
            ConnectionClass::Short => short,
            ConnectionClass::LongForward => long,
        }
    }

    /// Sends a request whose URI is path and query.
    ///
    /// It is sent anew when its connection turned out dead before the request had left, or when
    /// upstream said that it did not look at it; a read without a body also when the connection
    /// died before any answer.
    pub(super) async fn send(
        &self,
        class: ConnectionClass,
        mut request: Request<Body>,
        options: SendOptions,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        let group = self.group(class);
        let uri = request.uri().clone();
        let bodyless = request.body().is_end_stream();
        let repeatable = bodyless
            && matches!(
                *request.method(),
                Method::GET | Method::HEAD | Method::OPTIONS
            );
        let mut fresh = options.fresh_connection || options.avoid.is_some();
        let mut resends = 0;
        let mut died = false;
        let mut kept = None;
        if !bodyless {
            let (parts, body) = request.into_parts();
            let (repeatable, body) = Repeatable::begin(body);
            kept = Some(repeatable);
            request = Request::from_parts(parts, body);
        } else if !repeatable {
            *request.body_mut() = repeat::open_end();
        }
        loop {
            let opened = if fresh {
                group.open(options.avoid.as_ref()).await
            } else {
                group.lease().await
            };
            let mut lease = match opened {
                // A new connection was a wish only.
                Err(UpstreamError::Exhausted { .. }) if fresh => group.lease().await?,
                opened => opened?,
            };
            *request.uri_mut() = uri.clone();
            let mut again = copy(&request);
            if !repeatable {
                *again.body_mut() = repeat::open_end();
            }
            let mut error = match lease.send(request).await {
                Ok(response) => {
                    let received = group.upstream.traffic().answered(options.purpose);
                    return Ok(answer(response, lease, repeatable, received));
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
            let next = match error.take_message() {
                Some(unsent) => Some(unsent),
                None if is_unprocessed(error.error()) => match &mut kept {
                    Some(kept) => kept.again().map(|body| again.map(|_| body)),
                    None => Some(again),
                },
                // Once: it may be this very request that upstream dies of.
                None if repeatable && lease.pooled && !died => {
                    died = true;
                    Some(again)
                }
                None => None,
            };
            match next {
                Some(next) if resends < MAX_RESENDS => request = next,
                _ => {
                    let address = lease.address().clone();
                    return Err(UpstreamError::Closed {
                        address,
                        source: Arc::new(error.into_error()),
                    });
                }
            }
            resends += 1;
            // Others in the pool may have died of the same; after two, stop guessing.
            fresh |= resends >= 2;
        }
    }
}

/// A request without its body, once more.
fn copy(request: &Request<Body>) -> Request<Body> {
    let mut copy = Request::new(body::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    copy
}

/// Whether upstream said that it did not look at the request: it is going away, or has no room. h2
/// has only streams above the last one that a GOAWAY names end with it; that upstream has not acted
/// on those is RFC 9113, 6.8. An API server goes away from a connection with each answer to
/// somebody it does not know (apiserver/pkg/endpoints/filters/authentication.go), and others are on
/// it.
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
    received: Received,
) -> Response<UpstreamBody> {
    let end = match (response.version(), bodyless) {
        (http::Version::HTTP_2, true) => End::Marked,
        (http::Version::HTTP_2, false) => End::MarkedOrReset,
        _ => End::Reported,
    };
    let (mut parts, incoming) = response.into_parts();
    parts.extensions.insert(ServedBy(lease.address().clone()));
    Response::from_parts(parts, UpstreamBody::new(incoming, lease, end, received))
}

// === impl Group ===

impl Group {
    /// A place on a connection there is, or on a new one.
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
                // It may be full already when we get to it: look again.
                Some(dialing) => dialing.await?,
                None => return self.open(None).await,
            }
        }
    }

    /// A place on a connection of this group, the oldest first, so that the younger can go idle.
    fn take(self: &Arc<Self>, state: &mut State) -> Option<Lease> {
        let generation = self.upstream.current().generation;
        state.http2.retain(|connection| !connection.is_closed());
        let limit = self.class.windows().streams;
        let found = state.http2.iter().find(|connection| {
            connection.generation == generation && connection.take_stream(limit)
        });
        if let Some(connection) = found {
            return Some(Lease::http2(Arc::clone(connection), Arc::clone(self), true));
        }
        while let Some(connection) = state.http1.pop_back() {
            if !connection.is_closed() && connection.generation == generation {
                return Some(Lease::http1(connection, Arc::clone(self), true));
            }
        }
        None
    }

    /// The connection being made, or one begun now. It is a task of its own: whoever asked first
    /// may give up, the others still wait for it.
    fn shared_dial(self: &Arc<Self>, state: &mut State) -> SharedDial {
        if let Some(dialing) = &state.dialing {
            return dialing.clone();
        }
        let group = Arc::clone(self);
        let task = tokio::spawn(async move {
            let made = group.connect(None).await;
            let mut state = group.state.lock();
            state.dialing = None;
            match made? {
                Connection::Http2(connection) => {
                    state.exclusive = false;
                    state.http2.push(connection);
                }
                Connection::Http1(connection) => {
                    state.exclusive = true;
                    state.http1.push_back(connection);
                }
            }
            Ok(())
        });
        let dialing = task
            .map(|joined| match joined {
                Ok(result) => result,
                // Only a runtime that ends cancels it.
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => Err(UpstreamError::Ending),
                },
            })
            .boxed()
            .shared();
        state.dialing = Some(dialing.clone());
        dialing
    }

    /// A place on a connection opened for it.
    async fn open(self: &Arc<Self>, avoid: Option<&Address>) -> Result<Lease, UpstreamError> {
        let made = self.connect(avoid).await?;
        let mut state = self.state.lock();
        match made {
            Connection::Http2(connection) => {
                state.exclusive = false;
                // Its limit is above zero, and nobody else knows it yet.
                connection.take_stream(1);
                state.http2.push(Arc::clone(&connection));
                Ok(Lease::http2(connection, Arc::clone(self), false))
            }
            Connection::Http1(connection) => {
                state.exclusive = true;
                Ok(Lease::http1(connection, Arc::clone(self), false))
            }
        }
    }

    async fn connect(&self, avoid: Option<&Address>) -> Result<Connection, UpstreamError> {
        let permit = Arc::clone(&self.connections).try_acquire_owned();
        let permit = permit.map_err(|_| UpstreamError::Exhausted {
            limit: MAX_CONNECTIONS,
        })?;
        let credentials = self.upstream.current();
        // Boxed: a handshake's state is 20 KB, and every request would carry the room for one.
        let dialed = Box::pin(self.dialer.dial(&credentials, self.identity, false, avoid)).await?;
        tracing::debug!(address = %dialed.address, http2 = dialed.http2, class = ?self.class, "connected to upstream");
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

    /// An HTTP/1 connection that has done its work.
    pub(super) fn put_back(&self, connection: Http1) {
        if connection.generation == self.upstream.current().generation {
            self.state.lock().http1.push_back(connection);
        }
    }

    /// Drops connections that are dead, idle, or of old credentials and done.
    fn sweep(&self, idle: Duration) {
        let generation = self.upstream.current().generation;
        let mut state = self.state.lock();
        state.http2.retain(|connection| {
            let rest = connection.idle();
            let done = rest.is_some_and(|rest| rest >= idle || connection.generation != generation);
            !connection.is_closed() && !done
        });
        state.http1.retain(|connection| {
            let fresh =
                connection.generation == generation && connection.idle_since.elapsed() < idle;
            !connection.is_closed() && fresh
        });
    }
}

#[cfg(test)]
mod tests;
