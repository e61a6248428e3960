use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::Response;
use parking_lot::Mutex;

use super::list::INITIAL_SILENCE;
use super::*;
use crate::body::{self, Body};
use crate::test_support::{Api, HTTP2, Pki, SOON, eventually, streamed, upstream_of};
use crate::upstream::VIA;
use watershed_protocol::{
    Encoding, FieldTable, Frame, GroupVersionResource, ManagedFields, Representation, Scanned,
};

/// Counts the objects of a list.
#[derive(Debug)]
struct Count(usize);

impl Collect for Count {
    fn begin(_: &Arc<WireFormat>, _: &FieldTable) -> Self {
        Self(0)
    }

    fn add(&mut self, _: &Bytes, _: Scanned) {
        self.0 += 1;
    }
}

/// Follows secrets' metadata at an API server that answers like this, until it stops.
async fn followed(status: u16, body: &'static str) -> Stopped {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let accept = Representation {
            encoding: Encoding::Json,
            metadata_only: true,
        }
        .list_accept_header();
        assert_eq!(request.headers()["accept"], accept);
        assert_eq!(request.uri().query(), Some("limit=1"));
        async move {
            let answer = Response::builder()
                .status(status)
                .header("content-type", "application/json");
            answer.body(body::full(body)).unwrap()
        }
    })
    .await;
    let target = ReflectorTarget {
        gvr: GroupVersionResource::new("", "v1", "secrets"),
        selection: Arc::default(),
        kind: "Secret".into(),
        representation: Representation {
            encoding: Encoding::Json,
            metadata_only: true,
        },
        fields: Arc::new(FieldTable::metadata_only(true)),
        managed_fields: ManagedFields::Keep,
    };
    let mut reflector = Reflector::new(UpstreamClient::new(&upstream_of(&pki, &api).await), target);
    timeout(SOON, reflector.next::<Count>())
        .await
        .unwrap()
        .unwrap_err()
}

/// Pods as events, all of version 9.
fn events(kind: &str, names: &[&str]) -> String {
    names.iter().map(|name| event(kind, name, 9)).collect()
}

fn event(kind: &str, name: &str, version: u64) -> String {
    format!(
        "{{\"type\":\"{kind}\",\"object\":{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\
         \"metadata\":{{\"name\":\"{name}\",\"namespace\":\"ns\",\
         \"resourceVersion\":\"{version}\"}}}}}}\n"
    )
}

const LIST: &str = concat!(
    r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}"#,
    "\n"
);
const MARK: &str = concat!(
    r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","#,
    r#""metadata":{"resourceVersion":"8","#,
    r#""annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
    "\n"
);

/// Returns a reflector of pods at an API server.
async fn pods_reflector(pki: &Pki, api: &Api) -> Reflector {
    let gvr = GroupVersionResource::new("", "v1", "pods");
    let target = ReflectorTarget {
        fields: Arc::new(FieldTable::builtin(&gvr, true).unwrap()),
        gvr,
        selection: Arc::default(),
        kind: "Pod".into(),
        representation: Representation::whole(Encoding::Json),
        managed_fields: ManagedFields::Keep,
    };
    Reflector::new(UpstreamClient::new(&upstream_of(pki, api).await), target)
}

/// Follows pods at an API server whose first and second watch send these events and end.
async fn follow_pods(watches: [String; 2]) -> (Api, Reflector) {
    let watches = watches.map(|text| (text, StreamEnd::Ended));
    let (api, reflector, _) = follow_pods_over(watches.into()).await;
    (api, reflector)
}

/// The end of a watch, after its events.
#[derive(Clone, Copy)]
enum StreamEnd {
    Ended,
    Open,
}

