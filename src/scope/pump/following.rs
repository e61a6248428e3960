//! Follows how current a scope is: whether upstream's changes arrive, and when it is too old.

use tokio::time::Instant;
use watershed_protocol::ResourceVersion;

use super::ScopePump;
use super::staleness::{DueChange, StalenessChange};
use crate::scope::cached::DifferingPart;
use crate::scope::metrics;
use crate::scope::phase::ScopePhase;
use crate::upstream::{Reflector, ServedBy};

impl ScopePump {
    /// Records that changes of the source arrive again, of which none was lost.
    pub(super) fn mark_followed(&mut self) {
        self.scope.upstream.set_following(true);
        let source = self.scope.source.get();
        if source
            .as_ref()
            .is_some_and(|source| source.upstream.age().is_none())
        {
            // It was followed all the time, while its server's JSON was compared.
            self.mark_heard();
        } else {
            self.staleness.mark_reopened(Instant::now());
        }
    }

    /// Records that the source is older than allowed, which counts here as well.
    pub(super) fn mark_too_old(&mut self) {
        self.mark_lost();
        if self.staleness.exceed() {
            self.stop_serving();
        }
    }

    /// Records that upstream's changes do not arrive any more.
    pub(super) fn mark_lost(&mut self) {
        self.scope.upstream.set_following(false);
        self.staleness.mark_lost(Instant::now());
        self.publish_age();
    }

    /// Shows readers for how long the scope has not followed upstream.
    pub(super) fn publish_age(&self) {
        let (since, lacks) = (
            self.staleness.lost_since(),
            self.staleness.lacks_something(),
        );
        self.scope.upstream.set_lost(since, lacks);
    }

    /// Records that upstream has proven the state that is held. The watch may have broken since.
    pub(super) fn mark_proven(&mut self) {
        self.mark_heard();
        if !self.scope.upstream.is_following() {
            self.mark_lost();
        }
    }

    /// Records that the watch brought an event or a bookmark.
    pub(super) fn mark_delivered(&mut self) {
        if self.staleness.lacks_something() {
            self.shared.streams.send_replace(());
            // It is not told to itself.
            self.streams.mark_unchanged();
        }
        self.mark_heard();
    }

    /// Records that upstream sent a list, an event or a bookmark.
    pub(super) fn mark_heard(&mut self) {
        if self.staleness.mark_heard(Instant::now()) {
            self.serve_again();
        }
    }

    /// Serves the scope again, if it was too old.
    pub(super) fn serve_again(&mut self) {
        self.publish_age();
        let ScopePhase::Stale(ready) = self.phase.borrow().clone() else {
            return;
        };
        let key = &self.scope.key;
        tracing::info!(
            resource = %key.gvr,
            representation = %key.representation,
            "followed again; served from memory"
        );
        self.writer.resume();
        self.phase.send_replace(ScopePhase::Ready(ready));
    }

    pub(super) fn update_staleness(&mut self) {
        match self.staleness.tick(Instant::now()) {
            Some(StalenessChange::Recovered) => self.serve_again(),
            Some(StalenessChange::Exceeded) => {
                if self.staleness.has_limit() {
                    self.stop_serving();
                }
                if self.staleness.lacks_events() {
                    // What no watch brings, a list shows.
                    self.relist();
                }
            }
            None => {}
        }
    }

    /// Stops serving the scope, as it is too old, and ends its watches.
    pub(super) fn stop_serving(&mut self) {
        let key = &self.scope.key;
        let phase = self.phase.borrow().clone();
        match phase {
            ScopePhase::Ready(ready) => {
                tracing::warn!(
                    resource = %key.gvr,
                    selection = %key.selection,
                    "not followed for --max-staleness; requests are forwarded until it is"
                );
                // Before the watches end: their clients come back at once.
                self.phase.send_replace(ScopePhase::Stale(ready));
                self.writer.pause();
            }
            // Its watches may lack an event, so that they cannot go on elsewhere.
            ScopePhase::Quarantined | ScopePhase::SchemaChanged => self.writer.expire(),
            _ => {}
        }
    }

