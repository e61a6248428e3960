//! What is known of one scope: the newest snapshot, and the window of recent events.
//!
//! One task holds the [`StoreWriter`]; any number of [`StoreReader`]s take snapshots and follow the events.
//! No IO and no async here: time and wake-ups come from outside.
mod by_field;
mod compressed;
mod leaf;
mod object;
mod pins;
mod snapshot;
mod state;
#[cfg(test)]
mod tests;
mod wake;
mod window;

pub use leaf::ObjectRun;
pub use object::StoredObject;
pub use snapshot::{Layout, ObjectRuns, Snapshot, SnapshotBuilder};
pub use state::{
    InconsistentEvent, SnapshotAt, StoreReader, StoreStats, StoreWriter, Subscription,
    SubscriptionStart, SubscriptionStep, new,
};
pub use wake::Interest;
pub use window::{WindowEvent, WindowLimits};
