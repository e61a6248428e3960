//! More data than fits into memory, and clients that want all of it.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fastrand::Rng;
use http::{Request, StatusCode, header};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio_util::task::AbortOnDropHandle;
use watershed_lab::sim::{ClusterState, Options, Population, SimulatedServer, fixtures};
use watershed_protocol::{GroupVersionResource, GzipReader};

use crate::support::client::{Answer, Connection, Endpoint, Next, Protocol, nothing, within};
use crate::support::eventually;
use crate::support::program::Program;

/// The memory limit of the program. Without one it takes some 300 MiB for the same work.
const LIMIT_MIB: usize = 192;
/// Types, with some 40 MiB of objects each. Two or three of them fit.
const TYPES: [(&str, &str); 6] = [
    ("", "configmaps"),
    ("", "services"),
    ("apps", "deployments"),
    ("apps", "replicasets"),
    ("discovery.k8s.io", "endpointslices"),
    ("example.com", "widgets"),
];
const NAMESPACES: usize = 10;
const OBJECTS_IN_NAMESPACE: usize = 40;
const OBJECT_BYTES: usize = 100 << 10;
/// Variable with the number of seconds for which the clients go on.
const SECONDS: &str = "WATERSHED_MEMORY_SECONDS";
const DEFAULT_SECONDS: u64 = 20;

/// Counts of what clients saw.
#[derive(Default)]
struct Seen {
    over: AtomicBool,
    verified: AtomicUsize,
    from_memory: AtomicUsize,
    for_budget: AtomicUsize,
    refused: AtomicUsize,
    /// Versions of writes, by type.
    written: Mutex<BTreeMap<&'static str, Vec<u64>>>,
    /// Versions of events, by type.
    events: Mutex<BTreeMap<&'static str, Vec<u64>>>,
}

#[derive(Deserialize)]
struct EventLine {
    r#type: String,
    object: EventObject,
}

#[derive(Deserialize)]
struct EventObject {
    metadata: EventMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventMetadata {
    resource_version: String,
}

fn gvr((group, resource): (&str, &str)) -> GroupVersionResource {
    GroupVersionResource::new(group, "v1", resource)
}

/// Returns the path of a type before its namespace.
fn base((group, _): (&str, &str)) -> String {
    if group.is_empty() {
        "/api/v1".to_owned()
    } else {
        format!("/apis/{group}/v1")
    }
}

fn name(number: usize) -> String {
    format!("o-{number:03}")
}

fn object(namespace: &str, number: usize, rng: &mut Rng) -> String {
    let noise: String = (0..256).map(|_| rng.alphanumeric()).collect();
    let padding = noise.repeat(OBJECT_BYTES / noise.len());
    let name = name(number);
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}","annotations":{{"padding":"{padding}"}}}}}}"#
    )
}

/// Creates so many objects in each namespace.
fn fill(state: &ClusterState, of: (&str, &str), count: usize) {
    let mut rng = Rng::with_seed(7);
    for namespace in (0..NAMESPACES).map(fixtures::namespace_name) {
        let json = object(&namespace, 0, &mut rng);
        state.create_copies(&gvr(of), &json, count, name).unwrap();
    }
}

async fn upstream() -> SimulatedServer {
    let population = Population {
        namespaces: NAMESPACES,
        ..Population::default()
    };
    let options = Options {
        population,
        bookmark_every: Duration::from_millis(500),
        ..Options::default()
    };
    SimulatedServer::start(options).await.unwrap()
}

