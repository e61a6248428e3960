//! Fences, their limits of time and their end.
use super::*;
use crate::scope::{Retention, ScopeConfig, Scopes};
use crate::test_support::{Api, HTTP2, Pki, eventually, text, upstream_of};
use crate::upstream::{ConnectionClass, SendOptions};
use watershed_protocol::{FieldTable, GroupVersionResource, Representation, Selection};

#[tokio::test]
async fn a_reader_waits_for_three_seconds_or_twice_as_long_as_upstream_would_take() {
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
    let (scopes, fences) = (
        Scopes::new(client.clone(), ScopeConfig::default()),
        Fences::new(client),
    );
    let gvr = GroupVersionResource::new("", "v1", "pods");
    let fields = Arc::new(FieldTable::metadata_only(true));
    let representation = Representation::whole(watershed_protocol::Encoding::Json);
    let key = ScopeKey::everything(gvr, representation);
    let scope = scopes.open(&key, &"Pod".into(), &fields);
    // Comparisons used to be slow, so that upstream gets more time for them.
    let fence = fences.of(&scope);
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
        let proof = fences.prove(&scope, demand, Instant::now()).await;
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
async fn fences_of_closed_scopes_are_dropped() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |_, _| async { text("no list") }).await;
    let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
    let (scopes, fences) = (
        Scopes::new(client.clone(), ScopeConfig::default()),
        Fences::new(client),
    );
    let gvr = GroupVersionResource::new("", "v1", "pods");
    let fields = Arc::new(FieldTable::metadata_only(true));
    for name in 0..20 {
        let selection = Arc::new(Selection::named(None, &name.to_string()));
        let target = (
            &gvr,
            Representation::whole(watershed_protocol::Encoding::Json),
        );
        let lent = scopes
            .acquire(target, &"Pod".into(), &fields, |_| {
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
