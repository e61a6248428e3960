//! Requests at upstream that are under way for seconds.
use tokio::sync::Semaphore;

use super::*;

/// It takes longer than a scope counts as followed without its watch, and longer than it is served
/// then.
#[tokio::test]
async fn a_watch_that_takes_seconds_to_open_again_is_asked_for_once() {
    let pki = Pki::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let release = Arc::new(Semaphore::new(0));
    let released = Arc::clone(&release);
    let api = Api::start(&pki, HTTP2, move |request, _| {
        let query = request.uri().query().unwrap_or_default();
        let is_state = query.contains("sendInitialEvents");
        let is_again = query.contains("watch=1") && !is_state;
        count.fetch_add(usize::from(is_again), Ordering::SeqCst);
        // A watch that ends within a second has failed.
        let end = stream::once(tokio::time::sleep(Duration::from_millis(1_200)));
        let mark = stream::iter([Ok(Bytes::from(mark()))]);
        let body = if is_state {
            streamed(mark.chain(end.filter_map(|()| std::future::ready(None))))
        } else if is_again {
            streamed(stream::pending())
        } else {
            empty_list(8)
        };
        let released = Arc::clone(&released);
        async move {
            if is_again {
                tokio::time::sleep(Duration::from_secs(3)).await;
                released.acquire().await.unwrap().forget();
            }
            json(200, body)
        }
    })
    .await;
    let config = ScopeConfig {
        max_staleness: Duration::from_millis(500),
        ..ScopeConfig::default()
    };
    let (_scopes, scope) = open_pods_with(config, &pki, &api).await;
    // It is ready before it is stale.
    eventually(|| matches!(scope.phase(), ScopePhase::Stale(_))).await;
    assert!(!scope.upstream.is_following());
    release.add_permits(1);
    eventually(|| matches!(scope.phase(), ScopePhase::Ready(_))).await;
    assert!(scope.upstream.is_following());
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}
