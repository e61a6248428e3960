//! Opens a watch again that does not bring what is due, and gives up what is not upstream's.
use watershed_protocol::ResourceVersion;

use super::ScopePump;
use super::overdue::MissingEvent;
use super::served::DeliveryChange;
use super::staleness::DueChange;
use crate::scope::cached::DifferingPart;
use crate::scope::metrics;
use crate::upstream::{Reflector, ServedBy};

impl ScopePump {
    /// Notes what the watch does not bring, and asks upstream anew where that may help.
    pub(super) fn handle_delivery(&mut self, change: DeliveryChange) {
        match change {
            DeliveryChange::EventMissing(MissingEvent::Late) => self.served.mark_lacking(),
            DeliveryChange::EventMissing(MissingEvent::Overdue(version)) => self.reopen(version),
            DeliveryChange::OthersDeliver => self.reopen_as_streams_do(),
            DeliveryChange::TooOld => self.relist(),
        }
    }

    /// Records that the watch brought an event or a bookmark.
    pub(super) fn mark_delivered(&mut self) {
        if self.served.staleness.lacks_something() {
            self.served.others.tell_others();
        }
        self.served.mark_heard();
    }

    /// Stops serving the scope, as its objects are not upstream's, and lists it again. The list
    /// expires its watches.
    ///
    /// A derived scope whose printed objects differ is listed in JSON. If it is not shown at the moment, the
    /// next check finds that again.
    pub(super) fn quarantine(&mut self, part: DifferingPart) {
        if self.served.phase.is_held() {
            // First, as scopes that are derived from this one may miss the phase.
            self.scope.differences.count_quarantine();
            if let Some(checkpoints) = &self.shared.earlier.checkpoints {
                checkpoints.discard(&self.scope.key);
            }
            self.served.phase.quarantine();
            if part == DifferingPart::Print {
                self.feed.distrust();
            }
            self.relist();
        }
    }

    /// Opens the watch again, as upstream has changes after `version` that it does not bring.
    fn reopen(&mut self, version: ResourceVersion) {
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
        self.served.overdue.record_reopening();
        self.served.mark_silent(DueChange::Event);
        self.mark_interrupted();
    }

    /// Opens a watch that did not bring what was due again, as other streams bring something now. What held
    /// them up may be over, and the next attempt may be minutes away.
    ///
    /// It does so once after each time that the watch itself was found silent or to lack events. On a quiet
    /// type a new watch brings its first bookmark after a minute, and others must not keep it from that.
    fn reopen_as_streams_do(&mut self) {
        if self.feed.reflector().is_some_and(Reflector::reopen) {
            tracing::info!(
                resource = %self.scope.key.gvr,
                selection = %self.scope.key.selection,
                "other watches bring something again; opening this one again, too"
            );
            self.mark_interrupted();
            self.served.others.mark_reopened();
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
            self.scope.upstream.set_failure(reflector.last_failure());
            if reflector.fell_silent() {
                self.served.mark_silent(DueChange::Bookmark);
            } else if !reflector.sends_bookmarks() && self.served.staleness.expect_no_bookmarks() {
                // Nothing showed that what is held is upstream's for as long as bookmarks were due.
                self.relist();
            }
        }
        self.served.mark_lost();
        self.served.phase.fail_first_list();
    }
}
