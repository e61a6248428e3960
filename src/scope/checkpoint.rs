//! Checkpoints of scopes, so that a proxy resumes its watches without a list: its own, on disk,
//! after a restart, or those of another replica.
//!
//! A checkpoint is a state that upstream once had, with its version. It is shown only after
//! upstream has resumed the watch from there and proven its history, as after any interruption.
//! Otherwise the type is listed.
mod asking;
mod captured;
mod cluster;
mod disk;
mod file;
mod folder;
pub(crate) mod fuzzing;
mod media;
mod replica;
mod sent;
mod stored;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use watershed_protocol::ResourceVersion;

use super::cached::Scope;
use super::key::ScopeKey;
use super::metrics;
use super::timeline::Timeline;
use crate::budget::MemoryLoad;
use crate::store::ObjectPeek;
use crate::upstream::UpstreamClient;
use captured::{CapturedScope, name, seconds};
use disk::ReadingProgress;
use file::{CheckpointFileError, CheckpointHeader};
use folder::CheckpointFolder;
use stored::{CheckpointError, ScopeForm, load_stored};

pub use cluster::ClusterIdentity;
pub use file::StoredPart;
pub use media::{checkpoint_media_type, wanted_checkpoint};
pub use replica::ReplicaStates;
pub use sent::CheckpointBody;
pub(super) use stored::StoredScope;

/// Age from which a checkpoint is not tried: upstream has compacted that history long ago.
const MAX_AGE: Duration = Duration::from_hours(1);
/// Intervals after which the checkpoint of a type without changes is written again.
const UNCHANGED: u32 = 10;
/// Longest wait for the folder at the start.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of checkpoints.
#[derive(Clone, Debug)]
pub struct CheckpointConfig {
    /// The folder.
    pub folder: PathBuf,
    /// Interval between two checkpoints of a scope.
    pub interval: Duration,
    /// Limit of the bytes of all checkpoints.
    pub max_bytes: u64,
}

/// Tells if this part of the objects of a type (group and name) may be stored on disk.
pub type MayStore = Box<dyn Fn(&str, &str, StoredPart) -> bool + Send + Sync>;

/// The checkpoints of one process. Cheap to clone.
#[derive(Clone)]
pub struct Checkpoints(Arc<CheckpointsShared>);

struct CheckpointsShared {
    config: CheckpointConfig,
    folder: CheckpointFolder,
    may_store: MayStore,
    timeline: Timeline,
    cluster: Arc<ClusterIdentity>,
    client: UpstreamClient,
    last: Mutex<LastCheckpoints>,
    /// Files from before this process were looked through.
    is_swept: Mutex<bool>,
    /// The last reading that was given up, until its thread ends.
    given_up: Mutex<Weak<ReadingProgress>>,
    /// Held by whoever writes.
    writing: tokio::sync::Mutex<()>,
}

/// The checkpoints that this process has written.
#[derive(Default)]
struct LastCheckpoints {
    /// The number of the timeline of all of them, and of those that were there before.
    timeline: u64,
    scopes: HashMap<String, LastCheckpoint>,
}

#[derive(Clone, Copy)]
struct LastCheckpoint {
    last_event: Option<ResourceVersion>,
    at: Instant,
}

impl Checkpoints {
    /// Opens the folder, and removes what may not be stored or is too old. If another process has
    /// it, that is done once this one may write.
    pub async fn open(
        config: CheckpointConfig,
        client: &UpstreamClient,
        timeline: &Timeline,
        cluster: Arc<ClusterIdentity>,
        may_store: MayStore,
    ) -> io::Result<Self> {
        let path = config.folder.clone();
        let opening = spawn_blocking(move || CheckpointFolder::open(&path));
        let folder = timeout(OPEN_TIMEOUT, opening).await???;
        let this = Self(Arc::new(CheckpointsShared {
            config,
            folder,
            may_store,
            timeline: timeline.clone(),
            cluster,
            client: client.clone(),
            last: Mutex::default(),
            given_up: Mutex::default(),
            is_swept: Mutex::default(),
            writing: tokio::sync::Mutex::default(),
        }));
        let claiming = this.clone();
        let claiming = spawn_blocking(move || claiming.claim());
        let folder = this.0.config.folder.display();
        match timeout(OPEN_TIMEOUT, claiming)
            .await
            .map(|ended| ended.unwrap_or_else(|error| Err(error.into())))
        {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => tracing::warn!(
                %folder,
                "another process writes checkpoints to the folder; writing once it has ended"
            ),
            // The disk may be full: that must not keep the proxy from starting.
            Ok(Err(error)) => tracing::warn!(
                %folder,
                %error,
                "cannot write to the folder of checkpoints; trying again at the next interval"
            ),
            Err(_) => tracing::warn!(%folder, "looking through the old checkpoints takes long"),
        }
        Ok(this)
    }

