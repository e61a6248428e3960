//! An upstream that fails in many ways. The watches through the proxy do not notice, or end with
//! 410.
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::{Request, StatusCode};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use watershed_lab::sim::{
    BrokenFrame, Faults, Options, PlannedRefusal, SimulatedServer, WatchListSupport,
};
use watershed_protocol::GroupVersionResource;

use crate::support::client::{BOTH, Next, Protocol, whole, within};
use crate::support::follower::{Follower, Opening};
use crate::support::history::{Interest, WriteHistory};
use crate::support::program::Program;
use crate::support::{Fixture, becomes, eventually, loopback, small};

/// Plants a fault every few writes, `times` times.
async fn under(
    history: &Arc<WriteHistory>,
    upstream: &SimulatedServer,
    times: usize,
    fault: impl Fn(&Faults, usize),
) {
    for n in 0..times {
        history.writes(15).await;
        fault(upstream.faults(), n);
        history.writes(15).await;
    }
}

fn refuse(faults: &Faults, verb: &str, code: u16, count: u32) {
    let refusal = PlannedRefusal {
        count,
        code,
        retry_after: (code == 429).then_some(1),
        resource: Some("pods".to_owned()),
        verb: Some(verb.to_owned()),
    };
    faults.set(|active| active.refuse = Some(refusal));
}

