//! Proofs that a resumed watch continues the same history.
use super::super::answer::WATCH_ANSWER_TIMEOUT;
use super::super::resume::REPLAY_SILENCE;
use super::*;
use crate::headers::{HISTORY, VIA};
use crate::test_support::eventually;

/// Follows pods until the first watch has ended, after an event of version 9. Then upstream is asked
/// for other watches, which send these events.
async fn interrupted(watches: &[String]) -> (Api, Reflector, Arc<Mutex<Vec<String>>>) {
    let others = watches.iter().map(|text| (text.clone(), StreamEnd::Open));
    interrupted_before(others.collect()).await
}

async fn interrupted_before(
    watches: Vec<(String, StreamEnd)>,
) -> (Api, Reflector, Arc<Mutex<Vec<String>>>) {
    interrupted_after("MODIFIED", watches).await
}

/// The same after an event of this kind.
async fn interrupted_after(
    kind: &str,
    mut watches: Vec<(String, StreamEnd)>,
) -> (Api, Reflector, Arc<Mutex<Vec<String>>>) {
    let first = events("ADDED", &["a"]) + MARK + &event(kind, "a", 9);
    watches.insert(0, (first, StreamEnd::Ended));
    let (api, mut reflector, versions) = follow_pods_over(watches).await;
    assert!(reflector.is_listing());
    assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
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
        Change::Resumed {
            proof: ResumeProof::RepeatedEvent
        }
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
async fn a_resumed_watch_that_ends_without_the_last_event_has_failed() {
    let ended = (String::new(), StreamEnd::EndedLate);
    let again = (event("MODIFIED", "a", 9), StreamEnd::Open);
    let (_api, mut reflector, _) = interrupted_before(vec![ended, again]).await;
    assert!(matches!(next(&mut reflector).await, Change::Interrupted));
    assert!(matches!(
        next(&mut reflector).await,
        Change::Resumed {
            proof: ResumeProof::RepeatedEvent
        }
    ));
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
async fn a_server_that_lags_behind_the_last_event_is_not_of_another_history() {
    let again = event("MODIFIED", "a", 9);
    let (_api, mut reflector, versions) = interrupted(&[MARK.to_owned(), again]).await;
    assert!(matches!(next(&mut reflector).await, Change::Interrupted));
    assert!(matches!(
        next(&mut reflector).await,
        Change::Resumed {
            proof: ResumeProof::RepeatedEvent
        }
    ));
    assert_eq!(*versions.lock(), ["", "8", "8"]);
}

#[tokio::test]
async fn a_watch_that_is_not_answered_keeps_the_proof_for_the_next_one() {
    let again = event("MODIFIED", "a", 9);
    let watches = vec![
        (String::new(), StreamEnd::Unanswered),
        (again, StreamEnd::Open),
    ];
    let (_api, mut reflector, versions) = interrupted_before(watches).await;
    let opened = Arc::clone(&versions);
    let resumed = tokio::spawn(async move {
        let interrupted = next(&mut reflector).await;
        (interrupted, next(&mut reflector).await)
    });
    eventually(|| opened.lock().len() == 2).await;
    pass(WATCH_ANSWER_TIMEOUT).await;
    let (interrupted, resumed) = resumed.await.unwrap();
    assert!(matches!(interrupted, Change::Interrupted));
    assert!(matches!(
        resumed,
        Change::Resumed {
            proof: ResumeProof::RepeatedEvent
        }
    ));
    assert_eq!(*versions.lock(), ["", "8", "8"]);
}

/// As at a server that lags behind. No other pod can have been deleted in the same version.
#[tokio::test]
async fn a_watch_that_does_not_repeat_a_deletion_goes_on_without_a_proof() {
    let silent = vec![(String::new(), StreamEnd::Open)];
    let (_api, mut reflector, versions) = interrupted_after("DELETED", silent).await;
    let opened = Arc::clone(&versions);
    let resumed = tokio::spawn(async move { next(&mut reflector).await });
    for count in [2, 3] {
        eventually(|| opened.lock().len() == count).await;
        pass(REPLAY_SILENCE).await;
    }
    let resumed = resumed.await.unwrap();
    assert!(
        matches!(
            resumed,
            Change::Resumed {
                proof: ResumeProof::None
            }
        ),
        "{resumed:?}"
    );
    assert_eq!(*versions.lock(), ["", "8", "9"]);
}

#[tokio::test]
async fn an_unreadable_event_behind_the_last_one_leads_to_a_list() {
    let again = event("MODIFIED", "a", 9) + "garbage\n";
    let (_api, mut reflector, _) = interrupted(&[again]).await;
    let mut resumed = 0;
    loop {
        match next(&mut reflector).await {
            Change::Listed(_) => break,
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
        Change::Resumed {
            proof: ResumeProof::None
        }
    ));
    let change = next(&mut reflector).await;
    assert!(
        matches!(&change, Change::Event(_, scanned) if scanned.version.0 == 12),
        "{change:?}"
    );
    assert_eq!(*versions.lock(), ["", "8", "9"]);
}

/// Follows pods, of which nothing changes, at an API server that gives these names to the histories of its
/// watches, one after the other. Returns what each resumed watch proves. The caller may find out what one
/// does not.
async fn proofs_of<const N: usize>(
    names: [Option<&'static str>; N],
    is_found_out: bool,
) -> Vec<ResumeProof> {
    let pki = Pki::new();
    let opened = Arc::new(AtomicUsize::new(0));
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let is_watch = request.uri().query().unwrap().starts_with("watch=1");
        let mut answer = Response::builder().header("content-type", Encoding::Json.content_type());
        let body = if is_watch {
            let at = opened.fetch_add(1, Ordering::SeqCst);
            if let Some(name) = names.get(at).copied().flatten() {
                answer = answer.header(HISTORY, name).header(VIA, "0123456789abcdef");
            }
            let is_last = at + 1 == names.len();
            let end = if is_last {
                StreamEnd::Open
            } else {
                StreamEnd::Ended
            };
            watch_body(MARK.to_owned(), end)
        } else {
            body::full(LIST)
        };
        let answer = answer.body(body).unwrap();
        async move { answer }
    })
    .await;
    let mut reflector = pods_reflector(&pki, &api).await;
    let mut proofs = Vec::new();
    while proofs.len() + 1 < names.len() {
        match next(&mut reflector).await {
            Change::Resumed { proof } => {
                if proof == ResumeProof::None && is_found_out {
                    reflector.resumption_is_proven();
                }
                proofs.push(proof);
            }
            Change::Listed(_) | Change::Progress { .. } | Change::Interrupted | Change::Ended => {}
            other => panic!("{other:?}"),
        }
    }
    proofs
}

#[tokio::test]
async fn a_watch_of_the_same_named_history_is_proven() {
    let (same, other) = (Some("a-0"), Some("a-1"));
    let names = [same, same, other, other, other, None, None, same, same];
    let (named, none) = (ResumeProof::NamedHistory, ResumeProof::None);
    // A name counts once the caller has found out what the first watch of that name did not show.
    let expected = [named, none, named, named, none, none, none, named];
    assert_eq!(proofs_of(names, true).await, expected);
    let expected = [named, none, none, none, none, none, none, none];
    assert_eq!(proofs_of(names, false).await, expected);
}