/// Follows pods at an API server whose watches send these events, one after the other; the last one
/// again and again. Also returns the version that each watch was asked for, once it was.
async fn follow_pods_over(
    watches: Vec<(String, StreamEnd)>,
) -> (Api, Reflector, Arc<Mutex<Vec<String>>>) {
    let pki = Pki::new();
    let opened = Arc::<Mutex<Vec<String>>>::default();
    let versions = Arc::clone(&opened);
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let watch = query.starts_with("watch=1");
        let body = if watch {
            let mut opened = opened.lock();
            let (text, end) = &watches[opened.len().min(watches.len() - 1)];
            let version = query
                .split('&')
                .find_map(|part| part.strip_prefix("resourceVersion="));
            opened.push(version.unwrap_or_default().to_owned());
            watch_body(text.clone(), *end)
        } else {
            body::full(LIST)
        };
        async move {
            let content_type = Encoding::Json.content_type(watch);
            Response::builder()
                .header("content-type", content_type)
                .body(body)
                .unwrap()
        }
    })
    .await;
    let reflector = pods_reflector(&pki, &api).await;
    (api, reflector, versions)
}

fn watch_body(text: String, end: StreamEnd) -> Body {
    let events = stream::iter([Ok(Bytes::from(text))]);
    match end {
        StreamEnd::Ended => streamed(events),
        StreamEnd::Open => streamed(events.chain(stream::pending())),
    }
}

async fn next(reflector: &mut Reflector) -> Change<Count> {
    timeout(SOON, reflector.next::<Count>())
        .await
        .unwrap()
        .unwrap()
}

/// Follows pods at an API server with this state, and counts the lists.
async fn follow_state(list: &'static str, watch: &str) -> (Api, Reflector, Arc<AtomicUsize>) {
    let pki = Pki::new();
    let lists = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lists);
    let watch = watch.to_owned();
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let is_watch = request
            .uri()
            .query()
            .unwrap_or_default()
            .contains("watch=1");
        let body = if is_watch {
            watch_body(watch.clone(), StreamEnd::Open)
        } else {
            count.fetch_add(1, Ordering::SeqCst);
            body::full(list)
        };
        async move {
            Response::builder()
                .header("content-type", "application/json")
                .header("warning", "299 - \"old\"")
                .body(body)
                .unwrap()
        }
    })
    .await;
    let reflector = pods_reflector(&pki, &api).await;
    (api, reflector, lists)
}

#[tokio::test]
async fn the_state_of_a_built_in_type_is_one_request() {
    let state = events("ADDED", &["a", "b"]) + MARK;
    let (_api, mut reflector, lists) = follow_state(LIST, &state).await;
    let Change::Listed {
        objects: Count(2),
        warnings,
        format,
        ..
    } = next(&mut reflector).await
    else {
        panic!("no list of two");
    };
    assert_eq!(lists.load(Ordering::SeqCst), 0);
    assert_eq!(warnings, ["299 - \"old\""]);
    let learned = WireFormat::learn(Encoding::Json, "Pod", &LIST.into()).unwrap();
    assert_eq!(*format, learned.0);
    assert!(reflector.listed_by().is_some());
}

#[tokio::test]
async fn an_answer_that_was_not_to_be_compressed_says_nothing_about_compression() {
    let pki = Pki::new();
    // The first answer tells that upstream is a proxy, of which compression is asked.
    let api = Api::start(&pki, HTTP2, |_, _| async {
        Response::builder()
            .header("content-type", "application/json")
            .header(VIA, "0123456789abcdef")
            .body(watch_body(MARK.to_owned(), StreamEnd::Open))
            .unwrap()
    })
    .await;
    let reflector = pods_reflector(&pki, &api).await;
    let mut reflector = reflector.compressed(ListCompression::WherePays);
    for wanted in [None, Some(false)] {
        let Change::Listed { compressed, .. } = next(&mut reflector).await else {
            panic!("no list");
        };
        assert_eq!(compressed, wanted);
        reflector.restart();
    }
}

