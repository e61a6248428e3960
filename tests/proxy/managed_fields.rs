//! Types that are held without managed fields: answers from memory lack them and nothing else, and
//! nothing that compares memory with upstream takes that for a difference.
use std::fs;
use std::sync::Arc;

use http::{Request, header};
use serde_json::Value;
use tempfile::TempDir;
use watershed_lab::sim::churn::{Churn, ChurnMix};
use watershed_lab::sim::{Options, Population, SimulatedServer};
use watershed_protocol::GroupVersionResource;

use crate::support::client::{Answer, Endpoint, Protocol, nothing};
use crate::support::program::Program;
use crate::support::{eventually, small};

const PODS: &str = "/api/v1/pods?resourceVersion=0";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const METADATA: &str = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const MEMBER: &str = "managedFields";
/// A name in the entries of all managed fields. In protobuf they have no other.
const ENTRY: &[u8] = b"FieldsV1";
const DROP: &str = "resources:\n- resource: configmaps\n  managedFields: drop\n";
const DROP_ALL: &str = "managedFields: drop\n";
const CONFIGMAPS: &str = "/api/v1/configmaps?resourceVersion=0";

async fn server() -> SimulatedServer {
    let options = Options {
        population: Population {
            configmaps: 5,
            ..small().population
        },
        protobuf: true,
        ..small()
    };
    SimulatedServer::start(options).await.unwrap()
}

/// Starts a program with this configuration file.
async fn start(upstream: &SimulatedServer, config: &str, flags: &[&str]) -> Program {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("config.yaml");
    fs::write(&file, config).unwrap();
    let own = ["--config", file.to_str().unwrap()];
    Program::with(upstream, &[&own, flags].concat()).await
}

async fn get(endpoint: &Endpoint, path: &str, accept: &str) -> Answer {
    let request = Request::get(path).header(header::ACCEPT, accept);
    let request = request.body(nothing()).unwrap();
    endpoint.send(Protocol::Http2, request).await.unwrap()
}

/// Waits until memory answers a read.
async fn from_memory(program: &Program, path: &str, accept: &str) -> Answer {
    let mut answer = get(&program.proxied, path, accept).await;
    eventually(
        &format!("{path} as {accept} from memory"),
        async || match answer.header("x-watershed-source") {
            "snapshot" => Ok(()),
            source => {
                let source = source.to_owned();
                answer = get(&program.proxied, path, accept).await;
                Err(source)
            }
        },
    )
    .await;
    answer
}

/// Removes the member from an object or from those of a list. Returns how many had it.
fn remove(answer: &mut Value) -> usize {
    if let Some(items) = answer.get_mut("items").and_then(Value::as_array_mut) {
        return items.iter_mut().map(remove).sum();
    }
    let metadata = answer["metadata"].as_object_mut().unwrap();
    usize::from(metadata.remove(MEMBER).is_some())
}

fn has_entries(answer: &Answer) -> bool {
    answer.body.windows(ENTRY.len()).any(|part| part == ENTRY)
}

