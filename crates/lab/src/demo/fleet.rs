//! All clients of a demo: who wants what, over which connection.
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::client::{Client, Counters, Interest, Opening, View};
use super::connect::{Connection, Connector};
use super::{DemoArgs, DemoProxy};
use crate::sim::fixtures;

/// Clients that share one HTTP/2 connection: fewer than the hundred streams API servers allow.
const SHARING: usize = 20;

/// The running clients.
pub(crate) struct Fleet {
    counters: Arc<Counters>,
    members: Vec<(Interest, Arc<Mutex<View>>)>,
    tasks: JoinSet<()>,
}

/// What the clients did so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
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

// === impl Fleet ===

impl Fleet {
    pub(crate) fn start(
        args: &DemoArgs,
        namespaces: usize,
        front: &DemoProxy,
        token: &str,
    ) -> anyhow::Result<Self> {
        let connector = Connector::new(front.address, &front.ca_pem)?;
        let counters = Arc::new(Counters::default());
        let mut tasks = JoinSet::new();
        let mut members = Vec::with_capacity(args.clients);
        let mut rng = fastrand::Rng::with_seed(args.seed);
        let mut shared = Vec::new();
        for n in 0..args.clients {
            let interest = interest(n, namespaces, args.nodes, &mut rng);
            // A third shares connections, as informers of one process do; one in ten speaks
            // HTTP/1.1.
            let connection = match n % 10 {
                0..3 => {
                    if shared.is_empty() {
                        let connection = Arc::new(Connection::new(connector.clone(), true));
                        shared = vec![connection; SHARING];
                    }
                    shared.pop()
                }
                9 => Some(Arc::new(Connection::new(connector.clone(), false))),
                _ => None,
            };
            let connection =
                connection.unwrap_or_else(|| Arc::new(Connection::new(connector.clone(), true)));
            let view = Arc::new(Mutex::new(View::default()));
            members.push((interest.clone(), Arc::clone(&view)));
            let client = Client {
                interest,
                opening: if rng.bool() {
                    Opening::List
                } else {
                    Opening::WatchList
                },
                connection,
                token: token.to_owned(),
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

    pub(crate) fn totals(&self) -> Totals {
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
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
    pub(crate) fn views(&self) -> impl Iterator<Item = (&Interest, View)> {
        self.members
            .iter()
            .map(|(interest, view)| (interest, view.lock().clone()))
    }

    pub(crate) async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Six in ten want one node's pods, as node agents do; the rest is shared by the wider interests.
fn interest(n: usize, namespaces: usize, nodes: usize, rng: &mut fastrand::Rng) -> Interest {
    match n % 10 {
        0 => Interest::All,
        1 | 2 if namespaces > 0 => {
            Interest::Namespace(fixtures::namespace_name(rng.usize(0..namespaces)))
        }
        3 => Interest::Label(
            "app",
            fixtures::APPS[rng.usize(0..fixtures::APPS.len())].to_owned(),
        ),
        _ if nodes > 0 => Interest::Node(fixtures::node_name(n % nodes)),
        _ => Interest::All,
    }
}
