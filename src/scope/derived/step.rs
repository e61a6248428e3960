//! The steps of a derived scope, as its task learns of them.
use watershed_protocol::BookmarkFormat;

use super::failures::FallbackReason;
use super::printer::PrintedEvent;
use crate::budget::{DoesNotFit, MemoryLoad};
use crate::store::{SnapshotBuilder, StoredObject};
use crate::upstream::{Change, Release};

/// The state of the source as the caller knows it. Each state is worse than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReportedState {
    /// Its changes arrive.
    Followed,
    /// They do not.
    Lost,
    /// They have not arrived for longer than allowed.
    TooOld,
    /// Its objects are not upstream's.
    Doubted,
}

/// The next thing to know of a derived scope.
pub(in crate::scope) enum DerivedStep {
    /// A change in JSON, other than an event.
    Change(Change<SnapshotBuilder>),
    /// An event in JSON.
    Event(PrintedEvent),
    /// The source follows upstream again. Nothing was lost.
    Refollowed,
    /// The source is older than allowed.
    TooOld,
    /// The source's objects differ from upstream's. The next change is a fresh list.
    Doubted,
    /// The source follows another server, whose JSON is printed from now on.
    Checked(CheckedServer),
}

/// A server whose JSON was compared, as the caller needs to know it.
pub(in crate::scope) struct CheckedServer {
    /// The server's release, if it is known.
    pub(in crate::scope) release: Option<Release>,
    /// Its form of bookmarks.
    pub(in crate::scope) bookmark: BookmarkFormat,
    /// The objects that the caller has in the same version and in other bytes.
    pub(in crate::scope) reprinted: ReprintedObjects,
}

/// Objects that are printed in another manner than before, and the memory that they take.
pub(in crate::scope) struct ReprintedObjects {
    pub(in crate::scope) objects: Vec<StoredObject>,
    pub(in crate::scope) load: MemoryLoad,
}

/// The end of a derivation.
pub(in crate::scope) enum DerivedEnd {
    /// The scope has to be followed in JSON.
    FallBack(FallbackReason),
    /// The objects do not fit into memory.
    DoesNotFit(DoesNotFit),
}

impl From<FallbackReason> for DerivedEnd {
    fn from(reason: FallbackReason) -> Self {
        Self::FallBack(reason)
    }
}

impl From<DoesNotFit> for DerivedEnd {
    fn from(error: DoesNotFit) -> Self {
        Self::DoesNotFit(error)
    }
}

impl ReportedState {
    /// Returns the step that tells this.
    pub(super) fn step(self) -> Option<DerivedStep> {
        match self {
            Self::Followed => None,
            Self::Lost => Some(DerivedStep::Change(Change::Interrupted)),
            Self::TooOld => Some(DerivedStep::TooOld),
            Self::Doubted => Some(DerivedStep::Doubted),
        }
    }
}
