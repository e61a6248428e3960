//! The recent events of a scope. A watch may start as far back as they reach.
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use watershed_protocol::ResourceVersion;

use super::changes::ChangesByKey;
use super::event::WindowEvent;
use super::event_frame::HeldFrames;
use super::tally::ByteTally;

/// Upper bound of what a window takes with events beyond their age in it. Quiet types are many, and
/// the objects of some are large.
const OLD_BYTES: usize = 1 << 20;

/// Limits of a scope's history.
#[derive(Clone, Copy, Debug)]
pub struct WindowLimits {
    /// Events younger than this are kept while the bytes allow it.
    pub age: Duration,
    /// So many of the newest events are kept however old they are, while all take 1 MiB at most.
    pub least: usize,
    /// Upper bound of the memory that events take, their compressed forms included. Frames that can
    /// be made again are not: they are held for seconds, and must not cost history.
    pub bytes: usize,
}

/// Most events that are dropped at a time. The next change drops more.
const MAX_DROPPED: usize = 4096;

/// Events that have left the window.
///
/// Dropping them takes a moment for each, so they are dropped after the lock is released.
#[derive(Debug, Default)]
#[must_use = "they are dropped without the lock"]
pub(super) struct DroppedEvents {
    events: VecDeque<(Instant, Arc<WindowEvent>)>,
    _changes: ChangesByKey,
}

impl DroppedEvents {
    /// Returns the events, the oldest first.
    pub(super) fn events(&self) -> impl Iterator<Item = &WindowEvent> {
        self.events.iter().map(|(_, event)| &**event)
    }
}

/// Events in order of their version. Each has a sequence number of its own, never used twice.
#[derive(Debug)]
pub(super) struct Window {
    /// Each with the moment at which it came.
    events: VecDeque<(Instant, Arc<WindowEvent>)>,
    /// The same by the objects they changed.
    changes: ChangesByKey,
    /// Sequence number of the oldest event held.
    first: u64,
    /// The oldest version a watch may start from: everything after it is here.
    floor: ResourceVersion,
    bytes: usize,
    compressed: ByteTally,
    frames: HeldFrames,
    limits: WindowLimits,
}

impl Window {
    pub(super) fn new(limits: WindowLimits) -> Self {
        Self {
            events: VecDeque::new(),
            changes: ChangesByKey::default(),
            first: 0,
            floor: ResourceVersion::default(),
            bytes: 0,
            compressed: ByteTally::default(),
            frames: HeldFrames::default(),
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

    /// Returns the newest event, unless it is kept beyond its age.
    pub(super) fn last_young(&self, now: Instant) -> Option<&WindowEvent> {
        let (at, event) = self.events.back()?;
        (now.saturating_duration_since(*at) <= self.limits.age).then_some(event)
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
        self.lasting_bytes() + self.frames.bytes()
    }

    /// Returns the bytes that are held for as long as the events are.
    fn lasting_bytes(&self) -> usize {
        self.bytes + self.compressed.bytes()
    }

    /// Returns the tally of the compressed forms of this window's events.
    pub(super) fn compressed(&self) -> &ByteTally {
        &self.compressed
    }

    /// Returns those of this window's events' frames that can be made again.
    pub(super) fn frames(&self) -> &HeldFrames {
        &self.frames
    }

    /// Returns the events by the objects they changed.
    pub(super) fn changes(&self) -> &ChangesByKey {
        &self.changes
    }

    /// Sets the limits of the history. The next change drops what is beyond them.
    pub(super) fn set_limits(&mut self, limits: WindowLimits) {
        self.limits = limits;
    }

    /// Returns the limits of the history.
    pub(super) fn limits(&self) -> WindowLimits {
        self.limits
    }

    pub(super) fn push(&mut self, now: Instant, event: Arc<WindowEvent>) -> DroppedEvents {
        self.bytes += event.size;
        self.changes.insert(&event);
        self.events.push_back((now, event));
        self.trim(now)
    }

    /// Takes out events that are too old or too much. The newest event is taken out, too, if it
    /// alone is too large.
    pub(super) fn trim(&mut self, now: Instant) -> DroppedEvents {
        self.drop_while(|window, at| !window.fits(now, at))
    }

    /// Takes out events that are older than `age`, but not too many at a time. Returns them and
    /// their bytes, without compressed forms.
    pub(super) fn release(&mut self, now: Instant, age: Duration) -> (DroppedEvents, usize) {
        let before = self.bytes;
        let dropped = self.drop_while(|_, at| now.saturating_duration_since(at) > age);
        (dropped, before - self.bytes)
    }

    /// Returns `true` if all events may stay, of which the oldest came at `at`.
    fn fits(&self, now: Instant, at: Instant) -> bool {
        let few = self.events.len() <= self.limits.least && self.lasting_bytes() <= OLD_BYTES;
        self.lasting_bytes() <= self.limits.bytes
            && (few || now.saturating_duration_since(at) <= self.limits.age)
    }

    /// Takes out events while the oldest one is over, but not too many at a time. `is_over` gets the
    /// moment at which it came.
    fn drop_while(&mut self, is_over: impl Fn(&Self, Instant) -> bool) -> DroppedEvents {
        let mut dropped = DroppedEvents::default();
        while dropped.events.len() < MAX_DROPPED
            && self
                .events
                .front()
                .is_some_and(|(at, _)| is_over(self, *at))
            && let Some((at, event)) = self.events.pop_front()
        {
            self.bytes -= event.size;
            self.floor = event.version;
            self.first += 1;
            self.changes.remove(&event);
            dropped.events.push_back((at, event));
        }
        dropped
    }

    /// Starts anew at `floor`, and returns all events. Sequence numbers go on.
    pub(super) fn reset(&mut self, floor: ResourceVersion) -> DroppedEvents {
        self.first = self.head();
        self.bytes = 0;
        self.floor = floor;
        DroppedEvents {
            events: std::mem::take(&mut self.events),
            _changes: std::mem::take(&mut self.changes),
        }
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
        Some(self.first + self.index_after(version) as u64)
    }

    /// Returns the index of the first event after `version`.
    fn index_after(&self, version: ResourceVersion) -> usize {
        self.events
            .partition_point(|(_, event)| event.version <= version)
    }

    /// Returns the events from sequence number `from` on, which must not be below [`Self::first`].
    pub(super) fn from(&self, from: u64) -> impl Iterator<Item = &Arc<WindowEvent>> {
        self.events
            .range((from - self.first) as usize..)
            .map(|(_, event)| event)
    }

    /// Returns the bytes that events after `version` share with those of another window.
    pub(super) fn shared_after(&self, version: ResourceVersion) -> usize {
        let (first, last) = (self.events.get(self.index_after(version)), self.last());
        first
            .zip(last)
            .map_or(0, |((_, first), last)| first.shared_until(last))
    }

    /// Returns the events after `version` that are older than `age`, the oldest first and not too
    /// many of them.
    pub(super) fn aged(
        &self,
        version: ResourceVersion,
        now: Instant,
        age: Duration,
    ) -> Vec<Arc<WindowEvent>> {
        self.events
            .range(self.index_after(version)..)
            .take_while(|(at, _)| now.saturating_duration_since(*at) > age)
            .take(MAX_DROPPED)
            .map(|(_, event)| Arc::clone(event))
            .collect()
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
                bytes = bytes.saturating_add(event.frame_len());
                fits
            })
            .take(limit)
            .cloned()
            .collect()
    }
}
