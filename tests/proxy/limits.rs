//! The limits of callers and of requests, and the secrets that no page, metric or log line shows.
use std::time::Duration;

use futures_util::future::join_all;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use watershed::listener::TrustedProxies;
use watershed_lab::sim::{AccessRule, Options, Population, SimulatedServer};

use crate::status::status;
use crate::support::client::{BOTH, Endpoint, Protocol, nothing, whole, within};
use crate::support::program::Program;
use crate::support::{Fixture, becomes, eventually, plain_get, small, unless_stalled};

const LIST: &str = "/api/v1/pods?resourceVersion=0";
const SECRETS: &str = "/api/v1/secrets";
const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

#[tokio::test]
async fn connections_leave_files_for_probes_and_for_upstream() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    // As container runtimes start programs, with less.
    let flags = [
        "--max-connections",
        "5000",
        "--max-connections-per-address",
        "5000",
    ];
    let program = Program::with_file_limits(&upstream, (100, 160), &flags).await;
    let figure = async |series: &str| program.metric(series).await.to_string();
    assert_eq!(figure("process_max_fds").await, "160");
    let limit = figure(r#"watershed_connections_limit{listener="proxy"}"#).await;
    assert_eq!(limit, "32");
    program.until_logged(&["--max-connections"]).await;
    let known = program.proxied.connect(Protocol::Http2).await.unwrap();
    let address = program.proxied.address;
    let clients = join_all((0..200).map(|_| TcpStream::connect(address))).await;
    eventually("the clients to fill the limit", async || {
        match figure(r#"watershed_connections{listener="proxy"}"#).await {
            open if open == limit => Ok(()),
            open => Err(open),
        }
    })
    .await;
    let readyz = program.admin("GET", "/readyz").await;
    assert!(readyz.starts_with("HTTP/1.1 200 "), "{readyz}");
    let forwarded = Request::get("/api/v1/pods").body(nothing()).unwrap();
    let answer = known.read(forwarded).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK);
    drop(clients);
}

#[tokio::test]
async fn one_clients_requests_leave_files_for_others() {
    const LOG: &str = "/api/v1/namespaces/default/pods/some/log";
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let program = Program::with_file_limits(&upstream, (100, 160), &[]).await;
    let words = ["room for few connections", "WARN"];
    program.until_logged(&words).await;
    // Each such request has a connection to upstream for itself, where there can be so many.
    upstream
        .faults()
        .set(|active| active.hold = Some(LOG.to_owned()));
    let hostile = program.proxied.connect(Protocol::Http2).await.unwrap();
    let accepted = hostile
        .read(Request::get(LIST).body(nothing()).unwrap())
        .await;
    assert_eq!(accepted.unwrap().status, StatusCode::OK);
    let requests = tokio::spawn(async move {
        let request = || Request::get(LOG).body(nothing()).unwrap();
        join_all((0..200).map(|_| hostile.open(request()))).await
    });
    // They have eight connections of sixteen streams, of which one user may take half.
    let logs = r#"watershed_limited_resources_in_use{limit="relayed-requests"}"#;
    becomes("the logs", 64.0, async || program.metric(logs).await).await;
    let all = r#"watershed_limited_resources_in_use{limit="forwarded-requests"}"#;
    assert!(program.metric(all).await >= 64.0, "they count among all");
    eventually("connections for them", async || {
        let connections = r#"watershed_upstream_connections{kind="relayed"}"#;
        let connections = program.metric(connections).await;
        assert!(connections <= 8.0, "{connections}");
        (connections > 0.0).then_some(()).ok_or("none".to_owned())
    })
    .await;
    let readyz = program.admin("GET", "/readyz").await;
    assert!(readyz.starts_with("HTTP/1.1 200 "), "{readyz}");
    let other = program.proxied.as_user(upstream.viewer_token());
    for (path, status) in [
        ("/api/v1/pods", StatusCode::OK),
        // Upstream lets viewers read no logs, and is asked.
        (
            "/api/v1/namespaces/default/pods/other/log",
            StatusCode::FORBIDDEN,
        ),
    ] {
        let answer = other.get(Protocol::Http1, path).await;
        assert_eq!(answer.status, status, "{path}");
    }
    requests.abort();
}

