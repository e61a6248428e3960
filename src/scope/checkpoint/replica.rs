//! Checkpoints of another replica, from which a scope begins as from one on disk.
//!
//! The replica is believed in what its state is, as an upstream is. Whether upstream has that
//! history is proven as for any other checkpoint.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use watershed_protocol::ResourceVersion;

use super::MayStore;
use super::asking::AskingTimes;
use super::captured::name;
use super::cluster::ClusterIdentity;
use super::file::{CheckpointFileError, CheckpointReader, StoredPart};
use super::media::checkpoint_media_type;
use super::stored::{CheckpointError, ScopeForm, StoredScope, load_stored};
use crate::budget::{MemoryBudget, MemoryLoad};
use crate::scope::cached::Scope;
use crate::scope::metrics;
use crate::scope::timeline::Timeline;
use crate::upstream::{
    BlockingBody, ReplicaClient, ReplicaError, Upstream, UpstreamBody, UpstreamClient,
    blocking_body,
};

/// States that are taken at a time. Each is read on a thread of its own.
const AT_ONCE: usize = 4;
/// Longest wait until a state may be taken. After it, the type is listed: requests wait for that.
const TURN: Duration = Duration::from_secs(2);
/// Timeout of the question for upstream's version.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);

/// The states that other replicas hold. Cheap to clone.
#[derive(Clone)]
pub struct ReplicaStates(Arc<ReplicaShared>);

struct ReplicaShared {
    replica: ReplicaClient,
    upstream: UpstreamClient,
    may_take: MayStore,
    timeline: Timeline,
    cluster: Arc<ClusterIdentity>,
    turns: Semaphore,
    times: Mutex<AskingTimes>,
}

/// Reason why a state is not taken from another replica.
#[derive(Debug, thiserror::Error)]
enum NotTaken {
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("its version is ahead of upstream's, so it is of another history")]
    Ahead,
    #[error("too many other states are being loaded")]
    NoTurn,
}

impl From<io::Error> for NotTaken {
    fn from(error: io::Error) -> Self {
        CheckpointError::from(error).into()
    }
}

impl NotTaken {
    /// Returns the metric label.
    fn label(&self) -> &'static str {
        match self {
            Self::Replica(error) => error.label(),
            Self::Checkpoint(error) => error.label(),
            Self::Ahead => "ahead",
            Self::NoTurn => "busy",
        }
    }

    /// Returns `true` if another replica may well give the state.
    fn is_replica_specific(&self) -> bool {
        matches!(self, Self::Replica(error) if error.is_replica_specific())
    }
}

impl ReplicaStates {
    /// Creates the states of the replicas at these addresses. Needs a running runtime.
    ///
    /// `may_take` says for which types they are asked.
    pub fn new(
        replicas: &Upstream,
        client: &UpstreamClient,
        timeline: &Timeline,
        cluster: Arc<ClusterIdentity>,
        may_take: MayStore,
    ) -> Self {
        Self(Arc::new(ReplicaShared {
            replica: ReplicaClient::new(replicas),
            upstream: client.clone(),
            may_take,
            timeline: timeline.clone(),
            cluster,
            turns: Semaphore::new(AT_ONCE),
            times: Mutex::new(AskingTimes::begin(Instant::now())),
        }))
    }

    /// Takes the state of a scope from another replica, if one holds it and it may be used.
    pub(in crate::scope) async fn take(
        &self,
        scope: &Arc<Scope>,
        budget: &MemoryBudget,
    ) -> Option<StoredScope> {
        let (shared, gvr) = (&self.0, &scope.key.gvr);
        let may_take = scope.history.timeline().is(&shared.timeline)
            && (shared.may_take)(&gvr.group, &gvr.resource, StoredPart::of(&scope.key));
        if !may_take || !self.may_ask() {
            return None;
        }
        let began = Instant::now();
        let taken = match timeout(TURN, shared.turns.acquire()).await {
            // Whoever had the turn before may have found out that nobody answers.
            Ok(_) if !self.may_ask() => return None,
            Ok(_turn) => self.take_of_any(scope, budget).await,
            Err(_) => Err(NotTaken::NoTurn),
        };
        self.note(&taken);
        match taken {
            Ok(stored) => {
                let took = began.elapsed();
                tracing::debug!(resource = %gvr, ?took, "took a state from another replica");
                Some(stored)
            }
            Err(error) => {
                metrics::replica_state(error.label());
                tracing::info!(
                    resource = %gvr,
                    %error,
                    "cannot take a state from another replica (--state-from); listing"
                );
                None
            }
        }
    }