    /// Stops serving the scope, as its objects are not upstream's, and lists it again. The list
    /// expires its watches.
    ///
    /// A derived scope whose printed objects differ is listed in JSON. If it is not shown at the moment, the
    /// next check finds that again.
    pub(super) fn quarantine(&mut self, part: DifferingPart) {
        let phase = self.phase.borrow().clone();
        if let ScopePhase::Ready(_) | ScopePhase::Stale(_) = phase {
            // First, as scopes that are derived from this one may miss the phase.
            self.scope.differences.count_quarantine();
            if let Some(checkpoints) = &self.shared.earlier.checkpoints {
                checkpoints.discard(&self.scope.key);
            }
            self.phase.send_replace(ScopePhase::Quarantined);
            if part == DifferingPart::Print {
                self.feed.distrust();
            }
            self.relist();
        }
    }

    /// Records that upstream has changes that the watch does not bring, although it is open.
    pub(super) fn mark_lacking(&mut self) {
        self.staleness.mark_silent(DueChange::Event, Instant::now());
        self.publish_age();
    }

    /// Opens the watch again, as upstream has changes after `version` that it does not bring.
    pub(super) fn reopen(&mut self, version: ResourceVersion) {
        let is_open = self.scope.upstream.is_following()
            && self.feed.reflector().is_some_and(Reflector::reopen);
        if !is_open {
            return;
        }
        tracing::warn!(
            resource = %self.scope.key.gvr,
            selection = %self.scope.key.selection,
            %version,
            "the watch is open and does not bring what upstream has; opening it again"
        );
        self.count(&metrics::UPSTREAM_OVERDUE);
        self.overdue.record_reopening();
        self.reopened_with_others = false;
        self.staleness.mark_silent(DueChange::Event, Instant::now());
        self.mark_interrupted();
    }

    /// Returns `true` if something is due, and the watch was not opened again for others yet.
    pub(super) fn awaits_other_streams(&self) -> bool {
        self.staleness.lacks_something() && !self.reopened_with_others
    }

    /// Returns `true` if the watch is open and may be opened again for others.
    ///
    /// A list or a watch that is under way must not be cancelled for them: of many scopes that recover one after
    /// the other, each would have it begun anew.
    pub(super) fn may_reopen_with_others(&self) -> bool {
        self.scope.upstream.is_following() && self.awaits_other_streams()
    }

    /// Opens a watch that did not bring what was due again, as other streams bring something now. What held
    /// them up may be over, and the next attempt may be minutes away.
    ///
    /// It does so once after each time that the watch itself was found silent or to lack events. On a quiet
    /// type a new watch brings its first bookmark after a minute, and others must not keep it from that.
    pub(super) fn reopen_as_streams_do(&mut self) {
        if self.feed.reflector().is_some_and(Reflector::reopen) {
            tracing::info!(
                resource = %self.scope.key.gvr,
                selection = %self.scope.key.selection,
                "other watches bring something again; opening this one again, too"
            );
            self.mark_interrupted();
            self.reopened_with_others = true;
        }
    }

    /// Opens the watch again, as its server cannot be asked what is to be known about it. Does nothing
    /// if it is another server's by now.
    pub(super) fn reopen_instead_of(&mut self, server: &ServedBy) {
        let is_followed = self.continuity.is_certain()
            && self
                .feed
                .server()
                .is_some_and(|followed| followed.is_same(server));
        if is_followed && self.feed.reflector().is_some_and(Reflector::reopen) {
            tracing::debug!(
                resource = %self.scope.key.gvr,
                "the watch's connection takes no questions; opening it again"
            );
            self.mark_interrupted();
        }
    }

    /// Records that upstream's watch broke. A scope that was never listed is failing then.
    pub(super) fn mark_interrupted(&mut self) {
        if let Some(reflector) = self.feed.reflector() {
            if reflector.fell_silent() {
                self.reopened_with_others = false;
                self.staleness
                    .mark_silent(DueChange::Bookmark, Instant::now());
            } else if !reflector.sends_bookmarks() && self.staleness.expect_no_bookmarks() {
                // Nothing showed that what is held is upstream's for as long as bookmarks were due.
                self.relist();
            }
        }
        self.mark_lost();
        self.phase.send_if_modified(|phase| {
            let is_first = matches!(phase, ScopePhase::Syncing);
            if is_first {
                *phase = ScopePhase::Failing;
            }
            is_first
        });
    }
}
