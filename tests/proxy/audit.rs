//! The audit log of requests that are answered from memory.
use std::path::Path;
use std::process::Stdio;

use http::{Request, StatusCode};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use watershed_lab::sim::SimulatedServer;

use crate::support::client::{Answer, Next, Protocol, nothing, within};
use crate::support::program::Program;
use crate::support::{becomes, eventually, loopback, small};

const PODS: &str = "/api/v1/namespaces/team-00/pods?resourceVersion=0";
const EVENTS: &str = "watershed_audit_events_total";

/// A program with an audit log, and access to the log's events.
struct Audited {
    upstream: SimulatedServer,
    program: Program,
    folder: TempDir,
}

impl Audited {
    async fn start(flags: &[&str]) -> Self {
        let upstream = SimulatedServer::start(small()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let flags = [&["--audit-log-path", path.to_str().unwrap()], flags].concat();
        let program = Program::with(&upstream, &flags).await;
        Self {
            upstream,
            program,
            folder,
        }
    }

    fn events(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.path().join("audit.log")).unwrap();
        // The last line may be incomplete.
        let lines = text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n'));
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Waits for a number of events of one request, and returns them.
    async fn events_of(&self, id: &str, number: usize) -> Vec<Value> {
        assert!(!id.is_empty(), "the client was told no id");
        let mut found = Vec::new();
        eventually("the events of a request", async || {
            found = self.events();
            found.retain(|event| event["auditID"] == id);
            if found.len() >= number {
                Ok(())
            } else {
                Err(format!("{found:#?}"))
            }
        })
        .await;
        assert_eq!(found.len(), number, "{found:#?}");
        found
    }

    async fn end(self) {
        self.program.terminate().await;
        self.program.ended().await;
        self.upstream.shutdown().await;
    }
}

/// Returns the value of a counter.
async fn count(program: &Program, series: &str) -> usize {
    program.metric(series).await.to_string().parse().unwrap()
}

fn stages(events: &[Value]) -> Vec<&str> {
    events
        .iter()
        .map(|event| event["stage"].as_str().unwrap())
        .collect()
}

/// Repeats a request until its answer comes from memory.
async fn remembered(program: &Program, path: &str) -> Answer {
    let mut answer = None;
    eventually("an answer from memory", async || {
        let got = program.proxied.get(Protocol::Http2, path).await;
        let source = got.header("x-watershed-source").to_owned();
        answer = Some(got);
        if source.starts_with("forward") {
            Err(source)
        } else {
            Ok(())
        }
    })
    .await;
    answer.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_from_memory_are_in_the_audit_log() {
    let audited = Audited::start(&[]).await;
    let listed = remembered(&audited.program, PODS).await;
    let events = audited.events_of(listed.header("audit-id"), 1).await;
    let event = &events[0];
    assert_eq!(event["stage"], "ResponseComplete");
    assert_eq!(event["level"], "Metadata");
    assert_eq!(event["verb"], "list");
    assert_eq!(event["requestURI"], PODS);
    assert_eq!(event["user"]["groups"][0], "system:masters");
    assert_eq!(event["sourceIPs"], serde_json::json!(["127.0.0.1"]));
    let pods = serde_json::json!({"resource": "pods", "namespace": "team-00", "apiVersion": "v1"});
    assert_eq!(event["objectRef"], pods);
    assert_eq!(
        event["responseStatus"],
        serde_json::json!({"metadata": {}, "code": 200})
    );
    assert_eq!(
        event["annotations"]["authorization.k8s.io/decision"],
        "allow"
    );

    let name = listed.json()["items"][0]["metadata"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    for (name, code, reason) in [(name.as_str(), 200, ""), ("nobody", 404, "NotFound")] {
        let path = format!("/api/v1/namespaces/team-00/pods/{name}?resourceVersion=0");
        let got = remembered(&audited.program, &path).await;
        assert_eq!(got.status, code);
        let events = audited.events_of(got.header("audit-id"), 1).await;
        assert_eq!(
            (&events[0]["verb"], &events[0]["objectRef"]["name"]),
            (&"get".into(), &name.into())
        );
        assert_eq!(events[0]["responseStatus"]["code"], code);
        assert_eq!(
            events[0]["responseStatus"]["reason"]
                .as_str()
                .unwrap_or_default(),
            reason
        );
    }

    let viewer = audited
        .program
        .proxied
        .as_user(audited.upstream.viewer_token());
    let refused = viewer
        .get(
            Protocol::Http1,
            "/apis/apps/v1/replicasets?resourceVersion=0",
        )
        .await;
    assert_eq!(
        (
            refused.status.as_u16(),
            refused.header("x-watershed-source")
        ),
        (403, "access")
    );
    let events = audited.events_of(refused.header("audit-id"), 1).await;
    assert_eq!(
        events[0]["responseStatus"]["message"],
        refused.json()["message"]
    );
    assert_eq!(
        events[0]["annotations"]["authorization.k8s.io/decision"],
        "forbid"
    );

    let nobody = audited.program.proxied.as_user("nobodys-token");
    let refused = nobody.get(Protocol::Http1, PODS).await;
    let events = audited.events_of(refused.header("audit-id"), 1).await;
    assert_eq!(
        (
            refused.status.as_u16(),
            events[0]["responseStatus"]["code"].as_u64()
        ),
        (401, Some(401))
    );
    assert_eq!(events[0]["user"], serde_json::json!({}));
    assert_eq!(
        events[0]["stage"], "ResponseStarted",
        "upstream logs no other of whom it does not know"
    );

    // Upstream logs the requests that it answers.
    let seen = audited.events().len();
    let forwarded = audited
        .program
        .proxied
        .get(Protocol::Http2, "/api/v1/namespaces/team-00/pods/nobody")
        .await;
    assert!(
        forwarded
            .header("x-watershed-source")
            .starts_with("forward")
    );
    let last = remembered(&audited.program, PODS).await;
    audited.events_of(last.header("audit-id"), 1).await;
    let events = audited.events();
    assert_eq!(events.len(), seen + 1, "{events:#?}");
    let text = std::fs::read_to_string(audited.folder.path().join("audit.log")).unwrap();
    assert!(!text.contains("token"), "no secret is in it");
    assert_eq!(count(&audited.program, EVENTS).await, events.len());
    audited.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_beyond_a_limit_is_audited_with_its_user() {
    let audited = Audited::start(&["--max-requests-per-second-per-user", "1"]).await;
    let mut limited = None;
    eventually("a request beyond the limit", async || {
        let got = audited.program.proxied.get(Protocol::Http2, PODS).await;
        let status = got.status.as_u16();
        limited = Some(got);
        if status == 429 {
            Ok(())
        } else {
            Err(status.to_string())
        }
    })
    .await;
    let events = audited
        .events_of(limited.unwrap().header("audit-id"), 1)
        .await;
    assert_eq!(events[0]["responseStatus"]["code"], 429);
    assert_eq!(events[0]["user"]["groups"][0], "system:masters");
    audited.end().await;
}

/// Its user is remembered for the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_not_accepted_any_more_names_no_user() {
    let audited = Audited::start(&[
        "--max-requests-inflight-per-user=100",
        "--authentication-token-webhook-cache-ttl=100ms",
    ])
    .await;
    remembered(&audited.program, PODS).await;
    let access = audited.upstream.access();
    access.add_user("leaver-token", "leaver", &["system:masters"]);
    let leaver = audited.program.proxied.as_user("leaver-token");
    assert_eq!(leaver.get(Protocol::Http2, PODS).await.status, 200);
    access.revoke("leaver-token");
    let mut refused = None;
    eventually("a refusal", async || {
        let got = leaver.get(Protocol::Http2, PODS).await;
        let status = got.status.as_u16();
        refused = Some(got);
        (status == 401).then_some(()).ok_or(status.to_string())
    })
    .await;
    let id = refused.unwrap().header("audit-id").to_owned();
    let events = audited.events_of(&id, 1).await;
    assert_eq!(events[0]["stage"], "ResponseStarted");
    assert_eq!(events[0]["user"], serde_json::json!({}));
    audited.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_a_flag_refuses_is_audited_and_counted() {
    let audited = Audited::start(&["--single-identity", "--reject-methods=^DELETE$"]).await;
    let nobody = audited.program.proxied.as_user("");
    let request = Request::delete(PODS).body(nothing()).unwrap();
    let refused = nobody.send(Protocol::Http2, request).await.unwrap();
    assert_eq!(refused.status, 403);
    let events = audited.events_of(refused.header("audit-id"), 1).await;
    assert_eq!(events[0]["responseStatus"]["code"], 403);
    assert_eq!(events[0]["verb"], "deletecollection");
    assert_eq!(events[0]["sourceIPs"][0], "127.0.0.1");
    let series = r#"watershed_requests_filtered_total{flag="--reject-methods"}"#;
    assert_eq!(count(&audited.program, series).await, 1);
    audited.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_audited_watch_completes_when_its_client_disconnects() {
    let audited = Audited::start(&[]).await;
    remembered(&audited.program, PODS).await;
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let connection = audited.program.proxied.connect(protocol).await.unwrap();
        let path = "/api/v1/namespaces/team-00/pods?resourceVersion=0&watch=1";
        let id = format!("cut-by-{protocol:?}");
        let request = Request::get(path)
            .header("audit-id", &id)
            .body(nothing())
            .unwrap();
        let response = connection.open(request).await.unwrap();
        assert_eq!(response.headers()["audit-id"], id);
        let events = audited.events_of(&id, 1).await;
        assert_eq!(stages(&events), ["ResponseStarted"], "and it is not over");
        assert_eq!(events[0]["verb"], "watch");
        drop((response, connection));
        let events = audited.events_of(&id, 2).await;
        assert_eq!(stages(&events), ["ResponseStarted", "ResponseComplete"]);
        assert_eq!(events[1]["responseStatus"]["code"], 200);
    }
    // A shutdown loses no event.
    let path = "/api/v1/namespaces/team-00/pods?resourceVersion=0&watch=1";
    let watch = audited.program.proxied.watch(Protocol::Http2, path).await;
    let before = audited.events().len();
    let Audited {
        upstream,
        program,
        folder,
    } = audited;
    program.terminate().await;
    let (_, end) = watch.rest().await;
    assert_eq!(end, Next::End);
    program.ended().await;
    let text = std::fs::read_to_string(folder.path().join("audit.log")).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert!(text.lines().count() > before);
    assert_eq!(
        (&last["stage"], &last["verb"]),
        (&"ResponseComplete".into(), &"watch".into())
    );
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_audit_policy_selects_what_is_logged() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.yaml");
    let rules = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n\
                 - level: None\n  resources:\n  - resources: [nodes]\n\
                 - level: RequestResponse\n  verbs: [list]\n  omitStages: [ResponseComplete]\n";
    std::fs::write(&policy, rules).unwrap();
    let audited = Audited::start(&["--audit-policy-file", policy.to_str().unwrap()]).await;
    for path in ["/api/v1/nodes?resourceVersion=0", "/version", PODS] {
        remembered(&audited.program, path).await;
    }
    let last = remembered(&audited.program, PODS).await;
    let events = audited.events_of(last.header("audit-id"), 1).await;
    assert_eq!(
        (stages(&events), &events[0]["level"]),
        (vec!["RequestReceived"], &"Metadata".into())
    );
    let all = audited.events();
    assert!(
        all.iter()
            .all(|event| event["objectRef"]["resource"] == "pods"),
        "{all:#?}"
    );
    audited.end().await;
}

/// Returns the standard error of a `watershed serve` that fails to start.
async fn refusal(flags: &[&str]) -> String {
    let serve = Command::new(env!("CARGO_BIN_EXE_watershed"))
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--admin-listen",
            "127.0.0.1:0",
        ])
        .args(flags)
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = within("the end of a program that cannot start", serve)
        .await
        .unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test]
async fn an_unusable_audit_log_is_refused_at_startup() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (file_a, policy, kubeconfig) = (file("a"), file("policy.yaml"), file("kubeconfig"));
    std::fs::write(&file_a, "").unwrap();
    std::fs::write(
        &policy,
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: All}]\n",
    )
    .unwrap();
    std::fs::write(
        &kubeconfig,
        "apiVersion: v1\nkind: Config\ncurrent-context: nowhere\n",
    )
    .unwrap();
    let below = format!("{file_a}/audit.log");
    for (flags, file, flag) in [
        (vec!["--audit-log-path", &below], &below, "--audit-log-path"),
        (
            vec!["--audit-log-path", "-", "--audit-policy-file", &policy],
            &policy,
            "--audit-policy-file",
        ),
        (
            vec!["--audit-webhook-config-file", &kubeconfig],
            &kubeconfig,
            "--audit-webhook-config-file",
        ),
    ] {
        let said = refusal(&flags).await;
        let line = said
            .lines()
            .find(|line| line.contains(file))
            .unwrap_or_else(|| panic!("{flags:?}: {said}"));
        assert!(line.contains(flag), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_loses_audit_events_and_nothing_else() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let program = Program::with(&upstream, &["--audit-log-path", "/dev/full"]).await;
    let dropped = "watershed_audit_events_dropped_total{sink=\"log\"}";
    assert_eq!(count(&program, dropped).await, 0);
    for _ in 0..5 {
        remembered(&program, PODS).await;
    }
    eventually("all events are lost", async || {
        let (lost, made) = (
            count(&program, dropped).await,
            count(&program, EVENTS).await,
        );
        if lost >= 5 && lost == made {
            Ok(())
        } else {
            Err(format!("{lost} of {made}"))
        }
    })
    .await;
    program.terminate().await;
    assert!(program.ended().await.success());
    upstream.shutdown().await;
}

fn kubeconfig(folder: &Path, server: &str) -> String {
    let path = folder.join("webhook.kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: a, cluster: {{server: '{server}'}}}}]\n\
         users: [{{name: a, user: {{token: hook-secret}}}}]\n\
         contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\ncurrent-context: a\n"
    );
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Writes a kubeconfig that names this webhook.
fn kubeconfig_of(folder: &Path, hook: &TcpListener) -> String {
    kubeconfig(folder, &format!("http://{}", hook.local_addr().unwrap()))
}

/// Reads one request. Returns its head and its body.
async fn request(stream: &mut TcpStream) -> (String, Value) {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).await.unwrap();
        text.push(byte[0]);
    }
    let head = String::from_utf8(text).unwrap().to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    (head, serde_json::from_slice(&body).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_batches_are_resent_until_the_webhook_accepts_them() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let hook = TcpListener::bind(loopback()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = kubeconfig(
        folder.path(),
        &format!("http://{}/hooks/audit?x=y", hook.local_addr().unwrap()),
    );
    let log = folder.path().join("both.log");
    let flags = [
        "--audit-webhook-config-file",
        &config,
        "--audit-webhook-batch-max-size",
        "2",
        // Only full batches are sent, however late the second event is.
        "--audit-webhook-batch-max-wait",
        "1h",
        "--audit-webhook-initial-backoff",
        "10ms",
        "--audit-log-path",
        log.to_str().unwrap(),
    ];
    let program = Program::with(&upstream, &flags).await;
    let before = count(&program, EVENTS).await;
    let mut ids = Vec::new();
    for n in 0..3 {
        // The first request may be forwarded.
        ids.push(
            remembered(&program, &format!("{PODS}&n={n}"))
                .await
                .header("audit-id")
                .to_owned(),
        );
    }
    becomes("the events", before + 3, async || {
        count(&program, EVENTS).await
    })
    .await;
    let (mut stream, _) = within("a batch", hook.accept()).await.unwrap();
    let (head, first) = request(&mut stream).await;
    assert!(
        head.starts_with("post /hooks/audit?timeout=30s http/1.1\r\n"),
        "{head}"
    );
    assert!(
        head.contains("\r\ncontent-type: application/json\r\n"),
        "{head}"
    );
    assert!(
        head.contains("\r\nauthorization: bearer hook-secret\r\n"),
        "{head}"
    );
    assert_eq!(
        (&first["kind"], &first["apiVersion"]),
        (&"EventList".into(), &"audit.k8s.io/v1".into())
    );
    assert_eq!(first["items"].as_array().unwrap().len(), 2);
    assert!(first["items"][0]["kind"].is_null());
    stream
        .write_all(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")
        .await
        .unwrap();
    let (_, again) = request(&mut stream).await;
    assert_eq!(first, again);
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        .await
        .unwrap();
    // The shutdown sends the batch that is not full.
    program.terminate().await;
    let (_, last) = request(&mut stream).await;
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        .await
        .unwrap();
    assert!(program.ended().await.success());
    let lists = [&first["items"], &last["items"]];
    let posted: Vec<_> = lists
        .iter()
        .flat_map(|items| items.as_array().unwrap())
        .collect();
    let posted: Vec<_> = posted
        .iter()
        .map(|event| event["auditID"].as_str().unwrap())
        .collect();
    assert_eq!(posted, ids);
    // Both sinks have all events.
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(
        ids.iter().all(|id| text.contains(id.as_str())) && text.lines().count() == 3,
        "{text}"
    );
    upstream.shutdown().await;
}

/// Such as after a certificate was renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_kubeconfig_of_the_audit_webhook_is_used_for_the_batch_that_failed() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let (old, new) = (
        TcpListener::bind(loopback()).await.unwrap(),
        TcpListener::bind(loopback()).await.unwrap(),
    );
    let folder = tempfile::tempdir().unwrap();
    let config = kubeconfig_of(folder.path(), &old);
    let flags = [
        "--audit-webhook-config-file",
        &config,
        "--audit-webhook-batch-max-size",
        "1",
        "--audit-webhook-initial-backoff",
        "10ms",
    ];
    let program = Program::with(&upstream, &flags).await;
    remembered(&program, PODS).await;
    let (mut stream, _) = within("a batch", old.accept()).await.unwrap();
    let (_, first) = request(&mut stream).await;
    // What cannot be read leaves the old one in use.
    std::fs::write(&config, "{").unwrap();
    let refusal = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";
    stream.write_all(refusal).await.unwrap();
    let (_, again) = within("the batch again", request(&mut stream)).await;
    assert_eq!(first, again);
    kubeconfig_of(folder.path(), &new);
    stream.write_all(refusal).await.unwrap();
    let (mut stream, _) = within("the batch elsewhere", new.accept()).await.unwrap();
    let (_, again) = request(&mut stream).await;
    assert_eq!(first, again);
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        .await
        .unwrap();
    program.terminate().await;
    within("the end", program.ended()).await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_audit_batch_that_is_not_accepted_holds_up_no_other() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let hook = TcpListener::bind(loopback()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = kubeconfig_of(folder.path(), &hook);
    let flags = [
        "--audit-webhook-config-file",
        &config,
        "--audit-webhook-batch-max-size",
        "1",
    ];
    let program = Program::with(&upstream, &flags).await;
    let mut connections = Vec::new();
    let mut posted = Vec::new();
    // None of the first three is answered.
    for _ in 0..3 {
        let id = remembered(&program, PODS)
            .await
            .header("audit-id")
            .to_owned();
        let (mut stream, _) = within("a batch", hook.accept()).await.unwrap();
        let (_, batch) = request(&mut stream).await;
        posted.push(batch["items"][0]["auditID"].as_str().unwrap().to_owned());
        assert!(posted.contains(&id), "{posted:?}");
        connections.push(stream);
    }
    drop(connections);
    program.terminate().await;
    within("the end", program.ended()).await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_audit_webhook_delays_no_request() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    // The webhook accepts connections and never answers.
    let hook = TcpListener::bind(loopback()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = kubeconfig_of(folder.path(), &hook);
    let flags = [
        "--audit-webhook-config-file",
        &config,
        "--audit-webhook-batch-max-size",
        "1",
        "--audit-webhook-batch-buffer-size",
        "5",
    ];
    let program = Program::with(&upstream, &flags).await;
    remembered(&program, PODS).await;
    let dropped = "watershed_audit_events_dropped_total{sink=\"webhook\"}";
    for _ in 0..20 {
        assert_eq!(program.proxied.get(Protocol::Http2, PODS).await.status, 200);
    }
    // Four events are being sent, one is about to be, and five wait.
    becomes("the others are dropped", true, async || {
        let dropped = count(&program, dropped).await;
        dropped >= 11 && dropped + 10 >= count(&program, EVENTS).await
    })
    .await;
    program.terminate().await;
    assert!(program.ended().await.success(), "and it ends");
    upstream.shutdown().await;
}

/// A watch may last for hours, and its last event with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_log_keeps_of_open_watches_counts_for_their_user() {
    let audited = Audited::start(&["--max-selector-bytes-per-user", "100000"]).await;
    let watch = format!("{PODS}&watch=1&timeoutSeconds=600");
    remembered(&audited.program, PODS).await;
    let connection = audited.program.proxied.connect(Protocol::Http2).await;
    let connection = connection.unwrap();
    let long_id = "i".repeat(15_000);
    let mut open = Vec::new();
    for (id, status) in [
        (&*long_id, StatusCode::OK),
        (&*long_id, StatusCode::OK),
        (&*long_id, StatusCode::TOO_MANY_REQUESTS),
        ("usual", StatusCode::OK),
    ] {
        let request = Request::get(&watch).header("audit-id", id);
        let answer = within("a watch", connection.open(request.body(nothing()).unwrap())).await;
        let answer = answer.unwrap();
        assert_eq!(answer.status(), status, "{}", id.len());
        open.push(answer);
    }
    drop(open);
    audited.end().await;
}
