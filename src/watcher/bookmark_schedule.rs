//! The moments at which a watch sends bookmarks.
use std::time::Duration;

use tokio::time::Instant;
use watershed_protocol::ResourceVersion;

/// Longest interval between bookmarks. Each one is up to a quarter shorter: after a mass reconnect,
/// many watches began together and must not wake together. Source: `cacher.go`
/// (defaultBookmarkFrequency).
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);
/// Pause before the second look for a bookmark that had no news. A proxy behind this one takes a watch for dead that
/// brings nothing for 90 seconds.
const BOOKMARK_AGAIN: Duration = Duration::from_secs(20);
/// Time before the deadline at which one more bookmark is sent.
/// Source: `cache_watcher.go` (nextBookmarkTime).
const BOOKMARK_BEFORE_DEADLINE: Duration = Duration::from_secs(2);

/// Knows when a watch sends its next bookmark, and when it ends.
pub(super) struct BookmarkSchedule {
    deadline: Instant,
    /// The next moment of a bookmark, the last bookmark or the deadline.
    tick: Instant,
    due: BookmarkDue,
}

/// The bookmark that is due.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BookmarkDue {
    /// Nobody asked for bookmarks.
    Never,
    Not,
    /// A bookmark, if it says more than the client knows.
    WithNews,
    /// None now, as it said nothing more. It is looked for again soon.
    Missed,
    /// Like [`BookmarkDue::WithNews`], at the second look.
    Again,
    /// The last bookmark. client-go lists again if a watch ends within a second without any event.
    /// Source: `client-go/tools/cache/reflector.go` (handleAnyWatch, `VeryShortWatchError`).
    InAnyCase,
}

impl BookmarkSchedule {
    /// Creates the schedule of a watch that begins now. Without bookmarks it has the deadline alone.
    pub(super) fn new(now: Instant, deadline: Instant, has_bookmarks: bool) -> Self {
        let (tick, due) = if has_bookmarks {
            (next_tick(now, deadline), BookmarkDue::Not)
        } else {
            (deadline, BookmarkDue::Never)
        };
        Self {
            deadline,
            tick,
            due,
        }
    }

    /// Returns the next moment of a bookmark or of the deadline.
    pub(super) fn wake(&self) -> Instant {
        self.tick
    }

    /// Returns `true` if the watch is to end.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.deadline
    }

    /// Moves the schedule to `now`, before the deadline.
    pub(super) fn advance_to(&mut self, now: Instant) {
        if now >= self.tick {
            self.due = match self.due {
                BookmarkDue::Missed => BookmarkDue::Again,
                _ => BookmarkDue::WithNews,
            };
            self.tick = next_tick(now, self.deadline);
        }
    }

    /// Has the last bookmark sent, in any case.
    pub(super) fn expect_last(&mut self) {
        if self.due != BookmarkDue::Never {
            self.due = BookmarkDue::InAnyCase;
        }
    }

    /// Returns `true` if a bookmark is due.
    pub(super) fn is_due(&self) -> bool {
        match self.due {
            BookmarkDue::Never | BookmarkDue::Not | BookmarkDue::Missed => false,
            BookmarkDue::WithNews | BookmarkDue::Again | BookmarkDue::InAnyCase => true,
        }
    }

    /// Takes the bookmark that is due. Returns `true` if one of `version` says what the client of a
    /// watch from `start` wants to know. If it says nothing new, it is due once more, soon:
    /// upstream's own, which comes every minute, may be about to arrive.
    pub(super) fn take(
        &mut self,
        version: ResourceVersion,
        start: ResourceVersion,
        now: Instant,
    ) -> bool {
        let is_met = match self.due {
            BookmarkDue::InAnyCase => version >= start,
            _ => version > start,
        };
        self.due = if self.due == BookmarkDue::WithNews && !is_met {
            self.tick = self.tick.min(now + BOOKMARK_AGAIN);
            BookmarkDue::Missed
        } else {
            BookmarkDue::Not
        };
        is_met
    }
}

/// Returns the next moment of a bookmark, or the deadline.
fn next_tick(now: Instant, deadline: Instant) -> Instant {
    let regular = now + BOOKMARK_EVERY.mul_f64(1.0 - fastrand::f64() / 4.0);
    match deadline.checked_sub(BOOKMARK_BEFORE_DEADLINE) {
        Some(last) if last > now => regular.min(last),
        _ => regular.min(deadline),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: ResourceVersion = ResourceVersion(10);
    const NEWS: ResourceVersion = ResourceVersion(11);

    /// Moves a schedule to its next moment. Returns the time that this takes.
    fn advance(schedule: &mut BookmarkSchedule, now: &mut Instant) -> Duration {
        let before = std::mem::replace(now, schedule.wake());
        schedule.advance_to(*now);
        *now - before
    }

    #[test]
    fn a_bookmark_without_news_is_looked_for_twice_and_then_a_minute_later() {
        let regular = BOOKMARK_EVERY.mul_f64(0.75)..=BOOKMARK_EVERY;
        let mut now = Instant::now();
        let mut schedule = BookmarkSchedule::new(now, now + Duration::from_mins(30), true);
        assert!(!schedule.is_due());
        assert!(regular.contains(&advance(&mut schedule, &mut now)));
        assert!(schedule.is_due() && !schedule.take(START, START, now));
        assert!(!schedule.is_due());
        assert_eq!(advance(&mut schedule, &mut now), BOOKMARK_AGAIN);
        assert!(schedule.is_due() && !schedule.take(START, START, now));
        assert!(regular.contains(&advance(&mut schedule, &mut now)));
        assert!(schedule.is_due() && schedule.take(NEWS, START, now));
        assert!(!schedule.is_due());
        schedule.expect_last();
        assert!(schedule.is_due() && schedule.take(START, START, now));
    }

    #[test]
    fn one_more_bookmark_is_due_just_before_the_deadline() {
        let mut now = Instant::now();
        let mut schedule = BookmarkSchedule::new(now, now + Duration::from_secs(30), true);
        assert_eq!(advance(&mut schedule, &mut now), Duration::from_secs(28));
        assert!(schedule.is_due() && !schedule.is_over(now));
        advance(&mut schedule, &mut now);
        assert!(schedule.is_over(now));
    }

    #[test]
    fn a_watch_without_bookmarks_has_a_deadline_alone() {
        let now = Instant::now();
        let deadline = now + Duration::from_mins(30);
        let mut schedule = BookmarkSchedule::new(now, deadline, false);
        assert_eq!(schedule.wake(), deadline);
        schedule.expect_last();
        assert!(!schedule.is_due());
    }
}