    /// Claims the folder. Returns `false` if another process has it.
    fn claim(&self) -> io::Result<bool> {
        let shared = &self.0;
        if !shared.folder.claim()? {
            return Ok(false);
        }
        let mut is_swept = shared.is_swept.lock();
        if !*is_swept {
            let now = SystemTime::now();
            let is_wanted = |header: &CheckpointHeader| {
                let (group, resource) = &header.resource;
                is_recent(header, now) && (shared.may_store)(group, resource, header.part())
            };
            shared.folder.sweep(is_wanted, report_unusable)?;
            *is_swept = true;
        }
        Ok(true)
    }

    /// Writes checkpoints of the scopes that have changed. `scopes` are all open ones.
    pub(super) async fn write_changed(&self, scopes: Vec<Arc<Scope>>) {
        // One that is too old when the process starts again is of no use.
        let rest = (self.interval() * UNCHANGED).min(MAX_AGE / 2);
        self.write(scopes, rest).await;
    }

    /// Writes checkpoints of all open scopes, except those written less than an interval ago.
    pub(super) async fn write_all(&self, scopes: Vec<Arc<Scope>>) {
        self.write(scopes, self.interval()).await;
    }

    /// Returns the interval between two checkpoints of a scope.
    pub(super) fn interval(&self) -> Duration {
        self.0.config.interval
    }

    /// Writes a checkpoint of each of these scopes that has changed. `scopes` are all open ones.
    /// Those without changes are written again after `rest`.
    async fn write(&self, scopes: Vec<Arc<Scope>>, rest: Duration) {
        let shared = &self.0;
        let _writing = shared.writing.lock().await;
        let Some(cluster) = shared.cluster.get().await else {
            metrics::checkpoint_written("unverified");
            return;
        };
        match self.prepare_folder().await {
            Ok(true) => {}
            Ok(false) => {
                metrics::checkpoint_written("in-use");
                return;
            }
            Err(error) => {
                metrics::checkpoint_written("failed");
                tracing::warn!(%error, "cannot prepare the folder of checkpoints");
                return;
            }
        }
        let open: HashSet<String> = scopes.iter().map(|scope| name(&scope.key)).collect();
        let open = Arc::new(open);
        self.forget_closed(&open).await;
        for scope in scopes {
            let gvr = &scope.key.gvr;
            let is_wanted = !scope.is_derived()
                && scope.history.timeline().is(&shared.timeline)
                && (shared.may_store)(&gvr.group, &gvr.resource, StoredPart::of(&scope.key));
            let captured = is_wanted.then(|| CapturedScope::of(&scope)).flatten();
            let Some(captured) =
                captured.filter(|captured| self.is_due(&scope.key, captured, rest))
            else {
                continue;
            };
            let (this, key, cluster) = (self.clone(), scope.key.clone(), cluster.clone());
            let open = Arc::clone(&open);
            let write = move || this.write_one(&key, &captured, cluster, &open);
            let written = spawn_blocking(write).await;
            let result = written.unwrap_or_else(|error| Err(io::Error::other(error)));
            match result {
                Ok(true) => metrics::checkpoint_written("written"),
                Ok(false) => metrics::checkpoint_written("too-large"),
                Err(error) => {
                    metrics::checkpoint_written("failed");
                    tracing::warn!(resource = %gvr, %error, "cannot write a checkpoint");
                }
            }
        }
    }

