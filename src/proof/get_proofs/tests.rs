//! Crowds of clients, on a clock that only they move: what they cost upstream, and how long they
//! wait.
use tokio::time::sleep;
use watershed_protocol::{GroupVersionResource, ResourceVersion};

use super::*;
use crate::proof::costs::ProofCosts;
use crate::proof::get_crowds::GetCrowds;
use crate::proof::outcome::FreshnessProof;

const MILLI: Duration = Duration::from_millis(1);
/// Time that upstream needs for a get.
const GET: Duration = Duration::from_millis(2);

/// Returns the proof for an idle type with objects whose metadata has 800 bytes.
fn proof(objects: usize) -> ProofForGets {
    let costs = ProofCosts::default();
    let took = Duration::from_micros(13) * u32::try_from(objects).unwrap();
    costs.record_comparison(objects, objects * 800, took);
    costs.set_compare_first(true);
    ProofForGets::new(&costs.estimate(objects), GetQuestion::Comparison)
}

/// Clients, and an upstream that counts their requests.
struct Rehearsal {
    arrivals: GetCrowds,
    pods: GroupVersionResource,
    proofs: Arc<GetProofs>,
    proof: ProofForGets,
    cache: Option<IdleCache>,
    results: Mutex<Results>,
}

/// kube-apiserver's cache of a type that has no events. It learns at most once in a period that it
/// is current.
struct IdleCache(Mutex<Instant>);

impl IdleCache {
    const PERIOD: Duration = Duration::from_millis(100);

    fn new() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    async fn wait_until_current(&self) {
        let next = {
            let (mut next, now) = (self.0.lock(), Instant::now());
            if *next < now {
                *next = now.max(*next + Self::PERIOD);
            }
            *next
        };
        tokio::time::sleep_until(next).await;
    }
}

#[derive(Clone, Debug, Default)]
struct Results {
    waits: Vec<Duration>,
    forwarded: usize,
    proven: usize,
}

impl Results {
    fn at_upstream_per_thousand(&self) -> usize {
        (self.forwarded + self.proven) * 1000 / self.waits.len()
    }

    /// Returns the longest of the shortest half of the waits.
    fn median(&self) -> Duration {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        waits[waits.len() / 2]
    }

    fn longest(&self) -> Duration {
        self.waits.iter().copied().max().unwrap()
    }
}

impl Rehearsal {
    fn of(objects: usize) -> Arc<Self> {
        Self::with(proof(objects))
    }

    fn with(proof: ProofForGets) -> Arc<Self> {
        Self::behind(proof, None)
    }

    fn behind(proof: ProofForGets, cache: Option<IdleCache>) -> Arc<Self> {
        Arc::new(Self {
            arrivals: GetCrowds::default(),
            pods: GroupVersionResource::new("", "v1", "pods"),
            proofs: Arc::default(),
            proof,
            cache,
            results: Mutex::default(),
        })
    }

    async fn get(self: &Arc<Self>) {
        let began = Instant::now();
        if !self.is_proven().await {
            self.results.lock().forwarded += 1;
            sleep(GET).await;
        }
        self.results.lock().waits.push(began.elapsed());
    }

    async fn is_proven(self: &Arc<Self>) -> bool {
        let get = self.arrivals.arrived(&self.pods, Instant::now().into_std());
        if !get.is_in_a_crowd() || !self.proofs.is_worth(self.proof, get.rate) {
            return false;
        }
        let rate = get.rate;
        let _waiting = get.wait();
        let upstream = Arc::clone(self);
        let ask = move || async move {
            upstream.results.lock().proven += 1;
            let (asked, began) = (upstream.proofs.progress.ask(), Instant::now());
            if let Some(cache) = &upstream.cache {
                cache.wait_until_current().await;
            }
            sleep(upstream.proof.takes.max(GET)).await;
            asked.answered(began.elapsed());
            Ok(FreshnessProof::Validated.of(ResourceVersion(1)))
        };
        self.proofs.join(self.proof, rate, ask).await.is_ok()
    }

