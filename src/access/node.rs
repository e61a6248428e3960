//! Grants of nodes that are kept for as long as the proxy sees what they rest on.
//!
//! The node authorizer lets a node read the secrets and config maps that its pods name. The proxy
//! follows the pods, and notes one of those that upstream's grant can rest on. While that pod is on
//! the node, nothing that the node authorizer considers takes the grant away. When it goes, another
//! one may take its place; without one the grant is reviewed at once.
//!
//! Nothing here grants anything. A pod that is overlooked costs reviews.
mod claim;
pub(super) mod follow;
mod pod_references;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use memchr::memmem;
use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;
use watershed_protocol::{Encoding, ResourceVersion};
use watershed_transcode::{Heading, Transcoder};

use super::changes::listeners::WatchListeners;
use super::changes::settling::{SETTLED, settles_after};
use super::metrics::{self, GrantBasis};
use super::request::AccessRequest;
use crate::store::{Interest, ObjectPeek, StoreReader, StoredObject};

pub(super) use claim::{NODES, NodeClaim};

use claim::{NamedObject, is_node_user, user_of};

/// Shortest lifetime of a grant whose reason the proxy sees. With 5,000 nodes that have 20 such
/// grants each, the clock asks for 14 reviews a second.
const MIN_KEPT: Duration = Duration::from_hours(2);
/// Lifetimes are spread over this time, so that grants of one moment are not reviewed in another.
const KEPT_SPREAD: Duration = Duration::from_hours(2);
/// Departures of pods are remembered for longer than a grant without a reason is used. An open watch
/// uses it for a minute.
const DEPARTURES_REMEMBERED: Duration = Duration::from_secs(75);
/// Bound of the remembered departures.
const MAX_DEPARTURES: usize = 20_000;
/// A time in which changes arrived counts as such if it was at least so long.
const MIN_FOLLOWED: Duration = Duration::from_secs(10);

/// Treatment of grants that nodes have from the node authorizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum NodeGrantMode {
    /// Each grant is reviewed again when its time has passed, as are all grants that RBAC does not
    /// explain.
    #[default]
    Review,
    /// A grant for a secret or config map stands while a pod on the node names the object. It is
    /// reviewed when no pod does any more, and after some hours.
    /// --authorization-webhook-cache-authorized-ttl does not shorten these hours, but with 0s no
    /// grant stands. The proxy follows all pods for this. Use it only if no authorizer that the API
    /// server asks before the node authorizer denies nodes anything.
    FollowPods,
}

/// Knows the reasons of nodes' grants.
#[derive(Debug)]
pub(super) struct NodeRights {
    mode: NodeGrantMode,
    pods: RwLock<FollowedPods>,
    listeners: Arc<WatchListeners>,
}

/// Reason why a node's grant is still valid.
#[derive(Debug)]
pub(super) enum GrantReason {
    /// No object can take the right away.
    Always,
    /// A pod on the node names the object.
    Pod(Mutex<PodWitness>),
}

/// A pod that entitles its node, in the version that was looked at.
#[derive(Debug)]
pub(super) struct PodWitness {
    key: Box<str>,
    version: ResourceVersion,
}

/// The pods that the proxy follows.
#[derive(Debug)]
struct FollowedPods {
    store: Option<PodStore>,
    changes: PodChanges,
    /// The nodes that lost a pod lately, oldest first.
    departures: VecDeque<(Instant, Box<str>)>,
}

/// The state of the stream of pods' changes.
#[derive(Clone, Copy, Debug)]
enum PodChanges {
    /// Some may be missing.
    Missing { since: Instant },
    /// They arrive. Before, some were missing.
    Arriving {
        since: Instant,
        missing_before: Instant,
    },
}

impl PodChanges {
    fn missing_since(self) -> Option<Instant> {
        match self {
            Self::Missing { since } => Some(since),
            Self::Arriving { .. } => None,
        }
    }
}

/// The pods of an open scope.
#[derive(Clone, Debug)]
struct PodStore {
    reader: StoreReader,
    encoding: Encoding,
    /// Positions of `spec.nodeName` and `status.phase`.
    node: usize,
    phase: usize,
}

