//! The status page: its figures, the callers that see user names, and its safety against hostile
//! names.
use http::Request;
use serde_json::Value;
use watershed_lab::sim::{AccessRule, SimulatedServer};

use crate::support::client::{Answer, Connection, Endpoint, Lines, Protocol, nothing, within};
use crate::support::program::Program;
use crate::support::{Fixture, eventually, plain_request, small};

/// Reads a path with a user agent.
async fn get_as(connection: &Connection, agent: &str, path: &str) -> Answer {
    let request = Request::get(path)
        .header("user-agent", agent)
        .body(nothing())
        .unwrap();
    within(path, connection.read(request)).await.unwrap()
}

/// Opens a watch with a user agent.
pub(crate) async fn watch_as(endpoint: &Endpoint, agent: &str, path: &str) -> Lines {
    let connection = endpoint.connect(Protocol::Http2).await.unwrap();
    let request = Request::get(path)
        .header("user-agent", agent)
        .body(nothing())
        .unwrap();
    within(path, connection.follow(request)).await.unwrap()
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

pub(crate) async fn status(fixture: &Fixture) -> Value {
    let host = fixture.admin.to_string();
    let answer = plain_request(fixture.admin, "GET", "/status.json", &[("Host", &host)]).await;
    serde_json::from_str(body(&answer)).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

async fn page(fixture: &Fixture) -> String {
    let host = fixture.admin.to_string();
    plain_request(fixture.admin, "GET", "/status", &[("Host", &host)]).await
}

fn client<'a>(status: &'a Value, agent: &str) -> Option<&'a Value> {
    status["clients"]["top"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["agent"] == agent)
}

fn pods_scope(report: &Value) -> &Value {
    report["scopes"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["resource"] == "pods")
        .unwrap()
}

fn assert_scope_of_pods(pods: &Value) {
    for (name, wanted) in [
        ("objects", Value::from(40)),
        ("watchers", 1.into()),
        ("phase", "ready".into()),
        ("following", true.into()),
        ("encoding", "json".into()),
        ("content", "objects".into()),
        ("selection", "".into()),
    ] {
        assert_eq!(pods[name], wanted, "{name} of {pods:#}");
    }
    assert!(
        pods["objectBytes"].as_u64().unwrap() > 10_000
            && pods["resourceVersion"].as_u64().unwrap() > 0
    );
}

