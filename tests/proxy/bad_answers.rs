//! An upstream, or a load balancer before it, that gives single bad answers. Each costs one
//! attempt: watches from memory stay open, and what had to be forwarded comes back to memory.
use std::io::Read as _;
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use http::{Request, StatusCode, header};
use http_body_util::BodyExt as _;
use watershed_lab::sim::{BadAnswer, RecordedRequest, WatchListSupport, pods, widgets};

use crate::consistent_reads::version;
use crate::support::client::{BOTH, Endpoint, Next, Protocol, nothing, within};
use crate::support::follower::{Follower, Opening};
use crate::support::history::{Interest, WriteHistory};
use crate::support::{Fixture, becomes, eventually, small};

/// The query of a watch that begins with the state and marks its end.
const STREAMED: &str = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true\
                        &resourceVersionMatch=NotOlderThan&resourceVersion=0";

fn open_watches(fixture: &Fixture, resource: &str) -> u64 {
    fixture
        .upstream
        .stats()
        .open_watches
        .get(resource)
        .copied()
        .unwrap_or_default()
}

/// Returns how often the state of pods was read at upstream since the last call: by lists, and by
/// the proxy's watches that begin with it. Lists of metadata are comparisons.
fn lists_of_pods(fixture: &Fixture) -> usize {
    let is_list = |head: &RecordedRequest| {
        let asks_for_metadata = head
            .headers
            .get(header::ACCEPT)
            .is_some_and(|accept| accept.to_str().unwrap().contains("PartialObjectMetadata"));
        let has = |parameter: &str| head.target.contains(parameter);
        // Clients' watches here name a version.
        let is_state = has("sendInitialEvents=true") && !has("resourceVersion=");
        head.target.starts_with("/api/v1/pods?")
            && (is_state || !has("watch=1"))
            && !asks_for_metadata
    };
    let recorded = fixture.upstream.take_recorded();
    recorded.iter().filter(|head| is_list(head)).count()
}

/// Starts a proxy whose scopes begin with a list: it tells how many objects there are, which
/// matters where memory is limited.
async fn begin_with_lists() -> Fixture {
    Fixture::configured(small(), |config| config.memory_limit = Some(1 << 34)).await
}

/// Waits until all planned bad answers were given.
async fn all_given(fixture: &Fixture) {
    becomes("planned bad answers", None, async || {
        fixture.upstream.faults().active().bad_answers
    })
    .await;
}

/// Returns the status and the source of a watch, and closes it.
pub(crate) async fn source_of_watch(endpoint: &Endpoint, path: &str) -> (StatusCode, String) {
    let connection = endpoint.connect(Protocol::Http2).await.unwrap();
    let request = Request::get(path).body(nothing()).unwrap();
    let answer = connection.open(request).await.unwrap();
    let source = answer.headers()["x-watershed-source"].to_str().unwrap();
    (answer.status(), source.to_owned())
}

