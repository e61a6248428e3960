//! Recovery from bad answers and silence.
use super::*;
use crate::test_support::typed;

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
        async move { typed(status, content_type, body) }
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
    assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
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
            Change::Listed(_) => "listed",
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
async fn a_version_from_which_every_watch_fails_is_given_up_for_a_list() {
    const ERROR: &str = concat!(
        r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"#,
        r#""status":"Failure","message":"cannot decode","reason":"InternalError","code":500}}"#,
        "\n"
    );
    let json = "application/json";
    for bad in [(200, json, ERROR), (504, json, ""), (200, json, "")] {
        let (_api, mut reflector) = follow_badly(vec![bad]).await;
        assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
        let mut interruptions = 0;
        loop {
            match next(&mut reflector).await {
                Change::Listed(_) => break,
                Change::Interrupted => {
                    interruptions += 1;
                    pass(Duration::from_secs(10)).await;
                }
                _ => {}
            }
        }
        assert_eq!(
            interruptions, 5,
            "{bad:?}: the failures of half a minute, and one more after an answered list"
        );
    }
}

#[tokio::test]
async fn an_outage_of_everything_costs_no_list() {
    let pki = Pki::new();
    let (outage, lists) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (fails, listed) = (Arc::clone(&outage), Arc::clone(&lists));
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default();
        let resumes = query.starts_with("watch=1") && !query.contains("sendInitialEvents");
        let (status, body) = match fails.load(Ordering::SeqCst) {
            1.. => (503, String::new()),
            0 if resumes => (200, event("MODIFIED", "a", 9)),
            0 => {
                listed.fetch_add(1, Ordering::SeqCst);
                (200, events("ADDED", &["a"]) + MARK)
            }
        };
        async move { typed(status, "application/json", body.leak()) }
    })
    .await;
    let mut reflector = pods_reflector(&pki, &api).await;
    assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
    outage.store(1, Ordering::SeqCst);
    for _ in 0..8 {
        while !matches!(next(&mut reflector).await, Change::Interrupted) {}
        pass(Duration::from_secs(10)).await;
    }
    outage.store(0, Ordering::SeqCst);
    let requests = lists.load(Ordering::SeqCst);
    while !matches!(next(&mut reflector).await, Change::Event(..)) {}
    let asked = lists.load(Ordering::SeqCst) - requests;
    assert!(asked <= 1, "one object may be asked for: {asked}");
}

