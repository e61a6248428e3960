//! Provers, their limits of time and their end.
use super::*;
use crate::scope::{ObjectShape, ScopeConfig, ScopeKey, ScopeOptions, Scopes};
use crate::test_support::{Api, HTTP2, Pki, eventually, text, upstream_of};
use crate::upstream::{ConnectionClass, SendOptions};
use watershed_protocol::{Encoding, FieldTable, GroupVersionResource, Selection};

impl ProofDemand {
    /// Returns the demand of a reader whose answer costs upstream as much as so many requests.
    pub(super) fn of_requests(requests: usize) -> Self {
        Self {
            representation: Representation::whole(Encoding::Json),
            objects: 1,
            // So many bytes of JSON weigh as much as a request.
            bytes: (requests - 1) * 31_250,
            identity: None,
        }
    }
}

/// Provers, and a scope of pods, in front of an API server that answers nothing.
struct Silence {
    provers: Provers,
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
        let representation = Representation::whole(Encoding::Json);
        let key = ScopeKey::everything(gvr, representation);
        Self {
            provers: Provers::new(client),
            scope: scopes.open(&key, &shape),
            _scopes: scopes,
            _api: api,
        }
    }
}

#[tokio::test]
async fn a_reader_waits_for_three_seconds_or_twice_as_long_as_upstream_would_take() {
    let seconds = Duration::from_secs;
    // The answer costs as much as the comparison, so upstream would need as long for it.
    let cases = [
        (false, seconds(1), MAX_WAIT),
        (true, seconds(1), MAX_WAIT),
        (false, seconds(5), seconds(10)),
    ];
    for (asks_version_first, comparison, wanted) in cases {
        let silence = Silence::begin().await;
        let (provers, scope) = (&silence.provers, &silence.scope);
        let prover = provers.of(scope);
        prover.costs.record_comparison(1, 300, comparison);
        prover.costs.set_compare_first(!asks_version_first);
        let demand = ProofDemand::of_requests(1);
        time::pause();
        let began = time::Instant::now();
        let proof = provers.prove(scope, demand, Instant::now()).await;
        assert!(matches!(proof, Err(ProofError::Late)), "{proof:?}");
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
    let (provers, scope) = (&silence.provers, &silence.scope);
    let prover = provers.of(scope);
    time::pause();
    let began = time::Instant::now();
    let version = prover.version(scope).await;
    assert!(matches!(version, Err(ProofError::Late)), "{version:?}");
    assert!(began.elapsed() >= MAX_WAIT);
    let began = time::Instant::now();
    let demand = ProofDemand::of_requests(1);
    let proof = provers.prove(scope, demand, Instant::now()).await;
    assert!(matches!(proof, Err(ProofError::Refused)), "{proof:?}");
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn provers_of_closed_scopes_are_dropped() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |_, _| async { text("no list") }).await;
    let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
    let (scopes, provers) = (
        Scopes::new(client.clone(), ScopeConfig::default()),
        Provers::new(client),
    );
    let gvr = GroupVersionResource::new("", "v1", "pods");
    let shape = ObjectShape::new("Pod", FieldTable::metadata_only(true));
    for name in 0..20 {
        let selection = Arc::new(Selection::named(None, &name.to_string()));
        let representation = Representation::whole(Encoding::Json);
        let lent = scopes
            .acquire(&gvr, representation, &shape, |_| {
                Some((selection, ScopeOptions::default()))
            })
            .unwrap();
        provers.of(&lent);
        let weak = Arc::downgrade(&*lent);
        drop(lent);
        scopes.close(&gvr, Duration::ZERO);
        eventually(|| weak.strong_count() == 0).await;
    }
    assert_eq!(provers.provers.lock().len(), 1);
}
