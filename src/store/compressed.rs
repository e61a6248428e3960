//! The compressed form of an event's frame. It is made once, when the first watch asks, and shared
//! by all.
use std::sync::OnceLock;

use bytes::Bytes;
use watershed_protocol::gzip_member;

use super::tally::{ByteCharge, ByteTally};

/// One event's compressed frame. It counts in the tally from its making until the event is dropped:
/// a watch may make it after the event has left the window.
#[derive(Debug)]
pub(super) struct Compressed {
    member: OnceLock<(Bytes, ByteCharge)>,
    tally: ByteTally,
}

impl Compressed {
    /// Creates an empty cell that counts in `tally`.
    pub(super) fn counted_in(tally: &ByteTally) -> Self {
        Self {
            member: OnceLock::new(),
            tally: tally.clone(),
        }
    }

    /// Returns the event's frame as a member of gzip. If another thread is making it, waits for that.
    pub(super) fn of(&self, frame: impl FnOnce() -> Bytes) -> Bytes {
        let (member, _) = self.member.get_or_init(|| {
            let member = gzip_member(&frame());
            let charge = self.tally.charge(member.len());
            (member, charge)
        });
        member.clone()
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compressed_frame_is_made_once_and_counted_until_it_is_dropped() {
        let tally = ByteTally::default();
        let frame = Bytes::from_static(b"{\"type\":\"ADDED\",\"object\":{}}\n");
        let (asked, unasked) = (
            Compressed::counted_in(&tally),
            Compressed::counted_in(&tally),
        );
        let member = asked.of(|| frame.clone());
        assert_eq!(
            member.as_ptr(),
            asked.of(|| frame.clone()).as_ptr(),
            "not shared"
        );
        drop(unasked);
        assert_eq!(tally.bytes(), member.len());
        drop(asked);
        assert_eq!(tally.bytes(), 0);
    }
}
