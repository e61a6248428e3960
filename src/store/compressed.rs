//! The compressed form of an event's frame: made once, when the first watch asks, and shared by
//! all.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use watershed_protocol::gzip_member;

/// How many bytes the compressed frames of a window's events take together.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally(Arc<AtomicUsize>);

/// One event's compressed frame. It counts in the tally from when it is made until the event is
/// dropped: the window's letting go and a watch's asking may meet in any order.
#[derive(Debug)]
pub(super) struct Compressed {
    member: OnceLock<Bytes>,
    tally: Tally,
}

impl Tally {
    pub(super) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Compressed {
    /// Nothing yet.
    pub(super) fn counted_in(tally: &Tally) -> Self {
        Self {
            member: OnceLock::new(),
            tally: tally.clone(),
        }
    }

    /// `frame` as a member of gzip. Who asks while another makes it waits for that, which is short.
    pub(super) fn of(&self, frame: &Bytes) -> Bytes {
        let member = self.member.get_or_init(|| {
            let member = gzip_member(frame);
            self.tally.0.fetch_add(member.len(), Ordering::Relaxed);
            member
        });
        member.clone()
    }
}

impl Drop for Compressed {
    fn drop(&mut self) {
        if let Some(member) = self.member.get() {
            self.tally.0.fetch_sub(member.len(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_made_once_and_counted_as_long_as_it_is_there() {
        let tally = Tally::default();
        let frame = Bytes::from_static(b"{\"type\":\"ADDED\",\"object\":{}}\n");
        let (asked, unasked) = (
            Compressed::counted_in(&tally),
            Compressed::counted_in(&tally),
        );
        let member = asked.of(&frame);
        assert_eq!(member.as_ptr(), asked.of(&frame).as_ptr(), "not shared");
        drop(unasked);
        assert_eq!(tally.bytes(), member.len());
        drop(asked);
        assert_eq!(tally.bytes(), 0);
    }
}
