//! Health and metrics of the program.
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use http::{Method, Request};
use watershed_lab::sim::SimulatedServer;

use crate::support::client::{BOTH, Next, Protocol, RequestBody, nothing, within};
use crate::support::program::Program;
use crate::support::{becomes, small, unless_stalled};

/// Returns the names and labels of all series, without their values.
fn series(metrics: &str) -> BTreeSet<String> {
    metrics
        .lines()
        .filter(|line| line.starts_with("watershed_") || line.starts_with("process_"))
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(series, _)| series.to_owned())
        .collect()
}

/// Returns the series of one request that was answered with 200.
fn requests(labels: &str) -> String {
    format!(r#"watershed_requests_total{{{labels},code="200"}} 1"#)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_admin_listener_serves_health_and_metrics() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let program = Program::start(&upstream).await;
    for path in ["/livez", "/readyz", "/healthz"] {
        let answer = program.admin("GET", path).await;
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok"),
            "{path}: {answer}"
        );
        assert!(
            program
                .admin("HEAD", path)
                .await
                .starts_with("HTTP/1.1 200 OK\r\n")
        );
    }
    let verbose = program.admin("GET", "/readyz?verbose").await;
    for line in [
        "[+]discovery ok\n",
        "[+]shutdown ok\n",
        "readyz check passed\n",
    ] {
        assert!(verbose.contains(line), "{verbose}");
    }
    assert!(
        program
            .admin("GET", "/nowhere")
            .await
            .starts_with("HTTP/1.1 404 ")
    );
    assert!(
        program
            .admin("POST", "/metrics")
            .await
            .starts_with("HTTP/1.1 405 ")
    );
    assert!(
        program
            .admin("GET", "/api/v1/pods")
            .await
            .starts_with("HTTP/1.1 404 "),
        "clients cannot reach the API here"
    );

    program
        .proxied
        .get(Protocol::Http2, "/api/v1/pods?resourceVersion=0")
        .await;
    program.proxied.get(Protocol::Http2, "/livez").await;
    let watch = program
        .proxied
        .watch(Protocol::Http2, "/api/v1/pods?watch=1&resourceVersion=0")
        .await;
    let metrics = program.admin("GET", "/metrics").await;
    assert!(
        metrics.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
        "{metrics}"
    );
    let scope =
        r#"group="",version="v1",resource="pods",encoding="json",content="objects",selection="""#;
    for line in [
        requests(r#"verb="list",group="",resource="pods",source="snapshot",reason="""#),
        requests(r#"verb="watch",group="",resource="pods",source="snapshot",reason="""#),
        requests(r#"verb="get",group="",resource="",source="forward",reason="not-a-resource""#),
        r#"watershed_watches{group="",resource="pods"} 1"#.to_owned(),
        format!("watershed_scope_ready{{{scope}}} 1"),
        format!("watershed_scope_objects{{{scope}}} 40"),
        format!("watershed_scope_watchers{{{scope}}} 1"),
        r#"watershed_upstream_lists_total{group="",resource="pods"} 1"#.to_owned(),
        "# TYPE watershed_request_duration_seconds histogram".to_owned(),
        "# TYPE watershed_requests_total counter".to_owned(),
    ] {
        assert!(
            metrics.lines().any(|l| l == line),
            "{line} is missing in\n{metrics}"
        );
    }
    drop(watch);
    program.terminate().await;
    assert!(program.ended().await.success());
    upstream.shutdown().await;
}

/// Returns the value of a series.
pub(crate) fn value(metrics: &str, series: &str) -> f64 {
    let found = metrics
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
    found.unwrap_or_else(|| panic!("{series} is missing in\n{metrics}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_counted_towards_clients_and_from_upstream() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let program = Program::start(&upstream).await;
    let (mut here, mut forwarded) = (0, 0);
    for protocol in BOTH {
        for _ in 0..3 {
            here += program
                .proxied
                .get(protocol, "/api/v1/pods?resourceVersion=0")
                .await
                .body
                .len();
        }
        // Each of these requests goes upstream.
        let answer = program
            .proxied
            .get(
                protocol,
                "/api/v1/pods?limit=1&fieldSelector=metadata.namespace%3Dx",
            )
            .await;
        assert!(
            answer.header("x-watershed-source").starts_with("forward"),
            "{:?}",
            answer.headers
        );
        forwarded += answer.body.len();
    }
    assert!(here > 6 * 40 * 100 && forwarded > 0);
    let mut watch = program
        .proxied
        .watch(Protocol::Http2, "/api/v1/pods?watch=1&resourceVersion=0")
        .await;
    for _ in 0..40 {
        let Next::Line(line) = watch.next().await else {
            panic!("the watch is over")
        };
        here += line.len();
    }
    // The counter also includes bookmarks, and bytes that are sent but not yet received.
    let metrics = program.admin("GET", "/metrics").await;
    let of = |series: &str| value(&metrics, series);
    let sent = of(r#"watershed_response_bytes_total{source="snapshot"}"#);
    assert!(
        sent >= here as f64 && sent < (here + 20_000) as f64,
        "{sent} and {here}"
    );
    assert!(
        (of(r#"watershed_response_bytes_total{source="forward"}"#) - forwarded as f64).abs() < 0.5
    );
    assert!(
        (of(r#"watershed_upstream_received_bytes_total{purpose="forward"}"#) - forwarded as f64)
            .abs()
            < 0.5
    );
    assert!(
        (of(r#"watershed_upstream_requests_total{purpose="forward",code="200"}"#) - 2.0).abs()
            < 0.5
    );
    // Clients receive more than upstream sends.
    let listed = of(r#"watershed_upstream_received_bytes_total{purpose="list"}"#)
        + of(r#"watershed_upstream_received_bytes_total{purpose="watch"}"#);
    assert!(listed > 0.0 && listed < sent, "{listed} and {sent}");
    assert!(of(r#"watershed_upstream_received_bytes_total{purpose="internal"}"#) > 0.0);
    assert!(of(r#"watershed_upstream_connections{kind="watch"}"#) >= 1.0);
    assert!(of(r#"watershed_upstream_connections{kind="short"}"#) >= 1.0);
    assert!(of(r#"watershed_upstream_connections{kind="tunnel"}"#) < 0.5);
    let ends =
        of(r#"watershed_serving_certificate_expiration_timestamp_seconds{listener="proxy"}"#);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    let days = (ends - now) / 86_400.0;
    assert!(days > 360.0 && days < 370.0, "{days} days");
    assert!(
        metrics.contains(concat!(
            r#"watershed_build_info{version=""#,
            env!("CARGO_PKG_VERSION"),
            '"'
        )),
        "{metrics}"
    );
    drop(watch);
    program.terminate().await;
    assert!(program.ended().await.success());
    upstream.shutdown().await;
}

/// Returns a request with an invented name. `n` selects the method, the path and the name.
fn invented_request(n: usize) -> Request<RequestBody> {
    let method = ["GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "BREW"][n % 7];
    let word = format!("made-up-{n}");
    let path = match n % 11 {
        0 => format!("/api/v1/{word}"),
        1 => format!("/apis/{word}/v1/things"),
        2 => format!("/apis/{word}.example.com/{word}/{word}?watch=1&resourceVersion=0"),
        3 => format!("/api/v1/namespaces/{word}/{word}"),
        4 => format!("/api/v1/namespaces/{word}/pods/{word}/{word}"),
        5 => format!("/{word}"),
        6 => format!("/api/v1/{word}?resourceVersion=0&labelSelector={word}"),
        7 => format!("/api/v1/namespaces/{word}/pods?resourceVersion=0&limit={word}"),
        8 => format!("/api/v1/watch/{word}"),
        9 => format!("/apis/apps/{word}/deployments?resourceVersion=0"),
        _ => format!("/api/v1/namespaces/{word}/pods/{word}?resourceVersion=0"),
    };
    // The first 77 combine every kind of path with every method. Later ones differ only in
    // their names.
    let method = if n.is_multiple_of(3) && n % 7 == 6 {
        format!("BREW{n}")
    } else {
        method.to_owned()
    };
    Request::builder()
        .method(Method::from_bytes(method.as_bytes()).unwrap())
        .uri(path)
        .body(nothing())
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_fail_or_are_given_up_are_counted() {
    const FORWARDED: &str = "/api/v1/secrets?limit=1";
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let program = Program::start(&upstream).await;
    let get = || program.proxied.get(Protocol::Http2, FORWARDED);
    // Its caller is known from then on.
    assert_eq!(get().await.status, 200);

    upstream.faults().refuse_only(503, "LIST", "secrets", 1);
    assert_eq!(get().await.status, 503);
    let refused = r#"watershed_upstream_requests_total{purpose="forward",code="503"}"#;
    assert_eq!(program.metric(refused).await.to_string(), "1");

    upstream
        .faults()
        .set(|active| active.hold = Some("/api/v1/secrets".to_owned()));
    let lists = || upstream.stats().requests_on("LIST", "secrets");
    let before = lists();
    let proxied = program.proxied.clone();
    let held = tokio::spawn(async move { proxied.get(Protocol::Http2, FORWARDED).await });
    becomes("lists at upstream", before + 1, async || lists()).await;
    held.abort();
    let aborted = r#"watershed_requests_aborted_total{verb="list",group="",resource="secrets"}"#;
    becomes(aborted, 1, async || program.counter(aborted).await).await;
    // A request that is given up after a second counts as late.
    becomes("requests without an answer", 1, async || {
        let of = |reason| {
            format!(
                "watershed_upstream_requests_unanswered_total\
                 {{purpose=\"forward\",reason=\"{reason}\"}}"
            )
        };
        program.counter(&of("abandoned")).await + program.counter(&of("late")).await
    })
    .await;
    upstream.faults().set(|active| active.hold = None);
    program.terminate().await;
    assert!(program.ended().await.success());
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_cannot_create_series() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let program = Program::start(&upstream).await;
    let connection = program.proxied.connect(Protocol::Http2).await.unwrap();
    let send = async |n: usize| {
        within("an answer", connection.read(invented_request(n)))
            .await
            .unwrap()
    };
    for n in 0..77 * 3 {
        send(n).await;
    }
    let mut before = series(&program.admin("GET", "/metrics").await);
    assert!(
        before
            .iter()
            .any(|s| s.starts_with("watershed_requests_total")),
        "{before:?}"
    );
    assert!(before.len() < 2_000, "{} series", before.len());
    let mut first = 10_000;
    // Timers and stalls of the machine can create a series of their own, but each only once.
    unless_stalled("requests that add no series", async || {
        for n in first..first + 500 {
            send(n).await;
        }
        first += 500;
        let after = series(&program.admin("GET", "/metrics").await);
        assert!(
            !after
                .iter()
                .any(|s| s.contains("made-up") || s.contains("BREW")),
            "{after:#?}"
        );
        assert!(after.len() < 2_000, "{} series", after.len());
        let added: Vec<_> = after.difference(&before).cloned().collect();
        before = after;
        if added.is_empty() {
            Ok(())
        } else {
            Err(format!("made up by clients: {added:#?}"))
        }
    })
    .await;
    drop(connection);
    program.terminate().await;
    assert!(program.ended().await.success());
    upstream.shutdown().await;
}
