//! A custom type that is created, removed and created again.
use std::time::Duration;

use watershed_lab::sim::{PlannedRefusal, SimulatedServer};

use crate::support::client::{BOTH, Next, Protocol, within};
use crate::support::{Fixture, becomes, eventually, small};

const LIST: &str = "/apis/example.com/v1/widgets?resourceVersion=0";
const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

fn widget(name: &str, color: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"default"}},"spec":{{"color":"{color}"}}}}"#
    )
}

async fn at_hand(fixture: &Fixture) {
    becomes("the list's source", "snapshot".to_owned(), async || {
        fixture
            .proxied
            .get(Protocol::Http2, LIST)
            .await
            .header("x-watershed-source")
            .to_owned()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_custom_type_is_cached_throughout_its_lifecycle() {
    let fixture = Fixture::start(small()).await;
    let (state, widgets) = (fixture.upstream.state(), watershed_lab::sim::widgets());
    state.create(&widgets, &widget("early", "red")).unwrap();
    at_hand(&fixture).await;
    let red = format!("{LIST}&fieldSelector=spec.color%3Dred");
    let list = fixture.proxied.get(Protocol::Http1, &red).await;
    assert_eq!(
        list.essence(),
        fixture.direct.get(Protocol::Http1, &red).await.essence()
    );
    assert_eq!(
        list.header("x-watershed-source"),
        "snapshot",
        "a selectable field is no reason to ask"
    );
    let mut watches = Vec::new();
    for protocol in BOTH {
        let path =
            "/apis/example.com/v1/widgets?watch=1&resourceVersion=0&fieldSelector=spec.color%3Dred";
        let mut watch = fixture.proxied.watch(protocol, path).await;
        assert!(watch.line().await.contains(r#""name":"early""#));
        watches.push(watch);
    }
    state.create(&widgets, &widget("blue", "blue")).unwrap();
    state.update(&widgets, &widget("early", "blue")).unwrap();
    for watch in &mut watches {
        let line = watch.line().await;
        assert!(
            line.starts_with(r#"{"type":"DELETED""#) && line.contains(r#""name":"early""#),
            "{line}"
        );
    }

    state.serve_custom(&widgets, false);
    for watch in watches {
        assert_eq!(watch.rest().await.1, Next::End, "as upstream ends it");
    }
    becomes(
        "the list's source",
        "forward; reason=unknown-type".to_owned(),
        async || {
            let (wanted, got) = (
                fixture.direct.get(Protocol::Http2, LIST).await,
                fixture.proxied.get(Protocol::Http2, LIST).await,
            );
            assert_eq!(wanted.status, 404);
            // The proxy may still have the type for a moment.
            if got.status == 200 {
                String::new()
            } else {
                got.header("x-watershed-source").to_owned()
            }
        },
    )
    .await;
    let (wanted, got) = (
        fixture.direct.get(Protocol::Http2, LIST).await,
        fixture.proxied.get(Protocol::Http2, LIST).await,
    );
    assert_eq!(got.essence(), wanted.essence());

    state.serve_custom(&widgets, true);
    state.create(&widgets, &widget("late", "red")).unwrap();
    at_hand(&fixture).await;
    let mut again = fixture
        .proxied
        .watch(
            Protocol::Http2,
            "/apis/example.com/v1/widgets?watch=1&resourceVersion=0",
        )
        .await;
    assert!(
        again.line().await.contains(r#""name":"late""#),
        "and nothing of its first life"
    );
    state.delete(&widgets, "default", "late").unwrap();
    assert!(
        within("the deletion", again.line())
            .await
            .starts_with(r#"{"type":"DELETED""#)
    );
    drop(again);
    fixture.stop().await;
}

/// As when the proxy starts before its ClusterRole counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_types_are_cached_as_soon_as_the_proxy_may_see_their_definitions() {
    let refuse = |upstream: &SimulatedServer| {
        upstream.faults().set(|active| {
            active.refuse = Some(PlannedRefusal {
                count: u32::MAX,
                code: 403,
                retry_after: None,
                resource: Some(DEFINITIONS.to_owned()),
                verb: None,
            });
        });
    };
    let fixture = Fixture::build(small(), refuse, |_| ()).await;
    let asked = || {
        let stats = fixture.upstream.stats();
        stats.requests_on("WATCH", DEFINITIONS) + stats.requests_on("LIST", DEFINITIONS)
    };
    eventually("a second question", async || {
        (asked() > 1).then_some(()).ok_or(asked().to_string())
    })
    .await;
    let read = fixture.proxied.get(Protocol::Http2, LIST).await;
    assert_eq!(
        read.header("x-watershed-source"),
        "forward; reason=unknown-type"
    );
    fixture.upstream.faults().set(|active| active.refuse = None);
    at_hand(&fixture).await;
    // One watch follows them, and nothing begins beside it.
    let before = asked();
    for _ in 0..10 {
        assert_eq!(fixture.upstream.stats().open_watches[DEFINITIONS], 1);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(asked(), before);
    fixture.stop().await;
}
