//! Resumes upstream's watch behind a state that did not come by it: one of a checkpoint or another
//! replica, which is shown once upstream has proven to continue it, or one that was derived.
use std::sync::Arc;

use super::ScopePump;
use super::earlier_states::StateOrigin;
use super::properties::{StateProof, TypeProperties};
use crate::scope::metrics;
use crate::upstream::KnownState;

impl ScopePump {
    /// Takes an earlier state, if there is one that may be used. The next change resumes its watch.
    pub(super) async fn restore(&mut self) {
        // The source of a derived scope has a state of its own.
        let Some(reflector) = self.feed.reflector() else {
            return;
        };
        let budget = reflector.budget().clone();
        let found = tokio::select! {
            () = self.scope.signals.stopped() => None,
            found = self.shared.earlier.find(&self.scope, &budget) => found,
        };
        let Some((origin, stored)) = found else {
            return;
        };
        let snapshot = stored.objects.finish(stored.version);
        tracing::info!(
            resource = %self.scope.key.gvr,
            version = %stored.version,
            objects = snapshot.len(),
            from = origin.as_str(),
            "loaded an earlier state; resuming its watch without a list"
        );
        reflector.resume_after(KnownState {
            format: Arc::clone(&stored.ready.format),
            version: stored.version,
            last_event: stored.last_event,
            warnings: stored.ready.warnings.clone(),
        });
        drop(self.served.writer.replace(snapshot));
        self.scope.count_held();
        drop(stored.load);
        self.learn_bookmark(stored.bookmark);
        self.server
            .streaming
            .record_list(stored.ready.streams_initial_events);
        self.server.release.record_restored(stored.release);
        self.properties.restore(Arc::new(stored.ready), origin);
        metrics::may_be_lost(&self.scope.key.gvr);
        if origin == StateOrigin::Replica {
            self.continuity.believe_replica();
        }
        // Its version is one that upstream has shown: an older answer is of another history.
        self.scope.publish_version();
    }

    /// Has upstream's own watch continue what was derived so far. The scope's watches go on then: a
    /// list would end them.
    pub(super) fn resume_held(&mut self) {
        let reader = &self.scope.reader;
        let (Some(ready), Some(reflector)) = (self.properties.get(), self.feed.reflector()) else {
            return;
        };
        reflector.resume_after(KnownState {
            format: Arc::clone(&ready.format),
            version: reader.event_version(),
            last_event: reader.last_shown_event(),
            warnings: ready.warnings.clone(),
        });
        // Otherwise all objects would be read again to compare them.
        let printed_by = self.scope.print.release();
        if let Some(release) = printed_by {
            self.server.release.record_restored(release);
        }
    }

    /// Notes a proof of a restored state, and shows it once there are all.
    pub(super) fn record_proof(&mut self, proof: StateProof) {
        let Some((origin, ready)) = self.properties.prove(proof) else {
            return;
        };
        // Not earlier: nobody was shown a state that a list then replaces.
        let oldest = self.scope.reader.oldest_version();
        self.scope.history.record_beginning(oldest);
        origin.count("restored");
        tracing::info!(
            resource = %self.scope.key.gvr,
            from = origin.as_str(),
            "resumed without a list"
        );
        // It ages from now on, even if nothing ever arrives.
        self.served.mark_proven();
        self.served.phase.serve(ready);
    }

    /// Drops a restored state that upstream refuses to continue. The next change is a list, with
    /// the attempts and pauses of any first list.
    pub(super) fn give_up_restored(&mut self) {
        self.drop_held();
        self.relist();
        self.properties = TypeProperties::Unknown;
    }

    /// Drops a restored state, if there is one, as its server does not tell its release. Without that
    /// it is not known whether the server prints the objects as they are held.
    pub(super) fn give_up_without_release(&mut self) {
        if self.properties.is_restored() {
            self.shared.unanswered.record();
            tracing::warn!(
                resource = %self.scope.key.gvr,
                "upstream does not report its release, so the loaded state cannot be used; listing"
            );
            self.give_up_restored();
        }
    }

    /// Notes that a list replaces a restored state that upstream did not continue.
    pub(super) fn abandon_restored(&mut self) {
        if let Some(origin) = self.properties.abandon() {
            origin.count("not-continued");
        }
    }
}
