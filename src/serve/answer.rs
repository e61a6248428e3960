//! Answers from memory, and refusals.
mod get;
mod gzip;
mod indented;
mod items;
mod kept_items;
mod list;
mod list_body;
mod page;
mod response;
mod selected_objects;
mod status;
mod table_items;
mod watch;

pub(super) use get::answer as get;
pub(super) use list::{ListContext, answer as list};
pub(super) use response::{Answer, add_age_header, add_omission_header, checkpoint, verdict};
pub(super) use status::{filtered, from_a_loop, not_forwarded, over_the_limit, refused};
pub(super) use watch::{WatchContext, answer as watch, coding as watch_coding};