    /// Returns `true` if replicas are asked at the moment.
    fn may_ask(&self) -> bool {
        self.0.times.lock().may_ask(Instant::now())
    }

    /// Notes what a result says about questions for other states.
    fn note(&self, taken: &Result<StoredScope, NotTaken>) {
        let (now, mut times) = (Instant::now(), self.0.times.lock());
        match taken {
            Ok(_) => times.given(),
            Err(NotTaken::Replica(error)) if error.is_unreachable() => times.unreachable(now),
            Err(NotTaken::Replica(error)) if error.is_refusal() => times.refused(now),
            Err(_) => {}
        }
    }

    /// Takes a state from one replica, or from another one if the first is of no use.
    async fn take_of_any(
        &self,
        scope: &Arc<Scope>,
        budget: &MemoryBudget,
    ) -> Result<StoredScope, NotTaken> {
        match self.try_take(scope, budget.begin_load(), false).await {
            Err(error) if error.is_replica_specific() => {
                tracing::debug!(resource = %scope.key.gvr, %error, "asking another replica");
                self.try_take(scope, budget.begin_load(), true).await
            }
            taken => taken,
        }
    }

    async fn try_take(
        &self,
        scope: &Arc<Scope>,
        load: MemoryLoad,
        fresh_connection: bool,
    ) -> Result<StoredScope, NotTaken> {
        let (replica, key) = (&self.0.replica, &scope.key);
        let media_type = checkpoint_media_type(key.representation);
        let body = replica.list(&key.gvr, &key.selection, media_type, fresh_connection);
        let stored = receive(body.await?, scope, load).await;
        if stored.is_err() {
            replica.forget();
        }
        let stored = stored?;
        self.check(scope, &stored.cluster, stored.version).await?;
        Ok(stored)
    }

    /// Asks upstream for its cluster, and for its version of the same type: types may lie in
    /// several etcds. This is after the state, so whatever upstream showed until then, it is at that
    /// version now.
    async fn check(
        &self,
        scope: &Scope,
        cluster: &str,
        version: ResourceVersion,
    ) -> Result<(), NotTaken> {
        let present = self.0.cluster.get().await;
        if present.ok_or(CheckpointError::Unverified)? != cluster {
            return Err(CheckpointError::Foreign("it is of another cluster").into());
        }
        let probe = scope.probe(self.0.upstream.clone());
        let present = match timeout(ANSWER_TIMEOUT, probe.version()).await {
            Ok(Ok(version)) => version,
            Ok(Err(error)) => {
                let resource = &scope.key.gvr;
                tracing::debug!(%resource, %error, "cannot ask for upstream's version");
                return Err(CheckpointError::Unverified.into());
            }
            Err(_) => return Err(CheckpointError::Unverified.into()),
        };
        // Taken for upstream's, a later version would end the timeline of all types.
        if present < version {
            return Err(NotTaken::Ahead);
        }
        Ok(())
    }
}

impl std::fmt::Debug for ReplicaStates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let replica = &self.0.replica;
        f.debug_tuple("ReplicaStates").field(replica).finish()
    }
}

/// Reads an answer while it arrives.
async fn receive(
    body: UpstreamBody,
    scope: &Arc<Scope>,
    load: MemoryLoad,
) -> Result<StoredScope, NotTaken> {
    let (feeder, reader) = blocking_body();
    let scope = Arc::clone(scope);
    let reading = spawn_blocking(move || read(reader, &scope, load));
    let (fed, read) = tokio::join!(feeder.feed(body), reading);
    // A state that was refused is refused, however its answer would have gone on.
    match (fed, read.map_err(io::Error::other)?) {
        (Err(broken), Err(CheckpointError::File(CheckpointFileError::Io(_)))) => Err(broken.into()),
        (_, stored) => Ok(stored?),
    }
}

fn read(
    reader: BlockingBody,
    scope: &Scope,
    load: MemoryLoad,
) -> Result<StoredScope, CheckpointError> {
    let (reader, header) = CheckpointReader::begin(reader)?;
    if header.scope != name(&scope.key) {
        return Err(CheckpointError::Foreign("it is of other objects"));
    }
    let form = ScopeForm::of(scope);
    load_stored(reader, header, form, &scope.fields, load)
}