async fn assert_pages_for_browsers(fixture: &Fixture) {
    let html = page(fixture).await;
    for part in [
        "<table id=\"scopes\"",
        "<table id=\"clients\"",
        ">pods ",
        "lister/1",
        "forwarder/1",
        "paging",
        "application/json",
    ] {
        assert_eq!(
            html.contains(part),
            part != "application/json",
            "{part} in {html}"
        );
    }
    let host = fixture.admin.to_string();
    let local = [("Host", host.as_str())];
    let by_query = plain_request(fixture.admin, "GET", "/status?format=json", &local).await;
    assert!(
        by_query.contains("Content-Type: application/json\r\n"),
        "{by_query}"
    );
    let browser = plain_request(fixture.admin, "GET", "/", &[("Accept", "text/html,*/*")]).await;
    assert!(
        browser.starts_with("HTTP/1.1 303 ") && browser.contains("Location: /status\r\n"),
        "{browser}"
    );
    assert!(
        plain_request(fixture.admin, "GET", "/", &[])
            .await
            .contains("/status")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_page_shows_scopes_and_clients() {
    let fixture = Fixture::start(small()).await;
    let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
    let mut received = 0;
    for _ in 0..3 {
        received += get_as(&connection, "lister/1", "/api/v1/pods?resourceVersion=0")
            .await
            .body
            .len();
    }
    let forwarded = get_as(
        &connection,
        "forwarder/1",
        "/api/v1/pods?limit=50&fieldSelector=metadata.namespace%3Dteam-00",
    )
    .await
    .body
    .len();
    let watch = watch_as(
        &fixture.proxied,
        "watcher/1",
        "/api/v1/pods?watch=1&resourceVersion=0",
    )
    .await;

    let report = status(&fixture).await;
    assert_scope_of_pods(pods_scope(&report));
    let lister = client(&report, "lister/1").unwrap();
    assert_eq!(
        (
            &lister["user"],
            &lister["requests"],
            &lister["forwarded"],
            &lister["sentBytes"],
            &lister["watches"]
        ),
        (
            &"admin".into(),
            &3.into(),
            &0.into(),
            &received.into(),
            &0.into()
        )
    );
    let forwarder = client(&report, "forwarder/1").unwrap();
    assert_eq!(
        (
            &forwarder["requests"],
            &forwarder["forwarded"],
            &forwarder["sentBytes"]
        ),
        (&1.into(), &1.into(), &forwarded.into())
    );
    assert_eq!(
        forwarder["user"], "admin",
        "upstream named the user for an earlier request with the same token"
    );
    assert_eq!(client(&report, "watcher/1").unwrap()["watches"], 1);
    assert_eq!(
        (
            &report["totals"]["watchesHere"],
            &report["totals"]["requestsForwarded"]
        ),
        (&1.into(), &1.into())
    );
    assert_eq!(report["forwarded"][0]["reason"], "paging");

    assert_pages_for_browsers(&fixture).await;
    eventually(
        "readiness",
        async || match &status(&fixture).await["health"] {
            health if health == "ready" => Ok(()),
            other => Err(other.to_string()),
        },
    )
    .await;

    // A closed watch is no longer reported.
    drop(watch);
    eventually("no watch", async || {
        let report = status(&fixture).await;
        let pods = pods_scope(&report);
        let now = [
            &pods["watchers"],
            &client(&report, "watcher/1").unwrap()["watches"],
            &report["totals"]["watchesHere"],
        ];
        if now.iter().all(|watches| **watches == 0) {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_names_are_shown_as_text() {
    let fixture = Fixture::start(small()).await;
    let user = "<b onmouseover=alert(1)>\"'& </td>";
    fixture.upstream.access().add_user("hostile", user, &[]);
    fixture
        .upstream
        .access()
        .allow(AccessRule::read(user, &["pods"]));
    let connection = fixture
        .proxied
        .as_user("hostile")
        .connect(Protocol::Http2)
        .await
        .unwrap();
    let agents = [
        "\"><script>alert(1)</script>",
        "</style><style>*{display:none}",
        "</script><img src=//evil.example.com/x onerror=alert(1)>",
        "'; alert(1); '",
        "&lt;b&gt; {{7*7}} ${7*7} %3Cscript%3E \\u003cscript",
    ];
    for agent in agents {
        assert_eq!(
            get_as(&connection, agent, "/api/v1/pods?resourceVersion=0")
                .await
                .status,
            200
        );
    }
    // A valid header value need not be UTF-8.
    let odd = Request::get("/api/v1/pods?resourceVersion=0")
        .header(
            "user-agent",
            http::HeaderValue::from_bytes(b"\xff\xfe<script>").unwrap(),
        )
        .body(nothing())
        .unwrap();
    within("an answer", connection.read(odd)).await.unwrap();
    let long = "<script>".repeat(2_000);
    get_as(&connection, &long, "/api/v1/pods?resourceVersion=0").await;

    let report = status(&fixture).await;
    for agent in agents {
        assert_eq!(
            client(&report, agent).unwrap_or_else(|| panic!("{agent} in {report:#}"))["user"],
            user
        );
    }
    let html = page(&fixture).await;
    // The page itself has one of each.
    for tag in ["<script", "<style", "</script", "</style"] {
        assert_eq!(html.matches(tag).count(), 1, "{tag} in {html}");
    }
    for tag in ["<img", "<b onmouseover", "</td>\"", "onerror=alert(1)>"] {
        assert!(!html.contains(tag), "{tag} in {html}");
    }
    assert!(
        html.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && html.len() < 100_000,
        "{html}"
    );
    let head = html.split_once("\r\n\r\n").unwrap().0;
    for header in [
        "Content-Security-Policy: default-src 'none'; style-src 'sha256-",
        "X-Content-Type-Options: nosniff",
        "Cache-Control: no-store",
    ] {
        assert!(head.contains(header), "{header} in {head}");
    }
    assert!(
        !head.contains("unsafe")
            && !html.contains("//evil.example.com\"")
            && !html.contains("src=\""),
        "{html}"
    );
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn details_are_shown_to_operators_only() {
    let fixture = Fixture::start(small()).await;
    let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
    get_as(&connection, "teller/1", "/api/v1/pods?resourceVersion=0").await;
    let own = fixture.admin.to_string();
    // With DNS rebinding, a foreign page sends its own name as the host.
    for (host, named) in [
        (own.as_str(), true),
        ("localhost:6480", true),
        ("evil.example.com", false),
    ] {
        for path in ["/status", "/status.json"] {
            let answer = plain_request(fixture.admin, "GET", path, &[("Host", host)]).await;
            assert_eq!(answer.contains("teller/1"), named, "{path} at {host}");
            assert_eq!(answer.contains("pods"), named, "{answer}");
            let status = if named { "200" } else { "403" };
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{answer}"
            );
        }
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_page_requires_the_admin_token() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "secret-of-operators").unwrap();
    let program = Program::with(&upstream, &["--admin-token-file", file.to_str().unwrap()]).await;
    let connection = program.proxied.connect(Protocol::Http2).await.unwrap();
    get_as(&connection, "teller/1", "/api/v1/pods?resourceVersion=0").await;
    for (credentials, status) in [
        ("Bearer secret-of-operators", "200"),
        ("Basic YW55Ym9keTpzZWNyZXQtb2Ytb3BlcmF0b3Jz", "200"), // anybody:secret-of-operators
        ("Basic c2VjcmV0LW9mLW9wZXJhdG9yczo=", "401"),         // secret-of-operators:
        ("Bearer another", "401"),
        ("", "401"),
    ] {
        for path in ["/status", "/status.json", "/status?format=json"] {
            let headers = [
                ("Authorization", credentials),
                ("Host", "watershed.example.com"),
            ];
            let answer = plain_request(program.admin, "GET", path, &headers).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{credentials}: {answer}"
            );
            assert_eq!(
                answer.contains("teller/1"),
                status == "200",
                "{credentials}: {answer}"
            );
        }
    }
    let refused = plain_request(program.admin, "GET", "/status", &[]).await;
    assert!(
        refused.contains("Www-Authenticate: Basic realm=\"watershed\"\r\n"),
        "a browser prompts for the password: {refused}"
    );
    program.terminate().await;
    assert!(program.ended().await.success());
    upstream.shutdown().await;
}
