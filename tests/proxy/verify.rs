//! `--verify` and `--shadow`: answers from memory are compared with upstream's, and a difference is
//! found, counted and logged.
use std::sync::Arc;

use http::Request;
use watershed_lab::sim::churn::{Churn, ChurnMix};
use watershed_lab::sim::{Options, Population, SimulatedServer, pods};
use watershed_protocol::GroupVersionResource;

use crate::support::client::{Answer, Protocol, nothing};
use crate::support::program::Program;
use crate::support::{eventually, small};

const PODS: &str = "/api/v1/pods?resourceVersion=0";
const CONFIGMAPS: &str = "/api/v1/configmaps?resourceVersion=0";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// Nothing but the comparison of answers asks upstream for lists.
const VERIFY: [&str; 4] = ["--verify", "100%", "--self-check-interval", "0s"];

async fn get(program: &Program, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(nothing()).unwrap();
    let answer = program.proxied.send(Protocol::Http2, request).await;
    answer.unwrap()
}

/// Returns the sum of the lines of a metric that have all these labels.
async fn sum(program: &Program, metric: &str, labels: &[&str]) -> u64 {
    let metrics = program.admin("GET", "/metrics").await;
    let lines = metrics
        .lines()
        .filter(|line| {
            line.strip_prefix(metric)
                .is_some_and(|rest| rest.starts_with('{'))
        })
        .filter(|line| labels.iter().all(|label| line.contains(label)));
    let value = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
    lines.filter_map(value).sum()
}

