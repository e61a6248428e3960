//! A thousand watches on three replicas behind a load balancer, of which one is replaced
//! (`--max-connection-age`).
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;
use watershed::app::RunningProxy;

use crate::balance::Balancer;
use crate::consistent_reads::source;
use crate::support::client::{Connection, Endpoint, Next, Protocol, nothing};
use crate::support::history::WriteHistory;
use crate::support::{Fixture, becomes, eventually, plain_request, small, start_configured};

const CLIENTS: usize = 100;
const WATCHES_OF_A_CLIENT: usize = 10;
const WATCHES: usize = CLIENTS * WATCHES_OF_A_CLIENT;
const PODS: &str = "/api/v1/pods";

/// A replica. All have the certificate of the first one.
struct Replica {
    running: RunningProxy,
    _folder: TempDir,
}

impl Replica {
    async fn start(kubeconfig: &str, certificate: Option<(PathBuf, PathBuf)>) -> Self {
        let started = start_configured(kubeconfig, |config| {
            config.limits.max_age = Duration::from_secs(8);
            config.certificate = certificate;
            config.drain = Duration::from_secs(1);
        });
        let (running, folder) = started.await.unwrap();
        Self {
            running,
            _folder: folder,
        }
    }

    /// Returns the number of watches that this replica serves. Metrics are of the whole process.
    async fn watches(&self) -> u64 {
        let admin = self.running.admin_address;
        let host = admin.to_string();
        let answer = plain_request(admin, "GET", "/status.json", &[("Host", &host)]).await;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let status: Value = serde_json::from_str(body).unwrap();
        status["totals"]["watchesHere"].as_u64().unwrap()
    }
}

/// A client as client-go makes them: one connection, and watches that are opened again from the
/// last version.
struct WatchingClient {
    endpoint: Endpoint,
    /// The connection, and its number.
    connection: tokio::sync::Mutex<(usize, Connection)>,
    seen: Arc<Seen>,
}

/// All that the clients have seen.
#[derive(Default)]
struct Seen {
    /// The last version of each watch.
    versions: Mutex<Vec<u64>>,
    /// Events of all watches.
    events: Mutex<usize>,
    /// Violations that clients see.
    wrong: Mutex<Vec<String>>,
}

#[derive(Deserialize)]
struct Line {
    r#type: String,
    object: Object,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    message: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    resource_version: String,
}

impl WatchingClient {
    /// Opens a connection instead of this one, which takes no more requests. Its watches go on.
    async fn replace(&self, number: usize) {
        let mut connection = self.connection.lock().await;
        // Another watch of this client may have done it.
        if connection.0 == number
            && let Ok(fresh) = self.endpoint.connect(Protocol::Http2).await
        {
            *connection = (number + 1, fresh);
        }
    }

    /// Watches for ever.
    async fn watch(self: Arc<Self>, watch: usize) {
        loop {
            let version = self.seen.versions.lock()[watch];
            let path = format!(
                "{PODS}?watch=1&allowWatchBookmarks=true&timeoutSeconds=10&resourceVersion={version}"
            );
            let request = Request::get(&path).body(nothing()).unwrap();
            let (number, connection) = self.connection.lock().await.clone();
            let Ok(mut lines) = connection.follow(request).await else {
                self.replace(number).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            while let Next::Line(line) = lines.next().await {
                self.seen.take(watch, &line);
            }
        }
    }
}

impl Seen {
    fn take(&self, watch: usize, line: &[u8]) {
        let line: Line = serde_json::from_slice(line).unwrap();
        let version = line.object.metadata.resource_version.parse().unwrap_or(0);
        let mut versions = self.versions.lock();
        let is_event = match line.r#type.as_str() {
            "BOOKMARK" => false,
            "ADDED" | "MODIFIED" | "DELETED" => true,
            other => {
                let text = format!("{other}: {}", line.object.message);
                self.wrong.lock().push(text);
                return;
            }
        };
        if version < versions[watch] + u64::from(is_event) {
            let text = format!("version {version} after {}", versions[watch]);
            self.wrong.lock().push(text);
        }
        versions[watch] = version;
        *self.events.lock() += usize::from(is_event);
    }

