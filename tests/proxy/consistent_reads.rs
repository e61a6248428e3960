//! Consistent reads. They are answered from memory only with a proof that memory is fresh enough.
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::StatusCode;
use watershed::serve::{CachingPolicy, ConsistentReads};
use watershed_lab::sim::{AccessRule, Options, PlannedRefusal, Population, SimulatedServer, pods};

use crate::support::client::{Answer, Protocol, within};
use crate::support::{Fixture, becomes, eventually, proven, small, unless_stalled};

pub(crate) const PODS: &str = "/api/v1/pods";
/// Longer than any test.
pub(crate) const LATE: Duration = Duration::from_hours(1);

/// Returns options of an upstream that sends no bookmarks and whose caches do not advance while
/// nothing happens.
pub(crate) fn quiet(pods: usize) -> Options {
    let never = Duration::from_hours(1);
    Options {
        population: Population {
            nodes: 2,
            namespaces: 2,
            pods,
            ..Population::default()
        },
        bookmark_every: never,
        progress_every: never,
        ..Options::default()
    }
}

pub(crate) fn source(answer: &Answer) -> &str {
    answer.header("x-watershed-source")
}

pub(crate) fn names(answer: &Answer) -> Vec<String> {
    let list = answer.json();
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

pub(crate) fn version(answer: &Answer) -> u64 {
    answer.json()["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

/// Returns the keys of all pods, NAMESPACE/NAME.
pub(crate) fn pod_keys(fixture: &Fixture) -> Vec<String> {
    let pods = fixture.upstream.state().snapshot(&pods());
    pods.into_keys().collect()
}

/// Returns the path of the pod with this key.
pub(crate) fn pod_path(key: &str) -> String {
    let (namespace, name) = key.split_once('/').unwrap();
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

/// Returns the namespace and name of a pod that is neither the newest nor the last.
pub(crate) fn some_pod(fixture: &Fixture) -> (String, String) {
    let keys = pod_keys(fixture);
    let (namespace, name) = keys[1].split_once('/').unwrap();
    (namespace.to_owned(), name.to_owned())
}

/// Creates namespace number `n`. Returns upstream's version, which is then that of a consistent list
/// of any type.
fn write_to_another_type(fixture: &Fixture, n: usize) -> u64 {
    let text = format!(r#"{{"metadata":{{"name":"other-{n}"}}}}"#);
    let namespaces = watershed_protocol::GroupVersionResource::new("", "v1", "namespaces");
    fixture.upstream.state().create(&namespaces, &text).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_a_small_idle_type_are_proven_and_equal_upstreams() {
    let fixture = Fixture::start(quiet(20)).await;
    fixture
        .proxied
        .get(Protocol::Http2, &format!("{PODS}?resourceVersion=0"))
        .await;
    for n in 0..3 {
        let moved = write_to_another_type(&fixture, n);
        for query in [
            "",
            "?limit=7",
            "?labelSelector=app",
            "?fieldSelector=spec.nodeName=node-0001",
        ] {
            let path = format!("{PODS}{query}");
            let ours = proven(async || fixture.proxied.get(Protocol::Http2, &path).await).await;
            let theirs = fixture.direct.get(Protocol::Http2, &path).await;
            assert_eq!(ours.essence(), theirs.essence(), "{path}");
            assert!(version(&ours) >= moved);
        }
    }
    // All pages have one version, although the cache's events have not reached it.
    let first = proven(async || {
        fixture
            .proxied
            .get(Protocol::Http2, &format!("{PODS}?limit=7"))
            .await
    })
    .await;
    let token = first.json()["metadata"]["continue"]
        .as_str()
        .unwrap()
        .to_owned();
    let again = fixture.proxied.get(Protocol::Http2, PODS).await;
    let rest = fixture
        .proxied
        .get(Protocol::Http2, &format!("{PODS}?continue={token}"))
        .await;
    assert_eq!(
        (source(&rest), version(&rest)),
        ("snapshot", version(&first))
    );
    assert_eq!([names(&first), names(&rest)].concat(), names(&again));
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_a_large_idle_type_costs_one_request_also_after_one_that_had_nothing_to_prove() {
    let fixture = Fixture::start(quiet(2000)).await;
    let from_memory = format!("{PODS}?resourceVersion=0");
    fixture.proxied.get(Protocol::Http2, &from_memory).await;
    let list = async || proven(async || fixture.proxied.get(Protocol::Http2, PODS).await).await;
    let mut written = 0;
    let mut write = || {
        written += 1;
        write_to_another_type(&fixture, written);
    };
    write();
    // What upstream does not answer in time is asked again.
    unless_stalled("a list", async || {
        // This one learns that events do not bring the version, and the next that it is proven already.
        list().await;
        list().await;
        // For a second after that, no list asks for the version.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        write();
        let before = fixture.upstream.stats().requests_on("LIST", "pods");
        list().await;
        match fixture.upstream.stats().requests_on("LIST", "pods") - before {
            1 => Ok(()),
            lists => Err(format!("it cost upstream {lists} lists")),
        }
    })
    .await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consistent_list_shows_changes_the_cache_has_not_received() {
    for population in [20, 2000] {
        let fixture = Fixture::start(quiet(population)).await;
        fixture
            .proxied
            .get(Protocol::Http2, &format!("{PODS}?resourceVersion=0"))
            .await;
        // The deletion leaves the list's greatest object version as it was. Only the missing name
        // shows it.
        fixture.upstream.faults().delay_events(LATE);
        let (namespace, name) = some_pod(&fixture);
        fixture
            .upstream
            .state()
            .delete(&pods(), &namespace, &name)
            .unwrap();
        let consistent = fixture.proxied.get(Protocol::Http2, PODS).await;
        assert!(
            !names(&consistent).contains(&name),
            "deleted before the list: {}",
            source(&consistent)
        );
        assert_eq!(source(&consistent), "forward; reason=unproven");
        // The cache alone gives the stale answer.
        let cached = fixture
            .proxied
            .get(Protocol::Http2, &format!("{PODS}?resourceVersion=0"))
            .await;
        assert!(names(&cached).contains(&name));
        fixture.upstream.faults().delay_events(Duration::ZERO);
        fixture.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_consistent_reads_share_a_proof() {
    let fixture = Fixture::start(quiet(20)).await;
    fixture.proxied.get(Protocol::Http2, PODS).await;
    // On a slow machine simultaneous requests may arrive one by one.
    unless_stalled("300 lists at once", async || {
        let before = fixture.upstream.stats().requests_on("LIST", "pods");
        let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
        let reads = (0..300).map(|_| async {
            let request = http::Request::get(PODS)
                .body(crate::support::client::nothing())
                .unwrap();
            connection.read(request).await.unwrap()
        });
        let answers = within("300 lists", join_all(reads)).await;
        assert!(answers.iter().all(|answer| answer.status == StatusCode::OK));
        let proven = answers
            .iter()
            .filter(|answer| source(answer) == "linearizable")
            .count();
        let lists = fixture.upstream.stats().requests_on("LIST", "pods") - before;
        let what = format!("{proven} were answered from memory, and upstream answered {lists}");
        if proven == 300 && lists < 100 {
            Ok(())
        } else {
            Err(what)
        }
    })
    .await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consistent_watch_starts_with_every_earlier_write() {
    let fixture = Fixture::start(small()).await;
    fixture
        .proxied
        .get(Protocol::Http2, &format!("{PODS}?resourceVersion=0"))
        .await;
    for n in 0..20 {
        let text = format!(r#"{{"metadata":{{"name":"late-{n}","namespace":"default"}}}}"#);
        let written = fixture.upstream.state().create(&pods(), &text).unwrap();
        let path = format!(
            "{PODS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
             &allowWatchBookmarks=true"
        );
        let mut lines = fixture.proxied.watch(Protocol::Http2, &path).await;
        let mut seen = false;
        let mark = loop {
            let line = lines.line().await;
            if line.starts_with(r#"{"type":"BOOKMARK""#) {
                break line;
            }
            assert!(line.starts_with(r#"{"type":"ADDED""#), "{line}");
            seen |= line.contains(&format!(r#""name":"late-{n}""#));
        };
        assert!(seen, "late-{n} was written before the watch");
        assert!(mark.contains("k8s.io/initial-events-end"), "{mark}");
        let mark: serde_json::Value = serde_json::from_str(&mark).unwrap();
        let mark = mark["object"]["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap();
        assert!(mark >= written);
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_whose_proof_is_refused_is_forwarded_once() {
    let fixture = Fixture::start(quiet(20)).await;
    fixture.proxied.get(Protocol::Http2, PODS).await;
    // The planned refusals cover the proof's list and the client's.
    let refusal = PlannedRefusal {
        count: 2,
        code: 500,
        retry_after: None,
        resource: Some("pods".to_owned()),
        verb: None,
    };
    fixture
        .upstream
        .faults()
        .set(|active| active.refuse = Some(refusal));
    let answer = fixture.proxied.get(Protocol::Http2, PODS).await;
    assert_eq!(
        (answer.status, source(&answer)),
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            "forward; reason=unproven"
        )
    );
    assert_eq!(
        fixture.upstream.faults().active().refuse,
        None,
        "what was refused is not asked for again"
    );
    // The next proof comes after a pause.
    becomes("the source", "linearizable".to_owned(), async || {
        source(&fixture.proxied.get(Protocol::Http2, PODS).await).to_owned()
    })
    .await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_configuration_selects_how_consistent_reads_are_answered() {
    let mut policy = CachingPolicy {
        consistent_reads: ConsistentReads::Upstream,
        ..CachingPolicy::default()
    };
    for (resource, choice) in [
        ("nodes", ConsistentReads::ProvenFresh),
        ("pods", ConsistentReads::PossiblyStale),
    ] {
        policy.types.entry("", resource).consistent_reads = Some(choice);
    }
    assert_eq!(policy.possibly_stale(), ["pods"]);
    let fixture = Fixture::configured(quiet(20), |config| config.policy = policy).await;
    fixture
        .proxied
        .get(Protocol::Http2, &format!("{PODS}?resourceVersion=0"))
        .await;
    proven(async || fixture.proxied.get(Protocol::Http2, "/api/v1/nodes").await).await;
    for (path, wanted) in [
        ("/api/v1/nodes/node-0000", "forward; reason=consistent-read"),
        ("/api/v1/configmaps", "forward; reason=consistent-read"),
        (PODS, "stale"),
    ] {
        let answer = fixture.proxied.get(Protocol::Http2, path).await;
        assert_eq!(source(&answer), wanted, "{path}");
    }
    // Possibly stale reads were chosen, so they are served.
    fixture.upstream.faults().delay_events(LATE);
    let (namespace, name) = some_pod(&fixture);
    fixture
        .upstream
        .state()
        .delete(&pods(), &namespace, &name)
        .unwrap();
    assert!(names(&fixture.proxied.get(Protocol::Http2, PODS).await).contains(&name));
    let one = fixture
        .proxied
        .get(
            Protocol::Http2,
            &format!("/api/v1/namespaces/{namespace}/pods/{name}"),
        )
        .await;
    assert_eq!((one.status, source(&one)), (StatusCode::OK, "stale"));
    fixture.upstream.faults().delay_events(Duration::ZERO);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_gets_of_one_object_are_coalesced() {
    // The proxy itself is not allowed to get single objects, as in deploy/base/rbac.yaml.
    let prepare = |upstream: &SimulatedServer| {
        upstream.access().add_user("proxy-token", "proxy", &[]);
        let reviews = [
            "tokenreviews.authentication.k8s.io",
            "subjectaccessreviews.authorization.k8s.io",
        ];
        upstream
            .access()
            .allow(AccessRule::new("proxy", &["create"], &reviews));
        upstream
            .access()
            .allow(AccessRule::new("proxy", &["list", "watch"], &["*"]));
    };
    let fixture = Fixture::build(quiet(20), prepare, |config| {
        let file = config.upstream.kubeconfig.as_ref().unwrap();
        let kubeconfig = std::fs::read_to_string(file)
            .unwrap()
            .replace("admin-token", "proxy-token");
        std::fs::write(file, kubeconfig).unwrap();
    })
    .await;
    let (namespace, name) = some_pod(&fixture);
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let direct = fixture.direct.get(Protocol::Http2, &path).await;
    let alone = fixture.proxied.get(Protocol::Http2, &path).await;
    assert_eq!(
        (alone.essence(), source(&alone)),
        (direct.essence(), "forward; reason=consistent-read")
    );
    let before = fixture.upstream.stats().requests_on("GET", "pods");
    let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
    let get = || {
        connection.read(
            http::Request::get(&path)
                .body(crate::support::client::nothing())
                .unwrap(),
        )
    };
    let mut before = before;
    // On a slow machine simultaneous requests may arrive one by one.
    unless_stalled("300 gets at once", async || {
        let mut shared = 0;
        for answer in within("300 gets", join_all((0..300).map(|_| get()))).await {
            let answer = answer.unwrap();
            assert_eq!(answer.essence(), direct.essence());
            shared += u32::from(source(&answer) == "coalesced");
        }
        let now = fixture.upstream.stats().requests_on("GET", "pods");
        let gets = now - std::mem::replace(&mut before, now);
        let what = format!("{shared} were shared, and cost upstream {gets}");
        if shared > 200 && gets < 100 {
            Ok(())
        } else {
            Err(what)
        }
    })
    .await;
    // No answer is older than its request: a read sees every earlier write, however many reads
    // there are.
    for n in 0..20 {
        let reads = join_all((0..30).map(|_| get()));
        let read_and_write = async {
            let text = format!(
                r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}","labels":{{"n":"{n}"}}}}}}"#
            );
            let written = fixture.upstream.state().update(&pods(), &text).unwrap();
            let after = get().await.unwrap();
            assert!(
                version(&after) >= written,
                "{} is older than {written}: {}",
                version(&after),
                source(&after)
            );
        };
        tokio::join!(reads, read_and_write);
    }
    // Unauthorized callers do not share the answers of others.
    let stranger = fixture
        .proxied
        .as_user("nobody-has-this-token")
        .connect(Protocol::Http2)
        .await
        .unwrap();
    let strange = || {
        stranger.read(
            http::Request::get(&path)
                .body(crate::support::client::nothing())
                .unwrap(),
        )
    };
    let (answers, _) = tokio::join!(
        join_all((0..50).map(|_| strange())),
        join_all((0..100).map(|_| get()))
    );
    assert!(
        answers
            .into_iter()
            .all(|answer| answer.unwrap().status == StatusCode::UNAUTHORIZED)
    );
    fixture.stop().await;
}

/// Sends four equal gets while upstream answers none. Returns the time until each has asked it itself.
async fn time_until_each_asks(fixture: &Fixture, path: &str, query: &str) -> Duration {
    let faults = fixture.upstream.faults();
    let target = format!("{path}{query}");
    let attempt = query.rsplit('&').next().unwrap();
    fixture.upstream.take_recorded();
    faults.set(|active| active.hold = Some(path.to_owned()));
    let began = Instant::now();
    let gets = (0..4).map(|_| {
        let (endpoint, target) = (fixture.proxied.clone(), target.clone());
        tokio::spawn(async move { endpoint.get(Protocol::Http2, &target).await })
    });
    let gets: Vec<_> = gets.collect();
    let mut asked = 0;
    eventually("each caller to ask upstream", async || {
        let recorded = fixture.upstream.take_recorded();
        // Upstream is told how much of the time is left.
        let of_gets = recorded
            .iter()
            .filter(|head| head.target.starts_with(path) && head.target.ends_with(attempt));
        asked += of_gets.count();
        if asked >= gets.len() {
            Ok(())
        } else {
            Err(format!("{asked} requests of {} callers", gets.len()))
        }
    })
    .await;
    let took = began.elapsed();
    faults.set(|active| active.hold = None);
    for get in gets {
        assert_eq!(within("an answer", get).await.unwrap().status, 200);
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_get_waits_a_moment_for_anothers_request_and_then_asks_itself() {
    let fixture = Fixture::start(quiet(20)).await;
    let (namespace, name) = some_pod(&fixture);
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    fixture.proxied.get(Protocol::Http2, &path).await;
    for (timeout, longest) in [
        // A shared request that is not answered fails after 30 seconds.
        ("1h", Duration::from_secs(20)),
        // Others wait for a second.
        ("200ms", Duration::from_millis(900)),
    ] {
        let mut attempts = 0;
        unless_stalled("callers to ask upstream themselves", async || {
            // Nobody waits for a request again that was waited for in vain.
            attempts += 1;
            let query = format!("?timeout={timeout}&attempt={attempts}");
            let took = time_until_each_asks(&fixture, &path, &query).await;
            if took < longest {
                Ok(())
            } else {
                Err(format!("{took:?} with {query:?}"))
            }
        })
        .await;
    }
    fixture.stop().await;
}