async fn verified(program: &Program, resource: &str, result: &str) -> u64 {
    let resource = format!(r#"resource="{resource}""#);
    let result = format!(r#"result="{result}""#);
    sum(
        program,
        "watershed_verified_answers_total",
        &[&resource, &result],
    )
    .await
}

/// Reads until an answer was compared with this result.
async fn read_until(program: &Program, path: &str, resource: &str, result: &str) {
    eventually(&format!("{path} is {result}"), async || {
        get(program, path, &[]).await;
        match verified(program, resource, result).await {
            0 => Err(program.admin("GET", "/metrics").await),
            _ => Ok(()),
        }
    })
    .await;
}

async fn server(configmaps: usize) -> SimulatedServer {
    let population = Population {
        configmaps,
        ..small().population
    };
    let options = Options {
        population,
        ..small()
    };
    SimulatedServer::start(options).await.unwrap()
}

/// Returns the path of some config map.
fn configmap(upstream: &SimulatedServer) -> String {
    let configmaps = GroupVersionResource::new("", "v1", "configmaps");
    let key = upstream.state().snapshot(&configmaps).into_keys().next();
    let key = key.unwrap();
    let (namespace, name) = key.split_once('/').unwrap();
    format!("/api/v1/namespaces/{namespace}/configmaps/{name}?resourceVersion=0")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_all_forms_are_compared_under_churn_and_none_differs() {
    let upstream = server(5).await;
    let program = Program::with(&upstream, &VERIFY).await;
    let state = Arc::clone(upstream.state());
    let churn = Churn::start(state, 50.0, 7, ChurnMix::default());
    let configmap = configmap(&upstream);
    for (path, headers) in [
        (PODS, vec![]),
        (PODS, vec![("accept", METADATA)]),
        (PODS, vec![("accept-encoding", "gzip")]),
        ("/api/v1/pods?limit=7", vec![]),
        (
            "/api/v1/namespaces/team-00/pods?resourceVersion=0&labelSelector=app",
            vec![],
        ),
    ] {
        let before = verified(&program, "pods", "same").await;
        eventually(&format!("{path} {headers:?} is compared"), async || {
            get(&program, path, &headers).await;
            let now = verified(&program, "pods", "same").await;
            if now > before {
                Ok(())
            } else {
                Err(program.admin("GET", "/metrics").await)
            }
        })
        .await;
    }
    read_until(&program, &configmap, "configmaps", "same").await;
    let first = get(&program, "/api/v1/pods?limit=7", &[]).await.json();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let before = verified(&program, "pods", "same").await;
    eventually("a later page is compared", async || {
        let page = get(
            &program,
            &format!("/api/v1/pods?limit=7&continue={token}"),
            &[],
        )
        .await;
        let now = verified(&program, "pods", "same").await;
        if now > before {
            Ok(())
        } else {
            Err(page.header("x-watershed-source").to_owned())
        }
    })
    .await;
    churn.stop().await;
    let different = [r#"result="different""#];
    assert_eq!(
        sum(&program, "watershed_verified_answers_total", &different).await,
        0,
        "{}",
        program.log()
    );
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_differs_is_counted_and_logged_without_its_contents() {
    let upstream = server(3).await;
    let program = Program::with(&upstream, &VERIFY).await;
    read_until(&program, CONFIGMAPS, "configmaps", "same").await;
    let configmaps = GroupVersionResource::new("", "v1", "configmaps");
    let key = upstream.state().snapshot(&configmaps).into_keys().next();
    let key = key.unwrap();
    let printed = |text: &str| text.replacen(r#""data":{"#, r#""data":{"a-secret":"b","#, 1);
    let changed = upstream.state().reprint(&configmaps, &key, printed);
    assert_eq!(changed, Ok(()));
    read_until(&program, CONFIGMAPS, "configmaps", "different").await;
    let differs = format!("{key}: other bytes at offset");
    program
        .until_logged(&["an answer from memory differs", &differs])
        .await;
    // The object by itself differs, too.
    let before = verified(&program, "configmaps", "different").await;
    let (namespace, name) = key.split_once('/').unwrap();
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/{name}?resourceVersion=0");
    eventually("the object is compared", async || {
        get(&program, &path, &[]).await;
        let now = verified(&program, "configmaps", "different").await;
        if now > before {
            Ok(())
        } else {
            Err(program.log())
        }
    })
    .await;
    // An object that only memory has.
    upstream
        .faults()
        .set(|active| active.lose_event = Some("pods".to_owned()));
    read_until(&program, PODS, "pods", "same").await;
    let lost = upstream.state().snapshot(&pods()).into_keys().next_back();
    let lost = lost.unwrap();
    let (namespace, name) = lost.split_once('/').unwrap();
    upstream.state().delete(&pods(), namespace, name).unwrap();
    // A later change moves memory past the version of the deletion.
    let other = upstream.state().snapshot(&pods()).into_keys().next();
    let (namespace, name) = other.as_deref().unwrap().split_once('/').unwrap();
    upstream.state().delete(&pods(), namespace, name).unwrap();
    read_until(&program, PODS, "pods", "different").await;
    let differs = format!("{lost}: only in memory");
    program.until_logged(&[&differs]).await;
    let log = program.log();
    assert!(
        !log.contains("a-secret"),
        "the content is not logged: {log}"
    );
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn comparisons_that_tell_nothing_are_counted_as_such() {
    let upstream = server(3).await;
    let program = Program::with(&upstream, &VERIFY).await;
    read_until(&program, PODS, "pods", "same").await;
    for (code, result) in [(410, "expired"), (503, "failed")] {
        upstream
            .faults()
            .refuse_only(code, "LIST", "pods", u32::MAX);
        read_until(&program, PODS, "pods", result).await;
    }
    upstream.faults().set(|active| active.refuse = None);
    let same = verified(&program, "pods", "same").await;
    eventually("answers are compared again", async || {
        get(&program, PODS, &[]).await;
        let now = verified(&program, "pods", "same").await;
        if now > same {
            Ok(())
        } else {
            Err(now.to_string())
        }
    })
    .await;
    // More come than are compared.
    for _ in 0..20 {
        get(&program, PODS, &[]).await;
    }
    assert!(verified(&program, "pods", "skipped").await > 0);
    assert_eq!(verified(&program, "pods", "different").await, 0);
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_compared_are_charged_to_the_memory_budget() {
    let upstream = server(3).await;
    let program = Program::with(&upstream, &VERIFY).await;
    read_until(&program, PODS, "pods", "same").await;
    let charged = async || {
        let class = [r#"class="answers""#];
        sum(&program, "watershed_memory_bytes", &class).await
    };
    upstream
        .faults()
        .set(|active| active.hold = Some("/api/v1/pods".to_owned()));
    eventually("a comparison waits for upstream", async || {
        let kept = get(&program, PODS, &[]).await.body.len() as u64;
        let charged = charged().await;
        if charged >= 3 * kept {
            Ok(())
        } else {
            Err(format!("{charged} for {kept}"))
        }
    })
    .await;
    let same = verified(&program, "pods", "same").await;
    upstream.faults().set(|active| active.hold = None);
    eventually("the comparison ends", async || {
        match (verified(&program, "pods", "same").await, charged().await) {
            (now, 0) if now > same => Ok(()),
            other => Err(format!("{other:?}, before {same}")),
        }
    })
    .await;
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_compared_by_default() {
    let upstream = server(3).await;
    let program = Program::with(&upstream, &["--self-check-interval", "0s"]).await;
    for _ in 0..20 {
        get(&program, PODS, &[]).await;
    }
    let metrics = program.admin("GET", "/metrics").await;
    assert!(
        !metrics.contains("watershed_verified_answers_total{"),
        "{metrics}"
    );
    assert!(
        !metrics.contains("watershed_shadow_answers_total{"),
        "{metrics}"
    );
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shadow_forwards_everything_and_tells_what_it_would_have_answered() {
    let upstream = server(3).await;
    let program = Program::with(&upstream, &["--shadow", "--self-check-interval", "0s"]).await;
    let metric = "watershed_shadow_answers_total";
    for (path, source, shadow) in [
        (PODS, "forward; reason=shadow", "snapshot"),
        ("/api/v1/pods", "forward; reason=shadow", "linearizable"),
        ("/version", "forward; reason=shadow", "document"),
        ("/healthz", "forward; reason=not-a-resource", ""),
    ] {
        eventually(path, async || {
            let answer = get(&program, path, &[]).await;
            let told = [source_of(&answer), answer.header("x-watershed-shadow")];
            if told == [source, shadow] && answer.status == 200 {
                Ok(())
            } else {
                Err(format!("{} {told:?}", answer.status))
            }
        })
        .await;
    }
    let stranger = program.proxied.as_user("nobody-has-this-token");
    let refused = stranger.get(Protocol::Http2, PODS).await;
    assert_eq!(
        (
            refused.status.as_u16(),
            refused.header("x-watershed-shadow")
        ),
        (401, "access")
    );
    assert_eq!(source_of(&refused), "forward; reason=shadow");
    let labels = [r#"resource="pods""#, r#"source="snapshot""#];
    assert!(sum(&program, metric, &labels).await > 0);
    let labels = [r#"source="forward""#, r#"reason="not-a-resource""#];
    assert!(sum(&program, metric, &labels).await > 0);
    // What it would have answered is compared.
    read_until(&program, PODS, "pods", "same").await;
    let configmaps = GroupVersionResource::new("", "v1", "configmaps");
    read_until(&program, CONFIGMAPS, "configmaps", "same").await;
    let key = upstream.state().snapshot(&configmaps).into_keys().next();
    let printed = |text: &str| text.replacen(r#""data":{"#, r#""data":{"x":"y","#, 1);
    let changed = upstream
        .state()
        .reprint(&configmaps, &key.unwrap(), printed);
    assert_eq!(changed, Ok(()));
    read_until(&program, CONFIGMAPS, "configmaps", "different").await;
    // The client gets upstream's.
    let answer = get(&program, CONFIGMAPS, &[]).await;
    assert!(answer.json().to_string().contains(r#""x":"y""#));
    program.terminate().await;
    upstream.shutdown().await;
}

fn source_of(answer: &Answer) -> &str {
    answer.header("x-watershed-source")
}