fn open_watches(upstream: &SimulatedServer) -> u64 {
    upstream
        .stats()
        .open_watches
        .get("pods")
        .copied()
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_watches_survive_every_connection_cut() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    // A process of its own, whose metrics count no other test.
    let program = Program::start(&upstream).await;
    let history = WriteHistory::new(upstream.state(), 1);
    let crowd = Follower::crowd(&program.proxied, 120).await;
    assert_eq!(open_watches(&upstream), 1, "one watch for all");
    under(&history, &upstream, 16, |faults, n| match n % 4 {
        0 => faults.cut_connections(),
        1 => faults.cut_watches(),
        2 => faults.break_frame(2, BrokenFrame::Half),
        _ => faults.end_watches(),
    })
    .await;
    for follower in &crowd {
        follower.judge_undisturbed(&history).await;
    }
    // Upstream may be read to compare, where a server was gone before its release was known.
    let relists = r#"watershed_scope_relists_total{group="",resource="pods"}"#;
    let relists = program.metric(relists).await;
    assert!(relists < 1.0, "{relists} lists, and none was needed");
    becomes("watches at upstream", 1, async || open_watches(&upstream)).await;
    program.kill().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_in_the_upstream_watch_loses_no_event() {
    let fixture = Fixture::start(small()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 2);
    let crowd = Follower::crowd(&fixture.proxied, 12).await;
    let lists = fixture.upstream.stats().states_of("pods");
    for _ in 0..3 {
        history.writes(15).await;
        // An event that is unreadable twice leads to a list, so the last garbage must be overcome.
        crowd[0].judge(&history).await;
        fixture
            .upstream
            .faults()
            .break_frame(3, BrokenFrame::Garbage);
        history.writes(15).await;
    }
    for follower in &crowd {
        follower.judge_undisturbed(&history).await;
    }
    // The event in the garbage is sent again when the watch resumes.
    let relists = fixture.upstream.stats().states_of("pods") - lists;
    assert_eq!(relists, 0);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_upstream_watches_are_retried() {
    let fixture = Fixture::start(small()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 3);
    let crowd = Follower::crowd(&fixture.proxied, 12).await;
    for code in [429, 500, 503, 504] {
        refuse(fixture.upstream.faults(), "WATCH", code, 3);
        fixture.upstream.faults().cut_watches();
        history.writes(30).await;
        becomes("refusals", None, async || {
            fixture.upstream.faults().active().refuse
        })
        .await;
        history.writes(10).await;
        for follower in &crowd {
            follower.judge_undisturbed(&history).await;
        }
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_with_a_timeout_is_forwarded_before_its_time_is_over() {
    let fixture = Fixture::configured(small(), |config| {
        config.scopes.sync_wait = Duration::from_hours(1);
    })
    .await;
    // The first list of a type takes a quarter of a minute then.
    fixture.upstream.faults().set(|active| active.silent = true);
    let pods = "/api/v1/pods";
    let keys = fixture
        .upstream
        .state()
        .snapshot(&watershed_lab::sim::pods());
    let (namespace, name) = keys.keys().next().unwrap().split_once('/').unwrap();
    let pod = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    fixture.upstream.take_recorded();
    for path in [
        format!("{pods}?resourceVersion=0&timeout=1s"),
        format!("{pods}?timeout=1s"),
        format!("{pod}?resourceVersion=0&timeout=1000ms"),
    ] {
        let answer = fixture.proxied.get(Protocol::Http2, &path).await;
        let source = answer.header("x-watershed-source");
        assert_eq!(
            (answer.status, source),
            (StatusCode::OK, "forward; reason=syncing"),
            "{path}"
        );
        let recorded = fixture.upstream.take_recorded();
        let mut given = recorded
            .iter()
            .filter_map(|head| head.target.split_once("timeout=")?.1.strip_suffix("ms"));
        let left: u64 = given.next().unwrap().parse().unwrap();
        assert!(left <= 500, "upstream has {left} ms for {path}");
    }
    // A watch, too, waits for half of its time, and upstream is told what is left.
    let begin = format!("{pods}?timeoutSeconds=");
    let path = format!("{begin}4&watch=1&resourceVersion=0");
    let watch = fixture.proxied.watch(Protocol::Http2, &path).await;
    let recorded = fixture.upstream.take_recorded();
    let mut given = recorded
        .iter()
        .filter_map(|head| head.target.strip_prefix(&begin)?.split_once('&'));
    let left: u64 = given.next().unwrap().0.parse().unwrap();
    assert!(left <= 2, "upstream has {left} s");
    drop(watch);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_lost_by_upstream_ends_watches_with_410() {
    let fixture = Fixture::start(small()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 4);
    let crowd = Follower::crowd(&fixture.proxied, 12).await;
    let lists = fixture.upstream.stats().states_of("pods");
    for round in 1..=2 {
        // The proxy's watch never gets these events, and upstream has no history of them later.
        fixture.upstream.faults().set(|active| active.silent = true);
        history.writes(20).await;
        fixture
            .upstream
            .state()
            .compact(&watershed_lab::sim::pods());
        fixture.upstream.faults().cut_watches();
        fixture
            .upstream
            .faults()
            .set(|active| active.silent = false);
        history.writes(20).await;
        for follower in &crowd {
            follower.judge(&history).await;
            let log = follower.log();
            assert_eq!(log.tracks.len(), round + 1, "every watch is told: {log:?}");
            assert_eq!(log.ends, [], "and ends in no other way");
        }
    }
    assert_eq!(
        fixture.upstream.stats().states_of("pods") - lists,
        2,
        "one list for all, each time"
    );
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_silence_and_delay_lose_no_event() {
    let fixture = Fixture::start(small()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 5);
    let crowd = Follower::crowd(&fixture.proxied, 12).await;
    under(&history, &fixture.upstream, 4, |faults, n| {
        faults.set(|active| active.silent = n % 2 == 0);
    })
    .await;
    for follower in &crowd {
        follower.judge_undisturbed(&history).await;
    }
    fixture
        .upstream
        .faults()
        .delay_events(Duration::from_millis(50));
    under(&history, &fixture.upstream, 4, |faults, _| {
        faults.cut_watches();
    })
    .await;
    fixture
        .upstream
        .faults()
        .set(|active| active.no_bookmarks = true);
    under(&history, &fixture.upstream, 2, |faults, _| {
        faults.cut_connections();
    })
    .await;
    for follower in &crowd {
        follower.judge_undisturbed(&history).await;
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_first_list_is_retried() {
    let plant: [&dyn Fn(&Faults); 4] = [
        &|faults| refuse(faults, "LIST", 500, 2),
        &|faults| refuse(faults, "WATCH", 500, 2),
        &|faults| faults.break_frame(7, BrokenFrame::Half),
        &|faults| faults.break_frame(7, BrokenFrame::Garbage),
    ];
    for plant in plant {
        let fixture = Fixture::start(small()).await;
        let history = WriteHistory::new(fixture.upstream.state(), 6);
        plant(fixture.upstream.faults());
        let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
        let follower = Follower::start(&connection, Interest::All, Opening::List);
        history.writes(20).await;
        follower.synced().await;
        // Meanwhile requests are forwarded, so upstream's cuts reach the client.
        fixture.upstream.faults().cut_connections();
        history.writes(20).await;
        follower.judge(&history).await;
        assert_eq!(
            follower.log().tracks.len(),
            1,
            "what upstream said first can be gone on from"
        );
        drop(follower);
        // In the end the cached list is correct.
        let path = "/api/v1/pods?resourceVersion=0";
        becomes("the list's source", "snapshot".to_owned(), async || {
            fixture
                .proxied
                .get(Protocol::Http2, path)
                .await
                .header("x-watershed-source")
                .to_owned()
        })
        .await;
        let late = Follower::start(&connection, Interest::All, Opening::WatchList);
        late.synced().await;
        history.writes(20).await;
        late.judge_undisturbed(&history).await;
        fixture.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_without_streamed_lists_are_followed_exactly() {
    for how in [WatchListSupport::Refused, WatchListSupport::Ignored] {
        let fixture =
            Fixture::prepared(small(), |upstream| upstream.faults().watch_list(how)).await;
        let history = WriteHistory::new(fixture.upstream.state(), 7);
        let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
        let follower = Follower::start(&connection, Interest::Tier("backend"), Opening::List);
        // An update among the first events shows that this stream is no streamed list.
        history.writes(40).await;
        follower.synced().await;
        under(&history, &fixture.upstream, 4, |faults, n| {
            if n % 2 == 0 {
                faults.cut_connections();
            } else {
                faults.break_frame(2, BrokenFrame::Half);
            }
        })
        .await;
        follower.judge_undisturbed(&history).await;
        fixture.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_watch_ends_in_order_when_its_upstream_goes_away() {
    let fixture = Fixture::start(small()).await;
    let secrets = GroupVersionResource::new("", "v1", "secrets");
    let create = |name: &str| {
        let object = format!(r#"{{"metadata":{{"name":"{name}","namespace":"team-00"}}}}"#);
        fixture.upstream.state().create(&secrets, &object).unwrap()
    };
    let version = create("first");
    create("second");
    for protocol in BOTH {
        // Secrets are not cached.
        let path = format!("/api/v1/secrets?watch=1&resourceVersion={version}");
        let mut watch = fixture.proxied.watch(protocol, &path).await;
        assert!(watch.line().await.contains("ADDED"));
        fixture.upstream.faults().cut_connections();
        assert_eq!(watch.rest().await.1, Next::End, "{protocol:?}");
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_of_forwarded_requests_reach_the_client() {
    let fixture = Fixture::start(small()).await;
    let path = "/api/v1/namespaces/default/configmaps";
    for (code, retry_after) in [(429, Some(7)), (500, None), (503, Some(2)), (504, None)] {
        let faults = fixture.upstream.faults();
        let mut answers = Vec::new();
        for endpoint in [&fixture.direct, &fixture.proxied] {
            faults.set(|active| {
                active.refuse = Some(PlannedRefusal {
                    count: 1,
                    code,
                    retry_after,
                    resource: Some("configmaps".to_owned()),
                    verb: Some("POST".to_owned()),
                });
            });
            let body = whole(r#"{"metadata":{"name":"a","namespace":"default"}}"#);
            let request = Request::post(path).body(body).unwrap();
            answers.push(endpoint.send(Protocol::Http2, request).await.unwrap());
        }
        assert_eq!(answers[0].status, StatusCode::from_u16(code).unwrap());
        assert_eq!(answers[1].essence(), answers[0].essence());
        assert_eq!(
            faults.active().refuse,
            None,
            "it was asked once, and not again on its own"
        );
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_or_invalid_upstream_is_named_in_the_error() {
    // A port below the kernel's ephemeral range, so that no other process gets it after the server
    // ends.
    let mut listen = loopback();
    eventually("a port", async || {
        listen.set_port(fastrand::u16(20_000..32_000));
        TcpListener::bind(listen)
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    })
    .await;
    let fixture = Fixture::start(Options { listen, ..small() }).await;
    let (proxied, port) = (fixture.proxied.clone(), fixture.upstream.address());
    let mut watch = proxied
        .watch(Protocol::Http2, "/api/v1/pods?watch=1&resourceVersion=0")
        .await;
    for _ in 0..40 {
        assert!(watch.line().await.starts_with(r#"{"type":"ADDED""#));
    }
    let (upstream, end) = fixture.shut_down();
    upstream.shutdown().await;
    let refused = async || {
        let request = || {
            Request::post("/api/v1/namespaces/default/configmaps")
                .body(whole("{}"))
                .unwrap()
        };
        for protocol in BOTH {
            let answer = within("an answer", proxied.send(protocol, request()))
                .await
                .unwrap();
            assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
            let status = answer.json();
            assert_eq!(
                (&status["kind"], &status["code"]),
                (&"Status".into(), &503.into())
            );
            assert_eq!(status["reason"], "ServiceUnavailable");
            let message = status["message"].as_str().unwrap();
            assert!(
                message.contains(&port.to_string()),
                "it says what could not be reached: {message}"
            );
            assert_eq!(answer.header("retry-after"), "1");
        }
    };
    refused().await;
    // Another process has the port now and speaks neither TLS nor HTTP.
    let stranger = TcpListener::bind(port).await.unwrap();
    let talk = AbortOnDropHandle::new(tokio::spawn(async move {
        while let Ok((mut stream, _)) = stranger.accept().await {
            let _ = stream
                .write_all(b"220 good day, what can I do for you\r\n")
                .await;
        }
    }));
    refused().await;
    drop(talk);
    assert!(
        watch.next().now_or_never().is_none(),
        "the watch is open and waits"
    );
    tokio::spawn(end).await.unwrap();
    assert_eq!(watch.rest().await, (vec![], Next::End));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_upstream_may_have_done_is_not_to_be_sent_again() {
    const PATH: &str = "/api/v1/namespaces/default/configmaps";
    let fixture = Fixture::start(small()).await;
    let faults = fixture.upstream.faults();
    for (nth, protocol) in BOTH.into_iter().enumerate() {
        let name = format!("written-{nth}");
        faults.set(|active| active.hold = Some(PATH.to_owned()));
        let body =
            format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}}}}"#);
        let proxied = fixture.proxied.clone();
        let writing = tokio::spawn(async move {
            let request = Request::post(PATH)
                .header("content-type", "application/json")
                .body(whole(body))
                .unwrap();
            proxied.send(protocol, request).await.unwrap()
        });
        let object = format!("{PATH}/{name}");
        becomes("the object", StatusCode::OK, async || {
            fixture.direct.get(Protocol::Http1, &object).await.status
        })
        .await;
        faults.cut_connections();
        let answer = within("an answer", writing).await.unwrap();
        assert_eq!(answer.status, StatusCode::BAD_GATEWAY, "{answer:?}");
        assert!(!answer.headers.contains_key("retry-after"), "{answer:?}");
        let message = answer.json()["message"].to_string();
        assert!(message.contains("may have done this or not"), "{message}");
        faults.set(|active| active.hold = None);
    }
    fixture.stop().await;
}
