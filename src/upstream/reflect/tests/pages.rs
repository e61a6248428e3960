//! Lists in pages, and refusals that ask for a pause.
use tokio::sync::Notify;

use super::*;
use crate::test_support::{eventually, typed};

/// A list of so many pods with long names, which another page follows.
fn page(pods: usize, bytes: usize, next: &str) -> &'static str {
    let name = "x".repeat(bytes);
    let pod =
        format!(r#"{{"metadata":{{"name":"{name}","namespace":"b","resourceVersion":"7"}}}}"#);
    let metadata = format!(r#"{{"resourceVersion":"7","continue":"{next}"}}"#);
    let head = r#"{"kind":"PodList","apiVersion":"v1","metadata":"#;
    let pods = vec![pod; pods].join(",");
    format!("{head}{metadata},\"items\":[{pods}]}}\n").leak()
}

/// Two sides that wait for each other once.
#[derive(Clone, Default)]
struct Meeting {
    arrived: Arc<Notify>,
    released: Arc<Notify>,
}

/// Lists pods of so many bytes in three pages, the first of a small one, at an API server that streams none.
/// The server of the first page announces the end of its connections if `leaves`. Returns the reflector, and
/// the sizes of the other pages that it asked for.
async fn listed_in_pages(bytes: usize, leaves: bool) -> (Reflector, Vec<usize>) {
    let pki = Pki::new();
    let pages = [page(1, 10, "second"), page(20, bytes, "third")];
    let meeting = Meeting::default();
    let sizes = Arc::<Mutex<Vec<usize>>>::default();
    let (asked, met) = (Arc::clone(&sizes), meeting.clone());
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let is_first = query == "limit=1";
        let (status, body) = if query.starts_with("watch=1") {
            (400, "{}")
        } else if is_first {
            (200, pages[0])
        } else {
            let limit = query
                .split('&')
                .find_map(|part| part.strip_prefix("limit="));
            asked.lock().push(limit.unwrap().parse().unwrap());
            let is_second = query.contains("continue=second");
            (200, if is_second { pages[1] } else { LIST })
        };
        let answer = typed(status, "application/json", body);
        let met = met.clone();
        async move {
            if is_first && leaves {
                met.arrived.notify_one();
                met.released.notified().await;
            }
            answer
        }
    })
    .await;
    let mut reflector = pods_reflector(&pki, &api).await;
    reflector.streaming = false;
    let listing = async {
        assert!(matches!(next(&mut reflector).await, Change::Listed(_)));
    };
    let leaving = async {
        if leaves {
            meeting.arrived.notified().await;
            api.go_away();
            tokio::task::yield_now().await;
            meeting.released.notify_one();
        }
    };
    tokio::join!(listing, leaving);
    let sizes = sizes.lock().clone();
    (reflector, sizes)
}

#[tokio::test]
async fn a_list_whose_pages_are_of_several_servers_is_of_none_of_them() {
    let (reflector, _) = listed_in_pages(10, false).await;
    assert!(reflector.listed_by().is_some());
    let (reflector, _) = listed_in_pages(10, true).await;
    assert!(
        reflector.listed_by().is_none(),
        "they may print differently"
    );
}

#[tokio::test]
async fn pages_of_large_objects_are_short() {
    for (bytes, wanted) in [(10, [20, 160]), (1 << 20, [20, 20])] {
        let (_, sizes) = listed_in_pages(bytes, false).await;
        assert_eq!(sizes, wanted);
    }
}

#[tokio::test]
async fn an_upstream_that_asks_for_a_pause_is_not_asked_before_it_is_over() {
    for status in [429, 503] {
        let pki = Pki::new();
        let count = Arc::new(AtomicUsize::new(0));
        let asked = Arc::clone(&count);
        let api = Api::start(&pki, HTTP2, move |_, _| {
            asked.fetch_add(1, Ordering::SeqCst);
            let mut answer = typed(status, "application/json", "{}");
            let pause = http::HeaderValue::from_static("12");
            answer.headers_mut().insert("retry-after", pause);
            async move { answer }
        })
        .await;
        let mut reflector = pods_reflector(&pki, &api).await;
        let following = tokio::spawn(async move {
            // It says that it is interrupted, and goes on.
            while reflector.next::<Count>().await.is_ok() {}
        });
        eventually(|| count.load(Ordering::SeqCst) == 1).await;
        pass(Duration::from_secs(10)).await;
        assert_eq!(count.load(Ordering::SeqCst), 1);
        pass(Duration::from_secs(10)).await;
        eventually(|| count.load(Ordering::SeqCst) == 2).await;
        following.abort();
    }
}
