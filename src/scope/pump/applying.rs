//! Applies upstream's changes: lists, events and bookmarks.
use std::sync::Arc;
use std::time::Instant;

use watershed_protocol::{Frame, Scanned};

use super::collect::stored_object;
use super::properties::{StateProof, TypeProperties};
use super::{EventOrigin, ScopePump};
use crate::budget::MemoryLoad;
use crate::scope::cached::discard;
use crate::scope::metrics;
use crate::scope::phase::ReadyScope;
use crate::store::{InconsistentEvent, Snapshot, SnapshotBuilder};
use crate::upstream::{AnswerCompression, Change, ListedState};

impl ScopePump {
    /// Applies a change. `origin` makes the frame of an event again. A list was asked for after
    /// `list_asked`, unless it is derived.
    pub(super) fn apply(
        &mut self,
        change: Change<SnapshotBuilder>,
        origin: Option<EventOrigin>,
        list_asked: Option<Instant>,
    ) {
        let now = Instant::now();
        match change {
            Change::Ended => {
                self.served.mark_ended();
                return;
            }
            Change::Interrupted => {
                self.served.end_reopening();
                self.mark_interrupted();
                return;
            }
            _ => self.served.end_reopening(),
        }
        self.scope.upstream.set_following(true);
        if !matches!(change, Change::Resumed { .. }) {
            self.scope.upstream.mark_heard();
        }
        match change {
            Change::Listed(listed) => self.apply_list(*listed, list_asked),
            Change::Event(frame, scanned) => {
                self.apply_event(now, frame, scanned, origin);
                self.record_proof(StateProof::Followed);
            }
            Change::Progress { version, format } => {
                self.learn_bookmark(format);
                self.served.writer.progress(now, version);
                self.scope.upstream.record_bookmark(version);
                self.mark_delivered();
                self.record_proof(StateProof::Followed);
            }
            Change::Resumed { .. } => {
                self.server.streaming.record_reconnection();
                // The event that comes again is printed by this server.
                self.server.end_rewriting();
                self.follow_server();
                self.count(&metrics::UPSTREAM_RESUMES);
                self.served.mark_reopened();
            }
            Change::Interrupted | Change::Ended | Change::OtherHistory { .. } => {}
        }
        self.scope.count_held();
        self.scope.publish_version();
    }

    /// Applies a list: what it shows of upstream, and its objects.
    fn apply_list(&mut self, listed: ListedState<SnapshotBuilder>, asked: Option<Instant>) {
        self.abandon_restored();
        self.learn_bookmark(listed.bookmark);
        self.server
            .streaming
            .record_list(listed.streams_initial_events);
        let is_compressed = listed.compression == AnswerCompression::Gzip;
        self.scope.upstream.set_compressed(is_compressed);
        // Before the watches that wait for the list: they would ask upstream for it.
        if listed.compression != AnswerCompression::NotAsked {
            self.scope.forms.compression.learned(is_compressed);
        }
        let ready = ReadyScope {
            format: listed.format,
            streams_initial_events: listed.streams_initial_events,
            warnings: listed.warnings,
        };
        let snapshot = listed.objects.finish(listed.version);
        self.replace_held(ready, snapshot, listed.load, asked);
    }

    /// Puts a new list in place of what was held.
    fn replace_held(
        &mut self,
        ready: ReadyScope,
        snapshot: Snapshot,
        load: MemoryLoad,
        asked: Option<Instant>,
    ) {
        let streams_initial_events = ready.streams_initial_events;
        let ready = Arc::new(ready);
        self.refused_since = None;
        self.properties = TypeProperties::Known(Arc::clone(&ready));
        let version = snapshot.version();
        let representation = self.scope.key.representation;
        tracing::info!(
            resource = %self.scope.key.gvr,
            encoding = representation.encoding.as_str(),
            metadata_only = representation.metadata_only,
            %version,
            objects = snapshot.len(),
            bytes = snapshot.size(),
            "listed"
        );
        if !self.scope.is_derived() {
            self.count(&metrics::UPSTREAM_LISTS);
            let again = self.scope.history.beginning().is_some();
            metrics::of_type(&metrics::RELISTS, &self.scope.key.gvr).increment(again.into());
        }
        metrics::may_be_lost(&self.scope.key.gvr);
        self.scope.history.record_list(version);
        if streams_initial_events {
            // Before what it printed, so that none of that is derived as another's.
            self.name_server();
        }
        let charges = self.scope.memory.charges.lock().take();
        let replaced = if self.served.phase.is_schema_changed() {
            self.served.writer.replace_after_schema_change(snapshot)
        } else {
            self.served.writer.replace(snapshot)
        };
        if let Some(asked) = asked
            && self.feed.lists_most_recent()
        {
            self.scope.history.record_consistent_list(asked, version);
        }
        // Counted twice for a moment, rather than not at all.
        self.scope.count_held();
        drop(load);
        self.shared.unfit.loaded(&self.scope.key, Instant::now());
        discard(replaced, charges);
        self.scope.forms.forget_objects();
        self.server.end_rewriting();
        self.continuity.record_list();
        if let Some(quarantines) = self.feed.source_quarantines() {
            self.scope.source.record_quarantines(quarantines);
        }
        if self.schema.list_due().is_some() {
            self.served.phase.await_schema();
        } else {
            self.served.phase.serve(ready);
        }
        self.scope.print.set_release(None);
        if let Some(reflector) = self.feed.reflector() {
            self.server.release.record_list(reflector.listed_by());
        }
        if streams_initial_events {
            self.follow_server();
        }
        if let Some(release) = self.feed.compared_release().cloned() {
            self.note_release(Some(release));
        }
        self.served.mark_heard();
    }

    fn apply_event(
        &mut self,
        now: Instant,
        frame: Frame,
        scanned: Scanned,
        origin: Option<EventOrigin>,
    ) {
        if !self.scope.is_derived() {
            self.events.increment(1);
        }
        let Some(ready) = self.properties.get() else {
            return;
        };
        let encoding = self.scope.key.representation.encoding;
        let read = self.read_defaults.applied(encoding, &frame.object);
        let read = read.map(|read| stored_object(&ready.format, &read, scanned.clone()));
        let object = stored_object(&ready.format, &frame.object, scanned);
        // A known event does not show that news arrives.
        let is_news = object.version > self.scope.reader.event_version();
        match self
            .served
            .writer
            .apply_from(now, frame, object, read, origin)
        {
            Ok(()) if is_news => self.mark_delivered(),
            Ok(()) => {}
            Err(error @ InconsistentEvent::Rewritten { .. }) => {
                if !self.server.defer_rewriting() {
                    self.relist_rewritten(error);
                }
            }
            Err(error) => self.inconsistent(error),
        }
    }
}
