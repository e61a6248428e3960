//! The recent changes of RBAC, which verdicts they overtake, and who is to be told at once.
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, RwLock};
use slab::Slab;
use tokio::time::Instant;

use super::authorize::{Question, Verdict};
use super::rbac::{Affected, Kind};
use super::{guard, metrics};

/// API servers read RBAC by watching it, too, and each at its own pace: what one of them says soon
/// after a change may be from before it. So it stands until the next of these moments after the
/// change only.
const SETTLING: [Duration; 2] = [Duration::from_millis(200), SETTLED];
const SETTLED: Duration = Duration::from_secs(2);
/// Changes held, counted with their subjects. More at a time are taken for a change of everything.
const MAX_WEIGHT: usize = 50_000;

/// What happened to RBAC, as far as a verdict may be from before it.
#[derive(Debug)]
pub(super) struct Changes {
    record: RwLock<Record>,
    /// The number of the next change: a verdict that was compared up to here needs no look at the
    /// record.
    head: AtomicU64,
    /// One bit for each type whose changes arrive.
    followed: AtomicU8,
    listeners: Mutex<Slab<Arc<Listener>>>,
    /// No verdict is older than this.
    keep: Duration,
}

#[derive(Debug, Default)]
struct Record {
    /// The number of the oldest change held.
    first: u64,
    changes: VecDeque<(Instant, Arc<Affected>)>,
    weight: usize,
}

impl Record {
    fn head(&self) -> u64 {
        self.first + self.changes.len() as u64
    }

    fn forget_oldest(&mut self) {
        if let Some((_, affected)) = self.changes.pop_front() {
            self.weight -= affected.weight();
            self.first += 1;
        }
    }
}

/// Who wants to know of changes that concern a question.
#[derive(Debug)]
struct Listener {
    question: Arc<Question>,
    waker: AtomicWaker,
}

/// When a question was put, among the changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) asked: Instant,
    /// Changes from this number on came afterwards.
    pub(super) head: u64,
    /// Changes from this number on may not have reached upstream's authorizers by then.
    pub(super) unsettled: u64,
}

impl Changes {
    pub(super) fn new(keep: Duration) -> Self {
        Self {
            record: RwLock::default(),
            head: AtomicU64::new(0),
            followed: AtomicU8::new(0),
            listeners: Mutex::default(),
            keep: keep + SETTLED + guard::OVERDUE,
        }
    }

    /// Whether every change of RBAC arrives here.
    pub(super) fn are_followed(&self) -> bool {
        self.followed.load(Ordering::Acquire) == (1 << Kind::ALL.len()) - 1
    }

    /// Whether changes of a type arrive. All that were missed must have been recorded before.
    pub(super) fn set_followed(&self, kind: Kind, followed: bool) {
        let bit = 1 << kind as u8;
        if followed {
            self.followed.fetch_or(bit, Ordering::AcqRel);
        } else {
            self.followed.fetch_and(!bit, Ordering::AcqRel);
        }
        metrics::following(self.are_followed());
    }

    /// Something changed just now.
    pub(super) fn record(&self, affected: Affected) {
        let affected = {
            let mut record = self.record.write();
            let now = Instant::now();
            while record
                .changes
                .front()
                .is_some_and(|(at, _)| now.duration_since(*at) > self.keep)
            {
                record.forget_oldest();
            }
            let affected = if record.weight + affected.weight() > MAX_WEIGHT {
                while !record.changes.is_empty() {
                    record.forget_oldest();
                }
                Affected::Everything
            } else {
                affected
            };
            let affected = Arc::new(affected);
            record.weight += affected.weight();
            record.changes.push_back((now, Arc::clone(&affected)));
            self.head.store(record.head(), Ordering::Release);
            affected
        };
        // Woken after the locks are released.
        let listeners = self.listeners.lock();
        let concerned = listeners
            .iter()
            .filter(|(_, listener)| affected.concerns(&listener.question));
        let wakers: Vec<_> = concerned
            .filter_map(|(_, listener)| listener.waker.take())
            .collect();
        drop(listeners);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Where a question stands that is put now.
    pub(super) fn place(&self) -> Place {
        let record = self.record.read();
        let asked = Instant::now();
        let unsettled = record
            .changes
            .iter()
            .rev()
            .take_while(|(at, _)| *at + SETTLED > asked)
            .count();
        Place {
            asked,
            head: record.head(),
            unsettled: record.head() - unsettled as u64,
        }
    }

    /// Has a verdict know of the changes that concern it.
    pub(super) fn tell(&self, verdict: &Verdict, question: &Question) {
        let compared = verdict.compared.load(Ordering::Acquire);
        if compared >= self.head.load(Ordering::Acquire) {
            return;
        }
        let record = self.record.read();
        let Place { asked, head, .. } = verdict.place;
        let from = compared.max(record.first);
        let unseen = record.changes.range((from - record.first) as usize..);
        for (number, (at, affected)) in (from..).zip(unseen) {
            if !affected.concerns(question) {
                continue;
            }
            if number >= head {
                verdict.overtaken(at.saturating_duration_since(asked));
            } else {
                let moments = SETTLING.iter().map(|after| *at + *after);
                if let Some(until) = moments.into_iter().find(|moment| *moment > asked) {
                    verdict.settles(until.duration_since(asked));
                }
            }
        }
        verdict.compared.fetch_max(record.head(), Ordering::AcqRel);
    }
}

/// Wakes one task when something changes that concerns its question.
#[derive(Debug)]
pub(super) struct Ear {
    changes: Arc<Changes>,
    listener: Arc<Listener>,
    key: usize,
}

impl Ear {
    pub(super) fn new(changes: &Arc<Changes>, question: &Arc<Question>) -> Self {
        let listener = Arc::new(Listener {
            question: Arc::clone(question),
            waker: AtomicWaker::new(),
        });
        let key = changes.listeners.lock().insert(Arc::clone(&listener));
        Self {
            changes: Arc::clone(changes),
            listener,
            key,
        }
    }

