//! Takes a scope's state from a checkpoint, and shows it once upstream has proven to continue it.
use std::sync::Arc;

use super::metrics;
use super::phase::ScopePhase;
use super::pump::ScopePump;
use super::restoring::Restoring;
use crate::upstream::KnownState;

impl ScopePump {
    /// Takes the state of a checkpoint, if there is one that may be used. The next change resumes
    /// its watch.
    pub(super) async fn restore(&mut self) {
        // The source of a derived scope has a checkpoint of its own.
        let (Some(checkpoints), Some(reflector)) = (&self.checkpoints, self.feed.reflector())
        else {
            return;
        };
        let load = reflector.begin_load();
        let stored = tokio::select! {
            () = self.scope.stop.cancelled() => None,
            stored = checkpoints.read(&self.scope, load) => stored,
        };
        let Some(stored) = stored else { return };
        let snapshot = stored.objects.finish(stored.version);
        tracing::info!(
            resource = %self.scope.key.gvr,
            version = %stored.version,
            objects = snapshot.len(),
            "read a checkpoint; resuming its watch"
        );
        reflector.resume_after(KnownState {
            format: Arc::clone(&stored.ready.format),
            version: stored.version,
            last_event: stored.last_event,
            warnings: stored.ready.warnings.clone(),
        });
        self.scope.first_list.get_or_init(|| stored.version);
        drop(self.writer.replace(snapshot));
        self.scope.count_held();
        drop(stored.load);
        self.learn_bookmark(stored.bookmark);
        self.streaming.listed(stored.ready.streams_initial_events);
        self.release.restored(stored.release);
        self.ready = Some(Arc::new(stored.ready));
        self.restoring = Some(Restoring::default());
        // Its version is one that upstream has shown: an older answer is of another history.
        self.scope.publish_version();
    }

    /// Notes proofs of a restored state, and shows it once there are all.
    pub(super) fn restored(&mut self, prove: impl FnOnce(&mut Restoring)) {
        let Some(restoring) = &mut self.restoring else {
            return;
        };
        prove(restoring);
        let Restoring {
            is_followed,
            is_printed,
        } = *restoring;
        let Some(ready) = self.ready.clone().filter(|_| is_followed && is_printed) else {
            return;
        };
        self.restoring = None;
        metrics::checkpoint_read("restored");
        tracing::info!(resource = %self.scope.key.gvr, "resumed from a checkpoint without a list");
        // It ages from now on, even if nothing ever arrives.
        self.proven();
        self.phase.send_replace(ScopePhase::Ready(ready));
    }

    /// Drops a restored state that upstream refuses to continue. The next change is a list, with
    /// the attempts and pauses of any first list.
    pub(super) fn give_up_restored(&mut self) {
        self.drop_held();
        self.ready = None;
        self.relist();
    }

    /// Notes that a list replaces a restored state that upstream did not continue.
    pub(super) fn not_restored(&mut self) {
        if self.restoring.take().is_some() {
            metrics::checkpoint_read("not-continued");
        }
    }
}