/// Returns the path of the first object of a list in JSON.
fn object(list: &Value) -> String {
    let metadata = &list["items"][0]["metadata"];
    let [namespace, name] = ["namespace", "name"].map(|key| metadata[key].as_str().unwrap());
    let plural = list["kind"].as_str().unwrap().to_lowercase();
    let plural = plural.replace("list", "s");
    format!("/api/v1/namespaces/{namespace}/{plural}/{name}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_from_memory_lack_them_and_nothing_else() {
    let upstream = server().await;
    let direct = Endpoint::new(
        upstream.address(),
        upstream.ca_pem(),
        upstream.admin_token(),
    );
    for derive in ["true", "false"] {
        let program = start(&upstream, DROP, &["--derive-json", derive]).await;
        let object = object(&get(&direct, CONFIGMAPS, "application/json").await.json());
        let by_name = format!("{object}?resourceVersion=0");
        for (path, what) in [(CONFIGMAPS, ""), (CONFIGMAPS, METADATA), (&by_name, "")] {
            let accept = format!("application/json{what}");
            let got = from_memory(&program, path, &accept).await;
            let mut wanted = get(&direct, path, &accept).await.json();
            assert!(
                remove(&mut wanted) > 0,
                "upstream has none: {path} {accept}"
            );
            assert_eq!(got.json(), wanted, "{path} {accept}");
            assert_eq!(got.header("x-watershed-omitted"), "metadata.managedFields");
            let got = from_memory(&program, path, &format!("{PROTOBUF}{what}")).await;
            assert!(!has_entries(&got), "{path} {accept} in protobuf");
        }
        let mut watch = program
            .proxied
            .watch(Protocol::Http2, &format!("{CONFIGMAPS}&watch=1"))
            .await;
        assert!(!watch.line().await.contains(MEMBER));
        let forwarded = get(&program.proxied, &object, "application/json").await;
        assert!(has_entries(&forwarded), "a forwarded answer is upstream's");
        assert!(!forwarded.headers.contains_key("x-watershed-omitted"));
        // Other types have theirs.
        let got = from_memory(&program, PODS, "application/json").await;
        assert!(has_entries(&got) && !got.headers.contains_key("x-watershed-omitted"));
        let metrics = program.admin("GET", "/metrics").await;
        assert!(metrics.contains(r#"content="objects-without-managed-fields""#));
        program.until_logged(&["managedFields: drop"]).await;
    }
}

/// Has upstream print the first config map differently.
fn print_as(upstream: &SimulatedServer, from: &str, to: &str) {
    let configmaps = GroupVersionResource::new("", "v1", "configmaps");
    let state = upstream.state();
    let key = state.snapshot(&configmaps).into_keys().next().unwrap();
    let printed = state.reprint(&configmaps, &key, |text| {
        assert!(text.contains(from), "no {from} in {text}");
        text.replacen(from, to, 1)
    });
    assert_eq!(printed, Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn comparisons_with_upstream_find_what_differs_beside_them() {
    const DATA: [&str; 2] = [r#""data":{"#, r#""data":{"a-planted":"b","#];
    const ENTRIES: [&str; 2] = [r#""manager":""#, r#""manager":"another-"#];
    let checks = "watershed_self_checks_total";
    let answers = "watershed_verified_answers_total";
    for (flags, counter, different) in [
        (["--self-check-interval", "100ms"], checks, r#""bytes""#),
        (["--verify", "100%"], answers, r#""different""#),
    ] {
        let upstream = server().await;
        let program = start(&upstream, DROP, &flags).await;
        from_memory(&program, CONFIGMAPS, "application/json").await;
        let counted = async |result: &str| {
            sum(&program, counter, &[r#"resource="configmaps""#, result]).await
        };
        // Upstream prints the dropped entries differently, and then what memory has.
        for ([from, to], result) in [(ENTRIES, r#""same""#), (DATA, different)] {
            print_as(&upstream, from, to);
            let before = counted(result).await;
            eventually(&format!("{counter} of {result}"), async || {
                get(&program.proxied, CONFIGMAPS, "application/json").await;
                match counted(result).await - before {
                    0 | 1 if result != different => Err("too few".to_owned()),
                    0 => Err("none".to_owned()),
                    _ => Ok(()),
                }
            })
            .await;
            let found = counted(different).await;
            assert_eq!(found > 0, result == different, "{counter}: {found}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_check_before_json_is_derived_finds_what_differs_beside_them() {
    let zero = [r#""labels":"#, r#""generation":0,"labels":"#];
    let entries = [r#""manager":""#, r#""manager":"another-"#];
    for ([from, to], fallbacks) in [(entries, 0), (zero, 1)] {
        let upstream = server().await;
        print_as(&upstream, from, to);
        let program = start(&upstream, DROP, &["--derive-json", "true"]).await;
        let got = from_memory(&program, CONFIGMAPS, "application/json").await;
        assert!(!has_entries(&got));
        let counter = "watershed_scope_json_fallbacks_total";
        let labels = [r#"resource="configmaps""#, r#"reason="difference""#];
        assert_eq!(sum(&program, counter, &labels).await, fallbacks, "{to}");
    }
}

/// Returns the sum of a counter over the series that have these labels.
async fn sum(program: &Program, counter: &str, labels: &[&str]) -> u64 {
    let metrics = program.admin("GET", "/metrics").await;
    let lines = metrics.lines().filter(|line| line.starts_with(counter));
    lines
        .filter(|line| labels.iter().all(|label| line.contains(label)))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn comparisons_with_upstream_find_no_difference() {
    let upstream = server().await;
    let compare = ["--verify", "100%", "--self-check-interval", "100ms"];
    let flags = [&compare[..], &["--derive-json", "true"]].concat();
    let program = start(&upstream, DROP_ALL, &flags).await;
    let churn = Churn::start(Arc::clone(upstream.state()), 50.0, 7, ChurnMix::default());
    let labelled = format!("{PODS}&labelSelector=app");
    let list = get(&program.proxied, PODS, "application/json").await.json();
    let pod = format!("{}?resourceVersion=0", object(&list));
    eventually("comparisons of all kinds", async || {
        for encoding in ["application/json", PROTOBUF] {
            for path in [PODS, &labelled, CONFIGMAPS, &pod] {
                get(&program.proxied, path, encoding).await;
                get(&program.proxied, path, &format!("{encoding}{METADATA}")).await;
            }
        }
        let checks = sum(&program, "watershed_self_checks_total", &["same"]).await;
        let answers = sum(&program, "watershed_verified_answers_total", &["same"]).await;
        let derived = sum(&program, "watershed_scopes_derived", &["configmaps"]).await;
        if checks >= 20 && answers >= 20 && derived > 0 {
            Ok(())
        } else {
            let found = format!("{checks} checks, {answers} answers, {derived} derived");
            Err(found)
        }
    })
    .await;
    churn.stop().await;
    for (counter, label) in [
        ("watershed_scope_quarantines_total", ""),
        ("watershed_verified_answers_total", "different"),
        ("watershed_self_checks_total", r#"result="bytes""#),
        ("watershed_scope_json_fallbacks_total", "configmaps"),
    ] {
        assert_eq!(sum(&program, counter, &[label]).await, 0, "{counter}");
    }
}
