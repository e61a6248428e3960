//! Proofs that memory is fresh, for types that are large and idle: which proof is chosen, what it
//! costs upstream, and that it shows what memory lacks.
use std::time::Duration;

use futures_util::future::join_all;
use http::{StatusCode, header};
use watershed::app::AppConfig;
use watershed::upstream::ListCompression;
use watershed_lab::sim::{Options, PlannedRefusal, RecordedRequest, SimulatedServer, pods};
use watershed_protocol::GroupVersionResource;

use crate::consistent_reads::{
    LATE, PODS, names, pod_keys, pod_path, quiet, some_pod, source, version,
};
use crate::support::client::{Answer, Protocol, within};
use crate::support::program::Program;
use crate::support::{Fixture, becomes, unless_stalled};

/// Too many to be compared for nothing.
const MANY: usize = 2000;

/// Writes another type, so that upstream's version moves. Returns the version.
fn write_elsewhere(upstream: &SimulatedServer, name: &str) -> u64 {
    let namespaces = GroupVersionResource::new("", "v1", "namespaces");
    let text = format!(r#"{{"metadata":{{"name":"{name}"}}}}"#);
    upstream.state().create(&namespaces, &text).unwrap()
}

async fn read_in_a_crowd(fixture: &Fixture, paths: &[String]) -> Vec<Answer> {
    let answers = read_at_once(fixture, paths).await;
    for answer in &answers {
        assert_eq!(answer.status, StatusCode::OK, "{}", source(answer));
    }
    answers
}

async fn read_at_once(fixture: &Fixture, paths: &[String]) -> Vec<Answer> {
    let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
    let reads = paths.iter().map(|path| {
        let request = http::Request::get(path)
            .body(crate::support::client::nothing())
            .unwrap();
        connection.read(request)
    });
    let answers = within("reads at once", join_all(reads)).await;
    answers.into_iter().map(Result::unwrap).collect()
}

/// Returns namespaces and names of the pods that upstream has on a node.
async fn pods_on(fixture: &Fixture, node: &str) -> Vec<(String, String)> {
    let path = format!("{PODS}?fieldSelector=spec.nodeName%3D{node}");
    let list = fixture.direct.get(Protocol::Http2, &path).await.json();
    let text =
        |item: &serde_json::Value, name: &str| item["metadata"][name].as_str().unwrap().to_owned();
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| (text(item, "namespace"), text(item, "name")))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_a_large_idle_type_are_proven_by_one_comparison_each() {
    unless_stalled("a large idle type is compared", comparisons).await;
}

/// Runs the test in a program of its own, whose metrics no other test shares. Returns an error if a
/// proof did not arrive in time.
async fn comparisons() -> Result<(), String> {
    let upstream = SimulatedServer::start(quiet(MANY)).await.unwrap();
    let program = Program::start(&upstream).await;
    program.proxied.get(Protocol::Http2, PODS).await;
    let lists = upstream.stats().requests_on("LIST", "pods");
    for round in 0..3 {
        let moved = write_elsewhere(&upstream, &format!("other-{round}"));
        let answer = program.proxied.get(Protocol::Http2, PODS).await;
        if source(&answer) != "linearizable" {
            return Err(source(&answer).to_owned());
        }
        assert!(version(&answer) >= moved);
        assert_eq!(names(&answer).len(), MANY);
    }
    let metrics = program.admin("GET", "/metrics").await;
    let asked = upstream.stats().requests_on("LIST", "pods") - lists;
    // The first read asks for the version before.
    let validated =
        r#"watershed_consistent_reads_total{group="",resource="pods",outcome="validated"} 3"#;
    if asked != 4 || !metrics.lines().any(|line| line == validated) {
        return Err(format!("{asked} lists\n{metrics}"));
    }
    program.terminate().await;
    assert!(program.ended().await.success());
    upstream.shutdown().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_whose_watch_is_late_catches_up_for_a_consistent_list() {
    unless_stalled("a cache catches up", catching_up).await;
}

async fn catching_up() -> Result<(), String> {
    let fixture = Fixture::start(Options {
        // The cache advances although nothing happens, as kube-apiserver's does when it is read
        // consistently.
        progress_every: Duration::from_millis(200),
        ..quiet(MANY)
    })
    .await;
    fixture.proxied.get(Protocol::Http2, PODS).await;
    fixture
        .upstream
        .faults()
        .delay_events(Duration::from_millis(300));
    let (namespace, name) = some_pod(&fixture);
    fixture
        .upstream
        .state()
        .delete(&pods(), &namespace, &name)
        .unwrap();
    let moved = write_elsewhere(&fixture.upstream, "other");
    let answer = fixture.proxied.get(Protocol::Http2, PODS).await;
    assert!(version(&answer) >= moved);
    assert!(!names(&answer).contains(&name), "deleted before the list");
    let source = source(&answer).to_owned();
    fixture.upstream.faults().delay_events(Duration::ZERO);
    fixture.stop().await;
    if source == "linearizable" {
        Ok(())
    } else {
        Err(source)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_reads_of_a_large_idle_type_go_to_upstream_and_are_shared() {
    for little in ["?limit=10", "?fieldSelector=metadata.name%3Dnone"] {
        unless_stalled(little, async || alone_and_in_a_crowd(little).await).await;
    }
}

/// Returns an error if the proof came too early, or if the reads of the crowd were not
/// simultaneous.
async fn alone_and_in_a_crowd(little: &str) -> Result<(), String> {
    let fixture = Fixture::start(quiet(MANY)).await;
    fixture.proxied.get(Protocol::Http2, PODS).await;
    write_elsewhere(&fixture.upstream, "other");
    let path = format!("{PODS}{little}");
    for _ in 0..2 {
        let before = fixture.upstream.stats().requests_on("LIST", "pods");
        let alone = fixture.proxied.get(Protocol::Http2, &path).await;
        let asked = fixture.upstream.stats().requests_on("LIST", "pods") - before;
        // The first one asks for the version as well, as the type might be busy.
        if source(&alone) != "forward; reason=unproven" || asked > 2 {
            return Err(format!("{}, {asked} lists", source(&alone)));
        }
    }
    let answers = read_in_a_crowd(&fixture, &vec![path; 50]).await;
    let forwarded = answers
        .iter()
        .filter(|answer| source(answer).starts_with("forward"))
        .count();
    fixture.stop().await;
    if forwarded <= 5 {
        Ok(())
    } else {
        Err(format!("{forwarded} of 50 lists went to upstream"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_reads_of_a_large_type_are_proven_again_once_its_events_come() {
    let fixture = Fixture::start(quiet(MANY)).await;
    fixture.proxied.get(Protocol::Http2, PODS).await;
    // A type is idle when nothing has come for a moment.
    tokio::time::sleep(Duration::from_millis(300)).await;
    write_elsewhere(&fixture.upstream, "other");
    let path = format!("{PODS}?limit=10");
    let alone = fixture.proxied.get(Protocol::Http2, &path).await;
    assert_eq!(source(&alone), "forward; reason=unproven", "no event comes");
    let (namespace, name) = some_pod(&fixture);
    let mut round = 0;
    becomes("the source", "linearizable".to_owned(), async || {
        let mut last = String::new();
        for _ in 0..3 {
            round += 1;
            let text = format!(
                r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}","labels":{{"n":"{round}"}}}}}}"#
            );
            let written = fixture.upstream.state().update(&pods(), &text).unwrap();
            let answer = fixture.proxied.get(Protocol::Http2, &path).await;
            assert!(version(&answer) >= written, "{}", source(&answer));
            last = source(&answer).to_owned();
        }
        last
    })
    .await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_different_small_reads_share_a_comparison() {
    unless_stalled("different reads at once", async || {
        let fixture = Fixture::start(quiet(MANY)).await;
        fixture.proxied.get(Protocol::Http2, PODS).await;
        write_elsewhere(&fixture.upstream, "other");
        let path = |limit| format!("{PODS}?limit={limit}");
        fixture.proxied.get(Protocol::Http2, &path(1)).await;
        let before = fixture.upstream.stats().requests_on("LIST", "pods");
        let paths: Vec<_> = (2..202).map(path).collect();
        let answers = read_in_a_crowd(&fixture, &paths).await;
        let asked = fixture.upstream.stats().requests_on("LIST", "pods") - before;
        let proven = answers
            .iter()
            .filter(|answer| source(answer) == "linearizable")
            .count();
        fixture.stop().await;
        let what = format!("{proven} were answered from memory, and upstream answered {asked}");
        if proven > 100 && asked < 100 {
            Ok(())
        } else {
            Err(what)
        }
    })
    .await;
}

/// Reads a watch up to the end of its initial state. Returns its source and the names.
async fn initial_names(fixture: &Fixture, node: &str) -> (String, Vec<String>) {
    let path = format!(
        "{PODS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
         &allowWatchBookmarks=true&fieldSelector=spec.nodeName%3D{node}"
    );
    let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
    let request = http::Request::get(&path)
        .body(crate::support::client::nothing())
        .unwrap();
    let (source, mut lines) = connection.follow_with_source(request).await.unwrap();
    let mut names = Vec::new();
    loop {
        let line = lines.line().await;
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        match event["type"].as_str().unwrap() {
            "ADDED" => {
                let name = event["object"]["metadata"]["name"].as_str().unwrap();
                names.push(name.to_owned());
            }
            "BOOKMARK" => return (source, names),
            other => panic!("{other}: {line}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_of_one_node_is_proven_by_comparing_the_objects_of_that_node() {
    let listed = || one_node(ListCompression::Never);
    unless_stalled("a node's watch", listed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_objects_of_a_node_are_compared_by_a_compressed_watch_where_bytes_are_dear() {
    let streamed = || one_node(ListCompression::Always);
    unless_stalled("a node's watch, compressed", streamed).await;
}

async fn one_node(compression: ListCompression) -> Result<(), String> {
    let mut options = quiet(MANY);
    options.population.nodes = 100;
    let is_streamed = compression == ListCompression::Always;
    let compress = |config: &mut AppConfig| config.scopes.compression = compression;
    let fixture = Fixture::configured(options, compress).await;
    fixture.proxied.get(Protocol::Http2, PODS).await;
    write_elsewhere(&fixture.upstream, "other");
    // From now on memory lacks what happens.
    fixture.upstream.faults().delay_events(LATE);
    let (here, elsewhere) = ("node-003", "node-004");
    let (namespace, name) = pods_on(&fixture, elsewhere).await.remove(0);
    fixture
        .upstream
        .state()
        .delete(&pods(), &namespace, &name)
        .unwrap();
    let before = fixture.upstream.stats().requests_on("WATCH", "pods");
    let (source, mut got) = initial_names(&fixture, here).await;
    let watches = fixture.upstream.stats().requests_on("WATCH", "pods") - before;
    let mut wanted: Vec<_> = pods_on(&fixture, here)
        .await
        .into_iter()
        .map(|(_, name)| name)
        .collect();
    got.sort();
    wanted.sort();
    assert_eq!(got, wanted);
    let (other_source, got) = initial_names(&fixture, elsewhere).await;
    assert!(
        !got.contains(&name),
        "deleted before the watch, which came from {other_source}"
    );
    fixture.upstream.faults().delay_events(Duration::ZERO);
    fixture.stop().await;
    if source == "linearizable" && watches == u64::from(is_streamed) {
        Ok(())
    } else {
        Err(format!("{source}, {watches} watches at upstream"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_gets_of_one_type_share_proofs_and_a_lone_get_is_forwarded() {
    let fixture = Fixture::start(quiet(100)).await;
    fixture.proxied.get(Protocol::Http2, PODS).await;
    let keys = pod_keys(&fixture);
    let alone = pod_path(&keys[0]);
    let alone = fixture.proxied.get(Protocol::Http2, &alone).await;
    assert_eq!(source(&alone), "forward; reason=consistent-read");
    let paths: Vec<_> = keys.iter().map(|key| pod_path(key)).collect();
    unless_stalled("gets at once", async || {
        let asked = || {
            let counts = fixture.upstream.stats();
            ["GET", "LIST"].map(|verb| counts.requests_on(verb, "pods"))
        };
        let before = asked();
        let mut shared = 0;
        for round in 0..5 {
            // Each round sees what was written before it.
            let (namespace, name) = keys[round].split_once('/').unwrap();
            let text = format!(
                r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}","labels":{{"n":"{round}"}}}}}}"#
            );
            let written = fixture.upstream.state().update(&pods(), &text).unwrap();
            let answers = read_in_a_crowd(&fixture, &paths).await;
            assert!(version(&answers[round]) >= written, "{}", source(&answers[round]));
            let from_memory = |answer: &&Answer| source(answer) == "linearizable";
            shared += answers.iter().filter(from_memory).count() as u64;
        }
        let after = asked();
        let [gets, proofs] = [after[0] - before[0], after[1] - before[1]];
        let what = format!(
            "{shared} of 500 were answered from memory; upstream answered {gets}, and {proofs} proofs"
        );
        // Some of a burst are forwarded before it is known to be one: on a busy machine, where they come
        // slowly, most of them.
        if shared >= 50 && gets <= 500 - shared && proofs <= shared / 2 {
            Ok(())
        } else {
            Err(what)
        }
    })
    .await;
    // Memory that lacks a deletion does not answer.
    fixture.upstream.faults().delay_events(LATE);
    // The crowd is known by the time of the second half at the latest.
    let twice = [&paths[..], &paths[..]].concat();
    let mut places = 50..;
    unless_stalled("a deleted pod in a crowd", async || {
        let place = places.next().unwrap();
        let (namespace, name) = keys[place].split_once('/').unwrap();
        fixture
            .upstream
            .state()
            .delete(&pods(), namespace, name)
            .unwrap();
        let answers = read_at_once(&fixture, &twice).await;
        let deleted = [place, place + paths.len()].map(|n| &answers[n]);
        for answer in deleted {
            assert_eq!(answer.status, StatusCode::NOT_FOUND, "{}", source(answer));
        }
        assert_eq!(answers[0].status, StatusCode::OK);
        // A get that does not belong to a crowd says nothing of its proof.
        let is_alone = |answer: &&Answer| source(answer) == "forward; reason=consistent-read";
        if deleted.iter().all(is_alone) {
            Err("it was not read in a crowd".to_owned())
        } else {
            Ok(())
        }
    })
    .await;
    fixture.upstream.faults().delay_events(Duration::ZERO);
    fixture.stop().await;
}

/// Returns how often upstream was asked for pods' metadata since the last call.
fn questions(fixture: &Fixture) -> usize {
    let is_question = |head: &RecordedRequest| {
        let accept = head.headers.get(header::ACCEPT);
        head.target.starts_with(PODS)
            && accept.is_some_and(|it| it.to_str().unwrap().contains("PartialObjectMetadata"))
    };
    let recorded = fixture.upstream.take_recorded();
    recorded.iter().filter(|head| is_question(head)).count()
}

/// Reads all pods consistently, again and again. Returns how often upstream was asked for a proof.
async fn questions_of_refused_reads(
    fixture: &Fixture,
    code: u16,
    retry_after: Option<u32>,
) -> usize {
    questions(fixture);
    fixture.upstream.faults().set(|active| {
        active.refuse = Some(PlannedRefusal {
            count: u32::MAX,
            code,
            retry_after,
            resource: Some("pods".to_owned()),
            verb: Some("LIST".to_owned()),
        });
    });
    for _ in 0..20 {
        let answer = fixture.proxied.get(Protocol::Http2, PODS).await;
        assert_eq!(answer.status.as_u16(), code, "{}", source(&answer));
        assert_eq!(source(&answer), "forward; reason=unproven");
    }
    questions(fixture)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_refuses_proofs_is_asked_less_and_less_often() {
    for code in [429, 503, 403] {
        unless_stalled("refused proofs", async || {
            let fixture = Fixture::start(quiet(100)).await;
            fixture.proxied.get(Protocol::Http2, PODS).await;
            let asked = questions_of_refused_reads(&fixture, code, None).await;
            fixture.upstream.faults().set(|active| active.refuse = None);
            becomes("the source", "linearizable".to_owned(), async || {
                source(&fixture.proxied.get(Protocol::Http2, PODS).await).to_owned()
            })
            .await;
            fixture.stop().await;
            if asked <= 5 {
                Ok(())
            } else {
                Err(format!("{asked} questions for 20 reads"))
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_asks_for_a_pause_gets_it() {
    unless_stalled("a pause", async || {
        let fixture = Fixture::start(quiet(100)).await;
        fixture.proxied.get(Protocol::Http2, PODS).await;
        let asked = questions_of_refused_reads(&fixture, 429, Some(60)).await;
        fixture.stop().await;
        if asked == 1 {
            Ok(())
        } else {
            Err(format!("{asked} questions for 20 reads"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_gets_that_cannot_share_a_proof_is_forwarded_without_reviews() {
    let fixture = Fixture::start(quiet(100)).await;
    fixture.proxied.get(Protocol::Http2, PODS).await;
    questions_of_refused_reads(&fixture, 429, Some(60)).await;
    let reviews = || {
        let reviews = "subjectaccessreviews.authorization.k8s.io";
        fixture.upstream.stats().requests_on("POST", reviews)
    };
    let before = reviews();
    let keys = pod_keys(&fixture);
    let paths: Vec<_> = keys.iter().map(|key| pod_path(key)).collect();
    for answer in read_in_a_crowd(&fixture, &paths).await {
        assert_eq!(source(&answer), "forward; reason=consistent-read");
    }
    assert_eq!(reviews(), before);
    fixture.stop().await;
}
