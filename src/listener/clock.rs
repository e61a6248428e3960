//! What the clock has to say about a connection: that it is idle, or that its client has to be cut.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

use super::activity::Activity;
use super::limits::ConnectionLimits;
use super::metrics::Cut;

/// Nothing is looked at more often.
const LEAST: Duration = Duration::from_millis(10);

/// What is to be done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// It has nothing to do: ask it to end.
    End,
    /// Drop it.
    Cut(Cut),
}

/// Watches over one connection with one timer, as there are many connections.
pub(super) struct Clock<'a> {
    activity: &'a Activity,
    limits: &'a ConnectionLimits,
    phase: Phase,
    timer: Pin<Box<Sleep>>,
}

/// How far a connection is on its way to the end.
#[derive(Clone, Copy)]
enum Phase {
    Open,
    /// It was asked to end as it is idle, and is cut at this moment if nothing runs on it.
    Idle(Instant),
    /// It was asked to end by the drain, which also cuts it.
    Draining,
}

impl<'a> Clock<'a> {
    pub(super) fn new(activity: &'a Activity, limits: &'a ConnectionLimits) -> Self {
        Self {
            activity,
            limits,
            phase: Phase::Open,
            timer: Box::pin(sleep(Duration::ZERO)),
        }
    }

    /// The drain has begun. Whether the connection was not asked to end yet.
    pub(super) fn drain(&mut self) -> bool {
        let open = matches!(self.phase, Phase::Open);
        if open {
            self.phase = Phase::Draining;
        }
        open
    }

    /// Is ready when something is due. May be polled again after [`Due::End`].
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Due> {
        if self.activity.is_resetting(context) {
            return Poll::Ready(Due::Cut(Cut::Resets));
        }
        loop {
            // What begins meanwhile is due later than the timer, whatever it was set for.
            ready!(self.timer.as_mut().poll(context));
            match self.look(Instant::now()) {
                Ok(next) => self.timer.as_mut().reset(next),
                Err(due) => return Poll::Ready(due),
            }
        }
    }

    /// What is due, or when to look again.
    fn look(&mut self, now: Instant) -> Result<Instant, Due> {
        let ConnectionLimits {
            idle, head, stall, ..
        } = *self.limits;
        let mut next = now + idle.max(LEAST);
        let mut watch = |at: Option<Instant>, limit: Duration, cut| match at {
            Some(at) if at <= now => Err(Due::Cut(cut)),
            at => {
                next = next.min(at.unwrap_or(now + limit.max(LEAST)));
                Ok(())
            }
        };
        if self.activity.is_http1() {
            watch(self.activity.head_at(self.limits), head, Cut::Head)?;
        }
        if !stall.is_zero() {
            watch(self.activity.stalled_at(self.limits), stall, Cut::Stall)?;
        }
        let busy = self.activity.is_busy();
        match self.phase {
            // While requests run, looking again after a whole idle time will do; it is only about
            // tidiness.
            Phase::Open if busy => {}
            Phase::Open => match self.activity.idle_at(self.limits) {
                at if at <= now => {
                    self.phase = Phase::Idle(now + idle);
                    return Err(Due::End);
                }
                at => next = next.min(at),
            },
            // Half a head, or answers whose last bytes nobody takes.
            Phase::Idle(until) if until <= now && !busy => return Err(Due::Cut(Cut::Idle)),
            Phase::Idle(until) if until <= now => self.phase = Phase::Idle(now + idle),
            Phase::Idle(until) => next = next.min(until),
            Phase::Draining => {}
        }
        Ok(next)
    }
}
