//! Catch-up watches beside a scope whose own watch is late.
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::Response;
use tokio::sync::Semaphore;
use watershed_protocol::{Encoding, FieldTable, GroupVersionResource, Representation};

use super::*;
use crate::body;
use crate::proof::costs::MAX_COMPARISON_WAIT;
use crate::proof::{ProofDemand, ProofError, Provers};
use crate::scope::{ObjectShape, ScopeConfig, ScopeKey, Scopes};
use crate::test_support::{Api, HTTP2, Pki, SOON, eventually, streamed, upstream_of};
use crate::upstream::UpstreamClient;

const LIST: &str = concat!(
    r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}"#,
    "\n"
);
/// The end of no initial events.
const MARK: &str = concat!(
    r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","#,
    r#""metadata":{"resourceVersion":"20","#,
    r#""annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
    "\n"
);
const EVENT: &str = concat!(
    r#"{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","#,
    r#""metadata":{"name":"c","namespace":"n","resourceVersion":"30"}}}"#,
    "\n"
);
/// The body of a catch-up watch: the event, and that nothing follows up to 40.
const SHOWN: &str = concat!(
    r#"{"type":"ADDED","object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","#,
    r#""metadata":{"name":"c","namespace":"n","resourceVersion":"30"}}}"#,
    "\n",
    r#"{"type":"BOOKMARK","object":{"kind":"PartialObjectMetadata","#,
    r#""apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"40"}}}"#,
    "\n"
);

/// The body of one that shows nothing but the event.
const SHOWN_EVENT: &str = concat!(
    r#"{"type":"ADDED","object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","#,
    r#""metadata":{"name":"c","namespace":"n","resourceVersion":"30"}}}"#,
    "\n"
);

const LATER_LIST: &str = concat!(
    r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"40"},"items":[]}"#,
    "\n"
);

/// An API server, and what it waits for.
#[derive(Clone)]
struct Served {
    list: &'static str,
    /// The body of a catch-up watch, which stays open.
    shown: &'static str,
    /// The first permit sends the event to the scope's own watch, the second breaks the watch.
    watched: Arc<Semaphore>,
    /// Permits lists of all objects.
    compared: Arc<Semaphore>,
    comparisons: Arc<AtomicUsize>,
}

impl Served {
    fn new(list: &'static str, shown: &'static str, events: usize) -> Self {
        Self {
            list,
            shown,
            watched: Arc::new(Semaphore::new(events)),
            compared: Arc::new(Semaphore::new(100)),
            comparisons: Arc::default(),
        }
    }

    async fn answer(self, query: String, accept: String) -> Response<body::Body> {
        let is_watch = query.starts_with("watch=1");
        let body = if !is_watch && !query.is_empty() {
            body::full(self.list)
        } else if !is_watch && !accept.contains("PartialObjectMetadataList") {
            body::full("{}")
        } else if !is_watch {
            self.comparisons.fetch_add(1, Ordering::SeqCst);
            self.compared.acquire().await.unwrap().forget();
            body::full(self.list)
        } else if query.contains("sendInitialEvents") {
            let mark = stream::iter([Ok(Bytes::from_static(MARK.as_bytes()))]);
            let watched = Arc::clone(&self.watched);
            let event = stream::once(async move {
                watched.acquire().await.unwrap().forget();
                Ok(Bytes::from_static(EVENT.as_bytes()))
            });
            let end = stream::once(async move {
                self.watched.acquire().await.unwrap().forget();
                Err("broken".into())
            });
            streamed(mark.chain(event).chain(end))
        } else {
            let shown = stream::iter([Ok(Bytes::from_static(self.shown.as_bytes()))]);
            streamed(shown.chain(stream::pending()))
        };
        let response = Response::builder().header("content-type", "application/json");
        response.body(body).unwrap()
    }