#[tokio::test]
async fn a_type_that_is_not_printed_as_built_in_ones_shows_its_format_by_a_list() {
    const SORTED: &str = concat!(
        r#"{"apiVersion":"v1","items":[],"kind":"PodList","#,
        r#""metadata":{"continue":"","resourceVersion":"7"}}"#,
        "\n"
    );
    let sorted = |text: &str| {
        let (before, after) = (
            r#"{"kind":"Pod","apiVersion":"v1","#,
            r#"{"apiVersion":"v1","kind":"Pod","#,
        );
        text.replace(before, after)
    };
    for state in [events("ADDED", &["a"]) + MARK, MARK.to_owned()] {
        let (_api, mut reflector, lists) = follow_state(SORTED, &sorted(&state)).await;
        for round in 1..=2 {
            let Change::Listed { format, .. } = next(&mut reflector).await else {
                panic!("no list");
            };
            let learned = WireFormat::learn(Encoding::Json, "Pod", &SORTED.into()).unwrap();
            assert_eq!(*format, learned.0);
            assert_eq!(lists.load(Ordering::SeqCst), round);
            reflector.restart();
        }
    }
}

#[tokio::test]
async fn a_list_that_fails_in_the_middle_leaves_no_trace() {
    let whole = events("ADDED", &["a", "b", "c"]) + MARK;
    // Cut between two objects, within one, and at one that cannot be read.
    let cut = events("ADDED", &["a", "b"]);
    let within = &cut[..cut.len() - 9];
    let odd = cut.replace(r#""name":"b""#, r#""name":"#) + MARK;
    for broken in [&cut, within, odd.as_str()] {
        let (_api, mut reflector) = follow_pods([broken.to_owned(), whole.clone()]).await;
        assert!(
            matches!(next(&mut reflector).await, Change::Interrupted),
            "{broken}"
        );
        let listed = next(&mut reflector).await;
        assert!(
            matches!(
                listed,
                Change::Listed {
                    objects: Count(3),
                    ..
                }
            ),
            "{broken} {listed:?}"
        );
    }
}

#[tokio::test]
async fn an_event_after_the_initial_state_does_not_keep_what_arrived_with_it() {
    let all = events("ADDED", &["a", "b", "c"]) + MARK + &events("MODIFIED", &["a", "b", "c"]);
    let (_api, mut reflector) = follow_pods([all.clone(), all]).await;
    assert!(matches!(
        next(&mut reflector).await,
        Change::Listed {
            objects: Count(3),
            ..
        }
    ));
    assert!(matches!(
        next(&mut reflector).await,
        Change::Progress { .. }
    ));
    let Change::Event(Frame { frame, object, .. }, _) = next(&mut reflector).await else {
        panic!("no event")
    };
    drop(object);
    // What follows it waits in the stream.
    assert!(frame.is_unique());
}

/// An answer to the watch that resumes: status, content type and body.
type BadWatch = (u16, &'static str, &'static str);

/// Follows pods at an API server whose first watch ends and whose next ones are answered badly. The
/// last one of these is repeated.
async fn follow_badly(bad: Vec<BadWatch>) -> (Api, Reflector) {
    let pki = Pki::new();
    let opened = Arc::new(AtomicUsize::new(0));
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default();
        let resumes = query.starts_with("watch=1") && !query.contains("sendInitialEvents");
        let (status, content_type, body) = if resumes {
            let n = opened.fetch_add(1, Ordering::SeqCst);
            bad[n.min(bad.len() - 1)]
        } else if query.starts_with("watch=1") {
            (200, "application/json", MARK)
        } else {
            (200, "application/json", LIST)
        };
        async move {
            Response::builder()
                .status(status)
                .header("content-type", content_type)
                .body(body::full(body))
                .unwrap()
        }
    })
    .await;
    let reflector = pods_reflector(&pki, &api).await;
    (api, reflector)
}