/// Changes objects of all types until it is over.
async fn churn(state: Arc<ClusterState>, seen: Arc<Seen>) {
    let mut rng = Rng::with_seed(8);
    while !seen.over.load(Ordering::Relaxed) {
        let of = TYPES[rng.usize(0..TYPES.len())];
        let namespace = fixtures::namespace_name(rng.usize(0..NAMESPACES));
        let json = object(&namespace, rng.usize(0..OBJECTS_IN_NAMESPACE), &mut rng);
        let version = state.update(&gvr(of), &json).unwrap();
        seen.written.lock().entry(of.1).or_default().push(version);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the version of a list. It comes before the items, or behind them in custom types.
fn list_version(body: &[u8]) -> String {
    let text = std::str::from_utf8(body).unwrap();
    let (head, tail) = (&text[..200], &text[text.len() - 200..]);
    let name = r#""resourceVersion":""#;
    let found = head.split_once(name).or_else(|| tail.rsplit_once(name));
    found.unwrap().1.split('"').next().unwrap().to_owned()
}

fn unpacked(answer: &Answer) -> Bytes {
    if answer.header("content-encoding") != "gzip" {
        return answer.body.clone();
    }
    let mut whole = Vec::new();
    let read = GzipReader::default().read(&answer.body, |piece| whole.extend_from_slice(&piece));
    assert!(read.is_ok(), "not gzip");
    whole.into()
}

async fn read(connection: &Connection, path: &str, gzip: bool) -> Answer {
    let mut request = Request::get(path);
    if gzip {
        request = request.header(header::ACCEPT_ENCODING, "gzip");
    }
    within(path, connection.read(request.body(nothing()).unwrap()))
        .await
        .unwrap_or_else(|error| panic!("{path}: {error:#}"))
}

/// Reads a type again and again. Each answer has to be upstream's own at the same version.
async fn verify(of: (&'static str, &'static str), ends: [Endpoint; 2], seen: Arc<Seen>) {
    let [proxied, direct] = ends.map(|end| async move { end.connect(Protocol::Http2).await });
    let (proxied, direct) = (proxied.await.unwrap(), direct.await.unwrap());
    let mut rng = Rng::with_seed(of.1.len() as u64);
    while !seen.over.load(Ordering::Relaxed) {
        let namespace = fixtures::namespace_name(rng.usize(0..NAMESPACES));
        let path = format!("{}/namespaces/{namespace}/{}", base(of), of.1);
        let answer = read(&proxied, &format!("{path}?resourceVersion=0"), rng.bool()).await;
        if answer.status == StatusCode::TOO_MANY_REQUESTS {
            assert_eq!(answer.header("retry-after"), "10");
            assert_eq!(answer.json()["reason"], "TooManyRequests");
            seen.refused.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        match answer.header("x-watershed-source") {
            "snapshot" => seen.from_memory.fetch_add(1, Ordering::Relaxed),
            "forward; reason=budget" => seen.for_budget.fetch_add(1, Ordering::Relaxed),
            "forward; reason=syncing" => 0,
            other => panic!("{path}: {other}"),
        };
        let body = unpacked(&answer);
        let version = list_version(&body);
        let exact = format!("{path}?resourceVersion={version}&resourceVersionMatch=Exact");
        let expected = read(&direct, &exact, false).await;
        assert!(expected.body == body, "{path} at {version} differs");
        seen.verified.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Watches a type for ever, from `version` on, and goes on where a watch ended.
async fn follow(of: (&'static str, &'static str), end: Endpoint, version: u64, seen: Arc<Seen>) {
    let connection = end.connect(Protocol::Http2).await.unwrap();
    let mut version = version;
    loop {
        let path = format!(
            "{}/{}?watch=1&allowWatchBookmarks=true&resourceVersion={version}",
            base(of),
            of.1
        );
        let mut lines = connection.watch(&path).await.unwrap();
        loop {
            let line = match lines.next().await {
                Next::Line(line) => line,
                Next::End => break,
                broken @ Next::Broken(_) => panic!("{path}: {broken:?}"),
            };
            let event: EventLine = serde_json::from_slice(&line)
                .unwrap_or_else(|_| panic!("{path}: {}", String::from_utf8_lossy(&line)));
            let reached = event.object.metadata.resource_version.parse().unwrap();
            assert_ne!(event.r#type, "ERROR");
            if event.r#type != "BOOKMARK" {
                assert!(reached > version, "{path}: {reached} after {version}");
                seen.events.lock().entry(of.1).or_default().push(reached);
            }
            version = reached.max(version);
        }
    }
}

/// Returns the most resident memory that a process has had, in bytes.
fn peak_memory(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim()
        .trim_end_matches(" kB")
        .parse::<usize>()
        .unwrap()
        << 10
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_data_than_fits_is_forwarded_and_memory_stays_below_the_limit() {
    let seconds = std::env::var(SECONDS).map_or(DEFAULT_SECONDS, |text| text.parse().unwrap());
    let upstream = upstream().await;
    for of in TYPES {
        fill(upstream.state(), of, OBJECTS_IN_NAMESPACE);
    }
    let limit = format!("{LIMIT_MIB}Mi");
    let program = Program::with(&upstream, &["--memory-limit", &limit]).await;
    let direct = Endpoint::new(
        upstream.address(),
        upstream.ca_pem(),
        upstream.admin_token(),
    );
    let seen = Arc::<Seen>::default();
    let start = upstream.state().version();
    let watches: Vec<_> = TYPES
        .map(|of| {
            tokio::spawn(follow(
                of,
                program.proxied.clone(),
                start,
                Arc::clone(&seen),
            ))
        })
        .map(AbortOnDropHandle::new)
        .into();
    let mut tasks: Vec<_> = TYPES
        .map(|of| {
            let ends = [program.proxied.clone(), direct.clone()];
            tokio::spawn(verify(of, ends, Arc::clone(&seen)))
        })
        .into();
    tasks.push(tokio::spawn(churn(
        Arc::clone(upstream.state()),
        Arc::clone(&seen),
    )));
    let ends = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < ends && tasks.iter().all(|task| !task.is_finished()) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    seen.over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    eventually("all events", async || {
        assert!(watches.iter().all(|watch| !watch.is_finished()));
        let (written, events) = (seen.written.lock(), seen.events.lock());
        if *written == *events {
            Ok(())
        } else {
            let count = |of: &BTreeMap<_, Vec<u64>>| of.values().map(Vec::len).sum::<usize>();
            Err(format!("{} of {}", count(&events), count(&written)))
        }
    })
    .await;
    let peak = peak_memory(program.pid());
    let [verified, from_memory, for_budget, refused] = [
        &seen.verified,
        &seen.from_memory,
        &seen.for_budget,
        &seen.refused,
    ]
    .map(|count| count.load(Ordering::Relaxed));
    eprintln!(
        "peak {} MiB of {LIMIT_MIB}; {verified} lists verified, {from_memory} from memory, \
         {for_budget} forwarded for the budget, {refused} refused",
        peak >> 20
    );
    assert!(peak < LIMIT_MIB << 20, "peak {peak}\n{}", program.log());
    assert!(from_memory > 0, "nothing was held");
    assert!(for_budget > 0, "everything was held");
    drop(watches);
    program.terminate().await;
    assert!(program.ended().await.success());
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_that_cannot_fit_is_estimated_and_not_loaded() {
    let upstream = upstream().await;
    // Some 156 MiB.
    fill(upstream.state(), TYPES[0], 4 * OBJECTS_IN_NAMESPACE);
    fill(upstream.state(), TYPES[1], 1);
    let limit = format!("{LIMIT_MIB}Mi");
    let program = Program::with(&upstream, &["--memory-limit", &limit]).await;
    let connection = program.proxied.connect(Protocol::Http2).await.unwrap();
    upstream.take_recorded();
    for _ in 0..3 {
        let path = "/api/v1/configmaps?resourceVersion=0&limit=2";
        let answer = read(&connection, path, false).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(
            answer.header("x-watershed-source"),
            "forward; reason=budget"
        );
        let path = "/api/v1/services?resourceVersion=0";
        let answer = read(&connection, path, false).await;
        assert_eq!(answer.header("x-watershed-source"), "snapshot", "it fits");
    }
    let own: Vec<_> = upstream
        .take_recorded()
        .into_iter()
        .map(|request| request.target)
        .filter(|target| target.contains("/configmaps") && !target.contains("resourceVersion=0"))
        .collect();
    let is_sample = |target: &String| target.contains("limit=1") || target.contains("limit=20");
    assert!(own.len() <= 2 && own.iter().all(is_sample), "{own:#?}");
    program.terminate().await;
    assert!(program.ended().await.success());
    upstream.shutdown().await;
}
