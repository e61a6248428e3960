//! An immutable view of a scope at one resourceVersion.
mod builder;
mod key_range;
mod leaves;
mod objects;
mod runs;
mod sample;
mod settling;
#[cfg(not(loom))]
#[cfg(test)]
mod tests;

pub use builder::{PackedRun, RunPacker, SnapshotBuilder};
pub(super) use key_range::KeyRange;
pub use objects::{Layout, Snapshot};
pub use runs::ObjectRuns;
pub use sample::ObjectSample;
pub(super) use settling::{ReplacedLeaves, SettledLeaf};
