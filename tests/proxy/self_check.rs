//! The comparison of memory with upstream: what it finds, what it does then, and that it finds
//! nothing where nothing is wrong.
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use watershed_lab::sim::churn::{Churn, ChurnMix};
use watershed_lab::sim::{Options, Population, SimulatedServer, pods};
use watershed_protocol::GroupVersionResource;

use crate::support::client::{Answer, Endpoint, Next, Protocol};
use crate::support::program::Program;
use crate::support::{becomes, eventually, small};

const PODS: &str = "/api/v1/pods?resourceVersion=0";
const CONFIGMAPS: &str = "/api/v1/configmaps?resourceVersion=0";
const FAST: [&str; 2] = ["--self-check-interval", "100ms"];

async fn get(endpoint: &Endpoint, path: &str) -> Answer {
    endpoint.get(Protocol::Http2, path).await
}

fn source(answer: &Answer) -> &str {
    answer.header("x-watershed-source")
}

fn items(answer: &Answer) -> Value {
    answer.json()["items"].clone()
}

/// Returns the number of checks of a type with this result.
async fn checks(program: &Program, resource: &str, result: &str) -> u64 {
    let labels = format!(r#"{{group="",resource="{resource}",result="{result}"}}"#);
    let series = format!("watershed_self_checks_total{labels}");
    program.counter(&series).await
}

async fn quarantines(program: &Program, resource: &str, reason: &str) -> u64 {
    let labels = format!(r#"{{group="",resource="{resource}",reason="{reason}"}}"#);
    let series = format!("watershed_scope_quarantines_total{labels}");
    program.counter(&series).await
}

/// Waits until the proxy's own list is upstream's.
async fn is_healed(program: &Program, upstream: &SimulatedServer, path: &str) {
    let direct = Endpoint::new(
        upstream.address(),
        upstream.ca_pem(),
        upstream.admin_token(),
    );
    eventually("the list from memory", async || {
        let (wanted, got) = (get(&direct, path).await, get(&program.proxied, path).await);
        match source(&got) {
            "snapshot" if items(&got) == items(&wanted) => Ok(()),
            source => Err(format!("it differs, or comes from {source}")),
        }
    })
    .await;
}

/// Deletes the last pod. The proxy's watch does not show it. Returns the pod's key.
fn lose_a_deletion(upstream: &SimulatedServer) -> String {
    let key = upstream.state().snapshot(&pods()).into_keys().next_back();
    let key = key.unwrap();
    let (namespace, name) = key.split_once('/').unwrap();
    let faults = upstream.faults();
    faults.set(|active| active.lose_event = Some("pods".to_owned()));
    upstream.state().delete(&pods(), namespace, name).unwrap();
    key
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_event_is_found_and_the_type_listed_again() {
    // The last pod of the larger type lies far behind the first page.
    for pods in [40, 1200] {
        let population = Population {
            pods,
            ..small().population
        };
        let options = Options {
            population,
            ..small()
        };
        let upstream = SimulatedServer::start(options).await.unwrap();
        let program = Program::with(&upstream, &FAST).await;
        let path = "/api/v1/pods?watch=1&resourceVersion=0";
        let mut watch = program.proxied.watch(Protocol::Http2, path).await;
        for _ in 0..pods {
            watch.line().await;
        }
        let key = lose_a_deletion(&upstream);
        is_healed(&program, &upstream, PODS).await;

        assert_eq!(quarantines(&program, "pods", "objects").await, 1);
        assert_eq!(checks(&program, "pods", "objects").await, 1);
        let told = format!("{key}: only in memory");
        program.until_logged(&[&told]).await;
        // The watch's client has to list again.
        let (lines, end) = watch.rest().await;
        let last: Value = serde_json::from_slice(lines.last().unwrap()).unwrap();
        assert_eq!((&last["type"], end), (&"ERROR".into(), Next::End));
        assert_eq!(last["object"]["code"], 410);
        // Afterwards nothing is found.
        let same = checks(&program, "pods", "same").await;
        eventually("further checks", async || {
            let more = checks(&program, "pods", "same").await - same;
            if more >= 5 {
                Ok(())
            } else {
                Err(more.to_string())
            }
        })
        .await;
        assert_eq!(checks(&program, "pods", "objects").await, 1);
        program.terminate().await;
        upstream.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quarantined_type_is_forwarded_until_it_is_listed() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let program = Program::with(&upstream, &FAST).await;
    get(&program.proxied, PODS).await;
    lose_a_deletion(&upstream);
    // The list of one object still works, but the watch with all objects does not.
    upstream
        .faults()
        .refuse_only(503, "WATCH", "pods", u32::MAX);
    let quarantined = "forward; reason=quarantined".to_owned();
    becomes("the source", quarantined, async || {
        source(&get(&program.proxied, PODS).await).to_owned()
    })
    .await;
    let forwarded = get(&program.proxied, PODS).await;
    assert_eq!(items(&forwarded).as_array().unwrap().len(), 39);
    upstream.faults().set(|active| active.refuse = None);
    is_healed(&program, &upstream, PODS).await;
    program.terminate().await;
    upstream.shutdown().await;
}

/// Its names are compared by every second check.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_event_of_a_large_scope_with_a_selector_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    let text = "resources:\n- resource: pods\n  selectorScopes: true\n  merge: false\n";
    std::fs::write(&config, text).unwrap();
    let population = Population {
        pods: 1000,
        ..small().population
    };
    let options = Options {
        population,
        ..small()
    };
    let upstream = SimulatedServer::start(options).await.unwrap();
    let flags = [&FAST[..], &["--config", config.to_str().unwrap()]].concat();
    let program = Program::with(&upstream, &flags).await;
    let selected = "/api/v1/pods?resourceVersion=0&labelSelector=!made-up";
    get(&program.proxied, selected).await;
    let key = lose_a_deletion(&upstream);
    is_healed(&program, &upstream, selected).await;
    assert_eq!(quarantines(&program, "pods", "objects").await, 1);
    let told = format!("{key}: only in memory");
    program.until_logged(&[&told]).await;
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_upstream_prints_differently_is_read_again() {
    let population = Population {
        configmaps: 3,
        ..small().population
    };
    let options = Options {
        population,
        ..small()
    };
    let upstream = SimulatedServer::start(options).await.unwrap();
    let program = Program::with(&upstream, &FAST).await;
    get(&program.proxied, CONFIGMAPS).await;
    let configmaps = GroupVersionResource::new("", "v1", "configmaps");
    let key = upstream.state().snapshot(&configmaps).into_keys().next();
    let printed = |text: &str| text.replacen(r#""data":{"#, r#""data":{"a-secret":"b","#, 1);
    let changed = upstream
        .state()
        .reprint(&configmaps, &key.unwrap(), printed);
    assert_eq!(changed, Ok(()));
    is_healed(&program, &upstream, CONFIGMAPS).await;
    assert_eq!(quarantines(&program, "configmaps", "bytes").await, 1);
    assert_eq!(checks(&program, "configmaps", "objects").await, 0);
    program.until_logged(&["other bytes at offset"]).await;
    let log = program.log();
    assert!(
        !log.contains("a-secret"),
        "the content is not logged: {log}"
    );
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn healthy_scopes_under_churn_raise_no_alarm() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    let text = "resources:\n- resource: pods\n  selectorScopes: true\n  merge: false\n\
                - resource: configmaps\n  cache: metadata\n";
    std::fs::write(&config, text).unwrap();
    let population = Population::cluster(700, 5);
    let options = Options {
        population,
        ..small()
    };
    let upstream = SimulatedServer::start(options).await.unwrap();
    let flags = ["--self-check-interval", "20ms", "--config"];
    let flags = [&flags[..], &[config.to_str().unwrap()]].concat();
    let program = Program::with(&upstream, &flags).await;
    let state = Arc::clone(upstream.state());
    let churn = Churn::start(state, 400.0, 7, ChurnMix::default());
    let metadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let paths = [
        PODS,
        "/api/v1/namespaces/team-00/pods?resourceVersion=0",
        "/api/v1/pods?resourceVersion=0&fieldSelector=spec.nodeName%3Dnode-001",
        "/apis/coordination.k8s.io/v1/leases?resourceVersion=0",
        "/apis/apps/v1/deployments?resourceVersion=0",
        "/apis/example.com/v1/widgets?resourceVersion=0",
    ];
    // The narrow scopes first: the widest would answer for them.
    for path in paths.iter().rev() {
        get(&program.proxied, path).await;
    }
    let request = http::Request::get(CONFIGMAPS)
        .header("accept", metadata)
        .body(crate::support::client::nothing())
        .unwrap();
    program
        .proxied
        .send(Protocol::Http2, request)
        .await
        .unwrap();
    eventually("enough checks", async || {
        upstream.faults().end_watches();
        let pods = checks(&program, "pods", "same").await;
        let configmaps = checks(&program, "configmaps", "same").await;
        if pods >= 40 && configmaps >= 8 {
            Ok(())
        } else {
            Err(format!("{pods} of pods, {configmaps} of config maps"))
        }
    })
    .await;
    let changes = churn.stop().await;
    assert!(changes > 100, "only {changes} changes");
    let metrics = program.admin("GET", "/metrics").await;
    let alarms: Vec<_> = metrics
        .lines()
        .filter(|line| line.starts_with("watershed_self_checks_total"))
        .filter(|line| line.contains("objects") || line.contains("bytes"))
        .filter(|line| !line.ends_with(" 0"))
        .collect();
    assert!(alarms.is_empty(), "{alarms:?}\n{}", program.log());
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_compared_raises_no_alarm() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let program = Program::with(&upstream, &FAST).await;
    get(&program.proxied, PODS).await;
    for (code, result) in [(410, "expired"), (400, "failed"), (503, "failed")] {
        let before = checks(&program, "pods", result).await;
        // After a 410, a check asks for the newest state, too.
        upstream.faults().refuse_only(code, "LIST", "pods", 4);
        eventually("the check's result", async || {
            let now = checks(&program, "pods", result).await;
            if now >= before + 2 {
                Ok(())
            } else {
                Err(format!("{code}: {now}"))
            }
        })
        .await;
        assert_eq!(source(&get(&program.proxied, PODS).await), "snapshot");
    }
    assert_eq!(quarantines(&program, "pods", "objects").await, 0);
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interval_of_zero_asks_upstream_for_nothing() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let program = Program::with(&upstream, &["--self-check-interval", "0s"]).await;
    get(&program.proxied, PODS).await;
    let lists = upstream.stats().requests_on("LIST", "pods");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(upstream.stats().requests_on("LIST", "pods"), lists);
    program.terminate().await;
    upstream.shutdown().await;
}