    async fn start(&self, pki: &Pki) -> Api {
        let served = self.clone();
        Api::start(pki, HTTP2, move |request, _| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let accept = request.headers().get("accept");
            let accept = accept.map_or("", |accept| accept.to_str().unwrap());
            served.clone().answer(query, accept.to_owned())
        })
        .await
    }

    /// Starts the server, and opens a scope that has reached the version.
    async fn open(&self, reached: u64) -> ServedScope {
        self.open_as(reached, ScopeConfig::default()).await
    }

    /// Does the same with other settings.
    async fn open_as(&self, reached: u64, config: ScopeConfig) -> ServedScope {
        let pki = Pki::new();
        let api = self.start(&pki).await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let scopes = Scopes::new(client.clone(), config);
        let gvr = GroupVersionResource::new("", "v1", "configmaps");
        let key = ScopeKey::everything(gvr, Representation::whole(Encoding::Json));
        let shape = ObjectShape::new("ConfigMap", FieldTable::metadata_only(true));
        let scope = scopes.open(&key, &shape);
        eventually(|| scope.reader.version() == ResourceVersion(reached)).await;
        ServedScope {
            provers: Provers::new(client),
            scope,
            _scopes: scopes,
            _api: api,
        }
    }
}

/// A scope of a running server, and its provers.
struct ServedScope {
    provers: Provers,
    scope: Arc<Scope>,
    _scopes: Scopes,
    _api: Api,
}

impl ServedScope {
    /// Proves a read whose answer costs upstream as much as so many requests.
    async fn prove(&self, requests: usize) -> Result<ResourceVersion, ProofError> {
        let demand = ProofDemand::of_requests(requests);
        self.provers
            .prove(&self.scope, demand, Instant::now())
            .await
    }
}

#[tokio::test]
async fn a_catch_up_watch_proves_nothing_before_the_cache_has_its_events() {
    let served = Served::new(LIST, SHOWN, 0);
    let opened = served.open(20).await;
    let (prover, scope) = (opened.provers.of(&opened.scope), &opened.scope);
    let watches = &prover.catch_ups;

    // The scope's own watch does not bring the event while this one waits for it.
    assert!(watches.watch(scope).await.unwrap());
    assert_eq!(scope.reader.version(), ResourceVersion(20));
    assert!(scope.reader.snapshot().is_empty());

    served.watched.add_permits(1);
    eventually(|| scope.reader.version() == ResourceVersion(30)).await;
    assert!(watches.watch(scope).await.unwrap());
    assert_eq!(scope.reader.version(), ResourceVersion(40));
    assert_eq!(scope.reader.snapshot().len(), 1);
}

