//! Connections that share one class and one identity.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::limits::{IdleConnections, PoolLimits, UNNEEDED_AFTER};
use super::options::AvoidedAddresses;
use crate::upstream::class::ConnectionClass;
use crate::upstream::connection::{
    self, ConnectionPermits, ConnectionQueue, Http2Connection, HttpConnection, IdleHttp1, Lease,
    ServedBy,
};
use crate::upstream::error::UpstreamError;
use crate::upstream::server::Upstream;
use crate::upstream::traffic::RequestPurpose;
use watershed_connect::{Dialer, OfferedProtocols, Protocol, TlsIdentity};

/// Connections that share one class and one identity.
pub(in crate::upstream) struct ConnectionGroup {
    pub(super) class: ConnectionClass,
    identity: TlsIdentity,
    pub(super) upstream: Upstream,
    dialer: Arc<Dialer>,
    limits: PoolLimits,
    /// Connections that there may be beside those that there are.
    connections: Arc<Semaphore>,
    /// Requests that wait where there can be no more.
    pub(super) queue: ConnectionQueue,
    pub(super) idle_http1: Arc<IdleHttp1>,
    /// Connections that are made at a time for one request each.
    dialing_alone: Semaphore,
    pub(super) state: Mutex<GroupState>,
}

#[derive(Default)]
pub(super) struct GroupState {
    pub(super) http2: Vec<Arc<Http2Connection>>,
    /// The connection being made, for all requests that found no free stream.
    dialing: Option<SharedDial>,
    /// The connections being made for requests that want a new one.
    pub(super) dialing_elsewhere: Vec<DialElsewhere>,
    /// Numbers given to requests that wanted a new connection and found none.
    pub(super) dials_elsewhere: usize,
    /// `true` if upstream spoke HTTP/1 last time. Each request then needs its own connection, so
    /// waiting for a shared one is useless.
    pub(super) exclusive: bool,
}

/// A connection being made for requests that want a new one.
pub(super) struct DialElsewhere {
    pub(super) number: usize,
    pub(super) avoid: AvoidedAddresses,
    pub(super) dialing: SharedDial,
}

/// New connections that ended before anybody used them, after which a request makes one of its own. Without a
/// bound, a server that ends each at once would be dialled for as long as the request waits.
const MAX_ENDED: usize = 3;

/// Connections that are made at a time for one request each, where so many may be. More would take those that
/// other requests are to share, which would be refused.
const DIALS_ALONE: usize = 16;

/// Time to wait until another such connection may be made. Requests share connections then.
const DIALING_WAIT: Duration = Duration::from_millis(500);

/// A way to a connection.
enum Found {
    Stream(Lease),
    /// A connection is being made, for all who wait for it.
    Dial(SharedDial),
    /// Another connection may be made, for this request alone.
    Room(ConnectionPermits),
}

/// The open connection on which a stream is taken.
#[derive(Clone, Copy)]
enum StreamChoice {
    /// The oldest with a free stream, so that younger ones can go idle.
    Oldest,
    /// The oldest without streams.
    Unused,
    /// The one with the fewest streams.
    LeastUsed,
}

/// A connection being made, for all who wait for it.
pub(super) type SharedDial = Shared<BoxFuture<'static, Result<(), UpstreamError>>>;

impl ConnectionGroup {
    /// Creates a group without connections.
    pub(super) fn new(
        class: ConnectionClass,
        identity: TlsIdentity,
        upstream: &Upstream,
        dialer: &Arc<Dialer>,
        limits: &PoolLimits,
    ) -> Self {
        Self {
            class,
            identity,
            upstream: upstream.clone(),
            dialer: Arc::clone(dialer),
            connections: Arc::new(Semaphore::new(limits.of_class(class))),
            queue: ConnectionQueue::default(),
            limits: limits.clone(),
            idle_http1: Arc::new(IdleHttp1::new(upstream.clone())),
            dialing_alone: Semaphore::new(DIALS_ALONE.min(limits.alone)),
            state: Mutex::default(),
        }
    }

