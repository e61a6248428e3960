//! Recovery after attempts that failed: the time of the next one, its start, and its server.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::backoff::{Backoff, PauseRange};
use crate::upstream::pacing::Pacing;
use watershed_connect::Address;

/// Pauses between attempts.
const ATTEMPTS: PauseRange = PauseRange::new(Duration::from_millis(200), Duration::from_secs(5));
/// Longest pause that upstream can ask for.
const MAX_ASKED: Duration = Duration::from_secs(15);
/// Time over which lists are spread after an outage.
const SPREAD: Duration = Duration::from_secs(1);
/// Least pause between attempts to connect, and the time over which they are spread, once somebody
/// has connected.
const CONNECTED: Duration = Duration::from_millis(200);
/// Pauses between lists, and after answers that cannot be read.
const LISTS: PauseRange = PauseRange::new(Duration::from_millis(500), Duration::from_secs(30));
/// Pauses between the lists that follow a change of the schema.
const REBUILT_LISTS: PauseRange = PauseRange::new(LISTS.first, Duration::from_secs(5));
/// Time after which bad answers of one kind in a row are not expected to pass.
const LASTING: Duration = Duration::from_secs(30);
/// Bad answers within that time that show it. A pair with a long silence between them does not.
const LASTING_COUNT: u32 = 3;
/// Time between two bad answers that are not in a row. No pause and no wait for an answer is as long.
const APART: Duration = Duration::from_mins(2);
/// Bad answers in a row after which only every second attempt goes elsewhere. Each of these makes a
/// connection.
const ELSEWHERE: u32 = 2;
/// Servers that attempts avoid, at most. Addresses may change while nothing succeeds.
const AVOIDED: usize = 16;
/// Unreadable answers in a row for which the watch is resumed. The next one has the type listed.
const UNREADABLE: u32 = 1;

/// The failures so far, and what follows from them.
#[derive(Debug)]
pub(super) struct Recovery {
    /// Pauses between attempts, until one succeeds.
    attempts: Backoff,
    /// Pauses between lists, until all has been well for a while.
    lists: Pacing,
    /// Pauses between the lists that follow the last change of the schema. Upstream ends watches and
    /// forgets versions then, which is no failure.
    rebuilt_lists: Pacing,
    /// Expired answers in a row; other API servers may still have the version.
    expirations: usize,
    /// Bad answers in a row: refusals, and answers that cannot be read.
    bad_answers: u32,
    /// Of these, answers in a row that cannot be read.
    unreadable: u32,
    /// Refusals in a row.
    refusals: Repetition,
    /// Watches in a row that failed as they may at one version alone.
    version_failures: Repetition,
    /// The standing that follows from these failures.
    version: VersionStanding,
    /// The servers of bad and expired answers, that of the last one at the end.
    avoid: Vec<Address>,
    /// The grant so far, by which a refusal may be an accident.
    granted: Granted,
    /// The type is gone, so a refusal is no surprise.
    type_removed: bool,
    /// Earliest moment of the next attempt, by the failures so far.
    retry_at: Option<Instant>,
    /// Earliest moment of the next attempt, by the caller's wish.
    paused_until: Option<Instant>,
    /// The last attempt made no connection: the next one waits until this moment, or for a
    /// connection.
    disconnected: Option<(Instant, watch::Receiver<u64>)>,
}

/// The grant of upstream to follow a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Granted {
    /// Not yet.
    No,
    /// An earlier process or reflector followed it. This one was refused first at that moment.
    Earlier(Option<Instant>),
    /// It was followed.
    Yes,
}

/// Bad answers of one kind in a row.
#[derive(Debug, Default)]
struct Repetition {
    count: u32,
    since: Option<Instant>,
    last: Option<Instant>,
}

impl Repetition {
    /// Counts one more. Returns `true` if they are not expected to pass.
    fn lasts(&mut self) -> bool {
        // All went well between them, even if nothing showed it.
        if self.last.is_some_and(|last| last.elapsed() >= APART) {
            *self = Self::default();
        }
        self.count = self.count.saturating_add(1);
        self.last = Some(Instant::now());
        let since = self.since.get_or_insert_with(Instant::now).elapsed();
        since >= LASTING && self.count >= LASTING_COUNT
    }
}

/// The standing of the version from which watches go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VersionStanding {
    /// Watches from it do not fail, or not for long.
    Good,
    /// They fail, and that is not expected to pass. Whether lists are answered is unknown.
    Suspect,
    /// The same, and lists are answered: one more failure gives it up.
    Lost,
}

/// The server that an attempt should go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Any.
    Any,
    /// Another one than these, or the first of them, or at least another connection, which may lead
    /// elsewhere through a load balancer.
    Elsewhere(Vec<Address>),
}

