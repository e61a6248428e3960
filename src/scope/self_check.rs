//! Compares scopes with upstream, part by part, and quarantines those that differ.
//!
//! Both sides are looked at in the state of one resourceVersion, so changes meanwhile do not
//! matter. A check looks at one page of names and versions ([`paged`]), and at the bytes of a few
//! objects of it. The next check of the scope goes on behind the page. So the cost of a check does
//! not grow with the type, and a large type takes many checks. If upstream counts other objects
//! behind the page than memory has, more pages follow at once. Scopes with selectors are compared
//! as a whole, from upstream's watch cache ([`selected`]).
//!
//! A false alarm costs a list and every watch of the scope. So a difference counts only if a second
//! look, a moment later and at a newer version, finds it again. What cannot be compared is skipped.
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::cached::{DifferingPart, Scope};
use super::key::ScopeKey;
use super::metrics;
use super::registry::Scopes;

mod difference;
mod examination;
mod look;
mod paged;
mod selected;

pub use difference::{DifferenceExcerpt, ObjectDifference};
use examination::Examination;
use look::{Inconclusive, Look};

/// Longest pause between two looks for a scope that is due. One scope is checked at a time, so it
/// also bounds the checks of all scopes to one in this time.
const MAX_TICK: Duration = Duration::from_secs(1);
/// Longest time for which a scope whose objects are printed differently is not listed again, as that did
/// not help before: two releases behind one address may print an object in two ways, and both are right.
const MAX_RELIST_PAUSE: Duration = Duration::from_hours(4);
/// Silence of an open watch after which its scope is also compared with upstream's newest state, for the
/// first time at once. Upstream's bookmarks come more often: it sends none of the type, or the watch does
/// not bring them.
const SILENT: Duration = Duration::from_secs(90);
/// Longest interval between checks of such a scope: this, or a quarter of the configured one.
const SILENT_INTERVAL: Duration = Duration::from_mins(5);
/// The interval grows up to this many times while checks fail.
const MAX_SLOWDOWN: u32 = 12;

/// Compares all scopes with upstream, one at a time.
pub struct SelfCheck {
    scopes: Scopes,
    interval: Duration,
    /// Silence after which a scope's own version tells nothing.
    silent_after: Duration,
    /// The interval for scopes that are silent.
    silent_interval: Duration,
    schedule: HashMap<ScopeKey, ScheduledScope>,
}

/// A scope and its next check.
struct ScheduledScope {
    /// A closed scope is not kept.
    scope: Weak<Scope>,
    due: Instant,
    /// The end of the last check.
    checked: Option<Instant>,
    /// The key behind which the next check begins.
    after: Option<String>,
    /// Checks in a row that failed.
    failures: u32,
    relists: RelistPause,
}

/// Decides if a scope whose objects are printed differently is listed again. The pause between two lists
/// doubles, until a whole round of checks has shown no difference.
#[derive(Default)]
struct RelistPause {
    pause: Duration,
    until: Option<Instant>,
    /// This round of checks has shown a difference.
    differs: bool,
    /// The last whole round showed none.
    was_same: bool,
}

impl SelfCheck {
    /// Prepares checks at the interval that the scopes' configuration says.
    pub fn new(scopes: Scopes) -> Self {
        let interval = scopes.config().self_check;
        Self {
            interval,
            silent_after: SILENT.min(interval),
            silent_interval: interval.min(SILENT_INTERVAL.max(interval / 4)),
            scopes,
            schedule: HashMap::new(),
        }
    }

    /// Checks scopes for as long as the process runs. Returns at once if the interval is zero.
    pub async fn run(mut self) {
        if self.interval.is_zero() {
            return;
        }
        let tick = (self.interval / 20).clamp(Duration::from_millis(10), MAX_TICK);
        loop {
            sleep(tick).await;
            self.update();
            let next = self.schedule.values().min_by_key(|it| it.due);
            let due = next.filter(|it| it.due <= Instant::now());
            if let Some(scope) = due.and_then(|it| it.scope.upgrade()) {
                self.check(&scope).await;
            }
        }
    }

