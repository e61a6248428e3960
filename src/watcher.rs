//! One client's watch: its view of a scope's events, and the response body that carries them.
mod body;
mod chunk;
#[cfg(test)]
mod tests;
mod view;

pub use body::{Bookmarks, Ending, Grant, Initial, Observer, Permission, Terms, WatchBody};
pub use chunk::{Coding, WORTH_SHARING};
pub use view::{Filter, Seen, View};
