//! The shares that callers have of forwarded requests and tunnels.
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use watershed_protocol::Status;

use super::exceeded::LimitExceeded;
use super::limit::Limit;
use crate::access::{Authenticated, Identity};
use crate::fairness::{CallerKey, FairQueue, QueueTurn, Seats, Share};
use crate::serve::exchange::Exchange;
use crate::serve::policy::UserLimits;
use crate::serve::unanswered::Refusal;
use crate::upstream::{ConnectionClass, Forwarder, is_upgrade};

/// Forwarded requests at a time, of all known callers.
const ALL_REQUESTS: u64 = 50_000;
const _: () = assert!(ALL_REQUESTS <= Forwarder::CAPACITY);
/// Sessions of exec, attach and port-forward at a time, of all known callers, where there are enough files.
const ALL_TUNNELS: u64 = 4_096;
/// Forwarded requests at a time, of all unknown callers. They count by address.
const UNKNOWN_REQUESTS: u64 = 4_096;
/// Requests of unknown callers that wait for upstream's answer, of all and of each address.
const UNKNOWN_TURNS: Seats = Seats { all: 64, each: 16 };
/// Longest wait of such a request for its turn, as in kube-apiserver's queues.
/// Source: `apiserver/pkg/server/config.go` (a quarter of the request timeout).
const UNKNOWN_WAIT: Duration = Duration::from_secs(15);
/// Upgrades at a time, of all callers that cannot be authenticated here.
const UNKNOWN_TUNNELS: u64 = 64;
/// Divisor: these are a part of the tunnels that there are files for.
const UNKNOWN_DIVISOR: u64 = 4;

/// Counts what is forwarded for each caller.
pub(in crate::serve) struct ForwardLimits {
    /// Knows how many requests fit on all connections to upstream.
    forwarder: Forwarder,
    requests: Limit,
    /// Those of the requests whose answers pods, services and nodes write. They have fewer connections.
    relayed: Limit,
    tunnels: Limit,
    unknown_requests: Limit,
    unknown_tunnels: Limit,
    unknown_turns: FairQueue,
}

/// The shares that a forwarded request or a tunnel holds.
pub(in crate::serve) struct ForwardShare {
    pub(in crate::serve) of_all: Share,
    _of_relayed: Option<Share>,
}

/// Permission to forward a request.
pub(in crate::serve) struct ForwardPermit {
    /// Held until the answer or the tunnel has ended.
    pub(in crate::serve) share: ForwardShare,
    /// Held until the answer has begun.
    pub(in crate::serve) turn: Option<QueueTurn>,
}

impl ForwardLimits {
    /// Creates limits of which nothing is used.
    pub(in crate::serve) fn new(limits: UserLimits, forwarder: Forwarder) -> Self {
        let tunnels = forwarder.tunnel_capacity();
        let of_unknown = UNKNOWN_TUNNELS.min(tunnels / UNKNOWN_DIVISOR).max(1);
        let of_known = ALL_TUNNELS.min(tunnels.saturating_sub(of_unknown)).max(1);
        let limit = |exceeded, all, each: u32| Limit::new(exceeded, all, each.into());
        Self {
            forwarder,
            requests: limit(LimitExceeded::Forwarded, ALL_REQUESTS, limits.forwarded),
            relayed: limit(LimitExceeded::Relayed, ALL_REQUESTS, limits.forwarded),
            tunnels: limit(LimitExceeded::Tunnels, of_known, limits.tunnels),
            unknown_requests: limit(LimitExceeded::UnknownForwarded, UNKNOWN_REQUESTS, 0),
            unknown_tunnels: limit(LimitExceeded::UnknownTunnels, of_unknown, 0),
            unknown_turns: FairQueue::new(UNKNOWN_TURNS),
        }
    }

    /// Admits a request that is to be forwarded. Waits for the caller's turn if it is unknown.
    pub(in crate::serve) async fn admit(
        &self,
        exchange: &Exchange<'_>,
        user: Option<&Arc<Identity>>,
    ) -> Result<ForwardPermit, Refusal> {
        if is_upgrade(&exchange.request) {
            return self.admit_upgrade(exchange).await;
        }
        if exchange.is_known {
            let share = self.share_of_known(exchange, user)?;
            return Ok(ForwardPermit { share, turn: None });
        }
        let address = CallerKey::Address(exchange.address());
        let share = self.unknown_requests.take(address.clone(), 1)?;
        let turn = self.unknown_turns.turn_within(address, UNKNOWN_WAIT).await;
        let turn = Some(turn.ok_or(self.unknown_requests.exceeded())?);
        let share = share.into();
        Ok(ForwardPermit { share, turn })
    }

    /// Takes a share for a request of a known caller.
    pub(in crate::serve) fn share_of_known(
        &self,
        exchange: &Exchange<'_>,
        user: Option<&Arc<Identity>>,
    ) -> Result<ForwardShare, LimitExceeded> {
        let address = CallerKey::Address(exchange.address());
        let caller = user.and_then(|user| user.user_key()).unwrap_or(address);
        self.take(exchange.plan.forward_class, caller)
    }

    /// Returns the share of a request once upstream has accepted its caller, who was unknown.
    pub(in crate::serve) fn accepted(
        &self,
        address: IpAddr,
        class: ConnectionClass,
        unknown: ForwardShare,
    ) -> ForwardShare {
        let share = self.take(class, CallerKey::Address(address));
        share.unwrap_or(unknown)
    }

    /// Takes a share for a request of this class.
    fn take(
        &self,
        class: ConnectionClass,
        caller: CallerKey,
    ) -> Result<ForwardShare, LimitExceeded> {
        let capacity = |class| ALL_REQUESTS.min(self.forwarder.capacity(class));
        let of_relayed = if class == ConnectionClass::Relayed {
            let all = capacity(class);
            Some(self.relayed.take_of(caller.clone(), 1, all)?)
        } else {
            None
        };
        let all = capacity(ConnectionClass::LongForward);
        Ok(ForwardShare {
            of_all: self.requests.take_of(caller, 1, all)?,
            _of_relayed: of_relayed,
        })
    }

    /// Admits an upgrade. It costs a connection to upstream, so its caller is authenticated first.
    async fn admit_upgrade(&self, exchange: &Exchange<'_>) -> Result<ForwardPermit, Refusal> {
        let user = match exchange.identify_bearer().await {
            Ok(Authenticated::Known(user)) => user.user_key(),
            Ok(Authenticated::Refused) => return Err(Refusal::access(Status::unauthorized())),
            Ok(Authenticated::Unknown) => None,
            Err(error) => {
                if let Some(exceeded) = LimitExceeded::of_review(&error) {
                    return Err(exceeded.into());
                }
                tracing::debug!(%error, "cannot review the caller of an upgrade");
                None
            }
        };
        let address = CallerKey::Address(exchange.address());
        let share = match user {
            Some(user) => self.tunnels.take(user, 1)?,
            None if exchange.is_known => self.tunnels.take(address, 1)?,
            None => self.unknown_tunnels.take(address, 1)?,
        };
        let share = share.into();
        Ok(ForwardPermit { share, turn: None })
    }
}

impl From<Share> for ForwardShare {
    fn from(of_all: Share) -> Self {
        Self {
            of_all,
            _of_relayed: None,
        }
    }
}