impl Recovery {
    pub(super) fn new() -> Self {
        Self {
            attempts: ATTEMPTS.backoff(),
            lists: Pacing::new(LISTS),
            rebuilt_lists: Self::after_schema_change(),
            expirations: 0,
            bad_answers: 0,
            unreadable: 0,
            refusals: Repetition::default(),
            version_failures: Repetition::default(),
            version: VersionStanding::Good,
            avoid: Vec::new(),
            granted: Granted::No,
            type_removed: false,
            retry_at: None,
            paused_until: None,
            disconnected: None,
        }
    }

    /// Waits until the next attempt may begin.
    pub(super) async fn wait(&mut self) {
        if let Some(at) = self.retry_at.max(self.paused_until) {
            sleep_until(at).await;
            self.retry_at = None;
            self.paused_until = None;
        }
        if let Some((until, connections)) = &mut self.disconnected {
            let connected = async {
                sleep(CONNECTED).await;
                // The sender lives as long as the client.
                let _ = connections.changed().await;
                sleep(CONNECTED.mul_f64(fastrand::f64())).await;
            };
            let _ = timeout_at(*until, connected).await;
            self.disconnected = None;
        }
    }

    /// Returns the number of attempts that failed in a row.
    pub(super) fn failures(&self) -> u32 {
        self.attempts.failures()
    }

    /// Returns where the next attempt should go.
    pub(super) fn route(&self) -> Route {
        let bad = self.bad_answers;
        let refused = (1..=ELSEWHERE).contains(&bad) || (bad > ELSEWHERE && bad.is_multiple_of(2));
        if refused || self.expirations > 0 {
            Route::Elsewhere(self.avoid.clone())
        } else {
            Route::Any
        }
    }

    /// Notes that upstream can be followed.
    pub(super) fn succeeded(&mut self) {
        self.attempts.reset();
        self.lists.succeeded();
        self.expirations = 0;
        self.bad_answers = 0;
        self.unreadable = 0;
        self.refusals = Repetition::default();
        self.version_not_shown();
        self.avoid.clear();
        self.granted = Granted::Yes;
    }

    /// Notes that a state is resumed that was followed earlier.
    pub(super) fn was_granted(&mut self) {
        if self.granted == Granted::No {
            self.granted = Granted::Earlier(None);
        }
    }

    /// Notes that such a state is given up, if it was not resumed: a first list follows.
    pub(super) fn forget_earlier_grant(&mut self) {
        if let Granted::Earlier(_) = self.granted {
            self.granted = Granted::No;
        }
    }

    /// Notes that a server refused. Returns `true` if that is final. `may_pass` says whether another
    /// answer may contradict it.
    ///
    /// An API server that has just started does not know the roles and refuses what it granted
    /// before. A load balancer without a backend answers with pages of its own. Ending every watch
    /// for that would send all clients there at once.
    pub(super) fn refused(&mut self, by: Option<Address>, may_pass: bool) -> bool {
        self.bad_answer(by);
        let lasts = self.refusals.lasts();
        let is_final = match &mut self.granted {
            Granted::No => true,
            // Whatever happens between the refusals: nobody is served meanwhile.
            Granted::Earlier(first) => {
                let first = first.get_or_insert_with(Instant::now);
                !may_pass || first.elapsed() >= LASTING
            }
            Granted::Yes => lasts,
        };
        is_final || self.type_removed
    }

    /// Notes that a server does not have the version any more. Returns `true` if so many said so
    /// that the type must be listed: another one of the same cluster may still have it.
    pub(super) fn expired(&mut self, by: Option<Address>, servers: usize) -> bool {
        self.refusals = Repetition::default();
        self.avoid(by);
        self.expirations += 1;
        self.expirations > servers.max(2)
    }

    /// Notes that a list follows a watch whose version is lost. Upstream answers, so whatever failed
    /// before has passed, and what is held is getting old. After an outage the lists of many types,
    /// and of many proxies, are spread over some time.
    pub(super) fn list_lost(&mut self) {
        if self.attempts.failures() > 1 {
            self.not_before(Instant::now() + SPREAD.mul_f64(fastrand::f64()));
        }
        self.attempts.reset();
    }

    /// Notes that a server's answer cannot be read. Returns `true` if the type must be listed: the
    /// answer was the same when it was asked for again.
    pub(super) fn unreadable(&mut self, by: Option<Address>) -> bool {
        self.bad_answer(by);
        self.refusals = Repetition::default();
        self.unreadable = self.unreadable.saturating_add(1);
        // Also between two resumes: each event in between is a success.
        let next = self.lists.failed();
        self.not_before(next);
        self.unreadable > UNREADABLE
    }

