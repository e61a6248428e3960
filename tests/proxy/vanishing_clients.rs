//! Clients that disappear without closing their connections.
use std::collections::BTreeMap;

use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use watershed_lab::sim::{Options, Population, SimulatedServer, pods};

use crate::support::client::{BOTH, Protocol, nothing, within};
use crate::support::follower::{Follower, Opening};
use crate::support::history::{Interest, WriteHistory};
use crate::support::program::Program;
use crate::support::{Fixture, becomes, eventually, small};

const LEASES: &str = "/apis/coordination.k8s.io/v1/leases";
const WATCHES: &str = r#"watershed_watches{group="coordination.k8s.io",resource="leases"}"#;
const QUALIFIED: &str = "leases.coordination.k8s.io";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_vanished_clients_end_and_the_upstream_watch_stays() {
    let server = SimulatedServer::start(small()).await.unwrap();
    let program = Program::start(&server).await;
    let list = program
        .proxied
        .get(Protocol::Http2, &format!("{LEASES}?resourceVersion=0"))
        .await;
    let version = list.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = format!("{LEASES}?watch=1&resourceVersion={version}");
    let mut open = Vec::new();
    let mut connections = Vec::new();
    for n in 0..30 {
        // The last ten watches are on two connections.
        if n < 20 || n % 5 == 0 {
            let protocol = if n < 20 { BOTH[n % 2] } else { Protocol::Http2 };
            connections.push(program.proxied.connect(protocol).await.unwrap());
        }
        open.push(connections.last().unwrap().watch(&path).await.unwrap());
    }
    becomes("open watches", 30.0, async || program.metric(WATCHES).await).await;
    let upstream = server.stats();
    assert_eq!(upstream.open_watches[QUALIFIED], 1, "one watch for all");
    assert_eq!(upstream.requests_on("WATCH", QUALIFIED), 1);

    // Some clients reset their streams, others drop their connection.
    open.truncate(25);
    becomes("watches after some streams are gone", 25.0, async || {
        program.metric(WATCHES).await
    })
    .await;
    drop(connections);
    drop(open);
    becomes("watches of nobody", 0.0, async || {
        program.metric(WATCHES).await
    })
    .await;
    let upstream = server.stats();
    assert_eq!(upstream.open_watches[QUALIFIED], 1, "the scope stays");
    assert_eq!(upstream.requests_on("WATCH", QUALIFIED), 1);

    // Returning clients are served from the same scope.
    let mut again = program.proxied.watch(Protocol::Http1, &path).await;
    let leases =
        watershed_protocol::GroupVersionResource::new("coordination.k8s.io", "v1", "leases");
    let lease = r#"{"metadata":{"name":"late","namespace":"kube-node-lease"},"spec":{}}"#;
    server.state().create(&leases, lease).unwrap();
    assert!(again.line().await.contains(r#""name":"late""#));
    assert_eq!(server.stats().requests_on("WATCH", QUALIFIED), 1);
    drop(again);
    program.kill().await;
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_read_lists_do_not_affect_other_clients() {
    let population = Population {
        nodes: 4,
        namespaces: 3,
        pods: 2_000,
        ..Population::default()
    };
    let fixture = Fixture::start(Options {
        population,
        ..small()
    })
    .await;
    let history = WriteHistory::new(fixture.upstream.state(), 1);
    let shared = fixture.proxied.connect(Protocol::Http2).await.unwrap();
    let beside = Follower::start(
        &shared,
        Interest::Namespace("team-01".to_owned()),
        Opening::List,
    );
    beside.synced().await;
    let path = "/api/v1/pods?resourceVersion=0";
    for n in 0..12 {
        // One list is answered from memory, and one is forwarded.
        let path = if n % 3 == 2 { "/api/v1/pods" } else { path };
        let connection = if n % 2 == 0 {
            shared.clone()
        } else {
            fixture.proxied.connect(Protocol::Http1).await.unwrap()
        };
        let response = connection
            .open(Request::get(path).body(nothing()).unwrap())
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let mut body = response.into_body();
        let first = within("the first piece", body.frame())
            .await
            .unwrap()
            .unwrap();
        assert!(
            first
                .data_ref()
                .is_some_and(|data| data.starts_with(br#"{"kind":"PodList""#))
        );
        history.writes(4).await;
    }
    // A client that sends a request and does not read delays nobody either.
    let lazy = fixture.proxied.connect(Protocol::Http1).await.unwrap();
    let unread = lazy
        .open(Request::get(path).body(nothing()).unwrap())
        .await
        .unwrap();

    beside.judge_undisturbed(&history).await;
    let upstream: BTreeMap<_, _> = fixture
        .upstream
        .state()
        .snapshot(&pods())
        .into_iter()
        .map(|(key, (version, _))| (key, version))
        .collect();
    for protocol in BOTH {
        eventually("a whole list", async || {
            let list = fixture.proxied.get(protocol, path).await.json();
            let items = list["items"].as_array().unwrap().iter().map(|item| {
                let text = |name: &str| item["metadata"][name].as_str().unwrap().to_owned();
                let version: u64 = text("resourceVersion").parse().unwrap();
                (format!("{}/{}", text("namespace"), text("name")), version)
            });
            let items: BTreeMap<_, _> = items.collect();
            if items == upstream {
                Ok(())
            } else {
                Err(format!("{} items", items.len()))
            }
        })
        .await;
    }
    let rest = within("the list nobody read", unread.into_body().collect())
        .await
        .unwrap()
        .to_bytes();
    assert!(
        serde_json::from_slice::<serde_json::Value>(&rest).is_ok(),
        "it is whole when it is read at last"
    );
    fixture.stop().await;
}
