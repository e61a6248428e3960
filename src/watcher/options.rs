//! The begin and the end of a watch, as its request wants them.
use std::any::Any;
use std::sync::Arc;

use tokio::time::Instant;

use super::chunk::ContentCoding;
use super::view::ClientView;
use crate::store::{ObjectRun, ObjectRuns, StoreReader, SubscriptionEnd};
use crate::work::{WorkBudget, retire};
use watershed_protocol::{BookmarkFormat, ResourceVersion, WireFormat};

/// Upstream's own form of a scope's bookmarks, known once it sent one.
pub type Bookmarks = Arc<arc_swap::ArcSwapOption<BookmarkFormat>>;

/// The reason why a watch ended, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEnding {
    /// Its `timeoutSeconds` passed.
    Deadline,
    /// It fell out of the window.
    Expired,
    /// The scope was listed again, as its schema has changed.
    Relisted,
    /// The scope has not followed upstream for too long.
    Stale,
    /// The scope ended.
    Closed,
    /// The caller may not see it any more.
    Revoked,
    /// This server is shutting down.
    Draining,
    /// An event could not be framed for this view.
    Broken,
    /// The client went away.
    Gone,
}

impl WatchEnding {
    /// Returns the metric label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Expired => "expired",
            Self::Relisted => "schema-changed",
            Self::Stale => "stale",
            Self::Closed => "closed",
            Self::Revoked => "revoked",
            Self::Draining => "draining",
            Self::Broken => "broken",
            Self::Gone => "client",
        }
    }
}

impl From<SubscriptionEnd> for WatchEnding {
    fn from(end: SubscriptionEnd) -> Self {
        match end {
            SubscriptionEnd::Expired { .. } => Self::Expired,
            SubscriptionEnd::Relisted => Self::Relisted,
            // As an API server whose cache lost etcd, without an ERROR: the client goes on from its
            // last version elsewhere.
            // Source: `apiserver/pkg/storage/cacher/cacher.go` (terminateAllWatchers).
            SubscriptionEnd::Paused => Self::Stale,
            SubscriptionEnd::Closed => Self::Closed,
        }
    }
}

/// Settings of one watch.
pub struct WatchOptions<G, D, O> {
    /// The form in which objects and events of the type are framed.
    pub format: Arc<WireFormat>,
    /// The view that the client has of the events.
    pub view: ClientView,
    /// The content coding of the body.
    pub coding: ContentCoding,
    /// The version the watch starts after; bookmarks are sent only above it.
    pub start: ResourceVersion,
    /// The state to begin with.
    pub initial: Option<InitialState>,
    /// Bookmarks were asked for.
    pub bookmarks: Option<Bookmarks>,
    /// Upstream has no watch cache of the type, so that its refusals are etcd's.
    pub is_from_etcd: bool,
    /// The moment at which the watch ends.
    pub deadline: Instant,
    /// Guards the caller's right to see it.
    pub guard: G,
    /// Resolves when this server begins to shut down.
    pub draining: D,
    /// Told once how the watch ended, and of every event handed out.
    pub observer: O,
}

/// The state a watch begins with.
pub struct InitialState {
    /// Objects still to be sent as ADDED.
    pub(super) runs: ObjectRuns,
    /// Tells if the objects are held anyway.
    reader: StoreReader,
    /// The rest of a run that was begun. It comes before the others.
    pub(super) rest: Option<ObjectRun>,
    /// The bookmark that ends them.
    pub(super) end_mark: Option<EndMark>,
    /// The work of one turn.
    pub(super) budget: WorkBudget,
    /// Dropped with it, once all objects are sent.
    _permit: Option<Box<dyn Any + Send>>,
}

/// The bookmark that ends the initial events. Its frame depends on what was sent before it.
pub struct EndMark {
    /// Upstream's form of bookmarks.
    pub format: Arc<BookmarkFormat>,
    /// The version of the state.
    pub version: ResourceVersion,
}

impl InitialState {
    /// Creates the state of these objects, none of which is sent. It holds a permit until all are.
    pub fn new(
        runs: ObjectRuns,
        reader: StoreReader,
        end_mark: Option<EndMark>,
        permit: Option<Box<dyn Any + Send>>,
    ) -> Self {
        Self {
            runs,
            reader,
            rest: None,
            end_mark,
            budget: WorkBudget::default(),
            _permit: permit,
        }
    }
}

impl Drop for InitialState {
    /// Changes since the watch began may have left it the last to hold the objects.
    fn drop(&mut self) {
        let objects = self.runs.snapshot().len();
        if !self.reader.holds(self.runs.snapshot()) {
            retire(std::mem::take(&mut self.runs), objects);
        }
    }
}

/// Counts the deliveries of a watch.
pub trait WatchObserver: Send + Unpin + 'static {
    /// Records that frames were handed out, and their bytes as sent.
    fn sent(&mut self, events: usize, bytes: usize);
    /// Records the end of the watch. Called once.
    fn ended(&mut self, how: WatchEnding);
}
