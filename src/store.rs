//! What is known of one scope: the newest snapshot, and the window of recent events.
//!
//! One task holds the [`Writer`]; any number of [`Reader`]s take snapshots and follow the events.
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

pub use leaf::Run;
pub use object::Object;
pub use snapshot::{Layout, Runs, Snapshot, SnapshotBuilder};
pub use state::{
    At, Closed, Figures, Inconsistent, Reader, Start, Step, Subscription, Writer, new,
};
pub use wake::Interest;
pub use window::{Event, Limits};
