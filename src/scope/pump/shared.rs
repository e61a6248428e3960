//! The parts that the tasks of all scopes share.
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use watershed_protocol::BookmarkFormat;

use super::earlier_states::EarlierStates;
use super::release::LEARNERS;
use crate::scope::derived::DerivationFailures;
use crate::scope::open_scopes::OpenScopes;
use crate::scope::unfit::UnfitScopes;
use crate::upstream::ServedBy;

/// Time that a restored state waits for its server's release.
const RELEASE_PATIENCE: Duration = Duration::from_secs(30);
/// The same after another one has waited for nothing, and the time for which that is remembered.
const AFTER_UNANSWERED: Duration = Duration::from_secs(1);
const UNANSWERED_REMEMBERED: Duration = Duration::from_mins(5);

/// The parts that the tasks of all scopes share. Cheap to clone.
#[derive(Clone)]
pub(in crate::scope) struct SharedByPumps {
    /// The open scopes. One that stops is removed from them.
    pub(super) open: OpenScopes,
    pub(in crate::scope) unfit: Arc<UnfitScopes>,
    pub(in crate::scope) earlier: EarlierStates,
    /// Types whose JSON is not derived from protobuf.
    pub(in crate::scope) failures: Arc<DerivationFailures>,
    /// The server at which a scope met another release than before, the last one.
    pub(in crate::scope) releases: Arc<watch::Sender<Option<ServedBy>>>,
    pub(super) null_in_structs: Arc<NullInStructs>,
    /// Permits to learn the form of another release.
    pub(super) learners: Arc<Semaphore>,
    pub(super) unanswered: Arc<UnansweredReleases>,
    /// Changes when a stream brings something after a time in which one brought nothing that was due.
    pub(super) streams: Arc<watch::Sender<()>>,
}

impl SharedByPumps {
    /// Prepares the shared parts for the scopes in `open`.
    pub(in crate::scope) fn new(open: OpenScopes, failures: DerivationFailures) -> Self {
        Self {
            open,
            unfit: Arc::default(),
            earlier: EarlierStates::default(),
            failures: Arc::new(failures),
            releases: Arc::default(),
            null_in_structs: Arc::default(),
            learners: Arc::new(Semaphore::new(LEARNERS)),
            unanswered: Arc::default(),
            streams: Arc::default(),
        }
    }
}

/// The last time that a scope was listed because upstream did not answer with its release. Others then need not
/// wait as long for it.
#[derive(Debug, Default)]
pub(super) struct UnansweredReleases(Mutex<Option<Instant>>);

impl UnansweredReleases {
    pub(super) fn record(&self) {
        *self.0.lock() = Some(Instant::now());
    }

    /// Returns the time that a restored state waits for the release of its server.
    pub(super) fn patience(&self) -> Duration {
        match *self.0.lock() {
            Some(at) if at.elapsed() < UNANSWERED_REMEMBERED => AFTER_UNANSWERED,
            _ => RELEASE_PATIENCE,
        }
    }
}

/// The newest [`BookmarkFormat::null_in_structs`] of any scope. Some bookmarks do not show it, and
/// it is the same for all types.
#[derive(Debug, Default)]
pub(super) struct NullInStructs(Mutex<Option<bool>>);

impl NullInStructs {
    /// Returns a format with what other scopes' bookmarks showed, if it lacks that.
    pub(super) fn complete(&self, format: BookmarkFormat) -> BookmarkFormat {
        let known = {
            let mut known = self.0.lock();
            *known = format.null_in_structs().or(*known);
            *known
        };
        format.with_null_in_structs(known)
    }
}