    /// Claims the folder, and removes checkpoints of a timeline that has ended. Returns `false` if
    /// another process has the folder.
    async fn prepare_folder(&self) -> io::Result<bool> {
        let this = self.clone();
        let preparing = spawn_blocking(move || {
            let is_ours = this.claim()?;
            if is_ours {
                this.forget_other_timelines()?;
            }
            Ok(is_ours)
        });
        preparing.await.map_err(io::Error::other)?
    }

    /// Removes all checkpoints after the timeline has ended.
    fn forget_other_timelines(&self) -> io::Result<()> {
        let number = self.0.timeline.number();
        if self.0.last.lock().timeline != number {
            self.0.folder.clear()?;
            // Afterwards: nothing of the lost history may be read as one of this timeline.
            *self.0.last.lock() = LastCheckpoints {
                timeline: number,
                scopes: HashMap::new(),
            };
        }
        Ok(())
    }

    /// Forgets the checkpoint of a scope whose objects are not upstream's, if no other process has the
    /// folder. Such a one compares its objects itself.
    pub(super) fn discard(&self, key: &ScopeKey) {
        let (this, name) = (self.clone(), name(key));
        tokio::spawn(async move {
            // One that is being written may have these objects, too.
            let _writing = this.0.writing.lock().await;
            this.remove(name).await;
        });
    }

    /// Removes a checkpoint that could not be used, unless another one was written after `before`.
    async fn remove_unusable(self, name: String, before: Option<Instant>) {
        let _writing = self.0.writing.lock().await;
        if self.last_written(&name) == before {
            self.remove(name).await;
        }
    }

    /// Removes the checkpoint of a scope, if no other process has the folder. One that stays is replaced
    /// after the next list.
    async fn remove(&self, name: String) {
        self.0.last.lock().scopes.remove(&name);
        let this = self.clone();
        let removing = spawn_blocking(move || {
            if this.claim().unwrap_or_default() {
                this.0.folder.remove(&name);
            }
        });
        let _ = removing.await;
    }

    /// Returns the time at which this process wrote the checkpoint of a scope.
    fn last_written(&self, name: &str) -> Option<Instant> {
        self.0.last.lock().scopes.get(name).map(|last| last.at)
    }

