//! The time for which a scope has been without upstream's changes.
//!
//! A watch that was cut is followed again once it is open. One that brought nothing, although a bookmark
//! or an event was due, may be open again and bring nothing again: something on the way takes watches and
//! passes nothing on. Then only an event, a bookmark or a list shows that changes arrive.
use std::time::Duration;

use tokio::time::Instant;

/// Time for which a reopened watch must stay open to count as followed, if it brings nothing. A
/// watch that breaks at once, again and again, follows nothing. It is at most half of the limit, so
/// that a watch that is cut once does not make the scope stale.
const PROBATION: Duration = Duration::from_secs(5);
/// Age at which a scope without a limit is listed, if upstream has events that no watch brings.
const LIST_AFTER: Duration = Duration::from_mins(5);

/// Tells a scope's task how long the scope has not followed upstream.
///
/// A quiet type is followed for as long as its watch is open.
#[derive(Debug)]
pub(super) struct StalenessClock {
    /// Age at which the scope is too old; `None` for never.
    limit: Option<Duration>,
    state: FollowState,
    /// The last list, event or bookmark.
    heard: Instant,
}

/// The arrival of upstream's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FollowState {
    /// The scope was never listed, or it stopped: it has no age.
    Unlisted,
    /// They arrive.
    Followed,
    /// They do not.
    Lost {
        since: Instant,
        /// The watch is open again, and has brought nothing yet.
        reopened: Option<Instant>,
        /// The change that was due. If there was one, an open watch proves nothing.
        due: DueChange,
        /// The moment before which the scope is not too old.
        not_before: Instant,
        is_stale: bool,
    },
}

/// A change that an open watch did not bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DueChange {
    /// None is known.
    None,
    /// A bookmark: upstream sends them.
    Bookmark,
    /// An event: upstream was found to have other objects.
    Event,
}

/// A change that comes with time alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StalenessChange {
    /// The scope follows upstream again.
    Recovered,
    /// The scope is older than its limit. One without a limit is older than it should be, as upstream has
    /// events that its watches do not bring.
    Exceeded,
}

