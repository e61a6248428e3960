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

use super::MayStore;
use super::captured::name;
use super::cluster::ClusterIdentity;
use super::file::{CheckpointFileError, CheckpointReader};
use super::media::checkpoint_media_type;
use super::stored::{CheckpointError, StoredScope, load_stored};
use crate::budget::MemoryLoad;
use crate::scope::cached::Scope;
use crate::scope::metrics;
use crate::scope::timeline::Timeline;
use crate::upstream::{
    BlockingBody, ReplicaClient, ReplicaError, Upstream, UpstreamBody, blocking_body,
};

/// States that are taken at a time. Each is read on a thread of its own.
const AT_ONCE: usize = 4;
/// Time limit of a state. After it, the type is listed.
const LIMIT: Duration = Duration::from_secs(30);
/// Time for which replicas that could not be reached are not asked again. All scopes ask at the
/// start.
const REST: Duration = Duration::from_secs(10);

/// The states that other replicas hold. Cheap to clone.
#[derive(Clone)]
pub struct ReplicaStates(Arc<ReplicaShared>);

struct ReplicaShared {
    replica: ReplicaClient,
    may_take: MayStore,
    timeline: Timeline,
    cluster: Arc<ClusterIdentity>,
    turns: Semaphore,
    /// The moment of the last failure to reach a replica.
    failed: Mutex<Option<Instant>>,
}

/// Why a state is not taken from another replica.
#[derive(Debug, thiserror::Error)]
enum NotTaken {
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("its version is ahead of upstream's, so it is of another history")]
    Ahead,
    #[error("it did not arrive within {0:?}")]
    Late(Duration),
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
            Self::Replica(ReplicaError::NotHeld) => "not-held",
            Self::Replica(ReplicaError::Refused(_) | ReplicaError::Unusable(_)) => "refused",
            Self::Replica(_) | Self::Late(_) => "unreachable",
            Self::Checkpoint(error) => error.label(),
            Self::Ahead => "ahead",
        }
    }

    fn is_unreachable(&self) -> bool {
        match self {
            Self::Replica(error) => error.is_unreachable(),
            Self::Late(_) => true,
            Self::Checkpoint(_) | Self::Ahead => false,
        }
    }
}

impl ReplicaStates {
    /// Creates the states of the replicas at these addresses. Needs a running runtime.
    ///
    /// `may_take` says for which types they are asked.
    pub fn new(
        replicas: &Upstream,
        timeline: &Timeline,
        cluster: Arc<ClusterIdentity>,
        may_take: MayStore,
    ) -> Self {
        Self(Arc::new(ReplicaShared {
            replica: ReplicaClient::new(replicas),
            may_take,
            timeline: timeline.clone(),
            cluster,
            turns: Semaphore::new(AT_ONCE),
            failed: Mutex::default(),
        }))
    }

    /// Takes the state of a scope from another replica, if one holds it and it may be used.
    pub(in crate::scope) async fn take(
        &self,
        scope: &Arc<Scope>,
        load: MemoryLoad,
    ) -> Option<StoredScope> {
        let (shared, gvr) = (&self.0, &scope.key.gvr);
        let may_take =
            scope.timeline.is(&shared.timeline) && (shared.may_take)(&gvr.group, &gvr.resource);
        if !may_take {
            return None;
        }
        let _turn = shared.turns.acquire().await;
        // Whoever had the turn before may have found out that nobody answers.
        if self.rests() {
            return None;
        }
        let began = Instant::now();
        let taken = timeout(LIMIT, self.try_take(scope, load)).await;
        match taken.unwrap_or(Err(NotTaken::Late(LIMIT))) {
            Ok(stored) => {
                let took = began.elapsed();
                tracing::debug!(resource = %gvr, ?took, "took a state from another replica");
                Some(stored)
            }
            Err(error) => {
                metrics::replica_state(error.label());
                if error.is_unreachable() {
                    *shared.failed.lock() = Some(Instant::now());
                }
                tracing::info!(
                    resource = %gvr,
                    %error,
                    "cannot take a state from another replica (--state-from); listing"
                );
                None
            }
        }
    }

    /// Returns true if replicas are not to be asked for the moment.
    fn rests(&self) -> bool {
        let failed = *self.0.failed.lock();
        failed.is_some_and(|at| at.elapsed() < REST)
    }

    async fn try_take(
        &self,
        scope: &Arc<Scope>,
        load: MemoryLoad,
    ) -> Result<StoredScope, NotTaken> {
        let shared = &self.0;
        let key = &scope.key;
        let media_type = checkpoint_media_type(key.representation);
        let asked = shared.replica.list(&key.gvr, &key.selection, media_type);
        let stored = receive(asked.await?, scope, load).await?;
        // After the state: whatever upstream showed until then, it is at that version now.
        match shared.cluster.ask().await {
            None => Err(CheckpointError::Unverified.into()),
            Some(present) if present.digest != stored.cluster => {
                Err(CheckpointError::Foreign("it is of another cluster").into())
            }
            // Taken for upstream's, this version would end the timeline of all types.
            Some(present) if present.version < stored.version => Err(NotTaken::Ahead),
            Some(_) => Ok(stored),
        }
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
    let form = (scope.key.representation.encoding, scope.managed_fields);
    load_stored(reader, header, form, &scope.fields, load)
}
