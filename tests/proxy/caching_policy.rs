//! The caching policy: which objects and fields the proxy keeps in memory, and which it must not.
use futures_util::future::join_all;
use http::{Request, StatusCode};
use serde_json::Value;
use watershed::app::AppConfig;
use watershed::serve::CacheMode;
use watershed_lab::sim::{Options, Population, TrafficCounts};
use watershed_protocol::GroupVersionResource;

use crate::support::client::{Answer, BOTH, Endpoint, Lines, Protocol, nothing, within};
use crate::support::{Fixture, proven, small, with_secrets};

const SECRETS: &str = "/api/v1/secrets";
const LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const ONE: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

fn some_secrets() -> Options {
    let options = small();
    Options {
        population: Population {
            secrets: 12,
            ..options.population
        },
        ..options
    }
}

fn secrets() -> GroupVersionResource {
    GroupVersionResource::new("", "v1", "secrets")
}

async fn read(endpoint: &Endpoint, path: &str, accept: &str) -> Answer {
    let request = Request::get(path)
        .header("accept", accept)
        .body(nothing())
        .unwrap();
    within(path, endpoint.send(Protocol::Http2, request))
        .await
        .unwrap()
}

fn source(answer: &Answer) -> &str {
    answer.header("x-watershed-source")
}

/// Reads a path. If the answer needs a proof of freshness, retries until there was time for one.
async fn as_wanted(wanted: &str, mut ask: impl AsyncFnMut() -> Answer) -> Answer {
    if wanted == "linearizable" {
        proven(ask).await
    } else {
        ask().await
    }
}

/// Returns the namespace and name of a secret.
fn some_secret(fixture: &Fixture) -> (String, String) {
    let key = fixture
        .upstream
        .state()
        .snapshot(&secrets())
        .into_keys()
        .nth(1)
        .unwrap();
    let (namespace, name) = key.split_once('/').unwrap();
    (namespace.to_owned(), name.to_owned())
}

/// Returns the reads of secrets that upstream received, and those of them that read more than
/// metadata.
fn asked(counts: &TrafficCounts) -> (u64, u64) {
    let verbs = ["GET", "LIST", "WATCH"];
    let all = verbs
        .iter()
        .map(|verb| counts.requests_on(verb, "secrets"))
        .sum();
    let whole = counts
        .whole
        .iter()
        .filter(|((_, resource), _)| resource == "secrets")
        .map(|(_, n)| n)
        .sum();
    (all, whole)
}

