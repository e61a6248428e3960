//! A run: rounds of writes, reads and faults. After each round everything is healed, and every
//! client has to have everything.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use tokio_util::task::AbortOnDropHandle;
use watershed_lab::sim::{Options, Population, SimulatedServer};

use crate::client::{Site, World};
use crate::faults::{FaultKind, FaultTargets};
use crate::history::{History, NAMESPACES, NODES, Part, Resource};
use crate::informer::{Informer, replay};
use crate::judge::ListAnswer;
use crate::reader;
use crate::relay::Relay;
use crate::replica::{Figures, Replica, Servers};
use crate::report::Report;
use crate::waiting::soon;

/// Faults between two looks at all clients.
const FAULTS_A_ROUND: usize = 9;

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Decides about all writes, reads and faults, but not about when they meet.
    pub(crate) seed: u64,
    /// The run goes on for at least so long, and until each kind of fault has happened.
    pub(crate) time: Duration,
    /// The run goes on until so many events were checked.
    pub(crate) events: u64,
    /// The run goes on until so many reads were checked.
    pub(crate) reads: u64,
    /// Writes a second.
    pub(crate) pace: u64,
    pub(crate) informers: usize,
    pub(crate) readers: usize,
    /// Only one of the proxies is ever restarted, so that figures of the others can be compared.
    pub(crate) soak: bool,
    /// Faults that are left out.
    pub(crate) without: &'static [FaultKind],
}

/// The outcome of a run.
pub(crate) struct Outcome {
    pub(crate) report: String,
    pub(crate) wrong: Vec<String>,
    pub(crate) events: u64,
    pub(crate) reads: u64,
    pub(crate) from_memory: u64,
    /// Self-checks that found no difference.
    pub(crate) self_checks: u64,
    /// The figures of each proxy that was never restarted, after each round.
    pub(crate) figures: Vec<(&'static str, Vec<(Duration, Figures)>)>,
}

/// Clients, and the writes.
struct Traffic {
    informers: Vec<Informer>,
    writing: Arc<AtomicBool>,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

fn options(seed: u64) -> Options {
    Options {
        seed,
        population: Population {
            nodes: NODES,
            namespaces: NAMESPACES,
            pods: 60,
            configmaps: 50,
            widgets: 50,
            ..Population::default()
        },
        bookmark_every: Duration::from_millis(400),
        progress_every: Duration::from_millis(300),
        ..Options::default()
    }
}

async fn start(plan: &Plan) -> (Arc<World>, FaultTargets) {
    let first = SimulatedServer::start(options(plan.seed)).await.unwrap();
    let second = first.beside().await.unwrap();
    let relays = [
        Relay::start(first.address()).await,
        Relay::start(second.address()).await,
    ];
    let servers = Servers {
        urls: relays
            .iter()
            .map(|r| format!("https://{}", r.address))
            .collect(),
        ca_pem: first.ca_pem().to_owned(),
        token: first.admin_token().to_owned(),
    };
    let history = History::new(first.state(), plan.seed);
    let one = Replica::start("replica 1", servers.clone()).await;
    let two = Replica::start("replica 2", servers.clone()).await;
    // The third follows the other two, and not the API servers.
    let tree = Servers {
        urls: [&one, &two]
            .map(|replica| format!("https://{}", replica.address))
            .into(),
        ca_pem: one.ca_pem() + &two.ca_pem(),
        ..servers
    };
    let leaf = Replica::start("leaf", tree).await;
    let replicas = vec![one, two, leaf];
    let sites = replicas.iter().map(|replica| Site {
        name: replica.name,
        endpoint: replica.endpoint(),
    });
    let world = World {
        history,
        report: Report::default(),
        sites: sites.collect(),
    };
    let targets = FaultTargets {
        servers: [first, second],
        relays,
        replicas,
        restarted: if plan.soak { vec![1] } else { vec![0, 1, 2] },
        revision: 0,
    };
    (Arc::new(world), targets)
}

/// Writes while it is allowed, at a pace.
async fn write(world: Arc<World>, writing: Arc<AtomicBool>, pace: u64, mut rng: Rng) {
    const BURST: u64 = 6;
    loop {
        if writing.load(Ordering::Acquire) {
            for _ in 0..rng.u64(1..2 * BURST) {
                let resource = match rng.u8(0..6) {
                    0..=3 => Resource::Pods,
                    4 => Resource::ConfigMaps,
                    _ => Resource::Widgets,
                };
                world.history.write(resource);
                world.report.count("writes");
            }
        }
        tokio::time::sleep(Duration::from_millis(1000 * BURST / pace)).await;
    }
}

impl Traffic {
    fn start(world: &Arc<World>, plan: &Plan) -> Self {
        let rng = |n: u64| Rng::with_seed(plan.seed.wrapping_mul(1000) + n);
        let writing = Arc::new(AtomicBool::new(true));
        let writer = write(Arc::clone(world), Arc::clone(&writing), plan.pace, rng(1));
        let mut tasks = vec![AbortOnDropHandle::new(tokio::spawn(writer))];
        for n in 0..plan.readers as u64 {
            let (reads, replays) = (Arc::clone(world), Arc::clone(world));
            let reading = reader::read(reads, rng(100 + n));
            tasks.push(AbortOnDropHandle::new(tokio::spawn(reading)));
            if n % 4 == 0 {
                let replaying = replay(replays, rng(500 + n));
                tasks.push(AbortOnDropHandle::new(tokio::spawn(replaying)));
            }
        }
        let informers = (0..plan.informers).map(|n| Informer::start(world, n, plan.seed));
        Self {
            informers: informers.collect(),
            writing,
            _tasks: tasks,
        }
    }