impl StalenessClock {
    /// Creates the clock of a scope that was not listed yet. A limit of zero stands for none.
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit: Some(limit).filter(|limit| !limit.is_zero()),
            state: FollowState::Unlisted,
            heard: Instant::now(),
        }
    }

    /// Returns `true` if the scope becomes too old some time after its changes have ceased to arrive.
    pub(super) fn has_limit(&self) -> bool {
        self.limit.is_some()
    }

    /// Records a list, an event or a bookmark. Returns `true` if the scope was not followed before.
    pub(super) fn mark_heard(&mut self, now: Instant) -> bool {
        self.heard = now;
        let before = std::mem::replace(&mut self.state, FollowState::Followed);
        before != FollowState::Followed
    }

    /// Records that the watch is open again.
    pub(super) fn mark_reopened(&mut self, now: Instant) {
        if let FollowState::Lost { reopened, .. } = &mut self.state {
            *reopened = Some(now);
        }
    }

    /// Records that the watch broke, or that the scope must be listed again.
    pub(super) fn mark_lost(&mut self, now: Instant) {
        match &mut self.state {
            FollowState::Unlisted => {}
            FollowState::Followed => {
                self.state = FollowState::Lost {
                    since: now,
                    reopened: None,
                    due: DueChange::None,
                    not_before: now,
                    is_stale: false,
                };
            }
            FollowState::Lost { reopened, .. } => *reopened = None,
        }
    }

    /// Records that the watch was open and did not bring what was due. The changes have not arrived since it
    /// was heard last. An event may still come within a moment, before the scope is too old.
    pub(super) fn mark_silent(&mut self, missing: DueChange, now: Instant) {
        self.mark_lost(self.heard);
        let probation = self.probation();
        if let FollowState::Lost {
            since,
            due,
            not_before,
            ..
        } = &mut self.state
        {
            *since = self.heard.min(*since);
            if missing == DueChange::Event && *due != DueChange::Event {
                *not_before = now + probation;
            }
            *due = missing.max(*due);
        }
    }

    /// Records that upstream sends no bookmarks of the type. Returns `true` if one was due until now: nothing
    /// shows then that the changes arrive.
    pub(super) fn expect_no_bookmarks(&mut self) -> bool {
        match &mut self.state {
            FollowState::Lost { due, .. } if *due == DueChange::Bookmark => {
                *due = DueChange::None;
                true
            }
            _ => false,
        }
    }

    /// Returns `true` if upstream has events that the watch does not bring.
    pub(super) fn lacks_events(&self) -> bool {
        matches!(
            self.state,
            FollowState::Lost {
                due: DueChange::Event,
                ..
            }
        )
    }

    /// Returns `true` if something was due that the watch did not bring.
    pub(super) fn lacks_something(&self) -> bool {
        match self.state {
            FollowState::Lost { due, .. } => due != DueChange::None,
            FollowState::Unlisted | FollowState::Followed => false,
        }
    }

    /// Makes a scope whose changes do not arrive too old before its time. Returns `false` if it is,
    /// or has no age.
    pub(super) fn exceed(&mut self) -> bool {
        match &mut self.state {
            FollowState::Lost { is_stale, .. } => !std::mem::replace(is_stale, true),
            FollowState::Unlisted | FollowState::Followed => false,
        }
    }

    /// Records the end of the scope.
    pub(super) fn stop(&mut self) {
        self.state = FollowState::Unlisted;
    }

    /// Returns the moment at which the changes stopped arriving; `None` while they arrive.
    pub(super) fn lost_since(&self) -> Option<Instant> {
        match self.state {
            FollowState::Lost { since, .. } => Some(since),
            FollowState::Unlisted | FollowState::Followed => None,
        }
    }

    /// Returns the moment at which [`StalenessClock::tick`] has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        let moments = [self.recovers_at(), self.exceeds_at()];
        moments.into_iter().flatten().min()
    }

    /// Moves the clock to `now`. Returns what changed.
    pub(super) fn tick(&mut self, now: Instant) -> Option<StalenessChange> {
        let is_over = |at: Instant| now >= at;
        if self.recovers_at().is_some_and(is_over) {
            self.state = FollowState::Followed;
            return Some(StalenessChange::Recovered);
        }
        if self.exceeds_at().is_some_and(is_over) {
            self.exceed();
            return Some(StalenessChange::Exceeded);
        }
        None
    }

    /// Returns the moment at which a reopened watch counts as followed, if it brings nothing until then.
    fn recovers_at(&self) -> Option<Instant> {
        match self.state {
            FollowState::Lost {
                reopened,
                due: DueChange::None,
                ..
            } => reopened.map(|at| at + self.probation()),
            _ => None,
        }
    }

    /// Returns the moment at which the scope becomes too old.
    fn exceeds_at(&self) -> Option<Instant> {
        match self.state {
            FollowState::Lost {
                since,
                not_before,
                due,
                is_stale: false,
                ..
            } => {
                let other = (due == DueChange::Event).then_some(LIST_AFTER);
                let limit = self.limit.or(other)?;
                Some(not_before.max(since + limit))
            }
            _ => None,
        }
    }

    fn probation(&self) -> Duration {
        self.limit
            .map_or(PROBATION, |limit| PROBATION.min(limit / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_mins(5);

    fn second(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    /// Lets time pass up to `end`. Returns the changes with their times.
    fn changes(
        clock: &mut StalenessClock,
        from: Instant,
        end: Duration,
    ) -> Vec<(Duration, StalenessChange)> {
        let mut changes = Vec::new();
        while let Some(at) = clock.due().filter(|at| *at <= from + end) {
            changes.extend(clock.tick(at).map(|change| (at - from, change)));
        }
        changes
    }

    #[test]
    fn a_scope_whose_source_is_stale_is_so_before_its_limit() {
        let begin = Instant::now();
        let mut clock = StalenessClock::new(LIMIT);
        assert!(!clock.exceed(), "it was never listed");
        clock.mark_heard(begin);
        clock.mark_lost(begin);
        assert!(clock.exceed());
        assert!(!clock.exceed(), "it is");
        assert_eq!(clock.due(), None, "the limit is passed already");
        clock.mark_reopened(begin);
        assert_eq!(
            changes(&mut clock, begin, LIMIT),
            [(PROBATION, StalenessChange::Recovered)]
        );
    }

    #[test]
    fn a_scope_is_stale_once_its_watch_was_lost_for_the_limit() {
        let begin = Instant::now();
        let mut clock = StalenessClock::new(LIMIT);
        clock.mark_heard(begin);
        assert_eq!(clock.due(), None, "a quiet type does not age");
        clock.mark_lost(begin);
        clock.mark_lost(begin + second(9));
        assert_eq!(clock.lost_since(), Some(begin));
        assert_eq!(
            changes(&mut clock, begin, second(9999)),
            [(LIMIT, StalenessChange::Exceeded)]
        );
        assert!(clock.mark_heard(begin));
        assert_eq!((clock.lost_since(), clock.due()), (None, None));
    }

    #[test]
    fn a_watch_that_breaks_again_and_again_follows_nothing() {
        let begin = Instant::now();
        let mut clock = StalenessClock::new(LIMIT);
        clock.mark_heard(begin);
        clock.mark_lost(begin);
        for n in 1..=100 {
            clock.mark_reopened(begin + second(4 * n));
            clock.mark_lost(begin + second(4 * n + 3));
        }
        assert_eq!(clock.lost_since(), Some(begin));
        assert_eq!(clock.tick(begin + LIMIT), Some(StalenessChange::Exceeded));
    }

    #[test]
    fn a_reopened_watch_that_stays_open_ends_the_staleness() {
        let begin = Instant::now();
        let mut clock = StalenessClock::new(LIMIT);
        clock.mark_heard(begin);
        clock.mark_lost(begin);
        clock.mark_reopened(begin + LIMIT - second(1));
        assert_eq!(
            changes(&mut clock, begin, second(9999)),
            [
                (LIMIT, StalenessChange::Exceeded),
                (LIMIT + second(4), StalenessChange::Recovered)
            ]
        );
        assert_eq!(clock.lost_since(), None);
    }

    #[test]
    fn a_watch_that_is_opened_again_and_brings_nothing_again_follows_nothing() {
        let begin = Instant::now();
        let mut clock = StalenessClock::new(LIMIT);
        clock.mark_heard(begin);
        for n in 1..=3 {
            clock.mark_silent(DueChange::Bookmark, begin);
            clock.mark_reopened(begin + second(90 * n));
        }
        assert_eq!(clock.lost_since(), Some(begin), "it was heard then");
        assert_eq!(
            changes(&mut clock, begin, second(9999)),
            [(LIMIT, StalenessChange::Exceeded)]
        );
        assert!(clock.expect_no_bookmarks());
        assert!(!clock.expect_no_bookmarks(), "it was told");
        clock.mark_silent(DueChange::Bookmark, begin);
        assert!(clock.mark_heard(begin + second(400)));
        clock.mark_lost(begin + second(401));
        clock.mark_reopened(begin + second(402));
        assert_eq!(
            changes(&mut clock, begin, second(9999)),
            [(second(402) + PROBATION, StalenessChange::Recovered)]
        );
    }

    #[test]
    fn events_that_do_not_come_are_due_even_if_no_bookmarks_are() {
        let begin = Instant::now();
        let mut clock = StalenessClock::new(LIMIT);
        clock.mark_heard(begin);
        clock.mark_silent(DueChange::Event, begin);
        for n in 1..=3 {
            clock.mark_silent(DueChange::Bookmark, begin);
            assert!(!clock.expect_no_bookmarks());
            clock.mark_reopened(begin + second(90 * n));
        }
        assert!(clock.lacks_events());
        assert_eq!(
            changes(&mut clock, begin, second(9999)),
            [(LIMIT, StalenessChange::Exceeded)]
        );
        let heard = begin + second(400);
        assert!(clock.mark_heard(heard));
        assert!(!clock.lacks_events());
        // After hours of silence there is still time for the watch that is opened again.
        let found = heard + 100 * LIMIT;
        clock.mark_silent(DueChange::Event, found);
        assert_eq!(clock.due(), Some(found + PROBATION));
        assert_eq!(clock.tick(found), None);
    }

    #[test]
    fn a_quiet_watch_that_is_cut_once_does_not_exceed_a_short_limit() {
        let begin = Instant::now();
        let mut clock = StalenessClock::new(second(2));
        clock.mark_heard(begin);
        clock.mark_lost(begin);
        clock.mark_reopened(begin);
        assert_eq!(
            changes(&mut clock, begin, second(9999)),
            [(second(1), StalenessChange::Recovered)]
        );
    }

    #[test]
    fn scopes_without_a_list_have_no_age_and_those_without_a_limit_are_listed_if_events_are_due() {
        let begin = Instant::now();
        let mut unlisted = StalenessClock::new(LIMIT);
        unlisted.mark_lost(begin);
        assert_eq!((unlisted.due(), unlisted.lost_since()), (None, None));
        let mut unlimited = StalenessClock::new(Duration::ZERO);
        unlimited.mark_heard(begin);
        unlimited.mark_lost(begin);
        assert_eq!(unlimited.due(), None);
        assert_eq!(unlimited.lost_since(), Some(begin), "its age is known");
        unlimited.mark_silent(DueChange::Event, begin);
        unlimited.mark_reopened(begin);
        assert_eq!(
            changes(&mut unlimited, begin, second(9999)),
            [(LIST_AFTER, StalenessChange::Exceeded)],
            "it has to be listed"
        );
    }
}