fn metadata_only(config: &mut AppConfig) {
    config.policy.types.entry("", "secrets").mode = Some(CacheMode::Metadata);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_forwarded_and_never_requested_by_the_proxy() {
    let fixture = Fixture::start(some_secrets()).await;
    let (namespace, name) = some_secret(&fixture);
    let one = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
    let mut forwarded = 0;
    for (path, accept) in [
        (SECRETS, "application/json"),
        ("/api/v1/secrets?resourceVersion=0", "application/json"),
        ("/api/v1/secrets?resourceVersion=0", LIST),
        ("/api/v1/secrets?limit=5", "application/json"),
        (
            "/api/v1/secrets?fieldSelector=type%3DOpaque",
            "application/json",
        ),
        ("/api/v1/secrets?labelSelector=(", "application/json"),
        (&one, "application/json"),
        (&format!("{one}?resourceVersion=0"), "application/json"),
        (&format!("{one}?resourceVersion=0"), ONE),
        (
            "/api/v1/secrets?watch=1&resourceVersion=0&timeoutSeconds=1",
            "application/json",
        ),
        (
            "/api/v1/secrets?watch=1&timeoutSeconds=1",
            "application/json",
        ),
    ] {
        let before = asked(&fixture.upstream.stats()).0;
        let proxied = read(&fixture.proxied, path, accept).await;
        assert_eq!(
            source(&proxied),
            "forward; reason=policy",
            "{path} {accept}"
        );
        assert_eq!(
            asked(&fixture.upstream.stats()).0 - before,
            1,
            "{path} {accept}: upstream is asked once"
        );
        if !path.contains("watch") {
            assert_eq!(
                proxied.essence(),
                read(&fixture.direct, path, accept).await.essence(),
                "{path}"
            );
        }
        forwarded += 1;
    }
    assert_eq!(forwarded, 11);
    assert_eq!(
        fixture
            .upstream
            .stats()
            .open_watches
            .get("secrets")
            .copied()
            .unwrap_or_default(),
        0
    );
    // Simultaneous equal reads are not coalesced either.
    let before = asked(&fixture.upstream.stats()).0;
    let many = join_all((0..20).map(|n| fixture.proxied.get(BOTH[n % 2], SECRETS))).await;
    assert!(
        many.iter()
            .all(|answer| source(answer) == "forward; reason=policy")
    );
    assert_eq!(asked(&fixture.upstream.stats()).0 - before, 20);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_served_from_memory_if_configured() {
    let fixture = Fixture::configured(some_secrets(), with_secrets).await;
    let (namespace, name) = some_secret(&fixture);
    for (path, wanted) in [
        ("/api/v1/secrets?resourceVersion=0", "snapshot"),
        (SECRETS, "linearizable"),
        (
            &format!("/api/v1/namespaces/{namespace}/secrets/{name}?resourceVersion=0"),
            "snapshot",
        ),
    ] {
        let proxied = as_wanted(wanted, async || {
            fixture.proxied.get(Protocol::Http2, path).await
        })
        .await;
        assert_eq!(source(&proxied), wanted, "{path}");
        assert_eq!(
            proxied.essence(),
            fixture.direct.get(Protocol::Http2, path).await.essence(),
            "{path}"
        );
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_cached_as_metadata_is_requested_as_metadata_only() {
    let fixture = Fixture::configured(some_secrets(), metadata_only).await;
    let (namespace, name) = some_secret(&fixture);
    let one = format!("/api/v1/namespaces/{namespace}/secrets/{name}?resourceVersion=0");
    let in_namespace = format!("/api/v1/namespaces/{namespace}/secrets?resourceVersion=0");
    for (path, accept, wanted) in [
        ("/api/v1/secrets?resourceVersion=0", LIST, "snapshot"),
        (&in_namespace, LIST, "snapshot"),
        (SECRETS, LIST, "linearizable"),
        ("/api/v1/secrets?limit=5", LIST, "linearizable"),
        (
            "/api/v1/secrets?resourceVersion=0&labelSelector=app",
            LIST,
            "snapshot",
        ),
        (
            "/api/v1/secrets?resourceVersion=0&labelSelector=!app",
            LIST,
            "snapshot",
        ),
        (
            "/api/v1/secrets?resourceVersion=0&fieldSelector=metadata.name!%3Dnobody",
            LIST,
            "snapshot",
        ),
        (&one, ONE, "snapshot"),
        (&one, &format!("{ONE},application/json"), "snapshot"),
    ] {
        let proxied = as_wanted(wanted, async || read(&fixture.proxied, path, accept).await).await;
        assert_eq!(
            (proxied.status, source(&proxied)),
            (StatusCode::OK, wanted),
            "{path}"
        );
        assert_eq!(
            proxied.essence(),
            read(&fixture.direct, path, accept).await.essence(),
            "{path}"
        );
    }

    check_metadata_watches(&fixture, &namespace, &name).await;
    // The proofs of consistent reads request only metadata, too.
    let listed = proven(async || read(&fixture.proxied, SECRETS, LIST).await).await;
    assert_eq!(listed.json()["items"].as_array().unwrap().len(), 11);
    let (all, whole) = asked(&fixture.upstream.stats());
    assert_eq!(whole, 0, "of {all} requests");
    check_reads_beyond_metadata(&fixture, &one).await;
    fixture.stop().await;
}

async fn open_metadata_watch(endpoint: &Endpoint, query: &str) -> Lines {
    let path = format!("{SECRETS}?watch=1&allowWatchBookmarks=true&{query}");
    let request = Request::get(&path)
        .header("accept", ONE)
        .body(nothing())
        .unwrap();
    let connection = endpoint.connect(Protocol::Http2).await.unwrap();
    within(&path, connection.follow(request)).await.unwrap()
}

/// Checks that watches with an initial state and watches from a version equal upstream's, byte for
/// byte.
async fn check_metadata_watches(fixture: &Fixture, namespace: &str, name: &str) {
    let begin = fixture.upstream.state().version();
    let since = format!("resourceVersion={begin}");
    let streamed = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0";
    let labelled = format!("{since}&labelSelector=n%3D1");
    let mut watches = Vec::new();
    for query in [&since, streamed, &labelled] {
        watches.push((
            open_metadata_watch(&fixture.direct, query).await,
            open_metadata_watch(&fixture.proxied, query).await,
        ));
    }
    for label in ["1", "2"] {
        let text = format!(
            concat!(
                r#"{{"metadata":{{"name":"{}","namespace":"{}","labels":{{"n":"{}"}}}},"#,
                r#""data":{{"k":"AAEC"}}}}"#
            ),
            name, namespace, label
        );
        fixture.upstream.state().update(&secrets(), &text).unwrap();
    }
    let last = fixture
        .upstream
        .state()
        .delete(&secrets(), namespace, name)
        .unwrap();
    for (n, (direct, proxied)) in watches.iter_mut().enumerate() {
        let (wanted, got) = (
            lines_until(direct, last, n == 2).await,
            lines_until(proxied, last, n == 2).await,
        );
        assert_eq!(wanted, got, "watch {n}");
        assert!(wanted.len() >= 2, "{wanted:?}");
    }
}

/// Checks that reads that need more than metadata are forwarded. `one` is the path of a secret that
/// does not exist any more.
async fn check_reads_beyond_metadata(fixture: &Fixture, one: &str) {
    for (n, (path, accept)) in [
        (SECRETS, "application/json"),
        ("/api/v1/secrets?resourceVersion=0", "application/json"),
        (
            "/api/v1/secrets?resourceVersion=0&watch=1&timeoutSeconds=1",
            "application/json",
        ),
        (one, "application/json"),
    ]
    .into_iter()
    .enumerate()
    {
        let proxied = read(&fixture.proxied, path, accept).await;
        assert_eq!(
            (proxied.status, source(&proxied)),
            (
                StatusCode::from_u16(if n == 3 { 404 } else { 200 }).unwrap(),
                "forward; reason=policy"
            ),
            "{path}"
        );
        assert_eq!(
            asked(&fixture.upstream.stats()).1,
            n as u64 + 1,
            "{path} is the client's own request"
        );
    }
    let selected = read(
        &fixture.proxied,
        "/api/v1/secrets?resourceVersion=0&fieldSelector=type%3DOpaque",
        LIST,
    )
    .await;
    assert_eq!(
        (selected.status, source(&selected)),
        (StatusCode::OK, "forward; reason=policy")
    );
    let unknown = read(
        &fixture.proxied,
        "/api/v1/secrets?resourceVersion=0&fieldSelector=data%3Dx",
        LIST,
    )
    .await;
    assert_eq!(
        (unknown.status, source(&unknown)),
        (StatusCode::BAD_REQUEST, "forward; reason=selector")
    );
    assert_eq!(
        fixture
            .upstream
            .stats()
            .whole
            .keys()
            .filter(|(_, resource)| resource == "secrets")
            .count(),
        3
    );
}

/// Returns the lines of a watch up to the event at a version. It leaves out periodic bookmarks,
/// because upstream and the proxy send them at different times.
async fn lines_until(watch: &mut Lines, last: u64, gone: bool) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let line = watch.line().await;
        let event: Value = serde_json::from_str(&line).unwrap();
        let version = event["object"]["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap();
        let by_the_clock =
            event["type"] == "BOOKMARK" && event["object"]["metadata"]["annotations"].is_null();
        if !by_the_clock {
            lines.push(line);
        }
        // An object that leaves the selection is reported at once, and not again when it is
        // deleted.
        if version >= last || (gone && event["type"] == "DELETED") {
            return lines;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_that_differs_from_its_object_comes_from_upstream() {
    // A part of a deployment is in its annotations. Upstream's metadata lacks these annotations.
    let path = "/apis/apps/v1/deployments?resourceVersion=0";
    for (cache, wanted) in [
        (CacheMode::Objects, "forward; reason=representation"),
        (CacheMode::Metadata, "snapshot"),
    ] {
        let configure = |config: &mut AppConfig| {
            config.policy.types.entry("apps", "deployments").mode = Some(cache);
        };
        let fixture = Fixture::configured(some_secrets(), configure).await;
        let answer = read(&fixture.proxied, path, LIST).await;
        assert_eq!((answer.status, source(&answer)), (StatusCode::OK, wanted));
        assert_eq!(
            answer.essence(),
            read(&fixture.direct, path, LIST).await.essence()
        );
        fixture.stop().await;
    }
}
