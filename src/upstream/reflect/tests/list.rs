//! Lists, streamed and in pages.
use super::super::list::INITIAL_SILENCE;
use super::*;
use crate::headers::VIA;
use crate::test_support::{eventually, typed};
use crate::upstream::AnswerCompression;
use watershed_protocol::Frame;

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
        async move { typed(status, "application/json", body) }
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
    let Change::Listed(listed) = next(&mut reflector).await else {
        panic!("no list");
    };
    assert_eq!(listed.objects.0, 2);
    assert_eq!(lists.load(Ordering::SeqCst), 0);
    assert_eq!(listed.warnings, ["299 - \"old\""]);
    let learned = WireFormat::learn(Encoding::Json, "Pod", &LIST.into()).unwrap();
    assert_eq!(*listed.format, learned.0);
    assert!(reflector.listed_by().is_some());
}

#[tokio::test]
async fn only_the_first_list_may_show_any_state() {
    let marks = vec![(MARK.to_owned(), StreamEnd::Open)];
    let (_api, reflector, versions) = follow_pods_over(marks).await;
    let mut reflector = reflector.beginning_with_any_state(true);
    for is_most_recent in [false, true] {
        assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
        assert_eq!(reflector.lists_most_recent(), is_most_recent);
        reflector.restart();
    }
    assert_eq!(*versions.lock(), ["0", ""]);

    let marks = vec![(MARK.to_owned(), StreamEnd::Open)];
    let (_api, reflector, versions) = follow_pods_over(marks).await;
    let mut reflector = reflector.beginning_with_any_state(true);
    reflector.begin_with_most_recent();
    assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
    assert!(reflector.lists_most_recent());
    assert_eq!(*versions.lock(), [""]);
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
    for wanted in [AnswerCompression::NotAsked, AnswerCompression::Declined] {
        let Change::Listed(listed) = next(&mut reflector).await else {
            panic!("no list");
        };
        assert_eq!(listed.compression, wanted);
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
            let Change::Listed(listed) = next(&mut reflector).await else {
                panic!("no list");
            };
            let learned = WireFormat::learn(Encoding::Json, "Pod", &SORTED.into()).unwrap();
            assert_eq!(*listed.format, learned.0);
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
            matches!(&listed, Change::Listed(listed) if listed.objects.0 == 3),
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
        Change::Listed(listed) if listed.objects.0 == 3
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

/// Asserts that a change is a list that was not streamed.
fn assert_read_in_pages(change: &Change<Count>) {
    assert!(
        matches!(
            change,
            Change::Listed(listed)
                if listed.objects.0 == 0 && !listed.streams_initial_events
        ),
        "{change:?}"
    );
}

#[tokio::test]
async fn a_list_whose_stream_falls_silent_is_read_in_pages() {
    let (_api, mut reflector, opened) = follow_silence(POD, events("ADDED", &["a"])).await;
    let listed = tokio::spawn(async move { next(&mut reflector).await });
    eventually(|| opened.load(Ordering::SeqCst) == 1).await;
    pass(INITIAL_SILENCE).await;
    let listed = listed.await.unwrap();
    assert_read_in_pages(&listed);
}

#[tokio::test]
async fn a_list_whose_streams_break_off_is_read_in_pages() {
    let broken = (events("ADDED", &["a"]), StreamEnd::Ended);
    let (_api, mut reflector, opened) = follow_pods_over(vec![broken]).await;
    for _ in 0..2 {
        assert!(matches!(next(&mut reflector).await, Change::Interrupted));
    }
    let listed = next(&mut reflector).await;
    assert_read_in_pages(&listed);
    assert_eq!(opened.lock().len(), 2);
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

#[tokio::test]
async fn a_list_that_is_not_to_be_estimated_is_not_where_upstream_streams_none() {
    let large = "x".repeat(100 << 10);
    let head = r#"{"kind":"PodList","apiVersion":"v1","metadata":"#;
    let metadata = r#"{"resourceVersion":"7","continue":"more","remainingItemCount":99999}"#;
    let item = format!(
        r#"{{"metadata":{{"name":"a","namespace":"b","resourceVersion":"7","uid":"{large}"}}}}"#
    );
    let first: &'static str = format!("{head}{metadata},\"items\":[{item}]}}\n").leak();
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default();
        let (status, body) = if query.starts_with("watch=1") {
            (400, "{}")
        } else if query.contains("continue=more") {
            (200, LIST)
        } else {
            (200, first)
        };
        let answer = typed(status, "application/json", body);
        async move { answer }
    })
    .await;
    let reflector = pods_reflector(&pki, &api).await;
    let mut reflector = reflector.within(&MemoryBudget::new(Some(1 << 30)), false);
    // As of a custom type.
    reflector.format_source = FormatSource::List;
    assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
    assert!(reflector.estimates, "the next one is");
}

#[tokio::test]
async fn a_type_is_estimated_by_its_last_list_and_not_by_its_first_objects() {
    let state = events("ADDED", &["a", "b"]) + MARK;
    // The first one of 100,000 is unlike the others.
    let large = "x".repeat(100 << 10);
    let metadata = r#"{"resourceVersion":"7","continue":"more","remainingItemCount":99999}"#;
    let item = format!(
        r#"{{"metadata":{{"name":"a","namespace":"b","resourceVersion":"7","uid":"{large}"}}}}"#
    );
    let head = r#"{"kind":"PodList","apiVersion":"v1","metadata":"#;
    let page = format!("{head}{metadata},\"items\":[{item}]}}\n");
    let (_api, reflector, lists) = follow_state(page.leak(), &state).await;
    let budget = MemoryBudget::new(Some(1 << 30));
    let mut reflector = reflector.within(&budget, false);
    assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
    assert_eq!(
        lists.load(Ordering::SeqCst),
        0,
        "it was not to be estimated"
    );
    reflector.restart();
    assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
    assert_eq!(lists.load(Ordering::SeqCst), 1, "the objects are counted");

    let mut unlisted = reflector.within(&budget, true);
    unlisted.object_bytes = None;
    unlisted.restart();
    let refused = timeout(SOON, unlisted.next::<Count>()).await.unwrap();
    assert!(
        matches!(refused, Err(Stopped::DoesNotFit(_))),
        "the first objects are all that is known"
    );
}
