//! The data of one scope: the newest snapshot, and the window of recent events.
//!
//! One task holds the [`StoreWriter`]. Any number of [`StoreReader`]s take snapshots and follow the
//! events. There is no IO and no async here: time and wake-ups come from outside.
mod by_field;
mod changes;
mod compressed;
mod cursor;
mod delta;
mod derived;
mod event;
mod event_frame;
mod leaf;
mod leaf_builder;
mod object;
mod object_run;
mod packed;
mod past;
mod pins;
mod previous;
mod reader;
mod reprint;
mod snapshot;
mod state;
mod subscribers;
mod subscription;
mod sync;
mod tally;
#[cfg(not(loom))]
#[cfg(test)]
mod tests;
mod window;
mod writer;

use std::sync::Arc;

pub use event::WindowEvent;
pub use event_frame::FrameOrigin;
pub use leaf_builder::{MakeOrigin, UnmadeObject};
pub use object::{ObjectBytes, ObjectPeek, StoredObject};
pub use object_run::ObjectRun;
pub use packed::{ItemsOrigin, NEVER_READ};
pub use past::{MAX_UNDONE, StateAt};
pub use pins::PinOwner;
pub use reader::{SnapshotAt, StoreReader, StoreStats, SubscriptionStart};
pub use reprint::Reprint;
pub use snapshot::{
    Layout, ObjectRuns, ObjectSample, PackedRun, RunPacker, Snapshot, SnapshotBuilder,
};
pub use state::{Discarded, HeldBytes};
pub use subscribers::Interest;
pub use subscription::{Subscription, SubscriptionEnd, SubscriptionStep};
pub use window::WindowLimits;
pub use writer::{InconsistentEvent, StoreWriter, UnfinishedVersion};

/// Creates an empty store, not yet synced.
pub fn new(limits: WindowLimits) -> (StoreWriter, StoreReader) {
    let state = Arc::new(sync::RwLock::new(state::StoreState::new(limits)));
    let writer = StoreWriter::new(Arc::clone(&state));
    (writer, StoreReader::new(state))
}
