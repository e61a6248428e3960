//! One client's watch: its view of a scope's events, and the response body that carries them.
mod body;
mod view;

pub use body::{Bookmarks, Ending, Initial, Observer, Recheck, Terms, WatchBody};
pub use view::{Filter, View};