    /// Adds scopes that were opened, and removes those that were closed.
    fn update(&mut self) {
        let open = self.scopes.all();
        let mut known = std::mem::take(&mut self.schedule);
        for scope in &open {
            let weak = Arc::downgrade(scope);
            let known = known.remove(&scope.key);
            let scheduled = known.filter(|known| Weak::ptr_eq(&known.scope, &weak));
            let mut scheduled = scheduled.unwrap_or_else(|| {
                show_alarms(scope);
                ScheduledScope {
                    scope: weak,
                    due: next_due(&open, scope, self.interval),
                    checked: None,
                    after: None,
                    failures: 0,
                    relists: RelistPause::default(),
                }
            });
            if scheduled.is_due_by_silence(scope, self.silent_after, self.silent_interval) {
                scheduled.due = scheduled.due.min(Instant::now());
            }
            self.schedule.insert(scope.key.clone(), scheduled);
        }
    }

    async fn check(&mut self, scope: &Arc<Scope>) {
        let Some(scheduled) = self.schedule.get_mut(&scope.key) else {
            return;
        };
        let after = scheduled.after.clone();
        let examination = Examination::new(self.scopes.client(), scope, self.silent_after);
        let result = tokio::select! {
            () = scope.signals.stopped() => return,
            result = examination.run(after) => result,
        };
        count(scope, &result);
        scheduled.failures = match result {
            Err(Inconclusive::Failed(_)) => scheduled.failures + 1,
            _ => 0,
        };
        let slowdown = (1 + scheduled.failures).min(MAX_SLOWDOWN);
        let interval = if scope.upstream.silence() >= self.silent_after {
            self.silent_interval
        } else {
            self.interval
        };
        scheduled.due = next_due(&self.scopes.all(), scope, interval * slowdown);
        scheduled.checked = Some(Instant::now());
        match result {
            Ok(look) if look.differences.is_empty() => scheduled.go_on(look.next),
            Ok(look) => {
                let part = ObjectDifference::part(&look.differences);
                let is_due = scheduled.relists.begin(part, Instant::now(), self.interval);
                report_differences(scope, part, &look.differences, is_due);
                // What is listed anew is looked at again. The other objects wait no longer.
                if !is_due {
                    scheduled.go_on(look.next);
                }
            }
            Err(why) => log_inconclusive(scope, &why, scheduled.failures),
        }
    }
}

impl ScheduledScope {
    /// Lets the next check begin behind this key; `None` begins a new round of checks.
    fn go_on(&mut self, after: Option<String>) {
        if after.is_none() {
            self.relists.end_round();
        }
        self.after = after;
    }

    /// Returns `true` if the scope's watch has been silent for this time, and there was no check since, nor
    /// within the interval.
    fn is_due_by_silence(&self, scope: &Scope, silence: Duration, interval: Duration) -> bool {
        let silent_since = scope.upstream.last_heard() + silence;
        let is_new = |at: Instant| at < silent_since && at.elapsed() >= interval;
        silent_since <= Instant::now() && self.checked.is_none_or(is_new)
    }
}

/// Returns the moment of a scope's next check, with jitter. The scopes of a type share an interval.
fn next_due(open: &[Arc<Scope>], scope: &Scope, interval: Duration) -> Instant {
    let gvr = &scope.key.gvr;
    let is_of_type = |other: &&Arc<Scope>| {
        let other = &other.key.gvr;
        other.group == gvr.group && other.resource == gvr.resource
    };
    let scopes = open.iter().filter(is_of_type).count().max(1);
    let interval = interval.saturating_mul(scopes as u32);
    Instant::now() + interval.mul_f64(0.5 + fastrand::f64())
}

impl RelistPause {
    /// Returns `true` if the scope, of which this part differs, is listed again now. If only its print
    /// does, the next pause begins then.
    fn begin(&mut self, part: DifferingPart, now: Instant, first: Duration) -> bool {
        if part == DifferingPart::Objects {
            return true;
        }
        self.differs = true;
        if let Some(until) = self.until {
            if now < until {
                return false;
            }
            // A part that differs is checked once in a round, and not all of its objects are.
            if self.was_same && now > until + self.pause {
                self.pause = Duration::ZERO;
            }
        }
        self.pause = (self.pause * 2).clamp(first, MAX_RELIST_PAUSE.max(first));
        self.until = Some(now + self.pause);
        true
    }

