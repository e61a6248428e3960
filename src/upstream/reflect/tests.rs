use std::sync::atomic::{AtomicUsize, Ordering};

use http::Response;

use super::*;
use crate::test_support::{Api, HTTP2, Pki, SOON, upstream_of};
use watershed_protocol::{Encoding, FieldTable, GroupVersionResource};

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
    };
    let mut reflector = Reflector::new(UpstreamClient::new(&upstream_of(&pki, &api).await), target);
    timeout(SOON, reflector.next::<Count>())
        .await
        .unwrap()
        .unwrap_err()
}

/// Pods as events, and the mark that ends the initial ones.
fn events(kind: &str, names: &[&str]) -> String {
    let event = |name: &&str| {
        format!(
            "{{\"type\":\"{kind}\",\"object\":{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\
             \"metadata\":{{\"name\":\"{name}\",\"namespace\":\"ns\",\
             \"resourceVersion\":\"9\"}}}}}}\n"
        )
    };
    names.iter().map(event).collect()
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

/// Follows pods at an API server whose first and second watch send these events.
async fn follow_pods(watches: [String; 2]) -> (Api, Reflector) {
    let pki = Pki::new();
    let opened = Arc::new(AtomicUsize::new(0));
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let watch = request
            .uri()
            .query()
            .is_some_and(|query| query.starts_with("watch=1"));
        let body = if watch {
            watches[opened.fetch_add(1, Ordering::SeqCst).min(1)].clone()
        } else {
            LIST.to_owned()
        };
        async move {
            let content_type = Encoding::Json.content_type(watch);
            Response::builder()
                .header("content-type", content_type)
                .body(body::full(body))
                .unwrap()
        }
    })
    .await;
    let gvr = GroupVersionResource::new("", "v1", "pods");
    let target = ReflectorTarget {
        fields: Arc::new(FieldTable::builtin(&gvr, true).unwrap()),
        gvr,
        selection: Arc::default(),
        kind: "Pod".into(),
        representation: Representation::whole(Encoding::Json),
    };
    let reflector = Reflector::new(UpstreamClient::new(&upstream_of(&pki, &api).await), target);
    (api, reflector)
}

async fn next(reflector: &mut Reflector) -> Change<Count> {
    timeout(SOON, reflector.next::<Count>())
        .await
        .unwrap()
        .unwrap()
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