#[tokio::test]
async fn a_scope_whose_watch_lacks_what_a_catch_up_watch_shows_opens_it_again() {
    let config = ScopeConfig {
        overdue: Duration::from_millis(100),
        ..ScopeConfig::default()
    };
    let opened = Served::new(LIST, SHOWN, 0).open_as(20, config).await;
    let prover = opened.provers.of(&opened.scope);
    let mut following = opened.scope.upstream.following();
    assert!(prover.catch_ups.watch(&opened.scope).await.unwrap());
    let lost = following.wait_for(|is_followed| !is_followed);
    timeout(SOON, lost).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_long_list_is_proven_by_a_catch_up_watch_while_comparisons_are_late() {
    let opened = Served::new(LATER_LIST, SHOWN, 1).open(30).await;
    let prover = opened.provers.of(&opened.scope);
    prover
        .costs
        .record_comparison(1, 300, Duration::from_secs(2));
    prover.costs.pause_after_late();
    let short = opened.prove(1).await;
    assert!(short.is_err(), "upstream has it sooner: {short:?}");
    assert_eq!(opened.scope.reader.version(), ResourceVersion(30));
    assert_eq!(opened.prove(3).await.unwrap(), ResourceVersion(40));
}

#[tokio::test]
async fn long_lists_whose_comparison_becomes_late_are_proven_by_a_catch_up_watch() {
    const LONG: usize = 1_000_000_000;
    let served = Served::new(LATER_LIST, SHOWN, 1);
    let opened = served.open(30).await;
    served.compared.forget_permits(100);
    let compared = || served.comparisons.load(Ordering::SeqCst) == 1;
    let queued = async {
        eventually(compared).await;
        opened.prove(LONG).await
    };
    let (first, queued) = tokio::join!(opened.prove(LONG), queued);
    assert_eq!(first.unwrap(), ResourceVersion(40));
    assert_eq!(queued.unwrap(), ResourceVersion(40));
    assert!(compared(), "no comparison follows one that was late");
}

#[tokio::test]
async fn readers_do_not_wait_for_a_catch_up_watch_that_was_given_up() {
    let opened = Served::new(LATER_LIST, "no event\n", 1).open(30).await;
    let prover = opened.provers.of(&opened.scope);
    let caught_up = prover.catch_up(&opened.scope, ResourceVersion(40));
    let caught_up = timeout(MAX_COMPARISON_WAIT / 2, caught_up).await;
    let caught_up = caught_up.expect("the watch ended long ago");
    assert!(matches!(caught_up, Err(ProofError::Late)), "{caught_up:?}");
}

#[tokio::test]
async fn no_catch_up_watch_is_opened_for_a_while_after_one_that_was_given_up() {
    let opened = Served::new(LATER_LIST, "no event\n", 1).open(30).await;
    let prover = opened.provers.of(&opened.scope);
    let watches = &prover.catch_ups;
    for _ in 0..2 {
        let mut reader = watches.keep_open(&opened.scope).expect("no pause");
        timeout(SOON, reader.until_given_up()).await.unwrap();
        assert!(watches.keep_open(&opened.scope).is_none());
        watches.state.lock().useless_until = None;
    }
}

#[tokio::test]
async fn a_catch_up_watch_closes_without_readers_and_the_next_reader_opens_another() {
    let opened = Served::new(LATER_LIST, SHOWN, 1).open(30).await;
    let prover = opened.provers.of(&opened.scope);
    let watches = &prover.catch_ups;
    let is_open = || watches.state.lock().open.is_some();
    for _ in 0..2 {
        let readers = [(); 2].map(|()| watches.keep_open(&opened.scope).expect("no pause"));
        assert!(is_open());
        drop(readers);
        eventually(|| !is_open()).await;
    }
}

#[tokio::test]
async fn readers_do_not_wait_for_a_catch_up_watch_once_the_scope_has_lost_its_own() {
    let served = Served::new(LATER_LIST, SHOWN_EVENT, 1);
    let opened = served.open(30).await;
    let prover = opened.provers.of(&opened.scope);
    let lose = async {
        eventually(|| prover.catch_ups.state.lock().open.is_some()).await;
        served.watched.add_permits(1);
    };
    let caught_up = prover.catch_up(&opened.scope, ResourceVersion(40));
    let caught_up = timeout(MAX_COMPARISON_WAIT / 2, caught_up);
    let (caught_up, ()) = tokio::join!(caught_up, lose);
    let caught_up = caught_up.expect("the scope's watch was lost");
    assert!(
        matches!(caught_up, Err(ProofError::Interrupted)),
        "{caught_up:?}"
    );
}

#[tokio::test]
async fn a_server_that_is_behind_does_not_show_another_history() {
    const BEHIND: &str = concat!(
        r#"{"type":"BOOKMARK","object":{"kind":"PartialObjectMetadata","#,
        r#""apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"29"}}}"#,
        "\n"
    );
    let opened = Served::new(LATER_LIST, BEHIND, 1).open(30).await;
    let prover = opened.provers.of(&opened.scope);
    assert!(prover.catch_ups.watch(&opened.scope).await.is_err());
    assert!(opened.scope.is_current());
    let other = SHOWN_EVENT.replace("30", "31").leak();
    let opened = Served::new(LATER_LIST, other, 1).open(30).await;
    let prover = opened.provers.of(&opened.scope);
    assert!(prover.catch_ups.watch(&opened.scope).await.is_err());
    assert!(!opened.scope.is_current());
}

#[tokio::test]
async fn gets_that_are_given_up_by_design_do_not_count_as_failed() {
    let opened = Served::new(LATER_LIST, SHOWN, 1).open(30).await;
    let gets = (0..20).map(|_| opened.provers.prove_gets(&opened.scope, 1000.0));
    for get in futures_util::future::join_all(gets).await {
        let error = get.expect_err("memory is behind");
        assert_eq!(error.as_str(), "late-for-gets", "{error}");
    }
}

#[tokio::test]
async fn the_time_of_a_question_for_the_version_is_learned() {
    let opened = Served::new(LATER_LIST, SHOWN, 1).open(30).await;
    let prover = opened.provers.of(&opened.scope);
    assert_eq!(
        prover.costs.estimate(1).expected_of_version(),
        Duration::ZERO
    );
    assert_eq!(
        prover.version(&opened.scope).await.unwrap(),
        ResourceVersion(40)
    );
    assert!(prover.costs.estimate(1).expected_of_version() > Duration::ZERO);
}
