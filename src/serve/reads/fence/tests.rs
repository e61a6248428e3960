//! Fences, their limits of time and their end.
use super::*;
use crate::scope::{ObjectShape, Retention, ScopeConfig, Scopes};
use crate::test_support::{Api, HTTP2, Pki, eventually, text, upstream_of};
use crate::upstream::{ConnectionClass, SendOptions};
use watershed_protocol::{FieldTable, GroupVersionResource, Representation, Selection};

/// Fences, and a scope of pods, in front of an API server that answers nothing.
struct Silence {
    fences: Fences,
    scope: Arc<Scope>,
    _scopes: Scopes,
    _api: Api,
}

impl Silence {
    async fn begin() -> Self {
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, |request, _| async move {
            match request.uri().path() {
                "/version" => text(""),
                _ => std::future::pending().await,
            }
        })
        .await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        // The connection is there before time is stopped.
        let request = http::Request::get("/version");
        let request = request.body(crate::body::empty()).unwrap();
        let class = ConnectionClass::Short;
        let answer = client.send(class, request, SendOptions::default()).await;
        drop(answer.unwrap());
        let scopes = Scopes::new(client.clone(), ScopeConfig::default());
        let gvr = GroupVersionResource::new("", "v1", "pods");
        let shape = ObjectShape::new("Pod", FieldTable::metadata_only(true));
        let representation = Representation::whole(watershed_protocol::Encoding::Json);
        let key = ScopeKey::everything(gvr, representation);
        Self {
            fences: Fences::new(client),
            scope: scopes.open(&key, &shape),
            _scopes: scopes,
            _api: api,
        }
    }
}

#[tokio::test]
async fn a_reader_waits_for_three_seconds_or_twice_as_long_as_upstream_would_take() {
    let silence = Silence::begin().await;
    let (fences, scope) = (&silence.fences, &silence.scope);
    // Comparisons used to be slow, so that upstream gets more time for them.
    let fence = fences.of(scope);
    fence
        .costs
        .record_comparison(1, 300, Duration::from_secs(10));
    let cases = [
        (false, 0.1, MAX_WAIT),
        (true, 0.1, MAX_WAIT),
        // Upstream would need five seconds for the answer.
        (false, 0.5, Duration::from_secs(10)),
    ];
    for (asks_version_first, share, wanted) in cases {
        fence.costs.set_compare_first(!asks_version_first);
        let cost = move |_: &ProofCosts, _: &Snapshot| costs::REQUEST * share;
        let demand = ProofDemand {
            cost: &cost,
            identity: None,
        };
        time::pause();
        let began = time::Instant::now();
        let proof = fences.prove(scope, demand, Instant::now()).await;
        assert!(matches!(proof, Err(FenceError::Late)), "{proof:?}");
        let waited = began.elapsed();
        let longest = wanted + Duration::from_millis(10);
        assert!(
            (wanted..=longest).contains(&waited),
            "{waited:?} of {wanted:?}"
        );
        time::resume();
    }
}

#[tokio::test]
async fn after_a_question_for_the_version_without_an_answer_nobody_waits_for_a_while() {
    let silence = Silence::begin().await;
    let (fences, scope) = (&silence.fences, &silence.scope);
    let fence = fences.of(scope);
    time::pause();
    let began = time::Instant::now();
    let version = fence.version(scope).await;
    assert!(matches!(version, Err(FenceError::Late)), "{version:?}");
    assert!(began.elapsed() >= MAX_WAIT);
    let began = time::Instant::now();
    let demand = ProofDemand {
        cost: &|_, _| costs::REQUEST,
        identity: None,
    };
    let proof = fences.prove(scope, demand, Instant::now()).await;
    assert!(matches!(proof, Err(FenceError::Refused)), "{proof:?}");
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn fences_of_closed_scopes_are_dropped() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |_, _| async { text("no list") }).await;
    let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
    let (scopes, fences) = (
        Scopes::new(client.clone(), ScopeConfig::default()),
        Fences::new(client),
    );
    let gvr = GroupVersionResource::new("", "v1", "pods");
    let shape = ObjectShape::new("Pod", FieldTable::metadata_only(true));
    for name in 0..20 {
        let selection = Arc::new(Selection::named(None, &name.to_string()));
        let representation = Representation::whole(watershed_protocol::Encoding::Json);
        let lent = scopes
            .acquire(&gvr, representation, &shape, |_| {
                Some((selection, Retention::default()))
            })
            .unwrap();
        fences.of(&lent);
        let weak = Arc::downgrade(&*lent);
        drop(lent);
        scopes.close(&gvr, Duration::ZERO);
        eventually(|| weak.strong_count() == 0).await;
    }
    assert_eq!(fences.fences.lock().len(), 1);
}
