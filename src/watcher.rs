//! One client's watch: its view of a scope's events, and the response body that carries them.
mod body;
mod bookmark_schedule;
mod chunk;
mod guard;
mod options;
#[cfg(test)]
mod tests;
mod view;

pub use body::WatchBody;
pub use chunk::{ContentCoding, MIN_SHARED_BYTES};
pub use guard::{AccessGuard, AccessStatus};
pub use options::{Bookmarks, EndMark, InitialState, WatchEnding, WatchObserver, WatchOptions};
pub use view::{
    ClientFrame, ClientView, Conversion, IrreducibleObject, PartialView, TableView, ViewFilter,
};
