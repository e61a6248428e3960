//! The recent events of a scope. A watch may start as far back as they reach.
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::compressed::{Compressed, CompressedTally};
use super::object::StoredObject;
use watershed_protocol::{EventKind, ResourceVersion};

/// One change of one object.
#[derive(Debug)]
pub struct WindowEvent {
    /// Added, modified or deleted, as upstream reported it for the whole scope.
    pub kind: EventKind,
    /// The version of the change; for a deletion, the version of the deletion.
    pub version: ResourceVersion,
    /// The new state, or for a deletion the last one (with the deletion's version spliced in by
    /// upstream).
    pub object: Arc<StoredObject>,
    /// The state before, which tells whether a selector's view had the object.
    pub previous: Option<Arc<StoredObject>>,
    /// Bytes that are held for `previous` alone.
    pub(super) copied: usize,
    /// The whole watch frame as upstream sent it.
    pub frame: Bytes,
    /// The frame compressed, once a watch asked for it.
    pub(super) compressed: Compressed,
}

impl WindowEvent {
    /// Returns the frame as one member of gzip. It is compressed once, for all watches.
    pub fn compressed(&self) -> Bytes {
        self.compressed.of(&self.frame)
    }

    /// Returns the bytes it takes in the window. Its compressed form may come later, and counts in
    /// the tally.
    fn size(&self) -> usize {
        // `object` shares the frame's bytes, and `previous` is a part of the frame of an event
        // before, or copied.
        self.frame.len() + self.copied + self.object.attributes.heap_size() + size_of::<Self>()
    }
}

/// Limits of a scope's history.
#[derive(Clone, Copy, Debug)]
pub struct WindowLimits {
    /// Events younger than this are kept while the bytes allow it.
    pub age: Duration,
    /// Upper bound of the frames held, their compressed forms included.
    pub bytes: usize,
}

/// Events, each with the moment at which it came.
pub(super) type WindowEvents = VecDeque<(Instant, Arc<WindowEvent>)>;

/// Events in order of their version. Each has a sequence number of its own, never used twice.
#[derive(Debug)]
pub(super) struct Window {
    events: WindowEvents,
    /// Sequence number of the oldest event held.
    first: u64,
    /// The oldest version a watch may start from: everything after it is here.
    floor: ResourceVersion,
    bytes: usize,
    compressed: CompressedTally,
    limits: WindowLimits,
}

impl Window {
    pub(super) fn new(limits: WindowLimits) -> Self {
        Self {
            events: WindowEvents::new(),
            first: 0,
            floor: ResourceVersion::default(),
            bytes: 0,
            compressed: CompressedTally::default(),
            limits,
        }
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the sequence number of the next event to come.
    pub(super) fn head(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    /// Returns the newest event.
    pub(super) fn last(&self) -> Option<&WindowEvent> {
        self.events.back().map(|(_, event)| &**event)
    }

    pub(super) fn floor(&self) -> ResourceVersion {
        self.floor
    }

    /// Returns the age up to which events are kept.
    pub(super) fn age(&self) -> Duration {
        self.limits.age
    }

    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.compressed.bytes()
    }

    /// Returns the tally of the compressed forms of this window's events.
    pub(super) fn compressed(&self) -> &CompressedTally {
        &self.compressed
    }

    pub(super) fn push(&mut self, now: Instant, event: Arc<WindowEvent>) {
        self.bytes += event.size();
        self.events.push_back((now, event));
        self.trim(now);
    }

    /// Drops events that are too old or too much. The newest event is dropped, too, if it alone is
    /// too large.
    pub(super) fn trim(&mut self, now: Instant) {
        while let Some((at, event)) = self.events.front() {
            if self.bytes() <= self.limits.bytes
                && now.saturating_duration_since(*at) <= self.limits.age
            {
                break;
            }
            self.bytes -= event.size();
            self.floor = event.version;
            self.first += 1;
            self.events.pop_front();
        }
    }

    /// Starts anew at `floor`, and returns all events. Sequence numbers go on.
    pub(super) fn reset(&mut self, floor: ResourceVersion) -> WindowEvents {
        self.first = self.head();
        self.bytes = 0;
        self.floor = floor;
        std::mem::take(&mut self.events)
    }

    /// Returns the sequence number of the first event after `version`, or `None` if that lies too
    /// far back.
    ///
    /// Events that share `version` are not after it, as upstream sees it: a client that names the
    /// version of its last event goes on behind all of them.
    pub(super) fn after(&self, version: ResourceVersion) -> Option<u64> {
        if version < self.floor {
            return None;
        }
        let next = self
            .events
            .partition_point(|(_, event)| event.version <= version);
        Some(self.first + next as u64)
    }

    /// Returns the events from sequence number `from` on, which must not be below [`Self::first`].
    pub(super) fn from(&self, from: u64) -> impl Iterator<Item = &Arc<WindowEvent>> {
        self.events
            .range((from - self.first) as usize..)
            .map(|(_, event)| event)
    }

    /// Returns the events from sequence number `from` on: at most `limit`, and none after those
    /// that exceed `byte_limit`.
    pub(super) fn batch(
        &self,
        from: u64,
        limit: usize,
        byte_limit: usize,
    ) -> Vec<Arc<WindowEvent>> {
        let mut bytes = 0_usize;
        self.from(from)
            .take_while(|event| {
                let fits = bytes <= byte_limit;
                bytes = bytes.saturating_add(event.frame.len());
                fits
            })
            .take(limit)
            .cloned()
            .collect()
    }
}