impl NodeRights {
    pub(super) fn new(mode: NodeGrantMode, listeners: Arc<WatchListeners>) -> Self {
        if mode == NodeGrantMode::FollowPods {
            // Shown from the start, and also where the configuration has no pods to follow.
            metrics::following_pods(false);
        }
        Self {
            mode,
            pods: RwLock::new(FollowedPods {
                store: None,
                changes: PodChanges::Missing {
                    since: Instant::now(),
                },
                departures: VecDeque::new(),
            }),
            listeners,
        }
    }

    /// Returns the reason of a grant that upstream has just given without one, as the node
    /// authorizer does. `None` if the grant is to be reviewed by the clock.
    pub(super) fn grant_reason(&self, request: &AccessRequest) -> Option<GrantReason> {
        if self.mode == NodeGrantMode::Review {
            return None;
        }
        let reason = match NodeClaim::of(request)? {
            NodeClaim::Always => Some(GrantReason::Always),
            NodeClaim::IfNamed(object) => {
                let store = self.followed();
                let witness = store.and_then(|store| store.witness(&object));
                witness.map(|witness| GrantReason::Pod(Mutex::new(witness)))
            }
        };
        metrics::node_granted(match reason {
            Some(GrantReason::Always) => GrantBasis::Rule,
            Some(GrantReason::Pod(_)) => GrantBasis::Pod,
            None => GrantBasis::Unknown,
        });
        reason
    }

    /// Returns `true` unless the proxy knows that the reason no longer holds.
    pub(super) fn still_holds(&self, reason: &GrantReason, request: &AccessRequest) -> bool {
        let GrantReason::Pod(witness) = reason else {
            return true;
        };
        let Some(NodeClaim::IfNamed(object)) = NodeClaim::of(request) else {
            return true;
        };
        let Some(store) = self.pods.read().store.clone() else {
            return true;
        };
        let still_holds = store.renew(&mut witness.lock(), &object);
        if !still_holds {
            self.note_departure(object.node);
        }
        still_holds
    }

    /// Returns the moment from which on it is unknown whether a reason holds.
    pub(super) fn unknown_since(&self, reason: &GrantReason) -> Option<Instant> {
        match reason {
            GrantReason::Always => None,
            GrantReason::Pod(_) => self.pods.read().changes.missing_since(),
        }
    }

    /// Returns the time after which a grant without a reason is reviewed again, because a pod left
    /// the node just before it was requested, or since then until `until`: upstream's authorizer
    /// may not have known it yet.
    pub(super) fn settles_after(
        &self,
        request: &AccessRequest,
        requested: Instant,
        until: Instant,
    ) -> Option<Duration> {
        if self.mode == NodeGrantMode::Review {
            return None;
        }
        let NodeClaim::IfNamed(object) = NodeClaim::of(request)? else {
            return None;
        };
        let pods = self.pods.read();
        let departures = &pods.departures;
        let unsettled = departures.partition_point(|(at, _)| *at + SETTLED <= requested);
        departures
            .range(unsettled..)
            .take_while(|(at, _)| *at <= until)
            .filter(|(_, node)| **node == *object.node)
            .filter_map(|(at, _)| settles_after(*at, requested))
            .min()
    }

    /// Returns the pods while their changes arrive.
    fn followed(&self) -> Option<PodStore> {
        let pods = self.pods.read();
        let is_known = pods.changes.missing_since().is_none();
        pods.store.clone().filter(|_| is_known)
    }

    /// Replaces the pods.
    fn set_store(&self, store: PodStore) {
        self.pods.write().store = Some(store);
    }

    /// Forgets the pods, as their scope is closed: nothing updates or counts them any more.
    fn forget_store(&self) {
        self.pods.write().store = None;
    }

    /// Records that changes of the pods arrive. All missed ones must be in the store before.
    fn set_followed(&self) {
        let mut pods = self.pods.write();
        let PodChanges::Missing { since } = pods.changes else {
            return;
        };
        pods.changes = PodChanges::Arriving {
            since: Instant::now(),
            missing_before: since,
        };
        drop(pods);
        self.following_changed(true);
    }