    /// Removes the checkpoints of scopes that were closed too long ago for a start to use them.
    async fn forget_closed(&self, open: &Arc<HashSet<String>>) {
        let is_open = |name: &String, _: &mut LastCheckpoint| open.contains(name);
        self.0.last.lock().scopes.retain(is_open);
        let (folder, open) = (self.0.folder.clone(), Arc::clone(open));
        let oldest = SystemTime::now() - MAX_AGE;
        let removed = spawn_blocking(move || folder.remove_older(oldest, &open)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%error, "cannot remove checkpoints of scopes that were closed");
        }
    }

    fn is_due(&self, key: &ScopeKey, captured: &CapturedScope, rest: Duration) -> bool {
        let last = self.0.last.lock();
        last.scopes
            .get(&name(key))
            .is_none_or(|last| last.last_event != captured.last_event || last.at.elapsed() >= rest)
    }

    /// Writes a checkpoint. Those of scopes that are no longer `open` make room for it. Returns
    /// `false` if it is too large.
    fn write_one(
        &self,
        key: &ScopeKey,
        captured: &CapturedScope,
        cluster: String,
        open: &HashSet<String>,
    ) -> io::Result<bool> {
        let shared = &self.0;
        let name = name(key);
        let own = captured.snapshot.size() as u64;
        // The last one stays until the new one is complete, if there is room for both.
        let fits = || {
            Ok::<_, io::Error>(
                shared.folder.bytes()?.saturating_add(own) <= shared.config.max_bytes,
            )
        };
        if !fits()? {
            shared.folder.remove_older(SystemTime::now(), open)?;
        }
        if !fits()? {
            let others = shared
                .folder
                .bytes()?
                .saturating_sub(shared.folder.bytes_of(&name));
            if others.saturating_add(own) > shared.config.max_bytes {
                return Ok(false);
            }
            shared.folder.remove(&name);
        }
        let header = captured.header(key, cluster, addresses(&shared.client));
        let bytes = shared.folder.write(&header, |writer| {
            writer.block(&captured.bookmark)?;
            let mut objects = captured.snapshot.items(None);
            let mut peek = ObjectPeek::default();
            objects.try_for_each(|object| writer.block(peek.bytes(object).as_slice()))
        })?;
        tracing::debug!(resource = %key.gvr, objects = header.objects, bytes, "wrote a checkpoint");
        let last = LastCheckpoint {
            last_event: captured.last_event,
            at: Instant::now(),
        };
        self.0.last.lock().scopes.insert(name, last);
        Ok(true)
    }

    /// Reads the checkpoint of a scope, if there is one that may be used.
    pub(super) async fn read(&self, scope: &Arc<Scope>, load: MemoryLoad) -> Option<StoredScope> {
        let shared = &self.0;
        if !scope.history.timeline().is(&shared.timeline) {
            return None;
        }
        // Files of a lost history would be taken for upstream's word, and end the new one.
        if shared.last.lock().timeline != shared.timeline.number() {
            return None;
        }
        let name = name(&scope.key);
        let before = self.last_written(&name);
        let error = match self.try_read(name.clone(), scope, load).await {
            Ok(stored) => return stored,
            Err(error) => error,
        };
        metrics::checkpoint_read(error.label());
        tracing::warn!(
            resource = %scope.key.gvr,
            %error,
            "cannot use a checkpoint; listing"
        );
        if error.is_final() {
            tokio::spawn(self.clone().remove_unusable(name, before));
        }
        None
    }

    async fn try_read(
        &self,
        name: String,
        scope: &Arc<Scope>,
        load: MemoryLoad,
    ) -> Result<Option<StoredScope>, CheckpointError> {
        let (folder, fields) = (self.0.folder.clone(), Arc::clone(&scope.fields));
        let form = ScopeForm::of(scope);
        let wanted = addresses(&self.0.client);
        if self.0.given_up.lock().strong_count() > 0 {
            return Err(CheckpointError::Slow);
        }
        let progress = Arc::new(ReadingProgress::default());
        let counted = Arc::clone(&progress);
        let reading = spawn_blocking(move || {
            let Some((file, header)) = folder.read(&name, &counted)? else {
                return Ok(None);
            };
            if header.scope != name || !is_recent(&header, SystemTime::now()) {
                return Err(CheckpointError::Outdated);
            }
            if header.upstream != wanted {
                return Err(CheckpointError::Foreign(
                    "it was written behind other addresses",
                ));
            }
            load_stored(file, header, form, &fields, load).map(Some)
        });
        let stored = tokio::select! {
            stored = reading => stored.map_err(io::Error::other)??,
            () = progress.too_slow() => {
                *self.0.given_up.lock() = Arc::downgrade(&progress);
                return Err(CheckpointError::Slow);
            }
        };
        let Some(stored) = stored else {
            return Ok(None);
        };
        match self.0.cluster.get().await {
            Some(cluster) if cluster == stored.cluster => Ok(Some(stored)),
            Some(_) => Err(CheckpointError::Foreign("it is of another cluster")),
            None => Err(CheckpointError::Unverified),
        }
    }
}

impl std::fmt::Debug for Checkpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Checkpoints").field(&self.0.folder).finish()
    }
}

fn addresses(client: &UpstreamClient) -> Vec<String> {
    let addresses = client.upstream().addresses();
    let mut addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    addresses.sort();
    addresses
}

/// Returns `true` if a checkpoint is young enough. One from the future is not.
fn is_recent(header: &CheckpointHeader, now: SystemTime) -> bool {
    let age = seconds(now).checked_sub(header.saved);
    age.is_some_and(|age| age <= MAX_AGE.as_secs())
}

/// Reports a file whose header cannot be read.
fn report_unusable(file: &Path, error: CheckpointFileError) {
    let error = CheckpointError::from(error);
    metrics::checkpoint_read(error.label());
    tracing::warn!(file = %file.display(), %error, "cannot use a checkpoint; removing it");
}