    /// Notes that a watch failed as it may at one version alone: upstream may be unable to read one
    /// event of its history, while it can read what is there now. Returns `true` if the type must be
    /// listed: that lasts, and upstream answered a list before it failed again.
    pub(super) fn version_failed(&mut self) -> bool {
        self.version = match (self.version_failures.lasts(), self.version) {
            (false, _) => VersionStanding::Good,
            (true, VersionStanding::Lost) => VersionStanding::Lost,
            (true, _) => VersionStanding::Suspect,
        };
        self.version == VersionStanding::Lost
    }

    /// Notes a failure that shows nothing about the version.
    pub(super) fn version_not_shown(&mut self) {
        self.version_failures = Repetition::default();
        self.version = VersionStanding::Good;
    }

    /// Returns `true` if a list is to be tried before the next watch. An outage of everything must
    /// cost no lists, and end no watches.
    pub(super) fn asks_if_lists_are_answered(&self) -> bool {
        self.version == VersionStanding::Suspect
    }

    /// Notes whether upstream answered a list, while watches from the version fail.
    pub(super) fn set_lists_answered(&mut self, lists_answered: bool) {
        self.version = if lists_answered {
            VersionStanding::Lost
        } else {
            VersionStanding::Suspect
        };
    }

    /// Notes that a server's watch does not bring what upstream has.
    pub(super) fn overdue(&mut self, by: Option<Address>) {
        self.bad_answer(by);
    }

    /// Notes that a server failed, or is silent. That may pass, but the second time in a row it is
    /// this one that cannot answer.
    pub(super) fn unanswered(&mut self, by: Option<Address>) {
        if self.attempts.failures() > 0 {
            self.bad_answer(by);
        }
        self.failed();
    }

    /// Notes any other failure.
    pub(super) fn failed(&mut self) {
        self.refusals = Repetition::default();
    }

    /// Notes that the next attempt is a list. Lists have pauses of their own: each one is a burden
    /// for upstream, and ends every watch behind it.
    pub(super) fn list_again(&mut self) {
        let next = self.lists.failed();
        self.not_before(next);
    }

    fn after_schema_change() -> Pacing {
        Pacing::new(REBUILT_LISTS)
    }

    /// Notes that the schema changed.
    pub(super) fn schema_changed(&mut self) {
        self.rebuilt_lists = Self::after_schema_change();
    }

    /// Notes that the next attempt is another list after a change of the schema.
    pub(super) fn list_rebuilt(&mut self) {
        let next = self.rebuilt_lists.failed();
        self.not_before(next);
    }

    /// Ends the pause after the failures so far: the next attempt is a list whose time has come.
    pub(super) fn list_at_once(&mut self) {
        self.retry_at = None;
    }

    /// Delays the next attempt as the failures so far demand.
    pub(super) fn back_off(&mut self) {
        let pause = self.attempts.pause_unless_first();
        self.not_before(Instant::now() + pause);
    }

    /// Delays the next attempt as [`Recovery::back_off`] does, as no connection could be made. The
    /// first one that anybody makes ends the delay.
    pub(super) fn back_off_until_connected(&mut self, connections: watch::Receiver<u64>) {
        let pause = self.attempts.pause_unless_first();
        self.disconnected = Some((Instant::now() + pause, connections));
    }

    /// Delays the next attempt, whatever has failed so far.
    pub(super) fn pause_until(&mut self, moment: Instant) {
        self.paused_until = self.paused_until.max(Some(moment));
    }

    /// Delays the next attempt.
    pub(super) fn not_before(&mut self, moment: Instant) {
        self.retry_at = self.retry_at.max(Some(moment));
    }

    /// Delays the next attempt, as upstream asked for, but not for long: meanwhile what is held gets old, and
    /// another server may answer. The attempts of all types are spread over half as long.
    pub(super) fn asked_to_wait(&mut self, pause: Duration) {
        let pause = pause.min(MAX_ASKED);
        if !pause.is_zero() {
            let spread = pause.mul_f64(fastrand::f64() / 2.0);
            self.not_before(Instant::now() + pause + spread);
        }
    }

    /// Notes that the type is gone: the next refusal is final, and need not be waited for.
    pub(super) fn type_removed(&mut self) {
        self.type_removed = true;
        self.retry_at = None;
        self.paused_until = None;
        self.disconnected = None;
    }

    fn bad_answer(&mut self, by: Option<Address>) {
        self.bad_answers = self.bad_answers.saturating_add(1);
        self.avoid(by);
    }

    /// Prefers all other servers to this one.
    fn avoid(&mut self, server: Option<Address>) {
        let Some(server) = server else { return };
        self.avoid.retain(|other| *other != server);
        if self.avoid.len() == AVOIDED {
            self.avoid.remove(0);
        }
        self.avoid.push(server);
    }
}

#[cfg(test)]
mod tests;
