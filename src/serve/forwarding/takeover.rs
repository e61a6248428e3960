//! Ends forwarded watches that memory can continue.
//!
//! A watch of a cacheable type is forwarded while its scope is not ready, and could stay with
//! upstream for an hour. So each such watch looks from time to time whether memory has what it
//! needs by now. Then it ends like at upstream's timeout, and its client goes on here. There is no
//! registry: a watch looks at its scope by a timer of its own, which also spreads the ends.
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, Sleep};
use watershed_protocol::{
    Encoding, EventKind, FieldTable, Frame, FrameDecoder, GzipReader, Malformed, ResourceVersion,
    WatchStart, read_bookmark, scan,
};

use crate::access::Access;
use crate::serve::metrics;
use crate::serve::plan::{PlannedAction, ReadKind, ReadPlan};
use crate::serve::reads::open::{Continuation, ScopeOpener};
use crate::serve::source::ForwardReason;
use crate::watcher::ContentCoding;

/// Mean interval between looks. Each one is up to half shorter or longer.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A watch that ends by itself before this is left alone.
const WORTHWHILE: Duration = Duration::from_secs(30);
/// Time without a failed review after which callers can be reviewed again.
const REVIEWED_FOR: Duration = Duration::from_secs(30);
/// Limit of the memory for the selectors of a followed watch. Others stay with upstream to their
/// end.
const MAX_SELECTOR_BYTES: u64 = 8 << 10;
/// Limit of an event that is put together from several chunks. With a larger one, which the client could leave
/// half read, the watch stays with upstream to its end.
const MAX_FRAME_BYTES: usize = 256 << 10;

/// Finds the forwarded watches that memory may continue later.
pub(in crate::serve) struct Takeovers {
    shared: Arc<TakeoverParts>,
}

struct TakeoverParts {
    access: Access,
    opener: ScopeOpener,
}

impl Takeovers {
    pub(in crate::serve) fn new(access: Access, opener: ScopeOpener) -> Self {
        Self {
            shared: Arc::new(TakeoverParts { access, opener }),
        }
    }

    /// Returns the takeover of a watch, if the reason why it is forwarded can pass and its client
    /// goes on by version.
    pub(in crate::serve) fn of(
        &self,
        reason: ForwardReason,
        action: PlannedAction,
        arrived: std::time::Instant,
    ) -> Option<Takeover> {
        // A shadow would forward the client's next watch, too.
        if self.shared.opener.policy.verification.shadow {
            return None;
        }
        let PlannedAction::Read(read) = action else {
            return None;
        };
        let ReadKind::Watch(watch) = &read.kind else {
            return None;
        };
        // Who watches a Table is a person at a terminal, and does not go on by version.
        if read.table.is_some() || read.planned_selector_bytes() > MAX_SELECTOR_BYTES {
            return None;
        }
        let reached = match watch.start {
            WatchStart::After(version) => Some(version),
            WatchStart::State { end_mark: true, .. } => None,
            // Nothing tells where the state ends, or what the client has seen.
            WatchStart::State { .. } | WatchStart::Now(_) => return None,
        };
        let ends = read
            .timeout
            .and_then(|lasts| Instant::from_std(arrived).checked_add(lasts));
        is_temporary(reason).then(|| Takeover {
            shared: Arc::clone(&self.shared),
            reason,
            read,
            reached,
            ends,
        })
    }
}

/// Returns `true` if the scope may answer such a watch later.
fn is_temporary(reason: ForwardReason) -> bool {
    matches!(
        reason,
        ForwardReason::Syncing
            | ForwardReason::Stale
            | ForwardReason::Quarantined
            | ForwardReason::SchemaChanged
            | ForwardReason::NotPermitted
            | ForwardReason::ReviewFailed
            | ForwardReason::NotCached
            | ForwardReason::Budget
            | ForwardReason::InitialEvents
            | ForwardReason::Unproven
            | ForwardReason::VersionAhead
            | ForwardReason::BeforeFirstList
            | ForwardReason::BeforeHistory
    )
}

/// A watch that memory may continue, before upstream has answered it.
pub(in crate::serve) struct Takeover {
    shared: Arc<TakeoverParts>,
    reason: ForwardReason,
    read: Box<ReadPlan>,
    /// The version after which the client would go on; `None` before the end of its initial events.
    reached: Option<ResourceVersion>,
    /// The moment at which upstream ends the watch, if the client said so.
    ends: Option<Instant>,
}

impl Takeover {
    /// Begins to follow the events of the watch.
    pub(in crate::serve) fn follow(
        self,
        encoding: Encoding,
        coding: ContentCoding,
    ) -> FollowedWatch {
        let namespaced = self.read.resource.namespaced;
        FollowedWatch {
            events: Some(ForwardedEvents {
                frames: FrameDecoder::new(encoding, MAX_FRAME_BYTES),
                members: (coding == ContentCoding::Gzip).then(GzipReader::default),
            }),
            encoding,
            fields: FieldTable::metadata_only(namespaced),
            timer: Box::pin(tokio::time::sleep(next_look())),
            takeover: self,
        }
    }

    fn is_possible(&self) -> bool {
        let TakeoverParts { access, opener } = &*self.shared;
        if self.reason == ForwardReason::ReviewFailed && access.has_review_failed(REVIEWED_FOR) {
            return false;
        }
        let Some(version) = self.reached else {
            return false;
        };
        let soon = Instant::now() + WORTHWHILE;
        if self.ends.is_some_and(|ends| ends < soon) {
            return false;
        }
        opener.can_continue(&Continuation {
            read: &self.read,
            version,
            opens_scope: self.reason != ForwardReason::NotPermitted,
        })
    }
}

