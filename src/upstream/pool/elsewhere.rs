//! Leases for requests that want another connection than the usual one.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::group::{ConnectionGroup, DialElsewhere, GroupState, SharedDial};
use super::options::{AvoidedAddresses, SendOptions};
use crate::upstream::connection::{Http2Connection, Lease, ServedBy};
use crate::upstream::error::UpstreamError;

/// Age up to which a connection does for requests that want a new one.
const RECENT: Duration = Duration::from_secs(5);

/// Recent connections from which requests that want a new one are shared.
///
/// A restarted API server lets all scopes resume elsewhere at once. One connection for each would
/// stay until their watches end. With a single one for all, a load balancer's one choice would
/// decide if every type is listed again.
pub(super) const SPREAD: usize = 4;

/// The connections that a request wants to avoid.
#[derive(Default)]
pub(super) struct Elsewhere {
    /// Those to these addresses, the last of them most of all.
    avoid: AvoidedAddresses,
    /// Those that are not younger than this.
    pub(super) opened_after: Option<Instant>,
}

impl Elsewhere {
    /// Returns what these options avoid; `None` if any connection will do.
    pub(super) fn wanted(options: &SendOptions) -> Option<Self> {
        let instead_of = options.instead_of.as_ref();
        let any = !options.fresh_connection
            && options.avoid.as_slice().is_empty()
            && instead_of.is_none();
        (!any).then(|| Self {
            avoid: options.avoid.clone(),
            opened_after: instead_of.and_then(ServedBy::opened),
        })
    }

    /// Returns the place of its address among those to avoid; `None` for the best, of any other.
    fn place(&self, connection: &Http2Connection) -> Option<usize> {
        self.avoid
            .as_slice()
            .iter()
            .position(|it| *it == connection.address)
    }

    /// Returns `true` if the connection was opened a moment ago, and after the one to avoid.
    fn is_younger(&self, connection: &Http2Connection) -> bool {
        let opened = connection.opened;
        opened.elapsed() < RECENT && self.opened_after.is_none_or(|bad| opened > bad)
    }
}

impl ConnectionGroup {
    /// Leases a stream on a recent or new connection, or on any where the limit is reached.
    pub(super) async fn lease_elsewhere(
        self: &Arc<Self>,
        wanted: &Elsewhere,
    ) -> Result<Lease, UpstreamError> {
        if !self.queue.is_empty() {
            return self.lease().await;
        }
        if self.class.is_alone() {
            return self.open_or_lease(wanted).await;
        }
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
            // The other addresses were tried first, and have failed.
            if let Some(lease) = self.take_of(self.recent(&state, wanted, true)) {
                return Ok(lease);
            }
        }
        match opened {
            // It is full already, or speaks HTTP/1.
            Ok(()) => self.open_or_lease(wanted).await,
            // A new connection is preferred, not required.
            Err(UpstreamError::Exhausted) => self.lease().await,
            Err(error) => Err(error),
        }
    }

    /// Opens a connection for one request, or leases a stream on any where the limit is reached.
    pub(super) async fn open_or_lease(
        self: &Arc<Self>,
        wanted: &Elsewhere,
    ) -> Result<Lease, UpstreamError> {
        if !self.queue.is_empty() {
            return self.lease().await;
        }
        match self.open(&wanted.avoid).await {
            Err(UpstreamError::Exhausted) => self.lease().await,
            opened => opened,
        }
    }

    /// Returns the connections that do for a request that wants a new one, the best first.
    ///
    /// Those to avoided addresses are among them if there is no other, or `any_address`.
    fn recent(
        &self,
        state: &GroupState,
        wanted: &Elsewhere,
        any_address: bool,
    ) -> Vec<Arc<Http2Connection>> {
        let credentials = self.upstream.current();
        let any_address = any_address
            || credentials
                .addresses
                .iter()
                .all(|address| wanted.avoid.as_slice().contains(address));
        let does = |it: &&Arc<Http2Connection>| {
            it.generation == credentials.generation
                && !it.is_closed()
                && wanted.is_younger(it)
                && (any_address || wanted.place(it).is_none())
        };
        let mut recent: Vec<_> = state.http2.iter().filter(does).cloned().collect();
        recent.sort_by_key(|it| (wanted.place(it), it.streams(), Reverse(it.opened)));
        recent
    }

    /// Leases a stream on the first of these that has one. Called under the group's lock.
    fn take_of(&self, connections: Vec<Arc<Http2Connection>>) -> Option<Lease> {
        let mut connections = connections.into_iter();
        let found = connections.find(|connection| connection.take_stream(self.class))?;
        Some(Lease::http2(found).pooled())
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
        let dialing = self.spawn_dial(None, wanted.avoid.clone(), move |state| {
            state.dialing_elsewhere.retain(|it| it.number != number);
        });
        state.dialing_elsewhere.push(DialElsewhere {
            number,
            avoid: wanted.avoid.clone(),
            dialing: dialing.clone(),
        });
        dialing
    }
}