#[tokio::test]
async fn the_log_names_an_address_with_too_many_connections() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let program = Program::with(&upstream, &["--max-connections-per-address", "2"]).await;
    let address = program.proxied.address;
    let clients = join_all((0..8).map(|_| TcpStream::connect(address))).await;
    let words = [
        "connections refused: too many from one address",
        "127.0.0.1",
    ];
    program.until_logged(&words).await;
    drop(clients);
    program.terminate().await;
    assert!(program.ended().await.success());
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_do_not_wait_for_each_review_of_a_token_while_reviews_hang() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let flags = ["--max-requests-inflight-per-user", "100"];
    let program = Program::with(&upstream, &flags).await;
    upstream
        .faults()
        .set(|active| active.hold = Some(TOKEN_REVIEWS.to_owned()));
    upstream.take_recorded();
    for number in 0..5 {
        // It is forwarded.
        let path = format!("{SECRETS}?limit={number}");
        let answer = program.proxied.get(Protocol::Http2, &path).await;
        assert_eq!(answer.status, StatusCode::OK);
    }
    let recorded = upstream.take_recorded();
    let reviews = recorded.iter().filter(|head| head.target == TOKEN_REVIEWS);
    assert!(reviews.count() <= 2, "one review, asked twice at most");
    let given_up = r#"watershed_access_reviews_total{kind="tokenreview",result="unavailable"}"#;
    let waited_for = program.metric(given_up).await;
    assert!(waited_for < 1.0, "no request waited for its end");
    upstream.faults().set(|active| active.hold = None);
    program.terminate().await;
    assert!(program.ended().await.success());
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_over_the_limit_gets_429_and_others_are_served() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let flags = [
        "--max-requests-inflight-per-user",
        "2",
        "--max-requests-per-second-per-user",
        "1",
        "--max-requests-burst-per-user",
        "40",
    ];
    let program = Program::with(&upstream, &flags).await;
    let limited = async |reason: &str| {
        program
            .metric(&format!(
                r#"watershed_requests_limited_total{{reason="{reason}"}}"#
            ))
            .await
    };
    program.proxied.get(Protocol::Http2, LIST).await;

    // Two requests are running, one of them forwarded. A third one exceeds the limit.
    let connection = program.proxied.connect(Protocol::Http2).await.unwrap();
    let post = || {
        let (sender, body) =
            tokio::sync::mpsc::channel::<Result<http_body::Frame<bytes::Bytes>, std::io::Error>>(1);
        let body =
            futures_util::stream::unfold(body, async |mut body| Some((body.recv().await?, body)));
        let body = http_body_util::StreamBody::new(Box::pin(body)).boxed_unsync();
        (
            sender,
            Request::post("/api/v1/namespaces/team-00/configmaps")
                .body(body)
                .unwrap(),
        )
    };
    let mut open: Vec<(_, tokio::task::JoinHandle<_>)> = Vec::new();
    let in_flight = r#"watershed_requests_in_flight{verb="create"}"#;
    eventually("two requests to be open", async || {
        // The list before them may count for another moment, so that one is refused.
        open.retain(|(_, task)| !task.is_finished());
        while open.len() < 2 {
            let (sender, request) = post();
            let connection = connection.clone();
            let task = tokio::spawn(async move { connection.open(request).await.map(drop) });
            open.push((sender, task));
        }
        match program.metric(in_flight).await {
            2.0 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    let refused = program.proxied.get(Protocol::Http1, LIST).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(refused.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(refused.header("x-watershed-source"), "limit");
    assert_eq!(refused.body, "Too many requests, please try again later.\n");
    assert!(limited("in-flight").await >= 1.0);
    let other = program.proxied.as_user(upstream.viewer_token());
    assert_eq!(
        other.get(Protocol::Http2, LIST).await.status,
        200,
        "others are served"
    );
    for (sender, task) in open {
        drop(sender);
        let _ = within("an answer to half a body", task).await;
    }
    becomes("requests in flight", 0.0, async || {
        program.metric(in_flight).await
    })
    .await;

    // Open watches do not count towards the limit.
    let mut watches = Vec::new();
    for _ in 0..4 {
        let watch = "/api/v1/pods?watch=1&resourceVersion=0&timeoutSeconds=600";
        watches.push(program.proxied.watch(Protocol::Http2, watch).await);
    }
    assert_eq!(program.proxied.get(Protocol::Http2, LIST).await.status, 200);

    // More requests in a second than allowed, forwarded or not. They are sent at the same time,
    // because one by one a slow machine would stay below the limit.
    eventually("the burst to be used up", async || {
        let connection = program.proxied.connect(Protocol::Http2).await.unwrap();
        let request = || {
            Request::get("/api/v1/namespaces/team-00/pods/x")
                .body(nothing())
                .unwrap()
        };
        join_all((0..60).map(|_| connection.read(request()))).await;
        let refused = limited("rate").await;
        if refused >= 1.0 {
            Ok(())
        } else {
            Err(refused.to_string())
        }
    })
    .await;
    assert_eq!(
        other.get(Protocol::Http2, LIST).await.status,
        200,
        "others are served"
    );
    drop(watches);
    program.terminate().await;
    assert!(program.ended().await.success());
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_metrics_and_logs_contain_no_secret() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["127.0.0.1".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    std::fs::write(file("tls.crt"), certificate.pem()).unwrap();
    std::fs::write(file("tls.key"), key.serialize_pem()).unwrap();
    let token = "secret-of-operators";
    std::fs::write(file("token"), format!("{token}\n")).unwrap();
    let (cert, private, token_file) = (file("tls.crt"), file("tls.key"), file("token"));
    let flags = [
        "--admin-tls-cert",
        &cert,
        "--admin-tls-key",
        &private,
        "--admin-token-file",
        &token_file,
        "--log-level",
        "debug",
    ];
    let program = Program::with(&upstream, &flags).await;
    let nobody = Endpoint::new(program.admin, &certificate.pem(), "");
    let operator = nobody.as_user(token);
    eventually("readiness", async || {
        match operator.get(Protocol::Http2, "/readyz").await.status {
            StatusCode::OK => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;

    // Requests that carry secrets: a valid token, an invalid one, one with impersonation, and a
    // secret's content.
    let secrets = [
        upstream.admin_token(),
        "token-of-nobody-at-all",
        token,
        "content-of-a-secret",
    ];
    let body = r#"{"metadata":{"name":"s"},"data":{"a":"content-of-a-secret"}}"#;
    for protocol in BOTH {
        for user in [&secrets[..1], &secrets[1..2]].concat() {
            let endpoint = program.proxied.as_user(user);
            for path in [LIST, "/api/v1/secrets", "/nowhere", "/version"] {
                endpoint.get(protocol, path).await;
            }
            let post = Request::post("/api/v1/namespaces/team-00/secrets")
                .header("content-type", "application/json")
                .header("impersonate-user", "somebody")
                .body(whole(body))
                .unwrap();
            within("an answer", endpoint.send(protocol, post))
                .await
                .unwrap();
        }
        nobody
            .as_user("token-of-nobody-at-all")
            .get(protocol, "/metrics")
            .await;
    }

    for path in ["/livez", "/readyz", "/healthz", "/readyz?verbose"] {
        assert_eq!(
            nobody.get(Protocol::Http1, path).await.status,
            200,
            "{path} is for probes"
        );
    }
    let mut told = String::new();
    for path in [
        "/",
        "/metrics",
        "/status",
        "/status.json",
        "/debug/config",
        "/nowhere",
        "/livez",
        "/readyz?verbose",
        "/healthz",
    ] {
        let open = ["/livez", "/healthz"].contains(&path) || path.starts_with("/readyz");
        for stranger in [
            &nobody,
            &nobody.as_user("token-of-nobody-at-all"),
            &nobody.as_user(upstream.admin_token()),
        ] {
            let refusal = stranger.get(Protocol::Http2, path).await;
            assert_eq!(refusal.status == 401, !open, "{path}");
        }
        let answer = operator.get(Protocol::Http2, path).await;
        assert_ne!(answer.status, 401, "{path}");
        told += &String::from_utf8_lossy(&answer.body);
        let headers = answer
            .headers
            .values()
            .filter_map(|value| value.to_str().ok());
        headers.for_each(|value| told += value);
    }
    let config = operator.get(Protocol::Http2, "/debug/config").await.json();
    assert_eq!(config["admin"]["tokenFile"], token_file);
    assert_eq!(config["admin"]["certificate"]["key"], private);
    assert_eq!(config["limits"]["http2StreamsPerConnection"], 1000);
    assert_eq!(config["access"]["reviewFailurePolicy"], "refuse");
    assert!(config["holding"]["default"]["deriveJson"].is_boolean());

    // The token and the certificate are reloaded.
    std::fs::write(file("token"), "another-secret").unwrap();
    assert_eq!(operator.get(Protocol::Http2, "/metrics").await.status, 401);
    assert_eq!(
        nobody
            .as_user("another-secret")
            .get(Protocol::Http2, "/metrics")
            .await
            .status,
        200
    );

    told += &program.log();
    assert!(
        told.contains("watershed_requests_total") && told.contains("connected to upstream"),
        "{told}"
    );
    let key_lines = key.serialize_pem();
    let key_lines = key_lines.lines().filter(|line| !line.starts_with('-'));
    for secret in secrets
        .into_iter()
        .chain(["another-secret"])
        .chain(key_lines)
    {
        assert!(secret.len() > 8, "{secret}");
        let found = told.find(secret);
        assert_eq!(
            found,
            None,
            "{secret}: …{}",
            &told[found.unwrap_or(0).saturating_sub(200)..][..400.min(told.len())]
        );
    }
    program.terminate().await;
    assert!(program.ended().await.success());
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_forwarded_answers_do_not_exhaust_upstream_connections() {
    // A forwarded list of about 4 MB: far larger than a stream's window.
    let mut options: Options = small();
    options.population = Population {
        pods: 1_000,
        ..options.population
    };
    let fixture = Fixture::configured(options, |config| {
        // Clients that do not read are not cut off during this test.
        config.limits.stall = Duration::ZERO;
        config.policy.consistent_reads = watershed::serve::ConsistentReads::Upstream;
    })
    .await;
    let mut lazy = Vec::new();
    for n in 0..60 {
        // More unread answers than one upstream connection carries. Each request differs, so that
        // none shares an answer.
        let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
        let path = format!("/api/v1/pods?labelSelector=nothing-{n}%21%3Dhere");
        let answer = within(
            &path,
            connection.open(Request::get(&path).body(nothing()).unwrap()),
        )
        .await
        .unwrap();
        assert_eq!(
            answer.headers()["x-watershed-source"],
            "forward; reason=consistent-read"
        );
        lazy.push((connection, answer));
    }
    // A review without an answer in time is sent again on another connection.
    unless_stalled(
        "answers on a connection that the lazy ones use",
        async || {
            let before = fixture.upstream.stats().connections;
            for protocol in BOTH {
                let answer = fixture.proxied.get(protocol, "/api/v1/pods").await;
                assert_eq!(
                    answer.json()["items"].as_array().unwrap().len(),
                    1_000,
                    "whole, beside those who do not read"
                );
            }
            let opened = fixture.upstream.stats().connections - before;
            if opened == 0 {
                Ok(())
            } else {
                Err(format!("{opened} more"))
            }
        },
    )
    .await;
    // The unread answers were not cut off: a client that begins to read gets all of it.
    let (connection, answer) = lazy.pop().unwrap();
    let body = within("the rest", answer.into_body().collect())
        .await
        .unwrap()
        .to_bytes();
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&body).unwrap()["items"]
            .as_array()
            .unwrap()
            .len(),
        1_000
    );
    drop((connection, lazy));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn selectors_of_very_many_requirements_are_left_to_upstream() {
    let fixture = Fixture::start(small()).await;
    for (terms, source) in [(200, "snapshot"), (300, "forward; reason=selector")] {
        let selector = vec!["!absent"; terms].join(",");
        let path = format!("{LIST}&labelSelector={selector}");
        let answer = fixture.proxied.get(Protocol::Http2, &path).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.header("x-watershed-source"), source, "{terms}");
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlong_urls_and_headers_are_refused() {
    let fixture = Fixture::configured(small(), |config| {
        config.limits.url_bytes = 1_000;
        config.limits.header_bytes = 10_000;
    })
    .await;
    for protocol in BOTH {
        let path = |length: usize| format!("{LIST}&labelSelector={}", "a".repeat(length));
        assert_ne!(fixture.proxied.get(protocol, &path(60)).await.status, 414);
        assert_eq!(
            fixture.proxied.get(protocol, &path(1_000)).await.status,
            StatusCode::URI_TOO_LONG
        );
        let large = Request::get("/version")
            .header("x-large", "a".repeat(30_000))
            .body(nothing())
            .unwrap();
        let answer = within("an answer", fixture.proxied.send(protocol, large))
            .await
            .unwrap();
        assert_eq!(answer.status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    // The admin listener has the same limits.
    let mut stream = tokio::net::TcpStream::connect(fixture.admin).await.unwrap();
    let head = format!(
        "GET /{} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        "a".repeat(2_000)
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(Duration::from_mins(1), stream.read_to_string(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 414 "), "{answer}");
    assert!(
        plain_get(fixture.admin, "GET", "/livez")
            .await
            .starts_with("HTTP/1.1 200 ")
    );
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_many_watches_or_large_selectors_affects_no_other() {
    let fixture = Fixture::configured(small(), |config| {
        config.policy.users.watches = 5;
        config.policy.users.selector_bytes = 100_000;
    })
    .await;
    let watch = "/api/v1/pods?watch=1&resourceVersion=0&timeoutSeconds=600";
    let values = vec!["value"; 500].join(",");
    let large = format!("{watch}&labelSelector=app+notin+({values})");
    let viewer = fixture.proxied.as_user(fixture.upstream.viewer_token());
    for (path, allowed) in [(watch, 5), (&*large, 2)] {
        let mut open = Vec::new();
        for _ in 0..allowed {
            open.push(fixture.proxied.watch(Protocol::Http2, path).await);
        }
        for protocol in BOTH {
            let refused = fixture.proxied.get(protocol, path).await;
            assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{path}");
            assert_eq!(refused.header("retry-after"), "1");
            assert_eq!(refused.header("x-watershed-source"), "limit");
            open.push(viewer.watch(protocol, path).await);
        }
        drop(open);
        becomes("open watches", Some(0), async || {
            status(&fixture).await["totals"]["watchesHere"].as_u64()
        })
        .await;
        // What is over counts no longer.
        let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
        eventually("a watch to be allowed again", async || {
            let request = Request::get(path).body(nothing()).unwrap();
            match connection.open(request).await.unwrap().status() {
                StatusCode::OK => Ok(()),
                other => Err(other.to_string()),
            }
        })
        .await;
    }
    fixture.stop().await;
}

/// Anybody can come without credentials, from where others come as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_without_credentials_takes_nothing_of_the_rate_of_those_elsewhere() {
    let fixture = Fixture::configured(small(), |config| {
        config.trusted_proxies = TrustedProxies::new(["127.0.0.0/8".parse().unwrap()]);
        config.access.authentication.anonymous = true;
        config.policy.users.per_second = 1;
        config.policy.users.burst = 20;
    })
    .await;
    let rule = AccessRule::read("system:unauthenticated", &["pods"]);
    fixture.upstream.access().allow(rule);
    let stranger = fixture.proxied.as_user("");
    let connection = stranger.connect(Protocol::Http2).await.unwrap();
    let request = |path, address| {
        let request = Request::get(path).header("x-forwarded-for", address);
        request.body(nothing()).unwrap()
    };
    let (first, other) = ("192.0.2.1", "192.0.2.2");
    eventually("a request beyond the rate", async || {
        let answer = connection.read(request(LIST, first)).await.unwrap();
        match answer.status {
            StatusCode::TOO_MANY_REQUESTS => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    let answer = connection.read(request(LIST, other)).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    fixture.stop().await;
}