async fn source_of_list(fixture: &Fixture, path: &str) -> String {
    let answer = fixture.proxied.get(Protocol::Http2, path).await;
    answer.header("x-watershed-source").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_answers_to_the_upstream_watch_disturb_no_client() {
    let fixture = Fixture::start(small()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 1);
    let crowd = Follower::crowd(&fixture.proxied, 12).await;
    lists_of_pods(&fixture);
    for (answer, count) in [
        (BadAnswer::NotFound, 3),
        (BadAnswer::MethodNotAllowed, 3),
        (BadAnswer::NotAcceptable, 3),
        (BadAnswer::Page, 3),
        (BadAnswer::Garbage, 1),
    ] {
        let faults = fixture.upstream.faults();
        faults.answer_badly(answer, "WATCH", "pods", count);
        faults.cut_watches();
        history.writes(20).await;
        all_given(&fixture).await;
        history.writes(10).await;
        for follower in &crowd {
            follower.judge_undisturbed(&history).await;
        }
    }
    assert_eq!(lists_of_pods(&fixture), 0, "nothing had to be listed again");
    becomes("watches at upstream", 1, async || {
        open_watches(&fixture, "pods")
    })
    .await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_answers_to_a_relist_cost_one_410_and_nothing_else() {
    let fixture = begin_with_lists().await;
    let history = WriteHistory::new(fixture.upstream.state(), 2);
    let crowd = Follower::crowd(&fixture.proxied, 12).await;
    for (round, answer) in [BadAnswer::NotFound, BadAnswer::Page, BadAnswer::Garbage]
        .into_iter()
        .enumerate()
    {
        // The history is lost, so the type has to be listed.
        let faults = fixture.upstream.faults();
        faults.set(|active| active.silent = true);
        history.writes(20).await;
        fixture.upstream.state().compact(&pods());
        faults.answer_badly(answer, "LIST", "pods", 3);
        faults.cut_watches();
        faults.set(|active| active.silent = false);
        history.writes(20).await;
        all_given(&fixture).await;
        for follower in &crowd {
            follower.judge(&history).await;
            let log = follower.log();
            assert_eq!(log.tracks.len(), round + 2, "each watch is told: {log:?}");
            assert_eq!(log.ends, [], "and ends in no other way");
        }
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_answer_to_a_first_list_is_asked_for_again_without_a_request() {
    let fixture = begin_with_lists().await;
    for (answer, resource, path) in [
        (BadAnswer::NotFound, "pods", "/api/v1/pods"),
        (BadAnswer::MethodNotAllowed, "nodes", "/api/v1/nodes"),
        (BadAnswer::Page, "services", "/api/v1/services"),
        (BadAnswer::Garbage, "configmaps", "/api/v1/configmaps"),
    ] {
        let faults = fixture.upstream.faults();
        faults.answer_badly(answer, "LIST", resource, 1);
        let path = format!("{path}?resourceVersion=0");
        assert_eq!(
            source_of_list(&fixture, &path).await,
            "forward; reason=not-cached",
            "{resource}"
        );
        becomes("the watch of the type", 1, async || {
            open_watches(&fixture, resource)
        })
        .await;
        becomes("the list's source", "snapshot".to_owned(), async || {
            source_of_list(&fixture, &path).await
        })
        .await;
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarded_watches_come_back_to_memory_once_the_type_is_listed() {
    for answer in [Some(BadAnswer::NotFound), None] {
        let fixture = begin_with_lists().await;
        let history = WriteHistory::new(fixture.upstream.state(), 3);
        let faults = fixture.upstream.faults();
        match answer {
            Some(answer) => faults.answer_badly(answer, "LIST", "pods", u32::MAX),
            None => faults.refuse_only(500, "LIST", "pods", u32::MAX),
        }
        let reason = match answer {
            Some(_) => "forward; reason=not-cached",
            None => "forward; reason=syncing",
        };
        let path = format!("/api/v1/pods?{STREAMED}");
        becomes("a watch's source", reason.to_owned(), async || {
            source_of_watch(&fixture.proxied, &path).await.1
        })
        .await;
        let mut crowd = Vec::new();
        for (n, protocol) in BOTH.into_iter().cycle().take(6).enumerate() {
            let connection = fixture.proxied.connect(protocol).await.unwrap();
            crowd.push(Follower::start(
                &connection,
                Interest::nth(n),
                Opening::WatchList,
            ));
        }
        history.writes(20).await;
        for follower in &crowd {
            follower.judge_undisturbed(&history).await;
        }
        assert!(open_watches(&fixture, "pods") >= 6, "all are forwarded");
        faults.set(|active| {
            active.bad_answers = None;
            active.refuse = None;
        });
        history.writes(20).await;
        becomes("watches at upstream", 1, async || {
            open_watches(&fixture, "pods")
        })
        .await;
        history.writes(20).await;
        for follower in &crowd {
            follower.judge(&history).await;
            let log = follower.log();
            assert_eq!(log.tracks.len(), 1, "none had to begin anew: {log:?}");
            assert_eq!(log.ends, [Next::End], "each ended once, in order");
        }
        fixture.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compressed_watch_comes_back_after_a_whole_member() {
    let fixture = begin_with_lists().await;
    let faults = fixture.upstream.faults();
    faults.answer_badly(BadAnswer::NotFound, "LIST", "pods", u32::MAX);
    let list = "/api/v1/pods?resourceVersion=0";
    let answer = fixture.proxied.get(Protocol::Http2, list).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND);
    let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
    let request = Request::get(format!("/api/v1/pods?{STREAMED}"))
        .header(header::ACCEPT_ENCODING, "gzip")
        .body(nothing())
        .unwrap();
    let answer = connection.open(request).await.unwrap();
    let headers = answer.headers();
    assert_eq!(headers[header::CONTENT_ENCODING], "gzip");
    assert_eq!(headers["x-watershed-source"], "forward; reason=not-cached");
    faults.set(|active| active.bad_answers = None);
    let body = within("the end of the watch", answer.into_body().collect()).await;
    let mut lines = String::new();
    MultiGzDecoder::new(&body.unwrap().to_bytes()[..])
        .read_to_string(&mut lines)
        .unwrap();
    assert!(
        lines.contains("initial-events-end") && lines.ends_with('\n'),
        "{lines}"
    );
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_from_before_the_first_list_comes_back_once_it_has_caught_up() {
    let fixture = Fixture::start(small()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 4);
    let connection = fixture.direct.connect(Protocol::Http2).await.unwrap();
    let early = Follower::start(&connection, Interest::All, Opening::List);
    early.synced().await;
    let version = early.log().tracks[0].start;
    drop(early);
    history.writes(20).await;
    let path = "/api/v1/pods?resourceVersion=0";
    assert_eq!(source_of_list(&fixture, path).await, "snapshot");
    let path = format!("/api/v1/pods?watch=1&allowWatchBookmarks=true&resourceVersion={version}");
    let (_, source) = source_of_watch(&fixture.proxied, &path).await;
    assert_eq!(source, "forward; reason=before-first-list");
    let mut watches = Vec::new();
    for protocol in BOTH {
        watches.push(fixture.proxied.watch(protocol, &path).await);
    }
    for watch in watches {
        let (lines, end) = watch.rest().await;
        assert_eq!(end, Next::End, "between two events");
        let last: serde_json::Value = serde_json::from_slice(lines.last().unwrap()).unwrap();
        let last = last["object"]["metadata"]["resourceVersion"].as_str();
        let path = format!("/api/v1/pods?watch=1&resourceVersion={}", last.unwrap());
        let (_, source) = source_of_watch(&fixture.proxied, &path).await;
        assert_eq!(source, "window");
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streamed_lists_are_learned_again_without_a_new_list() {
    for how in [WatchListSupport::Refused, WatchListSupport::Ignored] {
        let fixture =
            Fixture::prepared(small(), |upstream| upstream.faults().watch_list(how)).await;
        let list = "/api/v1/pods?resourceVersion=0";
        assert_eq!(source_of_list(&fixture, list).await, "snapshot");
        let streamed = format!("/api/v1/pods?{STREAMED}");
        let (_, source) = source_of_watch(&fixture.proxied, &streamed).await;
        assert_eq!(source, "forward; reason=initial-events");
        lists_of_pods(&fixture);
        fixture
            .upstream
            .faults()
            .watch_list(WatchListSupport::Served);
        becomes("a watch's source", "snapshot".to_owned(), async || {
            source_of_watch(&fixture.proxied, &streamed).await.1
        })
        .await;
        assert_eq!(lists_of_pods(&fixture), 0);
        fixture.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_watch_that_memory_would_forward_again_is_not_ended() {
    let ignored = WatchListSupport::Ignored;
    let fixture =
        Fixture::prepared(small(), |upstream| upstream.faults().watch_list(ignored)).await;
    let list = fixture
        .proxied
        .get(Protocol::Http2, "/api/v1/pods?resourceVersion=0");
    let version = version(&list.await);
    let path = format!(
        "/api/v1/pods?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan\
         &resourceVersion={version}"
    );
    let (_, source) = source_of_watch(&fixture.proxied, &path).await;
    assert_eq!(source, "forward; reason=initial-events");
    let mut watch = fixture.proxied.watch(Protocol::Http2, &path).await;
    // Longer than until memory takes over what it can.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let pod = r#"{"metadata":{"name":"late","namespace":"default"}}"#;
    fixture.upstream.state().create(&pods(), pod).unwrap();
    let line = watch.line().await;
    assert!(line.contains(r#""name":"late""#), "{line}");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_silent_answer_to_the_upstream_watch_loses_no_event() {
    let fixture = Fixture::start(small()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 5);
    let crowd = Follower::crowd(&fixture.proxied, 6).await;
    let faults = fixture.upstream.faults();
    faults.answer_badly(BadAnswer::Silence, "WATCH", "pods", 1);
    faults.cut_watches();
    history.writes(30).await;
    all_given(&fixture).await;
    for follower in &crowd {
        follower.judge_undisturbed(&history).await;
    }
    fixture.stop().await;
}

/// Watches the metadata of widgets from their state on. Returns the source, and the first line that
/// is no initial event.
async fn watch_metadata(fixture: &Fixture) -> (String, String) {
    let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
    let request = Request::get(format!("/apis/example.com/v1/widgets?{STREAMED}"))
        .header(
            header::ACCEPT,
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        )
        .body(nothing())
        .unwrap();
    let (source, mut lines) = connection.follow_with_source(request).await.unwrap();
    loop {
        let line = lines.line().await;
        if !line.starts_with(r#"{"type":"ADDED""#) {
            return (source, line);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_cannot_be_reduced_ends_one_watch_of_metadata_and_not_the_next() {
    let fixture = Fixture::start(small()).await;
    let (state, widgets) = (fixture.upstream.state(), widgets());
    // A later release may have members in here that this program does not know.
    let widget = |more: &str| {
        format!(
            r#"{{"metadata":{{"name":"odd","namespace":"default","ownerReferences":
               [{{"apiVersion":"v1","kind":"K","name":"o","uid":"u"{more}}}]}}}}"#
        )
    };
    state.create(&widgets, &widget(r#","more":1"#)).unwrap();
    becomes("the list's source", "snapshot".to_owned(), async || {
        source_of_list(&fixture, "/apis/example.com/v1/widgets?resourceVersion=0").await
    })
    .await;
    let (source, line) = watch_metadata(&fixture).await;
    assert!(
        source == "snapshot" && line.contains("\"code\":410"),
        "the first one comes to the object: {source} {line}"
    );
    for _ in 0..3 {
        let (source, line) = watch_metadata(&fixture).await;
        assert_eq!(source, "forward; reason=representation");
        assert!(line.contains("initial-events-end"), "{line}");
    }
    state.update(&widgets, &widget("")).unwrap();
    eventually("a watch from memory", async || {
        let (source, line) = watch_metadata(&fixture).await;
        if source == "snapshot" && line.contains("initial-events-end") {
            Ok(())
        } else {
            Err(format!("{source} {line}"))
        }
    })
    .await;
    fixture.stop().await;
}