/// A forwarded watch whose events are followed, to know where its client would go on.
pub(in crate::serve) struct FollowedWatch {
    takeover: Takeover,
    encoding: Encoding,
    fields: FieldTable,
    /// `None` once an event was not understood. The watch then stays with upstream.
    events: Option<ForwardedEvents>,
    timer: Pin<Box<Sleep>>,
}

/// Reads the events of a watch, beside its client.
struct ForwardedEvents {
    frames: FrameDecoder,
    /// Unpacks a compressed watch.
    members: Option<GzipReader>,
}

impl ForwardedEvents {
    fn push(&mut self, data: &Bytes) -> Result<(), Malformed> {
        if let Some(members) = &mut self.members {
            return members.read(data, |piece| self.frames.push(piece));
        }
        self.frames.push(data.clone());
        Ok(())
    }

    /// Returns `true` if the client has received whole events only, and whole members of gzip.
    fn is_between(&self) -> bool {
        self.frames.is_clean() && self.members.as_ref().is_none_or(GzipReader::is_between)
    }
}

impl FollowedWatch {
    /// Notes data on its way to the client.
    pub(in crate::serve) fn pass(&mut self, data: &Bytes) {
        if self.read(data).is_err() {
            self.events = None;
        }
    }

    fn read(&mut self, data: &Bytes) -> Result<(), NotFollowed> {
        let Some(events) = &mut self.events else {
            return Ok(());
        };
        events.push(data)?;
        let reached = &mut self.takeover.reached;
        while let Some(frame) = events.frames.next_transient_frame()? {
            *reached = version_after(&frame, self.encoding, &self.fields, *reached)?;
        }
        Ok(())
    }

    /// Ready when memory can continue the watch, which is between two events.
    pub(in crate::serve) fn poll_possible(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // More data wakes the task if the watch is within an event.
        if !self
            .events
            .as_ref()
            .is_some_and(ForwardedEvents::is_between)
        {
            return Poll::Pending;
        }
        loop {
            ready!(self.timer.as_mut().poll(context));
            if self.takeover.is_possible() {
                let Takeover { read, reason, .. } = &self.takeover;
                tracing::debug!(
                    resource = %read.resource.gvr,
                    reason = reason.as_str(),
                    "ending a forwarded watch, which memory can continue"
                );
                metrics::taken_over(&read.resource.gvr, *reason);
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(Instant::now() + next_look());
        }
    }
}

/// A frame from which nothing can be told: an ERROR event, or one that cannot be read.
struct NotFollowed;

impl From<Malformed> for NotFollowed {
    fn from(_: Malformed) -> Self {
        Self
    }
}

/// Returns the version after which a client would go on that has received this frame, too.
fn version_after(
    frame: &Frame,
    encoding: Encoding,
    fields: &FieldTable,
    reached: Option<ResourceVersion>,
) -> Result<Option<ResourceVersion>, NotFollowed> {
    match frame.kind {
        EventKind::Bookmark => {
            let bookmark = read_bookmark(encoding, &frame.object)?;
            let counts = reached.is_some() || bookmark.initial_events_end;
            Ok(counts.then_some(bookmark.version))
        }
        EventKind::Added | EventKind::Modified | EventKind::Deleted if reached.is_some() => {
            Ok(Some(scan(encoding, &frame.object, fields)?.version))
        }
        // Initial events come in the order of keys, not of versions.
        EventKind::Added | EventKind::Modified | EventKind::Deleted => Ok(None),
        EventKind::Error => Err(NotFollowed),
    }
}

fn next_look() -> Duration {
    LOOK_EVERY.mul_f64(0.5 + fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: &str, version: u64, annotations: &str) -> Frame {
        let mut decoder = FrameDecoder::new(Encoding::Json, MAX_FRAME_BYTES);
        let text = format!(
            "{{\"type\":\"{kind}\",\"object\":{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\
             \"metadata\":{{\"name\":\"a\",\"namespace\":\"n\",\
             \"resourceVersion\":\"{version}\"{annotations}}}}}}}\n"
        );
        decoder.push(text.into());
        decoder.next_frame().unwrap().unwrap()
    }

    /// Returns the version after which a client goes on that has received these frames.
    fn reached(start: Option<u64>, frames: &[Frame]) -> Option<u64> {
        let fields = FieldTable::metadata_only(true);
        let mut reached = start.map(ResourceVersion);
        for frame in frames {
            reached = version_after(frame, Encoding::Json, &fields, reached).ok()?;
        }
        reached.map(|version| version.0)
    }

    #[test]
    fn a_client_goes_on_after_the_last_event_or_bookmark() {
        let [event, bookmark] = [frame("ADDED", 7, ""), frame("BOOKMARK", 9, "")];
        assert_eq!(reached(Some(5), &[]), Some(5));
        assert_eq!(reached(Some(5), std::slice::from_ref(&event)), Some(7));
        assert_eq!(reached(Some(5), &[event, bookmark]), Some(9));
        assert_eq!(reached(Some(5), &[frame("ERROR", 7, "")]), None);
    }

    #[test]
    fn initial_events_count_only_once_their_end_is_marked() {
        let mark = r#","annotations":{"k8s.io/initial-events-end":"true"}"#;
        let initial = [frame("ADDED", 7, ""), frame("ADDED", 3, "")];
        assert_eq!(reached(None, &initial), None);
        assert_eq!(reached(None, &[frame("BOOKMARK", 9, "")]), None);
        let marked = [&initial[..], &[frame("BOOKMARK", 9, mark)]].concat();
        assert_eq!(reached(None, &marked), Some(9));
        let all = [&marked[..], &[frame("DELETED", 12, "")]].concat();
        assert_eq!(reached(None, &all), Some(12));
    }
}