    /// Notes that all objects have been checked.
    fn end_round(&mut self) {
        self.was_same = !std::mem::take(&mut self.differs);
    }
}

/// Logs the differences and quarantines the scope, unless that was done a short while ago.
fn report_differences(
    scope: &Scope,
    part: DifferingPart,
    differences: &[ObjectDifference],
    is_due: bool,
) {
    let key = &scope.key;
    tracing::error!(
        resource = %key.gvr,
        selection = %key.selection,
        representation = %key.representation,
        count = differences.len(),
        differences = %DifferenceExcerpt(differences),
        listed_again = is_due,
        "memory differs from upstream"
    );
    if !is_due {
        return;
    }
    metrics::QUARANTINES
        .with(metrics::with_type(&key.gvr, part.label()))
        .increment(1);
    // Derived scopes have what their source has, and are listed again after it. Their bytes are
    // their own.
    let source = scope.source.get();
    let wrong = match part {
        DifferingPart::Objects => source.as_deref().unwrap_or(scope),
        DifferingPart::Print => scope,
    };
    wrong.differences.report(part);
}

fn log_inconclusive(scope: &Scope, why: &Inconclusive, failures: u32) {
    let resource = &scope.key.gvr;
    if failures == 3 {
        tracing::info!(%resource, %why, "could not be compared with upstream several times in a row");
    } else {
        tracing::debug!(%resource, %why, "not compared with upstream");
    }
}

/// Shows the counts of differences before there are any. Prometheus sees no increase in a counter
/// that begins with one.
fn show_alarms(scope: &Scope) {
    for part in [DifferingPart::Objects, DifferingPart::Print] {
        let labels = metrics::with_type(&scope.key.gvr, part.label());
        metrics::SELF_CHECKS.with(labels).increment(0);
    }
}

/// Counts a check by its result.
fn count(scope: &Scope, result: &Result<Look, Inconclusive>) {
    let label = match result {
        Ok(found) if found.differences.is_empty() => "same",
        Ok(found) => ObjectDifference::part(&found.differences).label(),
        Err(Inconclusive::Expired) => "expired",
        Err(Inconclusive::Behind) => "behind",
        Err(Inconclusive::Failed(_) | Inconclusive::OtherFormat) => "failed",
        Err(Inconclusive::NotFollowed) => return,
    };
    metrics::SELF_CHECKS
        .with(metrics::with_type(&scope.key.gvr, label))
        .increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_that_is_printed_in_two_ways_is_listed_ever_more_seldom() {
        let (minute, start) = (Duration::from_mins(1), Instant::now());
        let mut relists = RelistPause::default();
        let mut begin = |part, now| relists.begin(part, now, minute);
        // It differs at every check, once a minute for two days.
        let listed: Vec<_> = (0..2880_u32)
            .filter(|n| begin(DifferingPart::Print, start + minute * *n))
            .collect();
        assert_eq!(listed[..6], [0, 1, 3, 7, 15, 31]);
        assert_eq!(listed.last(), listed.get(18), "{listed:?}");
        // Other objects are not upstream's, however often they are found.
        assert!(begin(DifferingPart::Objects, start + minute * 2880));
        // After a long time without a difference, the next one is acted on at once.
        let later = start + Duration::from_hours(72);
        relists.end_round();
        relists.end_round();
        assert!(relists.begin(DifferingPart::Print, later, minute));
        assert!(relists.begin(DifferingPart::Print, later + minute, minute));
    }

    #[test]
    fn a_large_scope_of_which_one_part_differs_is_listed_ever_more_seldom() {
        let (minute, start) = (Duration::from_mins(1), Instant::now());
        let mut relists = RelistPause::default();
        // A round takes half an hour.
        let listed: Vec<_> = (0..96_u32)
            .filter(|round| {
                let is_listed =
                    relists.begin(DifferingPart::Print, start + 30 * minute * *round, minute);
                relists.end_round();
                is_listed
            })
            .collect();
        assert!(listed.len() <= 20, "{listed:?}");
        let pauses: Vec<_> = listed.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses.last(), Some(&8), "four hours: {pauses:?}");
    }
}