    /// Lets clients get objects for four seconds, each as soon as it was answered, and `every` so
    /// often at most. Returns the results.
    async fn run(
        self: Arc<Self>,
        clients: u32,
        every: Duration,
        first: impl Fn(u32) -> Duration,
    ) -> Results {
        let began = Instant::now();
        let clients: Vec<_> = (0..clients)
            .map(|number| {
                let (rehearsal, mut next) = (Arc::clone(&self), began + first(number));
                tokio::spawn(async move {
                    while next < began + Duration::from_secs(4) {
                        tokio::time::sleep_until(next).await;
                        rehearsal.get().await;
                        next = Instant::now().max(next + every);
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        let results = self.results.lock();
        results.clone()
    }
}

/// Returns the longest wait of a get that shares this proof, to the millisecond of the clock.
fn longest_wait(objects: usize) -> Duration {
    CROWD_WAIT + proof(objects).takes.max(GET) + 2 * MILLI
}

#[tokio::test(start_paused = true)]
async fn five_hundred_gets_a_second_cost_a_tenth_of_the_requests() {
    for (objects, clients) in [
        (20, 20),
        (300, 20),
        (700, 20),
        (20, 200),
        (300, 200),
        (700, 200),
    ] {
        for between in [2 * MILLI, MILLI / 10] {
            let every = clients * 2 * MILLI;
            let run = Rehearsal::of(objects).run(clients, every, |number| number * between);
            let results = run.await;
            let requests = results.at_upstream_per_thousand();
            let longest = results.longest();
            let what = format!("{objects} objects, {clients} clients, {between:?} between them");
            assert!(requests <= 100, "{what}: {requests} requests for 1000 gets");
            assert!(longest <= longest_wait(objects), "{what}: {longest:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn upstream_is_asked_about_once_in_each_period_in_which_its_cache_learns_that_it_is_current()
{
    for (clients, answer) in [(100, 4), (500, 4), (500, 30)] {
        let every = clients * 2 * MILLI;
        let mut proof = proof(300);
        proof.takes = answer * MILLI;
        let rehearsal = Rehearsal::behind(proof, Some(IdleCache::new()));
        let results = rehearsal
            .run(clients, every, |number| number * 2 * MILLI)
            .await;
        let (requests, longest) = (results.at_upstream_per_thousand(), results.longest());
        assert!(
            requests <= 60,
            "{clients} clients: {requests} requests for 1000 gets"
        );
        assert!(
            longest <= 2 * IdleCache::PERIOD,
            "{clients} clients: {longest:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn proofs_are_not_kept_back_once_upstream_answers_at_once_again() {
    let proofs = Arc::new(GetProofs::default());
    assert!(share(&proofs, GET).await);
    assert!(share(&proofs, IdleCache::PERIOD).await);
    let mut waits = Vec::new();
    for _ in 0..40 {
        let began = Instant::now();
        assert!(share(&proofs, GET).await);
        waits.push(began.elapsed());
    }
    assert!(waits[0] >= 3 * CROWD_WAIT, "{:?}", waits[0]);
    assert!(
        waits[20..].iter().all(|wait| *wait <= CROWD_WAIT + GET),
        "{waits:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn proofs_of_an_upstream_that_is_slow_for_another_reason_are_not_kept_back() {
    let (proofs, takes) = (Arc::new(GetProofs::default()), Duration::from_millis(80));
    let mut longest = Vec::new();
    for _ in 0..40 {
        let began = Instant::now();
        assert!(share(&proofs, takes).await);
        longest.push(began.elapsed());
    }
    let longest = longest[2..].iter().max();
    assert!(longest <= Some(&(takes + CROWD_WAIT)), "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn few_clients_that_come_again_at_once_do_not_wait_for_others() {
    for clients in 1..=7 {
        let rehearsal = Rehearsal::of(20);
        let run = rehearsal.run(clients, Duration::ZERO, |number| number * MILLI / 10);
        let results = run.await;
        assert!(
            results.median() <= GET + MILLI,
            "{clients}: {:?}",
            results.median()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn gets_that_cost_upstream_less_than_their_proof_are_forwarded_at_once() {
    for (objects, clients, every) in [(2000, 20, 40 * MILLI), (10_000, 200, 100 * MILLI)] {
        let run = Rehearsal::of(objects).run(clients, every, |number| number * every / clients);
        let results = run.await;
        assert_eq!(
            (results.proven, results.forwarded),
            (0, results.waits.len())
        );
        assert!(results.longest() <= GET + MILLI, "{:?}", results.longest());
    }
}

#[tokio::test(start_paused = true)]
async fn gets_that_come_during_a_proof_share_the_next_one() {
    // 2000 gets a second, and proofs that take longer than gets may wait for each other.
    let run = Rehearsal::of(2000).run(40, 20 * MILLI, |number| number * MILLI / 2);
    let results = run.await;
    assert!(
        results.longest() <= longest_wait(2000),
        "{:?}",
        results.longest()
    );
    assert!(results.at_upstream_per_thousand() <= 100, "{results:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lone_get_after_a_crowd_does_not_wait() {
    for after in [10, 50, 200, 900] {
        let rehearsal = Rehearsal::of(20);
        Arc::clone(&rehearsal)
            .run(200, 400 * MILLI, |number| number * MILLI / 10)
            .await;
        sleep(after * MILLI).await;
        let began = Instant::now();
        rehearsal.get().await;
        assert!(
            began.elapsed() <= GET + MILLI,
            "{after} ms later: {:?}",
            began.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_proof_that_hangs_is_not_waited_for_and_many_of_them_not_joined() {
    let (proofs, proof) = (Arc::new(GetProofs::default()), proof(20));
    let rate = 1000.0;
    for _ in 0..MAX_RUNNING {
        assert!(proofs.is_worth(proof, rate));
        let began = Instant::now();
        let gets = (0..20).map(|_| proofs.join(proof, rate, std::future::pending));
        for get in futures_util::future::join_all(gets).await {
            assert!(matches!(get, Err(ProofError::LateForGets)), "{get:?}");
        }
        assert!(began.elapsed() <= CROWD_WAIT + MIN_PROOF_WAIT + MILLI);
        assert!(!proofs.is_worth(proof, rate), "upstream is left alone");
        sleep(AFTER_LATE).await;
    }
    assert!(!proofs.is_worth(proof, rate));
}

/// Lets twenty gets share a proof that takes so long. Returns `true` if they were answered.
async fn share(proofs: &Arc<GetProofs>, takes: Duration) -> bool {
    let ask = || {
        let proofs = Arc::clone(proofs);
        move || async move {
            let asked = proofs.progress.ask();
            sleep(takes).await;
            asked.answered(takes);
            Ok(FreshnessProof::Validated.of(ResourceVersion(1)))
        }
    };
    let gets = (0..20).map(|_| proofs.join(proof(20), 1000.0, ask()));
    let results = futures_util::future::join_all(gets).await;
    let answered = results.iter().filter(|result| result.is_ok()).count();
    assert!(answered == 0 || answered == 20, "{results:?}");
    answered == 20
}

/// Waits until gets share proofs again. Returns the length of the pause.
async fn pause(proofs: &Arc<GetProofs>) -> Duration {
    let began = Instant::now();
    while !proofs.is_worth(proof(20), 1000.0) {
        sleep(MILLI).await;
    }
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn gets_share_proofs_again_about_as_long_after_a_late_one_as_it_took() {
    let proofs = Arc::new(GetProofs::default());
    let stall = 2 * MIN_PROOF_WAIT;
    assert!(!share(&proofs, stall).await);
    let pause = pause(&proofs).await;
    assert!(pause >= stall && pause <= 2 * stall, "{pause:?}");
    assert!(share(&proofs, GET).await);
    assert!(!proofs.lateness.is_late());
}

#[tokio::test(start_paused = true)]
async fn each_stall_in_a_row_doubles_the_pause_up_to_a_second() {
    let proofs = Arc::new(GetProofs::default());
    let rest = MIN_PROOF_WAIT;
    let stall = MIN_PROOF_WAIT + rest;
    let mut pauses = Vec::new();
    for _ in 0..6 {
        assert!(!share(&proofs, stall).await);
        pauses.push(pause(&proofs).await);
    }
    assert!(pauses.is_sorted(), "{pauses:?}");
    // Gets give up before the late proof ends, which is within the pause.
    let bounds = 2 * stall..=2 * stall + rest;
    assert!(bounds.contains(&pauses[1]), "{pauses:?}");
    let bounds = AFTER_LATE..=AFTER_LATE + rest;
    assert!(
        pauses[3..].iter().all(|pause| bounds.contains(pause)),
        "{pauses:?}"
    );
    assert!(share(&proofs, GET).await);
    assert!(!share(&proofs, stall).await);
    assert!(
        pause(&proofs).await <= 2 * stall,
        "a proof in time ends the row"
    );
}

#[tokio::test(start_paused = true)]
async fn proofs_that_are_late_at_the_same_time_count_as_one_stall() {
    let (proofs, stall) = (Arc::new(GetProofs::default()), 2 * MIN_PROOF_WAIT);
    let crowds: Vec<_> = (0..3)
        .map(|number| {
            let proofs = Arc::clone(&proofs);
            tokio::spawn(async move {
                sleep(number * 30 * MILLI).await;
                share(&proofs, stall).await
            })
        })
        .collect();
    for crowd in crowds {
        assert!(!crowd.await.unwrap());
    }
    assert!(pause(&proofs).await <= 2 * stall);
}

#[tokio::test(start_paused = true)]
async fn gets_share_proofs_of_an_upstream_that_is_slow_to_tell_its_version() {
    let takes = Duration::from_millis(500);
    let costs = ProofCosts::default();
    costs.record_version_time(takes);
    let proof = ProofForGets::new(&costs.estimate(20), GetQuestion::Version);
    assert_eq!(proof.patience(), 4 * takes);
    let run = Rehearsal::with(proof).run(500, 1000 * MILLI, |number| number * 2 * MILLI);
    let results = run.await;
    let (requests, longest) = (results.at_upstream_per_thousand(), results.longest());
    assert!(requests <= 200, "{requests} requests for 1000 gets");
    // Four proofs may have begun just before.
    assert!(longest <= CROWD_WAIT + 2 * takes + 2 * MILLI, "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn no_more_proofs_run_than_may_however_many_crowds_come() {
    let (proofs, proof) = (Arc::new(GetProofs::default()), proof(20));
    let crowds: Vec<_> = (0..=MAX_RUNNING)
        .map(|number| {
            let proofs = Arc::clone(&proofs);
            tokio::spawn(async move {
                sleep(u32::try_from(number).unwrap() * 23 * MILLI).await;
                let gets = (0..20).map(|_| proofs.join(proof, 1000.0, std::future::pending));
                futures_util::future::join_all(gets).await
            })
        })
        .collect();
    // The first is not late yet.
    sleep(MIN_PROOF_WAIT + 20 * MILLI).await;
    assert_eq!(proofs.calls.running(), MAX_RUNNING);
    assert!(proofs.calls.is_open());
    for crowd in crowds {
        assert!(crowd.await.unwrap().iter().all(Result::is_err));
    }
}

#[tokio::test(start_paused = true)]
async fn a_straggler_whose_crowd_has_gone_on_does_not_wait() {
    let (proofs, began) = (Arc::new(GetProofs::default()), Instant::now());
    let get = proofs.join(proof(20), 0.0, std::future::pending).await;
    assert!(matches!(get, Err(ProofError::Cheap)), "{get:?}");
    assert_eq!(began.elapsed(), Duration::ZERO);
}
