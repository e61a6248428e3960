//! The request bodies of a connection that are not read to their ends, and what they may keep.
use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::limits::STREAM_WINDOW;
use super::request_frames::KeptBytes;

/// The bodies of one connection over HTTP/2.
#[derive(Debug, Default)]
pub(super) struct UnreadBodies(Mutex<OpenBodies>);

/// The bodies that may have unread pieces, and how far each was read.
#[derive(Debug, Default)]
pub(super) struct OpenBodies {
    kept: KeptBytes,
    /// The turn of the connection's task in which this was noted, and what was kept before it.
    turn: (u64, KeptBytes),
    /// The bodies by their numbers.
    open: BTreeMap<u64, BodyState>,
    /// The number of the next body.
    next: u64,
}

/// The state of a body.
#[derive(Debug)]
enum BodyState {
    /// All that has come was read.
    Read,
    MayHaveUnread {
        marks: ReadMarks,
        /// Something came since somebody looked for it.
        has_more: bool,
    },
}

/// Marks how far a body was read, among the bytes that all pieces may have kept.
#[derive(Debug)]
struct ReadMarks {
    /// All that had come of the body when so much was kept was read since.
    read: KeptBytes,
    /// A later mark, up to which all may not have been read yet.
    next: KeptBytes,
    /// Bytes of the body that were read since then. Once they are more than its client may send ahead, all
    /// that had come then was read.
    since_next: u64,
}

impl UnreadBodies {
    /// Notes the bytes that all pieces so far may have kept, in a turn of the connection's task. Passes on how
    /// many of them are kept.
    pub(super) fn set_kept(&self, kept: KeptBytes, turn: u64, count: impl FnOnce(usize)) {
        let mut bodies = self.0.lock();
        if turn != bodies.turn.0 {
            bodies.turn = (turn, bodies.kept);
        }
        if kept != bodies.kept {
            bodies.kept = kept;
            count(bodies.unread());
        }
    }

    /// Notes that somebody begins to look for more of a body. What is kept stays the same.
    pub(super) fn begins_reading(&self, number: u64) {
        let mut bodies = self.0.lock();
        if let Some(BodyState::MayHaveUnread { has_more, .. }) = bodies.open.get_mut(&number) {
            *has_more = false;
        }
    }

    /// Changes the bodies. Passes on how many bytes are kept if these are others than before.
    pub(super) fn change<T>(
        &self,
        change: impl FnOnce(&mut OpenBodies) -> T,
        count: impl FnOnce(usize),
    ) -> T {
        let mut bodies = self.0.lock();
        let before = bodies.unread();
        let changed = change(&mut bodies);
        let now = bodies.unread();
        if now != before {
            count(now);
        }
        changed
    }
}

impl OpenBodies {
    /// Begins a body, and returns its number. Its first pieces may have come in the same turn of the
    /// connection's task.
    pub(super) fn begin(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.open.insert(number, self.unread_of_turn());
        number
    }

    /// Returns the state of a body of which something came in the last turn in which anything did.
    fn unread_of_turn(&self) -> BodyState {
        BodyState::MayHaveUnread {
            marks: ReadMarks::at(self.turn.1),
            has_more: true,
        }
    }

    /// Returns the bytes that are kept: all since the body that was read least had nothing unread.
    fn unread(&self) -> usize {
        let marks = self.open.values().filter_map(|state| match state {
            BodyState::Read => None,
            BodyState::MayHaveUnread { marks, .. } => Some(marks.read),
        });
        marks.min().map_or(0, |first| self.kept.since(first))
    }

    /// Notes that so many bytes more of a body were read.
    pub(super) fn has_read(&mut self, number: u64, bytes: u64) {
        let kept = self.kept;
        if let Some(BodyState::MayHaveUnread { marks, .. }) = self.open.get_mut(&number) {
            marks.since_next += bytes;
            if marks.since_next > u64::from(STREAM_WINDOW) {
                (marks.read, marks.next, marks.since_next) = (marks.next, kept, 0);
            }
        }
    }

    /// Notes that nothing of a body was found, as all was read that had come.
    pub(super) fn has_read_all(&mut self, number: u64) {
        if let Some(state) = self.open.get_mut(&number)
            && matches!(state, BodyState::MayHaveUnread { has_more, .. } if !*has_more)
        {
            *state = BodyState::Read;
        }
    }

    /// Notes that something of a body has come.
    pub(super) fn has_more(&mut self, number: u64) {
        let unread = self.unread_of_turn();
        match self.open.get_mut(&number) {
            Some(BodyState::MayHaveUnread { has_more, .. }) => *has_more = true,
            Some(state) => *state = unread,
            None => {}
        }
    }

    /// Notes that nothing is unread of a body any more.
    pub(super) fn end(&mut self, number: u64) {
        self.open.remove(&number);
    }
}

impl ReadMarks {
    /// Returns the marks of a body of which nothing is unread.
    fn at(kept: KeptBytes) -> Self {
        Self {
            read: kept,
            next: kept,
            since_next: 0,
        }
    }
}