    /// Stops the writes until every client has everything, and memory answers everywhere.
    async fn settle(&self, world: &Arc<World>) {
        self.writing.store(false, Ordering::Release);
        for informer in &self.informers {
            let has = soon(async || informer.has_everything(world)).await;
            if let Err(why) = has {
                world
                    .report
                    .wrong(format!("after all faults had ended: {why}"));
                return;
            }
        }
        for site in 0..world.sites.len() {
            for resource in Resource::ALL {
                let answers = soon(async || answers_from_memory(world, site, resource).await).await;
                if let Err(why) = answers {
                    let name = world.sites[site].name;
                    world
                        .report
                        .wrong(format!("{name} after all faults had ended: {why}"));
                    return;
                }
            }
        }
        self.writing.store(true, Ordering::Release);
    }
}

/// Returns an error if a list of any version does not come from memory, or is not the newest.
async fn answers_from_memory(
    world: &Arc<World>,
    site: usize,
    resource: Resource,
) -> Result<(), String> {
    let part = Part::default();
    let text = |error: anyhow::Error| format!("{resource:?}: {error:#}");
    let newest = world.history.recent(resource, 1, &mut Rng::new());
    let link = world.link(site, &mut Rng::new()).await.map_err(text)?;
    let path = resource.url(&part, "resourceVersion=0");
    let answer = link.read(&path, part.accept(true)).await.map_err(text)?;
    if answer.source != "snapshot" {
        return Err(format!("{resource:?} comes from {}", answer.source));
    }
    let list = ListAnswer::split(resource, &part, &answer.body)?;
    if list.version < newest {
        return Err(format!(
            "{resource:?} is at {}, and not at {newest}",
            list.version
        ));
    }
    ListAnswer::judge(&world.history, resource, &part, (list.version, list.items))
}

/// Reports self-checks that found a difference. Returns the number of those that found none.
async fn check_self_checks(world: &World, replicas: &[Replica]) -> u64 {
    let mut same = 0;
    for replica in replicas {
        let found = replica.self_checks().await;
        if found.different > 0 {
            let (name, count) = (replica.name, found.different);
            world
                .report
                .wrong(format!("{count} self-checks of {name} found a difference"));
        }
        same += found.same;
    }
    same
}

/// Runs a plan to its end.
pub(crate) async fn run(plan: Plan) -> Outcome {
    let began = Instant::now();
    let (world, mut targets) = start(&plan).await;
    let traffic = Traffic::start(&world, &plan);
    let mut rng = Rng::with_seed(plan.seed);
    let mut figures: Vec<_> = world
        .sites
        .iter()
        .map(|site| (site.name, Vec::new()))
        .collect();
    let mut deck: Vec<FaultKind> = Vec::new();
    let mut decks = 0;
    let same_self_checks = loop {
        for _ in 0..FAULTS_A_ROUND {
            if deck.is_empty() {
                deck = FaultKind::ALL.into();
                deck.retain(|fault| !plan.without.contains(fault));
                rng.shuffle(&mut deck);
                decks += 1;
            }
            let Some(fault) = deck.pop() else { break };
            targets.suffer(fault, &mut rng).await;
            world.report.count(&format!("fault {fault:?}"));
            let pause = rng.u64(50..600);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            if world.report.of("wrong") > 0 {
                break;
            }
        }
        if world.report.of("wrong") == 0 {
            traffic.settle(&world).await;
        }
        let same = check_self_checks(&world, &targets.replicas).await;
        world.report.count("rounds");
        for (n, replica) in targets.replicas.iter().enumerate() {
            figures[n]
                .1
                .push((began.elapsed(), replica.figures().await));
        }
        let (events, reads) = (world.report.of("EVENTS"), world.report.of("READS"));
        eprintln!(
            "{:>5} s: {events} events, {reads} reads, {} wrong",
            began.elapsed().as_secs(),
            world.report.of("wrong")
        );
        let all_faults = decks > 1 || (decks == 1 && deck.is_empty());
        let enough = events >= plan.events && reads >= plan.reads && began.elapsed() >= plan.time;
        if (all_faults && enough) || world.report.of("wrong") > 0 {
            break same;
        }
    };
    world
        .report
        .add("self-checks without a difference", same_self_checks);
    drop(traffic);
    finish(&plan, &world, targets, figures).await
}

async fn finish(
    plan: &Plan,
    world: &World,
    targets: FaultTargets,
    mut figures: Vec<(&'static str, Vec<(Duration, Figures)>)>,
) -> Outcome {
    let wrong = world.report.wrongs();
    if !wrong.is_empty() {
        for replica in &targets.replicas {
            eprintln!("--- {}:\n{}", replica.name, replica.log());
        }
    }
    let restarted: Vec<_> = targets.restarted.iter().map(|&n| figures[n].0).collect();
    figures.retain(|(name, _)| !restarted.contains(name));
    targets.stop().await;
    let report = &world.report;
    let kinds = [
        "list of any version",
        "consistent list",
        "consistent list in pages",
    ];
    let from_memory = kinds.map(|kind| report.of(&format!("reads, {kind}, from memory")));
    Outcome {
        report: format!("{plan:?}\n{}", report.text()),
        wrong,
        events: report.of("EVENTS"),
        reads: report.of("READS"),
        from_memory: from_memory.into_iter().sum(),
        self_checks: report.of("self-checks without a difference"),
        figures,
    }
}
