//! Changes of RBAC and the verdicts and watches that they concern.
use std::collections::HashSet;
use std::task::{Context, Wake};

use futures_util::FutureExt as _;
use proptest::prelude::*;

use super::listeners::ChangeSubscription;
use super::rbac::Subjects;
use super::*;
use crate::access::verdict::Decision;
use crate::scope::RollbackEvidence;

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

fn unfollowed(followed: FollowedRbac) -> Changes {
    Changes::new(TTL, Timeline::default(), followed)
}

fn followed() -> Changes {
    let changes = unfollowed(FollowedRbac::All);
    for kind in RbacKind::ALL {
        changes.set_followed(kind, true);
    }
    changes
}

fn ask(changes: &Changes) -> Verdict {
    Verdict::new(Decision::Allowed("".into()), changes.position(), TTL, SHORT)
}

fn is_valid(changes: &Changes, verdict: &Verdict, request: &AccessRequest) -> bool {
    changes.apply(verdict, request);
    let lifetime = verdict.lifetime(changes.are_followed(request));
    verdict.is_valid(Instant::now(), verdict.position.requested + lifetime)
}

async fn pass(seconds: f64) {
    tokio::time::advance(Duration::from_secs_f64(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_verdict_ends_with_a_change_that_concerns_it_and_with_no_other() {
    let changes = followed();
    let ann = AccessRequest::example("ann", &[], Some("here"));
    let verdict = ask(&changes);
    pass(60.0).await;
    for unrelated in [
        users(None, &["bob"]),
        users(Some("there"), &["ann"]),
        Affected::Namespace("there".into()),
    ] {
        changes.record(unrelated);
        assert!(is_valid(&changes, &verdict, &ann));
    }
    changes.record(users(Some("here"), &["bob", "ann"]));
    assert!(!is_valid(&changes, &verdict, &ann));
    for change in [Affected::Everything, Affected::Namespace("here".into())] {
        pass(10.0).await;
        let verdict = ask(&changes);
        assert!(is_valid(&changes, &verdict, &ann));
        changes.record(change);
        assert!(!is_valid(&changes, &verdict, &ann));
    }
}

#[tokio::test(start_paused = true)]
async fn a_verdict_soon_after_a_change_is_valid_until_upstream_has_settled() {
    let changes = followed();
    let ann = AccessRequest::example("ann", &[], None);
    changes.record(users(None, &["ann"]));
    let at_once = ask(&changes);
    pass(0.19).await;
    assert!(is_valid(&changes, &at_once, &ann));
    pass(0.31).await;
    assert!(!is_valid(&changes, &at_once, &ann));
    let (early, unrelated) = (ask(&changes), AccessRequest::example("bob", &[], None));
    assert!(is_valid(&changes, &early, &ann));
    pass(1.4).await;
    assert!(is_valid(&changes, &early, &ann));
    pass(0.1).await;
    assert!(!is_valid(&changes, &early, &ann));
    let settled = ask(&changes);
    pass(200.0).await;
    assert!(is_valid(&changes, &settled, &ann));
    changes.record(users(None, &["ann"]));
    let other = ask(&changes);
    pass(200.0).await;
    assert!(is_valid(&changes, &other, &unrelated));
    pass(100.0).await;
    assert!(
        !is_valid(&changes, &other, &unrelated),
        "five minutes are over"
    );
}

#[tokio::test(start_paused = true)]
async fn verdicts_are_reviewed_once_when_rbac_is_followed_for_the_first_time() {
    for namespace in [None, Some("here")] {
        let ann = AccessRequest::example("ann", &[], namespace);
        verdicts_are_reviewed_once(&ann).await;
    }
}

async fn verdicts_are_reviewed_once(ann: &AccessRequest) {
    let changes = unfollowed(FollowedRbac::All);
    let old = ask(&changes);
    pass(60.0).await;
    let before = ask(&changes);
    pass(1.0).await;
    let mut between = before;
    for kind in RbacKind::ALL {
        assert!(is_valid(&changes, &between, ann), "{kind:?}");
        between = ask(&changes);
        changes.begin(kind);
        changes.set_followed(kind, true);
    }
    let after = ask(&changes);
    assert!(!is_valid(&changes, &old, ann), "it does not come back");
    for verdict in [&between, &after] {
        assert!(is_valid(&changes, verdict, ann));
    }
    pass(1.9).await;
    for verdict in [&between, &after] {
        assert!(is_valid(&changes, verdict, ann));
    }
    pass(0.1).await;
    for verdict in [&between, &after] {
        assert!(!is_valid(&changes, verdict, ann), "upstream has settled");
    }
    let settled = ask(&changes);
    pass(60.0).await;
    assert!(is_valid(&changes, &settled, ann));
    // A type that is listed again may have changed.
    changes.begin(RbacKind::Roles);
    assert!(!is_valid(&changes, &settled, ann));
}

#[tokio::test(start_paused = true)]
async fn verdicts_are_valid_for_seconds_while_a_type_that_decides_about_them_is_not_followed() {
    let changes = followed();
    let here = AccessRequest::example("ann", &[], Some("here"));
    let everywhere = AccessRequest::example("ann", &[], None);
    for (kind, ended, others) in [
        (RbacKind::RoleBindings, &[&here][..], &[&everywhere][..]),
        (RbacKind::ClusterRoles, &[&here, &everywhere], &[]),
    ] {
        let verdict = ask(&changes);
        let are_valid = |requests: &[&AccessRequest], wanted| {
            for request in requests {
                assert_eq!(is_valid(&changes, &verdict, request), wanted, "{kind:?}");
            }
        };
        pass(9.0).await;
        changes.set_followed(kind, false);
        are_valid(&[&here, &everywhere], true);
        pass(1.0).await;
        are_valid(ended, false);
        are_valid(others, true);
        changes.set_followed(kind, true);
        // Nothing happened meanwhile.
        are_valid(&[&here, &everywhere], true);
    }
}

/// Returns the types that are to be followed.
fn wanted(changes: &Changes) -> Vec<RbacKind> {
    let is_wanted = |kind: &RbacKind| changes.until_wanted(*kind).now_or_never().is_some();
    RbacKind::ALL.into_iter().filter(is_wanted).collect()
}

#[tokio::test(start_paused = true)]
async fn the_types_of_namespaces_are_followed_once_they_decide_about_a_request() {
    let changes = unfollowed(FollowedRbac::AsNeeded);
    let everywhere = AccessRequest::example("ann", &[], None);
    let here = AccessRequest::example("ann", &[], Some("here"));
    let begin = |kinds: &[RbacKind]| {
        for kind in kinds {
            changes.begin(*kind);
            changes.set_followed(*kind, true);
        }
    };
    let of_cluster = RequestReach::Cluster.kinds();
    assert_eq!(wanted(&changes), of_cluster);
    begin(of_cluster);
    changes.want(&everywhere);
    assert_eq!(wanted(&changes), of_cluster);
    pass(60.0).await;

    changes.want(&here);
    assert_eq!(wanted(&changes), RbacKind::ALL);
    let (verdict, stays) = (ask(&changes), ask(&changes));
    assert!(is_valid(&changes, &verdict, &here));
    pass(7.0).await;
    begin(&[RbacKind::Roles, RbacKind::RoleBindings]);
    pass(1.9).await;
    assert!(is_valid(&changes, &verdict, &here));
    let settling = ask(&changes);
    assert!(is_valid(&changes, &settling, &here));
    pass(0.1).await;
    for verdict in [&verdict, &settling] {
        assert!(!is_valid(&changes, verdict, &here), "upstream has settled");
    }
    assert!(is_valid(&changes, &stays, &everywhere));
    let settled = ask(&changes);
    pass(60.0).await;
    assert!(is_valid(&changes, &settled, &here));
    assert!(is_valid(&changes, &stays, &everywhere));
}

#[tokio::test(start_paused = true)]
async fn only_a_later_change_ends_an_explained_grant() {
    let changes = followed();
    let ann = AccessRequest::example("ann", &[], Some("here"));
    changes.record(Affected::Everything);
    let (explained, other) = (ask(&changes).explained_until(TTL), ask(&changes));
    assert!(is_valid(&changes, &other, &ann));
    pass(0.3).await;
    assert!(
        !is_valid(&changes, &other, &ann),
        "upstream may have lagged"
    );
    pass(60.0).await;
    assert!(is_valid(&changes, &explained, &ann));
    changes.record(users(Some("here"), &["bob"]));
    assert!(is_valid(&changes, &explained, &ann), "it is not ann's");
    changes.record(users(Some("here"), &["ann"]));
    assert!(!is_valid(&changes, &explained, &ann));
}

#[tokio::test(start_paused = true)]
async fn a_verdict_ends_when_the_types_that_decide_about_it_are_followed_too_late() {
    let changes = unfollowed(FollowedRbac::AsNeeded);
    let here = AccessRequest::example("ann", &[], Some("here"));
    let verdict = ask(&changes);
    pass(60.0).await;
    for kind in RbacKind::ALL {
        assert!(!is_valid(&changes, &verdict, &here), "{kind:?}");
        changes.begin(kind);
        changes.set_followed(kind, true);
    }
    assert!(
        !is_valid(&changes, &verdict, &here),
        "it does not come back"
    );
}

#[tokio::test(start_paused = true)]
async fn a_verdict_ends_with_the_timeline_in_which_it_was_requested() {
    let changes = followed();
    let ann = AccessRequest::example("ann", &[], None);
    let (before, on_its_way) = (ask(&changes), changes.position());
    changes.timeline.end(
        0,
        &RollbackEvidence::Cluster {
            before: "a".to_owned(),
            now: "b".to_owned(),
        },
    );
    assert!(!is_valid(&changes, &before, &ann));
    let late = Verdict::new(Decision::Allowed("".into()), on_its_way, TTL, SHORT);
    assert!(!is_valid(&changes, &late, &ann), "it was requested before");
    assert!(is_valid(&changes, &ask(&changes), &ann));
}

#[tokio::test(start_paused = true)]
async fn the_time_since_the_last_change_that_concerns_a_request_is_known() {
    let changes = followed();
    let limit = Duration::from_hours(1);
    let ann = AccessRequest::example("ann", &[], Some("here"));
    let quiet = |request| {
        let before = changes.quiet_before(&changes.position(), request, limit);
        before.as_secs()
    };
    assert_eq!(quiet(&ann), 3600, "nothing has changed");
    changes.record(users(None, &["ann"]));
    assert_eq!(quiet(&ann), 0);
    pass(60.0).await;
    changes.record(users(None, &["bob"]));
    changes.record(Affected::Namespace("there".into()));
    let before = changes.position();
    assert_eq!(quiet(&ann), 60, "those concern others");
    pass(10.0).await;
    changes.record(Affected::Everything);
    assert_eq!(quiet(&ann), 0);
    let sent = changes.quiet_before(&before, &ann, limit);
    assert_eq!(sent.as_secs(), 60, "that came after the request");
    pass(7000.0).await;
    assert_eq!(quiet(&ann), 3600);
    pass(1000.0).await;
    for _ in 0..=MAX_LOOKED_AT {
        changes.record(users(None, &["bob"]));
    }
    assert_eq!(quiet(&ann), 0, "too many to look at");
}

#[tokio::test(start_paused = true)]
async fn verdicts_from_before_a_change_settled_are_not_wanted_after_it() {
    let ann = AccessRequest::example("ann", &[], Some("here"));
    let bob = AccessRequest::example("bob", &[], Some("here"));
    let changes = followed();
    let are_fresh = |request| changes.are_fresh_before(&changes.position(), request);
    changes.record(Affected::UnknownPast(RequestReach::Namespace));
    assert!(!are_fresh(&ann), "these are reviewed again");
    changes.record(users(None, &["ann"]));
    for seconds in [0.0, 1.9, 0.2, 4.8] {
        pass(seconds).await;
        assert!(are_fresh(&ann), "{seconds}");
        assert!(!are_fresh(&bob), "{seconds}");
    }
    pass(0.2).await;
    assert!(!are_fresh(&ann));
}

#[tokio::test(start_paused = true)]
async fn verdicts_that_were_passed_on_are_reviewed_until_they_are_later_than_the_first_changes() {
    let ann = AccessRequest::example("ann", &[], Some("here"));
    let passed_on = |changes: &Changes, age| ask(changes).aged(Duration::from_secs_f64(age));
    let changes = followed();
    changes.record(Affected::UnknownPast(RequestReach::Namespace));
    let [first, new] = [4.0, 0.0].map(|age| passed_on(&changes, age));
    pass(1.9).await;
    assert!(is_valid(&changes, &new, &ann));
    pass(0.2).await;
    assert!(!is_valid(&changes, &new, &ann), "upstream has settled");
    pass(1.0).await;
    let later = passed_on(&changes, 4.0);
    assert!(is_valid(&changes, &later, &ann));
    pass(2.8).await;
    assert!(is_valid(&changes, &first, &ann));
    pass(0.2).await;
    assert!(
        !is_valid(&changes, &first, &ann),
        "it would be used for no longer if RBAC were not followed"
    );
    assert!(is_valid(&changes, &later, &ann));
    pass(1.0).await;
    assert!(!is_valid(&changes, &later, &ann));
    // It was decided when upstream had settled.
    let last = passed_on(&changes, 5.0);
    pass(60.0).await;
    assert!(is_valid(&changes, &last, &ann));
}

#[tokio::test(start_paused = true)]
async fn rbac_is_known_up_to_the_last_newer_version_of_the_type_that_stands_still() {
    let changes = followed();
    let [first, others @ ..] = RbacKind::ALL;
    let here = AccessRequest::example("ann", &[], Some("here"));
    let everywhere = AccessRequest::example("ann", &[], None);
    changes.advance(first);
    let advanced = Instant::now();
    assert_eq!(changes.known_until(&here), None);
    for minute in 1..=3 {
        pass(60.0).await;
        for kind in others {
            changes.advance(kind);
        }
        assert_eq!(changes.known_until(&here), Some(advanced), "{minute}");
        let now = Some(Instant::now());
        assert_eq!(changes.known_until(&everywhere), now, "{minute}");
    }
    changes.advance(first);
    assert_eq!(changes.known_until(&here), Some(Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn the_log_is_bounded_and_keeps_every_change_that_a_verdict_needs() {
    let changes = followed();
    let ann = AccessRequest::example("ann", &[], None);
    let verdict = ask(&changes);
    let many: Vec<_> = (0..999).map(|n| format!("user-{n}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    for _ in 0..100 {
        changes.record(users(None, &many));
        assert!(changes.log.read().weight <= MAX_WEIGHT);
    }
    assert!(
        !is_valid(&changes, &verdict, &ann),
        "too many changes count as a change of everything"
    );
    pass(400.0).await;
    changes.record(users(None, &["bob"]));
    assert_eq!(
        changes.log.read().changes.len(),
        1,
        "changes older than every verdict are forgotten"
    );
    assert!(!is_valid(&changes, &verdict, &ann));
}

#[tokio::test(start_paused = true)]
async fn many_changes_in_one_namespace_end_no_verdict_elsewhere() {
    let changes = Arc::new(followed());
    let here = AccessRequest::example("ann", &[], Some("here"));
    let elsewhere = AccessRequest::example("ann", &[], Some("there"));
    changes.record(users(Some("there"), &["bob"]));
    pass(60.0).await;
    let (verdict, other) = (ask(&changes), ask(&changes));
    let subscription = ChangeSubscription::new(changes.listeners(), &Arc::new(here.clone()));
    let woken = Arc::new(Woken::default());
    subscription.register(Context::from_waker(&Arc::clone(&woken).into()).waker());
    let many: Vec<_> = (0..16).map(|number| format!("user-{number}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    for _ in 0..20_000 {
        changes.record(users(Some("here"), &many));
        assert!(changes.log.read().weight <= MAX_WEIGHT);
    }
    assert!(is_valid(&changes, &other, &elsewhere));
    assert!(
        !is_valid(&changes, &verdict, &here),
        "too many changes count as a change of their namespace"
    );
    assert!(woken.0.load(Ordering::Relaxed) > 0);
    changes.record(users(Some("there"), &["ann"]));
    assert!(!is_valid(&changes, &other, &elsewhere));
    let log = changes.log.read();
    let weights = log.namespaces.values().map(|own| own.weight);
    assert_eq!(weights.sum::<usize>(), log.weight);
    let listed = log.namespaces.values().map(|own| own.numbers.len());
    assert_eq!(listed.sum::<usize>(), log.changes.len());
}

#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_wakes_only_the_watches_that_it_concerns() {
    let changes = Arc::new(followed());
    let listening: Vec<_> = ["ann", "bob"]
        .map(|user| {
            let subscription = ChangeSubscription::new(
                changes.listeners(),
                &Arc::new(AccessRequest::example(user, &[], None)),
            );
            let woken = Arc::new(Woken::default());
            subscription.register(Context::from_waker(&Arc::clone(&woken).into()).waker());
            (subscription, woken)
        })
        .into();
    changes.record(users(None, &["ann"]));
    let counts: Vec<_> = listening
        .iter()
        .map(|(_, woken)| woken.0.load(Ordering::Relaxed))
        .collect();
    assert_eq!(counts, [1, 0]);
    drop(listening);
    assert!(changes.listeners().is_empty());
}

#[derive(Clone, Debug)]
enum Action {
    Pass(u16),
    Change(Concerned),
    Review,
}

/// Numbers of a user and of a namespace. A change without one concerns all of them.
type Concerned = (Option<u8>, Option<u8>);

/// A change as the model knows it. Its number is its index.
type ModelChange = (Instant, Concerned);

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let user = proptest::option::of(0..3u8);
    let namespace = proptest::option::of(0..3u8);
    let action = prop_oneof![
        (0..4000u16).prop_map(Action::Pass),
        (user, namespace).prop_map(Action::Change),
        Just(Action::Review),
    ];
    proptest::collection::vec(action, 1..40)
}

fn affected((user, namespace): Concerned) -> Affected {
    let namespace = namespace.map(|number| format!("n{number}"));
    match (user, &namespace) {
        (None, None) => Affected::Everything,
        (None, Some(namespace)) => Affected::Namespace(namespace.as_str().into()),
        (Some(user), _) => users(namespace.as_deref(), &[&format!("u{user}")]),
    }
}

/// Returns `true` if a verdict that was requested after `number` changes is valid now.
fn model(changes: &[ModelChange], requested: Instant, number: usize, of: (u8, u8)) -> bool {
    let now = Instant::now();
    let allows = |(index, (at, (user, namespace))): (usize, &ModelChange)| {
        let concerns = user.is_none_or(|user| user == of.0)
            && namespace.is_none_or(|namespace| namespace == of.1);
        let settled = [200, 2000]
            .map(|after| *at + Duration::from_millis(after))
            .into_iter()
            .find(|moment| *moment > requested);
        !concerns || (index < number && settled.is_none_or(|settled| now < settled))
    };
    now - requested < TTL && changes.iter().enumerate().all(allows)
}

async fn compare_with_model(actions: Vec<Action>) {
    let changes = followed();
    let requests: Vec<((u8, u8), AccessRequest)> = (0..9)
        .map(|number| (number / 3, number % 3))
        .map(|(user, namespace)| {
            let (name, place) = (format!("u{user}"), format!("n{namespace}"));
            let request = AccessRequest::example(&name, &[], Some(&place));
            ((user, namespace), request)
        })
        .collect();
    let mut recorded: Vec<ModelChange> = Vec::new();
    // Verdicts on all requests, with their time and the number of changes until then.
    let mut verdicts: Vec<(Instant, usize, Vec<Verdict>)> = Vec::new();
    for action in actions {
        match action {
            Action::Pass(milliseconds) => pass(f64::from(milliseconds) / 1000.0).await,
            Action::Change(concerned) => {
                changes.record(affected(concerned));
                recorded.push((Instant::now(), concerned));
            }
            Action::Review => {
                let all = requests.iter().map(|_| ask(&changes)).collect();
                verdicts.push((Instant::now(), recorded.len(), all));
            }
        }
        for (requested, number, verdicts) in &verdicts {
            for (verdict, (of, request)) in verdicts.iter().zip(&requests) {
                let wanted = model(&recorded, *requested, *number, *of);
                // Verdicts are compared at different times in practice, so only some are
                // looked at after each action.
                if fastrand::bool() {
                    assert_eq!(is_valid(&changes, verdict, request), wanted);
                }
            }
        }
    }
}

proptest! {
    /// The model compares with all changes each time, and forgets none.
    #[test]
    fn verdicts_are_valid_exactly_as_long_as_in_a_simple_model(actions in actions()) {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(compare_with_model(actions));
    }
}