    /// Returns `true` if each request has a connection of its own.
    pub(super) fn is_exclusive(&self) -> bool {
        self.state.lock().exclusive
    }

    /// Leases a stream on an open connection, or on a new one.
    pub(super) async fn lease(self: &Arc<Self>) -> Result<Lease, UpstreamError> {
        if self.class.is_alone()
            && self.limits.alone > 0
            && self.queue.is_empty()
            && let Some(lease) = self.lease_alone().await?
        {
            return Ok(lease);
        }
        self.lease_shared().await
    }

    /// Leases a connection that no other request is on; `None` if there are enough already, or if making one
    /// takes long.
    async fn lease_alone(&self) -> Result<Option<Lease>, UpstreamError> {
        let unused = self.unused();
        if unused.is_some() || self.are_enough_alone() {
            return Ok(unused);
        }
        let dialing = timeout(DIALING_WAIT, self.dialing_alone.acquire()).await;
        if !self.queue.is_empty() {
            return Ok(None);
        }
        let unused = self.unused();
        if unused.is_some() || dialing.is_err() || self.are_enough_alone() {
            return Ok(unused);
        }
        match self.open(&AvoidedAddresses::default()).await {
            Ok(lease) => Ok(Some(lease)),
            Err(UpstreamError::Exhausted) => Ok(None),
            Err(error) if self.has_open_connection() => {
                tracing::debug!(%error, "no connection for one request alone; sharing one");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Leases a connection without requests.
    fn unused(&self) -> Option<Lease> {
        self.take(&mut self.state.lock(), StreamChoice::Unused)
    }

    fn are_enough_alone(&self) -> bool {
        self.state.lock().http2.len() >= self.limits.alone
    }

    async fn lease_shared(self: &Arc<Self>) -> Result<Lease, UpstreamError> {
        // From the first wait in the queue on: a connection that is being made may take longer.
        let mut deadline = None;
        let mut ended = 0;
        loop {
            let begun = Instant::now();
            let shares_dials = ended < MAX_ENDED;
            match self.find(shares_dials, &mut deadline).await? {
                Found::Stream(lease) => return Ok(lease),
                Found::Dial(dialing) => {
                    // The new connection may be full already: look again.
                    if let Err(error) = dialing.await {
                        // A stream of another one may be free by now.
                        return self.stream(&mut self.state.lock()).ok_or(error);
                    }
                }
                Found::Room(permits) => {
                    return self.open_with(permits, &AvoidedAddresses::default()).await;
                }
            }
            ended += usize::from(!self.has_opened_since(begun));
        }
    }

    /// Finds a way to a connection. Waits for one in the queue where there can be no more.
    async fn find(
        self: &Arc<Self>,
        shares_dials: bool,
        deadline: &mut Option<Instant>,
    ) -> Result<Found, UpstreamError> {
        if self.queue.is_empty()
            && let Some(found) = self.look(shares_dials)
        {
            return Ok(found);
        }
        let deadline = deadline.get_or_insert_with(|| Instant::now() + self.limits.patience);
        let place = self.queue.first_place(*deadline).await;
        let place = place.ok_or(UpstreamError::Exhausted)?;
        loop {
            let notified = place.notified();
            if let Some(found) = self.look(shares_dials) {
                return Ok(found);
            }
            if place.is_over() {
                return Err(UpstreamError::Exhausted);
            }
            place.look_again(notified).await;
        }
    }

    /// Looks for a way to a connection; `None` if there can be no more.
    fn look(self: &Arc<Self>, shares_dials: bool) -> Option<Found> {
        let shares_dials = {
            let mut state = self.state.lock();
            if let Some(lease) = self.stream(&mut state) {
                return Some(Found::Stream(lease));
            }
            let shares_dials = shares_dials && !state.exclusive;
            if shares_dials && let Some(dialing) = &state.dialing {
                return Some(Found::Dial(dialing.clone()));
            }
            shares_dials
        };
        // Not under the lock: connections that are idle may end for it.
        let permits = self.permits()?;
        Some(if shares_dials {
            Found::Dial(self.shared_dial(permits))
        } else {
            Found::Room(permits)
        })
    }

    /// Leases a stream that may be shared, on an open connection.
    fn stream(&self, state: &mut GroupState) -> Option<Lease> {
        let choice = if self.class.is_alone() {
            StreamChoice::LeastUsed
        } else {
            StreamChoice::Oldest
        };
        self.take(state, choice)
    }

    /// Returns `true` if a connection that was made since then is open.
    fn has_opened_since(&self, begun: Instant) -> bool {
        let state = self.state.lock();
        let is_new = |it: &Arc<Http2Connection>| it.opened >= begun && !it.is_closed();
        state.exclusive || state.http2.iter().any(is_new)
    }

    fn has_open_connection(&self) -> bool {
        let state = self.state.lock();
        state.exclusive || state.http2.iter().any(|connection| !connection.is_closed())
    }

    /// Leases a stream on the connection of an answer, if it is one of this group's and has room.
    /// Questions may take the streams that are left free; lists and watches, which may stay open, not.
    pub(super) fn lease_beside(&self, server: &ServedBy, purpose: RequestPurpose) -> Option<Lease> {
        let wanted = server.shared()?;
        // Streams are taken under this lock only.
        let state = self.state.lock();
        let is_wanted = |it: &&Arc<Http2Connection>| Arc::ptr_eq(it, &wanted);
        let found = state.http2.iter().find(is_wanted)?;
        if found.generation != self.upstream.current().generation {
            // Upstream may refuse the certificate by now. Whoever asks about this server takes another one.
            found.retire();
            return None;
        }
        let take = |connection: &Http2Connection| match purpose {
            RequestPurpose::List | RequestPurpose::Watch => connection.take_stream(self.class),
            RequestPurpose::Forward | RequestPurpose::Internal | RequestPurpose::Probe => {
                connection.take_any_stream()
            }
        };
        let is_usable = !found.is_closed() && take(found);
        is_usable.then(|| Lease::http2(Arc::clone(found)).pooled())
    }

    /// Leases a stream on an open connection.
    fn take(&self, state: &mut GroupState, choice: StreamChoice) -> Option<Lease> {
        let generation = self.upstream.current().generation;
        state.http2.retain(|connection| !connection.is_closed());
        let current = |connection: &&Arc<Http2Connection>| connection.generation == generation;
        let mut usable = state.http2.iter().filter(current);
        let found = match choice {
            StreamChoice::Oldest => usable.find(|it| it.take_stream(self.class)),
            StreamChoice::Unused => usable.find(|it| it.take_alone()),
            StreamChoice::LeastUsed => usable
                .min_by_key(|it| it.streams())
                .filter(|it| it.take_stream(self.class)),
        };
        if let Some(connection) = found {
            return Some(Lease::http2(Arc::clone(connection)).pooled());
        }
        let connection = self.idle_http1.take(generation)?;
        Some(Lease::http1(connection, Arc::clone(&self.idle_http1)).pooled())
    }

    /// Returns the connection being made, or begins one with these permits.
    ///
    /// It is a task of its own: the first request may be cancelled while others wait for it.
    fn shared_dial(self: &Arc<Self>, permits: ConnectionPermits) -> SharedDial {
        let mut state = self.state.lock();
        if let Some(dialing) = &state.dialing {
            return dialing.clone();
        }
        let avoid = AvoidedAddresses::default();
        let dialing = self.spawn_dial(Some(permits), avoid, |state| state.dialing = None);
        state.dialing = Some(dialing.clone());
        dialing
    }

    /// Begins to make a connection. `done` is called when that has succeeded or failed.
    pub(super) fn spawn_dial(
        self: &Arc<Self>,
        permits: Option<ConnectionPermits>,
        avoid: AvoidedAddresses,
        done: impl FnOnce(&mut GroupState) + Send + 'static,
    ) -> SharedDial {
        let group = Arc::clone(self);
        let task = tokio::spawn(async move {
            let connecting = AssertUnwindSafe(group.connect(permits, &avoid));
            let made = connecting.catch_unwind().await;
            let mut state = group.state.lock();
            // In any case: whoever comes later would otherwise wait for this attempt.
            done(&mut state);
            match made.unwrap_or_else(|panic| resume_unwind(panic))? {
                HttpConnection::Http2(connection) => {
                    state.exclusive = false;
                    state.http2.push(connection);
                    group.queue.notify_first();
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
                Ok(panic) => resume_unwind(panic),
                Err(_) => Err(UpstreamError::Ending),
            },
        })
        .boxed()
        .shared()
    }

    /// Opens a connection and leases its first stream.
    pub(super) async fn open(&self, avoid: &AvoidedAddresses) -> Result<Lease, UpstreamError> {
        let permits = self.permits().ok_or(UpstreamError::Exhausted)?;
        self.open_with(permits, avoid).await
    }

    async fn open_with(
        &self,
        permits: ConnectionPermits,
        avoid: &AvoidedAddresses,
    ) -> Result<Lease, UpstreamError> {
        let made = self.connect(Some(permits), avoid).await?;
        let mut state = self.state.lock();
        match made {
            HttpConnection::Http2(connection) => {
                state.exclusive = false;
                // Always succeeds: its limit is above zero, and nobody else knows it yet.
                connection.take_any_stream();
                state.http2.push(Arc::clone(&connection));
                self.queue.notify_first();
                Ok(Lease::http2(connection))
            }
            HttpConnection::Http1(connection) => {
                state.exclusive = true;
                Ok(Lease::http1(connection, Arc::clone(&self.idle_http1)))
            }
        }
    }

    /// Takes the permits of a connection; `None` if there can be no more.
    fn permits(&self) -> Option<ConnectionPermits> {
        let of_group = self.permit_of_group().or_else(|| {
            // Those with old credentials are of no use, and not counted as idle for long.
            self.sweep(UNNEEDED_AFTER);
            self.permit_of_group()
        })?;
        let mut permits = self.limits.shared.take(self.class)?;
        permits.push(of_group);
        Some(ConnectionPermits::new(permits, self.queue.clone()))
    }

    fn permit_of_group(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.connections).try_acquire_owned().ok()
    }

    /// Makes a connection, with these permits or others.
    async fn connect(
        &self,
        permits: Option<ConnectionPermits>,
        avoid: &AvoidedAddresses,
    ) -> Result<HttpConnection, UpstreamError> {
        let permits = permits.or_else(|| self.permits());
        let permits = permits.ok_or(UpstreamError::Exhausted)?;
        let credentials = self.upstream.current();
        // Boxed: the state of a handshake is 20 KB, and every request's future would hold it.
        let (offered, avoid) = (OfferedProtocols::Any, avoid.as_slice());
        let dialing = self
            .dialer
            .dial(&credentials, self.identity, offered, avoid);
        let dialed = Box::pin(dialing).await?;
        tracing::debug!(
            address = %dialed.address,
            http2 = dialed.protocol == Protocol::Http2,
            class = ?self.class,
            "connected to upstream"
        );
        let open = self.upstream.traffic().connected(self.class.into());
        Box::pin(connection::handshake(
            dialed,
            self.class,
            credentials.generation,
            permits,
            open,
        ))
        .await
    }
}

impl IdleConnections for ConnectionGroup {
    fn class(&self) -> ConnectionClass {
        self.class
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