    pub(super) fn question(&self) -> &Arc<Question> {
        &self.listener.question
    }

    /// To be called before the verdict is looked at, so that nothing slips in between.
    pub(super) fn listen(&self, waker: &Waker) {
        self.listener.waker.register(waker);
    }

    /// Bytes of one, beside the question.
    #[cfg(test)]
    pub(super) const BYTES: usize =
        size_of::<Self>() + 2 * size_of::<usize>() + size_of::<Listener>() + 2 * size_of::<usize>();
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.changes.listeners.lock().try_remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::task::{Context, Wake};

    use proptest::prelude::*;

    use super::*;
    use crate::access::authorize::Decision;
    use crate::access::rbac::Subjects;

    const TTL: Duration = Duration::from_mins(5);
    const SHORT: Duration = Duration::from_secs(10);

    fn users(namespace: Option<&str>, names: &[&str]) -> Affected {
        let users: HashSet<Box<str>> = names.iter().map(|&name| name.into()).collect();
        Affected::Subjects {
            namespace: namespace.map(Into::into),
            subjects: Subjects {
                users,
                ..Subjects::default()
            },
        }
    }

    fn followed() -> Changes {
        let changes = Changes::new(TTL);
        for kind in Kind::ALL {
            changes.set_followed(kind, true);
        }
        changes
    }

    fn ask(changes: &Changes) -> Verdict {
        Verdict::new(Decision::Allowed("".into()), changes.place(), TTL, SHORT)
    }

    fn stands(changes: &Changes, verdict: &Verdict, question: &Question) -> bool {
        changes.tell(verdict, question);
        verdict.stands(Instant::now(), changes.are_followed())
    }

