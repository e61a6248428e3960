//! Timeouts of one connection: idle, slow request head, stalled reader.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::activity::Activity;
use super::limits::ConnectionLimits;
use super::metrics::Cut;

/// Shortest interval between two checks.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// The action that a timeout asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeoutAction {
    /// Shut the connection down gracefully: it is idle, or its client is to use another one.
    ShutDown,
    /// Drop the connection.
    Cut(Cut),
}

/// Watches over one connection.
///
/// It has one timer for all timeouts, as there are many connections.
pub(super) struct ConnectionTimeouts<'a> {
    activity: &'a Activity,
    limits: &'a ConnectionLimits,
    phase: ShutdownPhase,
    timer: Pin<Box<Sleep>>,
}

/// Progress of a connection's shutdown.
#[derive(Clone, Copy)]
enum ShutdownPhase {
    Open,
    /// It was asked to end, and goes on while requests run. From this moment on it is cut when none
    /// has run for the idle time.
    Ending(Instant),
    /// The drain asked it to end, and also cuts it.
    Draining,
}

impl<'a> ConnectionTimeouts<'a> {
    pub(super) fn new(activity: &'a Activity, limits: &'a ConnectionLimits) -> Self {
        Self {
            activity,
            limits,
            phase: ShutdownPhase::Open,
            timer: Box::pin(sleep(Duration::ZERO)),
        }
    }

    /// Notes that the drain has begun. Returns `true` if the connection was not asked to end yet.
    pub(super) fn drain(&mut self) -> bool {
        let open = matches!(self.phase, ShutdownPhase::Open);
        if open {
            self.phase = ShutdownPhase::Draining;
        }
        open
    }

    /// Completes when an action is due. It may be polled again after [`TimeoutAction::ShutDown`].
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<TimeoutAction> {
        self.activity.register(context);
        if let Some(cut) = self.activity.condemned() {
            return Poll::Ready(TimeoutAction::Cut(cut));
        }
        if self.activity.is_leaving() && matches!(self.phase, ShutdownPhase::Open) {
            self.phase = ShutdownPhase::Ending(Instant::now() + self.limits.idle);
            return Poll::Ready(TimeoutAction::ShutDown);
        }
        loop {
            // Timeouts that begin meanwhile are due later than the timer.
            ready!(self.timer.as_mut().poll(context));
            match self.look(Instant::now()) {
                Ok(next) => self.timer.as_mut().reset(next),
                Err(due) => return Poll::Ready(due),
            }
        }
    }

    /// Returns the time of the next check, or the action that is due as an error.
    fn look(&mut self, now: Instant) -> Result<Instant, TimeoutAction> {
        let ConnectionLimits {
            idle, start, head, ..
        } = *self.limits;
        let mut next = now + idle.max(MIN_INTERVAL);
        let mut watch = |at: Option<Instant>, limit: Duration, cut| match at {
            Some(at) if at <= now => Err(TimeoutAction::Cut(cut)),
            at => {
                next = next.min(at.unwrap_or(now + limit.max(MIN_INTERVAL)));
                Ok(())
            }
        };
        watch(self.activity.head_at(self.limits), head, Cut::Head)?;
        if let Some(stall) = self.activity.allowed_stall(self.limits) {
            watch(self.activity.stalled_at(stall), stall, Cut::Stall)?;
        }
        let busy = self.activity.is_busy();
        match self.phase {
            // A busy connection is not idle: check again after a whole idle time.
            ShutdownPhase::Open if busy => {}
            ShutdownPhase::Open => match self.activity.idle_at(self.limits) {
                at if at <= now => {
                    // Who has not asked in time is not waited for much longer.
                    let left = if self.activity.has_asked() {
                        idle
                    } else {
                        start
                    };
                    self.phase = ShutdownPhase::Ending(now + left);
                    return Err(TimeoutAction::ShutDown);
                }
                at => next = next.min(at),
            },
            ShutdownPhase::Ending(until) if until <= now && busy => {
                self.phase = ShutdownPhase::Ending(now + idle);
            }
            // The client sent half a head, or does not read the last bytes of an answer. One that
            // has ended just now may still have to be written.
            ShutdownPhase::Ending(until) if until <= now => {
                match self.activity.idle_at(self.limits) {
                    at if at <= now => return Err(TimeoutAction::Cut(Cut::Idle)),
                    at => next = next.min(at),
                }
            }
            ShutdownPhase::Ending(until) => next = next.min(until),
            ShutdownPhase::Draining => {}
        }
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::activity::RunningRequest;
    use super::*;

    #[tokio::test]
    async fn a_connection_that_was_left_is_cut_a_whole_idle_time_after_its_last_answer() {
        let (activity, limits) = (Activity::alone(), ConnectionLimits::default());
        activity.begin();
        let running = RunningRequest::new(&activity);
        let mut timeouts = ConnectionTimeouts::new(&activity, &limits);
        let begun = Instant::now();
        // A GOAWAY of some time ago.
        timeouts.phase = ShutdownPhase::Ending(begun);
        let next = timeouts.look(begun).unwrap();
        assert!(next > begun, "a request runs");
        drop(running);
        timeouts.phase = ShutdownPhase::Ending(begun);
        let idle_at = activity.idle_at(&limits);
        let next = timeouts.look(Instant::now()).unwrap();
        assert!(
            next <= idle_at,
            "the end of the answer may still be written"
        );
        let cut = TimeoutAction::Cut(Cut::Idle);
        assert_eq!(timeouts.look(idle_at), Err(cut));
    }
}
