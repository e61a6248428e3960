//! Ends a scope's task, or prepares another attempt after a refusal.
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::time::sleep;

use super::ScopePump;
use crate::budget::DoesNotFit;
use crate::scope::cached::discard;
use crate::scope::metrics;
use crate::upstream::Stopped;

/// Time after which a scope that was never ready is given up, and before which a representation
/// that upstream does not have is not asked for again. Requests are forwarded meanwhile.
pub(crate) const REOPEN_AFTER: Duration = Duration::from_secs(30);
/// Shortest pause between attempts of a scope that was never ready.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Time after which memory that was dropped has left the process.
const ROOM_AFTER: Duration = Duration::from_secs(12);

impl ScopePump {
    /// Prepares another attempt after a refusal, if the scope was never ready. Returns `false` if
    /// the refusal is final.
    ///
    /// One answer may be an accident: a load balancer's page, or an API server that does not know
    /// the roles yet. Requests are forwarded meanwhile, and the pauses grow as long as it lasts.
    pub(super) fn tries_again(&mut self, stopped: &Stopped) -> bool {
        if self.properties.is_restored() && *stopped != Stopped::Closed {
            self.give_up_restored();
            return true;
        }
        if let Stopped::DoesNotFit(DoesNotFit { needed, .. }) = stopped
            && self.makes_room(*needed)
        {
            return true;
        }
        // On-demand scopes that recover by themselves would not count against their limit.
        if !self.properties.is_unknown() || self.scope.on_demand || !stopped.may_pass() {
            return false;
        }
        let lasts = if let Some(since) = self.refused_since {
            since.elapsed()
        } else {
            self.refused_since = Some(Instant::now());
            self.report_stop(stopped);
            Duration::ZERO
        };
        if lasts >= REOPEN_AFTER {
            return false;
        }
        self.served.phase.stop(stopped.clone());
        let jitter = 0.75 + fastrand::f64() / 2.0;
        self.feed.pause(lasts.max(FIRST_RETRY).mul_f64(jitter));
        true
    }

    /// Drops what is held of a scope whose new list does not fit beside it, and lists it again once
    /// that memory is free. Returns `false` if nothing is held.
    fn makes_room(&mut self, needed: usize) -> bool {
        let held = self.scope.held();
        if held == 0 {
            return false;
        }
        tracing::info!(
            resource = %self.scope.key.gvr,
            held,
            needed,
            "dropped the old state, as it does not fit into memory beside the new list (--memory-limit)"
        );
        // A derivation that goes on from here would never show what was dropped.
        self.relist();
        self.drop_held();
        self.feed.pause(ROOM_AFTER);
        true
    }

    /// Logs and counts that the scope cannot be cached.
    fn report_stop(&self, reason: &Stopped) {
        let key = &self.scope.key;
        let is_lost = !self.properties.is_unknown() && metrics::LOSSES.contains(&reason.as_str());
        if is_lost {
            tracing::warn!(
                resource = %key.gvr,
                selection = %key.selection,
                representation = %key.representation,
                %reason,
                "not cached any more; its requests are forwarded"
            );
            metrics::LOST
                .with(metrics::with_type(&key.gvr, reason.as_str()))
                .increment(1);
        } else if *reason == Stopped::Closed {
            tracing::debug!(
                resource = %key.gvr,
                representation = %key.representation,
                "closed"
            );
        } else {
            tracing::info!(
                resource = %key.gvr,
                selection = %key.selection,
                representation = %key.representation,
                %reason,
                "not cached; its requests are forwarded"
            );
        }
        metrics::STOPPED
            .with(metrics::with_type(&key.gvr, reason.as_str()))
            .increment(1);
    }
}

impl Drop for ScopePump {
    /// However the task ends, even by a panic, nobody may wait for a scope that stands still.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stopped = Stopped::Failed;
        }
        let tried_again = self.refused_since.is_some();
        if !tried_again || self.stopped == Stopped::Closed {
            self.report_stop(&self.stopped);
        }
        self.scope.upstream.set_following(false);
        self.served.staleness.stop();
        self.served.publish_age();
        self.served.phase.stop(self.stopped.clone());
        let is_too_large = matches!(self.stopped, Stopped::DoesNotFit(_));
        if is_too_large || self.scope.memory.is_to_be_freed() {
            let charges = self.scope.memory.charges.lock().take();
            let released = self.served.writer.release();
            // Others may have counted what was held after its charges were taken.
            self.scope.count_held();
            discard(released, charges);
        } else {
            self.served.writer.close();
        }
        if let Stopped::DoesNotFit(size) = self.stopped {
            // The next request finds it there, and opens no scope before it may fit.
            let key = self.scope.key.clone();
            self.shared.unfit.add(key, size, Instant::now());
            self.shared.open.forget(&self.scope);
            return;
        }
        // A scope that was closed is not among the open ones any more.
        if self.stopped == Stopped::Closed {
            return;
        }
        // A scope that was refused for long enough makes room for one with pauses of its own.
        let was_retried = tried_again || !self.properties.is_unknown();
        let remembered = if was_retried && self.stopped != Stopped::Failed {
            Duration::ZERO
        } else {
            REOPEN_AFTER
        };
        if let Ok(runtime) = Handle::try_current() {
            let scope = Arc::downgrade(&self.scope);
            let open = self.shared.open.clone();
            runtime.spawn(async move {
                sleep(remembered).await;
                if let Some(scope) = scope.upgrade() {
                    open.forget(&scope);
                }
            });
        }
    }
}
