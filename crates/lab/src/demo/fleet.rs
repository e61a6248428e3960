//! All clients of a demo: who wants what, over which connection.
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::client::{Counters, DemoClient, Opening, PodInterest, PodView};
use super::connect::SharedConnection;
use super::options::{DemoArgs, DemoProxy};
use crate::client::{Endpoint, Protocol};
use crate::sim::fixtures;

/// Clients that share one HTTP/2 connection: fewer than the hundred streams API servers allow.
const SHARING: usize = 20;

/// The running clients.
pub(crate) struct Fleet {
    counters: Arc<Counters>,
    members: Vec<(PodInterest, Arc<Mutex<PodView>>)>,
    tasks: JoinSet<()>,
}

/// Counts of what the clients did so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FleetTotals {
    pub(crate) clients: usize,
    /// Clients whose first state is complete.
    pub(crate) synced: usize,
    pub(crate) lists: u64,
    pub(crate) watches: u64,
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    pub(crate) retries: u64,
    pub(crate) expired: u64,
}

impl Fleet {
    pub(crate) fn start(
        args: &DemoArgs,
        namespaces: usize,
        front: &DemoProxy,
        token: &str,
    ) -> anyhow::Result<Self> {
        let endpoint = Endpoint::new(front.address, &front.ca_pem, token)?;
        let counters = Arc::new(Counters::default());
        let mut tasks = JoinSet::new();
        let mut members = Vec::with_capacity(args.clients);
        let mut rng = fastrand::Rng::with_seed(args.seed);
        let mut shared = Vec::new();
        for n in 0..args.clients {
            let interest = interest(n, namespaces, args.nodes, &mut rng);
            // A third shares connections, as informers of one process do; one in ten speaks
            // HTTP/1.1.
            let connect = |protocol| SharedConnection::new(endpoint.clone(), protocol);
            let connection = match n % 10 {
                0..3 => shared.pop().unwrap_or_else(|| {
                    let connection = Arc::new(connect(Protocol::Http2));
                    shared = vec![Arc::clone(&connection); SHARING - 1];
                    connection
                }),
                9 => Arc::new(connect(Protocol::Http1)),
                _ => Arc::new(connect(Protocol::Http2)),
            };
            let view = Arc::new(Mutex::new(PodView::default()));
            members.push((interest.clone(), Arc::clone(&view)));
            let client = DemoClient {
                interest,
                opening: if rng.bool() {
                    Opening::List
                } else {
                    Opening::WatchList
                },
                connection,
                counters: Arc::clone(&counters),
                view,
                timeout: Duration::from_secs(rng.u64(300..600)),
            };
            tasks.spawn(client.run());
        }
        Ok(Self {
            counters,
            members,
            tasks,
        })
    }

    pub(crate) fn totals(&self) -> FleetTotals {
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        FleetTotals {
            clients: self.members.len(),
            synced: self
                .members
                .iter()
                .filter(|(_, view)| view.lock().synced)
                .count(),
            lists: read(&self.counters.lists),
            watches: read(&self.counters.watches),
            events: read(&self.counters.events),
            bytes: read(&self.counters.bytes),
            retries: read(&self.counters.retries),
            expired: read(&self.counters.expired),
        }
    }

    /// Every client's interest and present view.
    pub(crate) fn views(&self) -> impl Iterator<Item = (&PodInterest, PodView)> {
        self.members
            .iter()
            .map(|(interest, view)| (interest, view.lock().clone()))
    }

    pub(crate) async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Six in ten want one node's pods, as node agents do; the rest is shared by the wider interests.
fn interest(n: usize, namespaces: usize, nodes: usize, rng: &mut fastrand::Rng) -> PodInterest {
    match n % 10 {
        0 => PodInterest::All,
        1 | 2 if namespaces > 0 => {
            PodInterest::Namespace(fixtures::namespace_name(rng.usize(0..namespaces)))
        }
        3 => PodInterest::Label(
            "app",
            fixtures::APPS[rng.usize(0..fixtures::APPS.len())].to_owned(),
        ),
        _ if nodes > 0 => PodInterest::Node(fixtures::node_name(n % nodes)),
        _ => PodInterest::All,
    }
}