#[tokio::test]
async fn bad_answers_to_a_watch_that_resumes_are_attempts_that_failed() {
    let event: &'static str = events("ADDED", &["a"]).leak();
    let bad = vec![
        (404, "text/html", "default backend"),
        (405, "application/json", ""),
        (406, "application/json", ""),
        (200, "text/html", "default backend"),
        (200, "application/json", event),
    ];
    let (_api, mut reflector) = follow_badly(bad).await;
    assert!(matches!(next(&mut reflector).await, Change::Listed { .. }));
    let mut interruptions = 0;
    loop {
        match next(&mut reflector).await {
            Change::Event(..) => break,
            Change::Interrupted => interruptions += 1,
            Change::Progress { .. } | Change::Resumed { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        interruptions, 5,
        "the end of the first watch, and four refusals"
    );
}

#[tokio::test]
async fn an_unreadable_event_is_asked_for_once_more_before_everything_is_listed() {
    let (_api, mut reflector) = follow_badly(vec![(200, "application/json", "garbage\n")]).await;
    let mut seen = Vec::new();
    while seen.iter().filter(|name| **name == "listed").count() < 2 {
        seen.push(match next(&mut reflector).await {
            Change::Listed { .. } => "listed",
            Change::Resumed { .. } => "resumed",
            Change::Interrupted => "interrupted",
            Change::Progress { .. } => "progress",
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(
        seen,
        [
            "listed",
            "progress",
            // The first watch ended.
            "interrupted",
            "interrupted",
            "interrupted",
            "listed"
        ]
    );
}

#[tokio::test]
async fn a_refusal_ends_a_reflector_whose_type_is_gone() {
    let (_api, mut reflector) = follow_badly(vec![(404, "text/plain", "404 page not found")]).await;
    assert!(matches!(next(&mut reflector).await, Change::Listed { .. }));
    reflector.type_removed();
    let stopped = timeout(SOON, async {
        loop {
            if let Err(stopped) = reflector.next::<Count>().await {
                return stopped;
            }
        }
    });
    assert_eq!(stopped.await.unwrap(), Stopped::Vanished);
}

/// Follows pods at an API server whose watches send these events and then nothing. Also returns the
/// number of watches.
async fn follow_silence(events: String) -> (Api, Reflector, Arc<AtomicUsize>) {
    let pki = Pki::new();
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default();
        let body = if query.starts_with("watch=1") {
            count.fetch_add(1, Ordering::SeqCst);
            let events = stream::iter([Ok(Bytes::from(events.clone()))]);
            streamed(events.chain(stream::pending()))
        } else {
            body::full(LIST)
        };
        async move {
            Response::builder()
                .header("content-type", "application/json")
                .body(body)
                .unwrap()
        }
    })
    .await;
    let reflector = pods_reflector(&pki, &api).await;
    (api, reflector, opened)
}

/// Lets time pass for a task that waits for upstream.
async fn pass(time: Duration) {
    tokio::time::sleep(Duration::from_millis(200)).await;
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn a_list_whose_stream_falls_silent_is_read_in_pages() {
    let (_api, mut reflector, opened) = follow_silence(events("ADDED", &["a"])).await;
    let listed = tokio::spawn(async move { next(&mut reflector).await });
    eventually(|| opened.load(Ordering::SeqCst) == 1).await;
    pass(INITIAL_SILENCE).await;
    let listed = listed.await.unwrap();
    assert!(
        matches!(
            listed,
            Change::Listed {
                objects: Count(0),
                streams_initial_events: false,
                ..
            }
        ),
        "{listed:?}"
    );
}

#[tokio::test]
async fn a_watch_that_falls_silent_is_opened_again() {
    let bookmark = MARK.replace("initial-events-end", "something-else");
    let (_api, mut reflector, opened) = follow_silence(MARK.to_owned() + &bookmark).await;
    assert!(matches!(next(&mut reflector).await, Change::Listed { .. }));
    for _ in 0..2 {
        assert!(matches!(
            next(&mut reflector).await,
            Change::Progress { .. }
        ));
    }
    let resumed = tokio::spawn(async move {
        let silent = next(&mut reflector).await;
        (silent, next(&mut reflector).await)
    });
    pass(Duration::from_secs(91)).await;
    let resumed = resumed.await.unwrap();
    assert!(
        matches!(resumed, (Change::Interrupted, Change::Resumed { .. })),
        "{resumed:?}"
    );
    assert_eq!(opened.load(Ordering::SeqCst), 2);
}

/// Follows pods until the first watch has ended, after an event of version 9. Then upstream is asked
/// for other watches, which send these events.
async fn interrupted(watches: &[String]) -> (Api, Reflector, Arc<Mutex<Vec<String>>>) {
    let first = events("ADDED", &["a"]) + MARK + &event("MODIFIED", "a", 9);
    let others = watches.iter().map(|text| (text.clone(), StreamEnd::Open));
    let watches = std::iter::once((first, StreamEnd::Ended)).chain(others);
    let (api, mut reflector, versions) = follow_pods_over(watches.collect()).await;
    assert!(reflector.is_listing());
    assert!(matches!(next(&mut reflector).await, Change::Listed { .. }));
    assert!(!reflector.is_listing());
    // The mark comes again as a bookmark, then the event and the end.
    assert!(matches!(
        next(&mut reflector).await,
        Change::Progress { .. }
    ));
    assert!(matches!(next(&mut reflector).await, Change::Event(..)));
    assert!(matches!(next(&mut reflector).await, Change::Interrupted));
    (api, reflector, versions)
}

const EXPIRED: &str = concat!(
    r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"#,
    r#""status":"Failure","message":"too old resource version: 8 (9)","reason":"Expired","#,
    r#""code":410}}"#,
    "\n"
);

#[tokio::test]
async fn a_resumed_watch_proves_the_history_by_the_last_event() {
    let again = event("MODIFIED", "a", 9) + &event("MODIFIED", "a", 12);
    let (_api, mut reflector, versions) = interrupted(&[again]).await;
    assert!(matches!(
        next(&mut reflector).await,
        Change::Resumed { is_proven: true }
    ));
    let mut seen = Vec::new();
    for _ in 0..2 {
        let Change::Event(_, scanned) = next(&mut reflector).await else {
            panic!("no event")
        };
        seen.push(scanned.version.0);
    }
    // The repeated one is for the store to ignore.
    assert_eq!(seen, [9, 12]);
    assert_eq!(*versions.lock(), ["", "8"]);
}

#[tokio::test]
async fn a_resumed_watch_without_the_last_event_is_of_another_history() {
    let bookmark = MARK.replace(r#""8""#, r#""12""#);
    for other in [event("MODIFIED", "a", 10), bookmark] {
        let (_api, mut reflector, _) = interrupted(&[other]).await;
        let change = next(&mut reflector).await;
        let missing = ResourceVersion(9);
        assert!(
            matches!(change, Change::OtherHistory { missing: event } if event == missing),
            "{change:?}"
        );
        assert!(reflector.is_listing(), "what is known is of no use");
    }
}

#[tokio::test]
async fn an_unreadable_event_behind_the_last_one_leads_to_a_list() {
    let again = event("MODIFIED", "a", 9) + "garbage\n";
    let (_api, mut reflector, _) = interrupted(&[again]).await;
    let mut resumed = 0;
    loop {
        match next(&mut reflector).await {
            Change::Listed { .. } => break,
            Change::Resumed { .. } => resumed += 1,
            Change::Event(..) | Change::Interrupted => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(resumed, 2, "it is asked for once more");
}

#[tokio::test]
async fn a_server_without_the_last_event_is_asked_for_what_follows() {
    let follows = event("MODIFIED", "a", 12);
    let (_api, mut reflector, versions) = interrupted(&[EXPIRED.to_owned(), follows]).await;
    assert!(matches!(
        next(&mut reflector).await,
        Change::Resumed { is_proven: false }
    ));
    let change = next(&mut reflector).await;
    assert!(
        matches!(&change, Change::Event(_, scanned) if scanned.version.0 == 12),
        "{change:?}"
    );
    assert_eq!(*versions.lock(), ["", "8", "9"]);
}

#[tokio::test]
async fn a_metadata_reflector_stops_at_whole_objects() {
    // A server that does not read the parameters of Accept, with and without something to give
    // away.
    for whole in [
        concat!(
            r#"{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"#,
            r#""items":[{"metadata":{"name":"s","namespace":"n","resourceVersion":"5"},"#,
            r#""data":{"k":"AAEC"}}]}"#,
            "\n"
        ),
        concat!(
            r#"{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"#,
            r#""items":[]}"#,
            "\n"
        ),
    ] {
        assert_eq!(followed(200, whole).await, Stopped::NotAcceptable);
    }
    // One that knows no such thing.
    assert_eq!(followed(406, "").await, Stopped::NotAcceptable);
}