#[tokio::test]
async fn a_refusal_ends_a_reflector_whose_type_is_gone() {
    let (_api, mut reflector) = follow_badly(vec![(404, "text/plain", "404 page not found")]).await;
    assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
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

#[tokio::test]
async fn a_refusal_that_lasts_ends_a_reflector() {
    for (status, name) in [(401, "unauthorized"), (403, "forbidden"), (405, "vanished")] {
        let (_api, mut reflector) = follow_badly(vec![(status, "text/plain", "no")]).await;
        assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
        let mut refusals = 0;
        let stopped = loop {
            match timeout(SOON, reflector.next::<Count>()).await.unwrap() {
                Ok(Change::Interrupted) => {
                    refusals += 1;
                    pass(Duration::from_secs(10)).await;
                }
                Ok(_) => {}
                Err(stopped) => break stopped,
            }
        };
        assert_eq!(stopped.as_str(), name);
        assert!((3..=6).contains(&refusals), "{status}: {refusals}");
    }
}

#[tokio::test]
async fn a_quiet_watch_of_events_is_renewed_and_has_not_failed() {
    let mark = MARK.replace("Pod", "Event");
    let (_api, mut reflector, opened) = follow_silence(["events", "Event"], mark).await;
    assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
    assert!(matches!(
        next(&mut reflector).await,
        Change::Progress { .. }
    ));
    let renewed = after_silence(reflector, Duration::from_mins(66)).await.1;
    assert!(
        matches!(renewed, (Change::Ended, Change::Resumed { .. })),
        "{renewed:?}"
    );
    assert_eq!(opened.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_watch_that_falls_silent_is_opened_again() {
    let bookmark = MARK.replace("initial-events-end", "something-else");
    let (_api, mut reflector, opened) = follow_silence(POD, MARK.to_owned() + &bookmark).await;
    assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
    // One of these that is not forgotten would be the last that is opened again so soon.
    for watches in 2..7 {
        for _ in 0..2 {
            assert!(matches!(
                next(&mut reflector).await,
                Change::Progress { .. }
            ));
        }
        let resumed;
        (reflector, resumed) = after_silence(reflector, Duration::from_secs(91)).await;
        assert!(
            matches!(resumed, (Change::Interrupted, Change::Resumed { .. })),
            "{resumed:?}"
        );
        assert_eq!(opened.load(Ordering::SeqCst), watches);
    }
}

#[tokio::test]
async fn three_watches_that_fall_silent_before_a_bookmark_show_that_upstream_sends_none() {
    let (_api, mut reflector, opened) = follow_silence(POD, MARK.to_owned()).await;
    assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
    for silence in [91, 91, 91, 66 * 60] {
        assert!(matches!(
            next(&mut reflector).await,
            Change::Progress { .. }
        ));
        let resumed;
        (reflector, resumed) = after_silence(reflector, Duration::from_secs(silence)).await;
        let (end, Change::Resumed { .. }) = resumed else {
            panic!("{resumed:?}");
        };
        assert!(!reflector.fell_silent(), "nothing was due");
        let is_failure = matches!(end, Change::Interrupted);
        assert_eq!(is_failure, silence == 91, "{end:?} after {silence} s");
    }
    assert_eq!(opened.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn watches_that_fall_silent_are_opened_again_for_long_if_upstream_has_sent_bookmarks() {
    let bookmark = MARK.replace("initial-events-end", "something-else");
    let marks = [MARK.to_owned() + &bookmark, MARK.to_owned()];
    let (_api, mut reflector, opened) = follow_silences(POD, marks).await;
    assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
    assert!(matches!(
        next(&mut reflector).await,
        Change::Progress { .. }
    ));
    for watches in 2..9 {
        assert!(matches!(
            next(&mut reflector).await,
            Change::Progress { .. }
        ));
        let resumed;
        (reflector, resumed) = after_silence(reflector, Duration::from_secs(91)).await;
        assert!(
            matches!(resumed, (Change::Interrupted, Change::Resumed { .. })),
            "{resumed:?}"
        );
        assert!(reflector.fell_silent());
        assert_eq!(opened.load(Ordering::SeqCst), watches);
    }
}

/// Returns the next two changes of a reflector whose stream brings nothing for this time.
async fn after_silence(
    mut reflector: Reflector,
    silence: Duration,
) -> (Reflector, (Change<Count>, Change<Count>)) {
    let changes = tokio::spawn(async move {
        let first = next(&mut reflector).await;
        let second = next(&mut reflector).await;
        (reflector, (first, second))
    });
    pass(silence).await;
    changes.await.unwrap()
}

#[tokio::test]
async fn a_changed_schema_delays_no_list_although_upstream_forgets_its_versions() {
    let expired = concat!(
        r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","#,
        r#""reason":"Expired","code":410,"message":"too old resource version"}}"#,
        "\n"
    );
    let (_api, mut reflector) = follow_badly(vec![(200, "application/json", expired)]).await;
    // Each state begins with its version.
    let next = async |reflector: &mut Reflector| {
        loop {
            match next(reflector).await {
                Change::Progress { .. } => {}
                other => return other,
            }
        }
    };
    assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
    for _ in 0..2 {
        reflector.schema_changed();
        for _ in 0..4 {
            let change = next(&mut reflector).await;
            // A stream that lasted for a second has ended in good order.
            let goes_on = matches!(change, Change::Interrupted | Change::Ended);
            assert!(goes_on, "{change:?}");
        }
        reflector.list_changed_schema();
        assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
    }
    // Some server may have listed by the schema of before.
    while !matches!(next(&mut reflector).await, Change::Listed(_)) {}
}
