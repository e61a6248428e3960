//! The differences between the JSON of two releases.
use std::collections::HashSet;

use crate::table::{MessageId, MessageTable};

/// Returns `true` if two minor releases print some message, or one within it, differently.
pub(crate) fn differ(table: &MessageTable, message: MessageId, releases: (u32, u32)) -> bool {
    let (one, other) = releases;
    let (mut seen, mut left) = (HashSet::new(), vec![message]);
    while let Some(id) = left.pop() {
        if !seen.insert(id) {
            continue;
        }
        for member in &table.message(id).members {
            if member.omits_empty(one) != member.omits_empty(other) {
                return true;
            }
            left.extend(table.message_of(member.value));
        }
    }
    false
}