    /// Records that changes of the pods may be missing from now on. Upstream sent something last at
    /// `heard`.
    ///
    /// They count as missing from before, if the time in which they arrived was short or silent.
    /// Otherwise a connection that breaks again and again would put the reviews off forever.
    fn set_lost(&self, heard: Instant) {
        let mut pods = self.pods.write();
        let PodChanges::Arriving {
            since,
            missing_before,
        } = pods.changes
        else {
            return;
        };
        let now = Instant::now();
        let was_followed = heard > since && now.duration_since(since) >= MIN_FOLLOWED;
        pods.changes = PodChanges::Missing {
            since: if was_followed { now } else { missing_before },
        };
        drop(pods);
        self.following_changed(false);
    }

    fn following_changed(&self, is_followed: bool) {
        metrics::following_pods(is_followed);
        // Their grants end at another time now, or rest on pods that left unseen.
        self.listeners
            .wake(|request| is_node_user(&request.identity.user));
    }

    /// Notes that a pod no longer entitles its node, and wakes the node's watches.
    pub(super) fn pod_left(&self, node: &str) {
        self.note_departure(node);
        self.listeners.wake_user(&user_of(node));
    }

    fn note_departure(&self, node: &str) {
        let mut pods = self.pods.write();
        // Under the lock, so that the oldest comes first.
        let now = Instant::now();
        let departures = &mut pods.departures;
        while departures.len() >= MAX_DEPARTURES
            || departures
                .front()
                .is_some_and(|(at, _)| *at + DEPARTURES_REMEMBERED <= now)
        {
            departures.pop_front();
        }
        departures.push_back((now, node.into()));
    }
}

impl GrantReason {
    /// Returns a lifetime for a grant with a reason. Only mistakes need it.
    pub(super) fn lifetime() -> Duration {
        MIN_KEPT + KEPT_SPREAD.mul_f32(fastrand::f32())
    }
}

impl PodStore {
    /// Returns a pod on the node that names the object.
    fn witness(&self, object: &NamedObject<'_>) -> Option<PodWitness> {
        let on_node = Interest::Field(self.node, object.node.into());
        let mut peek = ObjectPeek::default();
        for run in self.reader.followed().into_runs(&on_node) {
            let mut pods = run.objects().iter();
            if let Some(pod) = pods.find(|pod| self.entitles(pod, object, &mut peek)) {
                return Some(PodWitness {
                    key: pod.key().into(),
                    version: pod.version,
                });
            }
        }
        None
    }

    /// Replaces a witness that is gone, and returns `true` if there is one.
    fn renew(&self, witness: &mut PodWitness, object: &NamedObject<'_>) -> bool {
        let snapshot = self.reader.followed();
        if !snapshot.is_listed() {
            // Nothing is known of any pod, so nobody follows them, and the clock decides.
            return true;
        }
        let peek = &mut ObjectPeek::default();
        if let Some(pod) = snapshot.get(&witness.key)
            && (pod.version == witness.version || self.entitles(pod, object, peek))
        {
            witness.version = pod.version;
            return true;
        }
        drop(snapshot);
        let other = self.witness(object);
        let found = other.is_some();
        if let Some(other) = other {
            *witness = other;
        }
        found
    }

    /// Returns `true` if a pod entitles its node to read an object.
    fn entitles(
        &self,
        pod: &StoredObject,
        object: &NamedObject<'_>,
        peek: &mut ObjectPeek,
    ) -> bool {
        let attributes = &pod.attributes;
        if attributes.namespace() != object.namespace
            || attributes.field(self.node) != object.node
            || is_over(attributes.field(self.phase))
        {
            return false;
        }
        let bytes = peek.bytes(pod);
        // Parsing takes a hundred times as long, and few of a node's pods have the name.
        if memmem::find(bytes.as_slice(), object.name.as_bytes()).is_none() {
            return false;
        }
        match self.encoding {
            Encoding::Json => pod_references::names(&bytes.text(), object.kind, object.name),
            Encoding::Protobuf => {
                let mut text = Vec::new();
                let pod = Transcoder::for_type("v1", "Pod");
                pod.is_some_and(|pod| {
                    let printed = pod.object_json(bytes.as_slice(), Heading::TypeMeta, &mut text);
                    printed.is_ok() && pod_references::names(&text, object.kind, object.name)
                })
            }
        }
    }
}

/// Returns `true` if a pod in this phase has ended. The node authorizer does not care; but kubelets
/// need nothing for such pods, and later releases may look at it.
fn is_over(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}