    async fn pass(seconds: f64) {
        tokio::time::advance(Duration::from_secs_f64(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_verdict_ends_with_a_change_that_concerns_it_and_with_no_other() {
        let changes = followed();
        let ann = Question::example("ann", &[], Some("here"));
        let verdict = ask(&changes);
        pass(60.0).await;
        for unrelated in [
            users(None, &["bob"]),
            users(Some("there"), &["ann"]),
            Affected::Namespace("there".into()),
        ] {
            changes.record(unrelated);
            assert!(stands(&changes, &verdict, &ann));
        }
        changes.record(users(Some("here"), &["bob", "ann"]));
        assert!(!stands(&changes, &verdict, &ann));
        for change in [Affected::Everything, Affected::Namespace("here".into())] {
            pass(10.0).await;
            let verdict = ask(&changes);
            assert!(stands(&changes, &verdict, &ann));
            changes.record(change);
            assert!(!stands(&changes, &verdict, &ann));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_verdict_soon_after_a_change_stands_until_upstream_has_settled() {
        let changes = followed();
        let ann = Question::example("ann", &[], None);
        changes.record(users(None, &["ann"]));
        let at_once = ask(&changes);
        pass(0.19).await;
        assert!(stands(&changes, &at_once, &ann));
        pass(0.31).await;
        assert!(!stands(&changes, &at_once, &ann));
        let (early, unrelated) = (ask(&changes), Question::example("bob", &[], None));
        assert!(stands(&changes, &early, &ann));
        pass(1.4).await;
        assert!(stands(&changes, &early, &ann));
        pass(0.1).await;
        assert!(!stands(&changes, &early, &ann));
        let settled = ask(&changes);
        pass(200.0).await;
        assert!(stands(&changes, &settled, &ann));
        changes.record(users(None, &["ann"]));
        let other = ask(&changes);
        pass(200.0).await;
        assert!(stands(&changes, &other, &unrelated));
        pass(100.0).await;
        assert!(
            !stands(&changes, &other, &unrelated),
            "five minutes are over"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn verdicts_stand_for_moments_while_one_type_is_not_followed() {
        let changes = followed();
        let ann = Question::example("ann", &[], None);
        let verdict = ask(&changes);
        pass(9.0).await;
        changes.set_followed(Kind::RoleBindings, false);
        assert!(stands(&changes, &verdict, &ann));
        pass(1.0).await;
        assert!(!stands(&changes, &verdict, &ann));
        changes.set_followed(Kind::RoleBindings, true);
        assert!(
            stands(&changes, &verdict, &ann),
            "nothing happened meanwhile"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_record_is_bounded_and_forgets_nothing_that_matters() {
        let changes = followed();
        let ann = Question::example("ann", &[], None);
        let verdict = ask(&changes);
        let many: Vec<_> = (0..999).map(|n| format!("user-{n}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        for _ in 0..100 {
            changes.record(users(None, &many));
            assert!(changes.record.read().weight <= MAX_WEIGHT);
        }
        assert!(
            !stands(&changes, &verdict, &ann),
            "too much happened to tell"
        );
        pass(400.0).await;
        changes.record(users(None, &["bob"]));
        assert_eq!(
            changes.record.read().changes.len(),
            1,
            "what is older than every verdict is forgotten"
        );
        assert!(!stands(&changes, &verdict, &ann));
    }

    #[derive(Default)]
    struct Woken(AtomicU64);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_those_concerned_are_woken() {
        let changes = Arc::new(followed());
        let listening: Vec<_> = ["ann", "bob"]
            .map(|user| {
                let ear = Ear::new(&changes, &Arc::new(Question::example(user, &[], None)));
                let woken = Arc::new(Woken::default());
                ear.listen(Context::from_waker(&Arc::clone(&woken).into()).waker());
                (ear, woken)
            })
            .into();
        changes.record(users(None, &["ann"]));
        let counts: Vec<_> = listening
            .iter()
            .map(|(_, woken)| woken.0.load(Ordering::Relaxed))
            .collect();
        assert_eq!(counts, [1, 0]);
        drop(listening);
        assert!(changes.listeners.lock().is_empty());
    }

    #[derive(Clone, Debug)]
    enum Act {
        Pass(u16),
        Change(Option<u8>, Option<u8>),
        Ask,
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let some = || proptest::option::of(0..3u8);
        let act = prop_oneof![
            (0..4000u16).prop_map(Act::Pass),
            (some(), some()).prop_map(|(user, place)| Act::Change(user, place)),
            Just(Act::Ask),
        ];
        proptest::collection::vec(act, 1..40)
    }

    proptest! {
        /// The same told without memory of what was compared, order of numbers or bounds.
        #[test]
        fn the_record_says_what_a_simple_model_says(acts in acts()) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let changes = followed();
                let questions: Vec<_> = (0..9).map(|n: u8| {
                    let place = format!("n{}", n % 3);
                    (n / 3, n % 3, Question::example(&format!("u{}", n / 3), &[], Some(&place)))
                }).collect();
                // Time and number of each.
                let mut told: Vec<(Instant, usize, Option<u8>, Option<u8>)> = Vec::new();
                let mut verdicts: Vec<(Instant, usize, Vec<Verdict>)> = Vec::new();
                for act in acts {
                    match act {
                        Act::Pass(milliseconds) => pass(f64::from(milliseconds) / 1000.0).await,
                        Act::Change(user, place) => {
                            let namespace = place.map(|place| format!("n{place}"));
                            changes.record(match (user, &namespace) {
                                (None, None) => Affected::Everything,
                                (None, Some(namespace)) => Affected::Namespace(namespace.as_str().into()),
                                (Some(user), _) => users(namespace.as_deref(), &[&format!("u{user}")]),
                            });
                            told.push((Instant::now(), told.len(), user, place));
                        }
                        Act::Ask => {
                            let verdict = || Verdict::new(Decision::Allowed("".into()), changes.place(), TTL, SHORT);
                            verdicts.push((Instant::now(), told.len(), questions.iter().map(|_| verdict()).collect()));
                        }
                    }
                    let now = Instant::now();
                    for (asked, number, verdicts) in &verdicts {
                        for (verdict, (user, place, question)) in verdicts.iter().zip(&questions) {
                            let wanted = now - *asked < TTL && told.iter().all(|(at, n, users, places)| {
                                let concerns = users.is_none_or(|u| u == *user) && places.is_none_or(|p| p == *place);
                                let unsettled = [200, 2000].map(|after| *at + Duration::from_millis(after)).into_iter().find(|m| m > asked);
                                !concerns || (*n < *number && unsettled.is_none_or(|until| now < until))
                            });
                            // Not all are looked at each time.
                            if fastrand::bool() {
                                assert_eq!(stands(&changes, verdict, question), wanted);
                            }
                        }
                    }
                }
            });
        }
    }
}
