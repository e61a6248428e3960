//! Tests of the reflector against a small API server.
mod list;
mod pages;
mod recovery;
mod resume;

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::Response;
use parking_lot::Mutex;

use super::*;
use crate::body::{self, Body};
use crate::test_support::{Api, HTTP2, Pki, SOON, streamed, upstream_of};
use watershed_protocol::{
    Encoding, FieldTable, GroupVersionResource, ManagedFields, Representation, Scanned,
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

/// The names of pods: resource and kind.
const POD: [&str; 2] = ["pods", "Pod"];

/// Returns a reflector of pods at an API server.
async fn pods_reflector(pki: &Pki, api: &Api) -> Reflector {
    core_reflector(pki, api, POD).await
}

/// Returns a reflector of the core type with these names at an API server.
async fn core_reflector(pki: &Pki, api: &Api, names: [&str; 2]) -> Reflector {
    let client = UpstreamClient::new(&upstream_of(pki, api).await);
    Reflector::new(client, ReflectorTarget::core(names))
}

/// Follows pods at an API server whose first and second watch send these events and end.
async fn follow_pods(watches: [String; 2]) -> (Api, Reflector) {
    let watches = watches.map(|text| (text, StreamEnd::Ended));
    let (api, reflector, _) = follow_pods_over(watches.into()).await;
    (api, reflector)
}

/// The end of a watch, after its events.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    Ended,
    /// Later than one that ends as soon as it began.
    EndedLate,
    Open,
    /// Not even the headers come.
    Unanswered,
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
        let mut is_answered = true;
        let body = if watch {
            let mut opened = opened.lock();
            let (text, end) = &watches[opened.len().min(watches.len() - 1)];
            let version = query
                .split('&')
                .find_map(|part| part.strip_prefix("resourceVersion="));
            opened.push(version.unwrap_or_default().to_owned());
            is_answered = *end != StreamEnd::Unanswered;
            watch_body(text.clone(), *end)
        } else {
            body::full(LIST)
        };
        async move {
            if !is_answered {
                std::future::pending::<()>().await;
            }
            let content_type = Encoding::Json.content_type();
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
        StreamEnd::EndedLate => {
            let late = stream::once(tokio::time::sleep(Duration::from_millis(1_200)));
            streamed(events.chain(late.filter_map(|()| async { None })))
        }
        StreamEnd::Open | StreamEnd::Unanswered => streamed(events.chain(stream::pending())),
    }
}

async fn next(reflector: &mut Reflector) -> Change<Count> {
    timeout(SOON, reflector.next::<Count>())
        .await
        .unwrap()
        .unwrap()
}

/// Follows the core type with these names at an API server whose watches send these events and then
/// nothing. Also returns the number of watches.
async fn follow_silence(names: [&str; 2], events: String) -> (Api, Reflector, Arc<AtomicUsize>) {
    follow_silences(names, [events.clone(), events]).await
}

/// The same with other events on the first watch than on all later ones.
async fn follow_silences(
    names: [&str; 2],
    [first, later]: [String; 2],
) -> (Api, Reflector, Arc<AtomicUsize>) {
    let pki = Pki::new();
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default();
        let body = if query.starts_with("watch=1") {
            let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
            let events = if is_first { &first } else { &later };
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
    let reflector = core_reflector(&pki, &api, names).await;
    (api, reflector, opened)
}

/// Lets time pass for a task that waits for upstream, or for the next attempt.
async fn pass(time: Duration) {
    tokio::time::sleep(Duration::from_millis(200)).await;
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}