    fn judge(&self) {
        let wrong = self.wrong.lock();
        assert!(wrong.is_empty(), "{} of {wrong:.5?}", wrong.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_are_evenly_spread_again_after_a_replica_was_replaced() {
    let fixture = Fixture::start(small()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 1);
    let token = fixture.upstream.admin_token();
    let kubeconfig = fixture.upstream.kubeconfig_yaml();
    let first = Replica::start(&kubeconfig, None).await;
    let ca = first.running.ca_file.clone().unwrap();
    let pair = Some((ca.with_file_name("tls.crt"), ca.with_file_name("tls.key")));
    let mut replicas = vec![first];
    for _ in 1..3 {
        replicas.push(Replica::start(&kubeconfig, pair.clone()).await);
    }
    let ca = std::fs::read_to_string(ca).unwrap();
    let balancer = Balancer::new(replicas[0].running.address.unwrap()).await;
    let balance = |replicas: &[Replica]| {
        let addresses = replicas.iter().map(|of| of.running.address.unwrap());
        *balancer.targets.lock() = addresses.collect();
    };
    balance(&replicas);

    let seen = Arc::new(Seen::default());
    *seen.versions.lock() = vec![fixture.upstream.state().version(); WATCHES];
    let endpoint = Endpoint::new(balancer.address, &ca, token);
    let mut tasks = Vec::new();
    for n in 0..CLIENTS {
        let connection = endpoint.connect(Protocol::Http2).await.unwrap();
        let client = Arc::new(WatchingClient {
            endpoint: endpoint.clone(),
            connection: tokio::sync::Mutex::new((0, connection)),
            seen: Arc::clone(&seen),
        });
        for watch in n * WATCHES_OF_A_CLIENT..(n + 1) * WATCHES_OF_A_CLIENT {
            tasks.push(AbortOnDropHandle::new(tokio::spawn(
                Arc::clone(&client).watch(watch),
            )));
        }
    }
    assert_spread(&replicas).await;
    write(&history, &seen).await;

    let lists = || fixture.upstream.stats().states_of("pods");
    let old = replicas.remove(0);
    balance(&replicas);
    old.running.shut_down().await;
    write(&history, &seen).await;
    replicas.push(Replica::start(&kubeconfig, pair).await);
    let new = Endpoint::new(replicas[2].running.address.unwrap(), &ca, token);
    becomes("the new replica has listed", false, async || {
        let path = format!("{PODS}?resourceVersion=0");
        source(&new.get(Protocol::Http2, &path).await).starts_with("forward")
    })
    .await;
    let before = lists();
    balance(&replicas);
    assert_spread(&replicas).await;
    write(&history, &seen).await;
    assert_eq!(lists(), before, "nobody lists because of the replacement");
    seen.judge();
    drop(tasks);
    for replica in replicas {
        replica.running.shut_down().await;
    }
    fixture.stop().await;
}

/// Waits until each replica serves its share of the watches, as far as chance allows it. On a busy machine
/// many of them are about to be opened again.
async fn assert_spread(replicas: &[Replica]) {
    eventually("the watches are evenly spread", async || {
        let mut watches = Vec::new();
        for replica in replicas {
            watches.push(replica.watches().await);
        }
        let all = watches.iter().sum::<u64>();
        let is_even = watches
            .iter()
            .all(|some| (20..=47).contains(&(some * 100 / all.max(1))));
        (is_even && all >= WATCHES as u64 / 2)
            .then_some(())
            .ok_or_else(|| format!("{watches:?} watches"))
    })
    .await;
}

/// Writes events, and waits until each watch has seen each of them.
async fn write(history: &WriteHistory, seen: &Seen) {
    const EVENTS: usize = 3;
    let before = *seen.events.lock();
    history.writes(EVENTS).await;
    becomes("events of all watches", WATCHES * EVENTS, async || {
        *seen.events.lock() - before
    })
    .await;
    seen.judge();
}
