//! Custom types: created, removed, created again, and printed differently in the same version.
use std::time::Duration;

use watershed_lab::sim::{PlannedRefusal, SimulatedServer};
use watershed_protocol::GroupVersionResource;

use crate::support::client::{BOTH, Endpoint, Next, Protocol, within};
use crate::support::program::Program;
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

/// Prints the object of the type's last event differently in the same version, and ends all watches. The
/// proxy has upstream repeat that event, and sees its new form.
fn print_differently(
    upstream: &SimulatedServer,
    resource: &GroupVersionResource,
    key: &str,
    text: [&str; 2],
) {
    let print = |object: &str| object.replacen(text[0], text[1], 1);
    let printed = upstream.state().reprint(resource, key, print);
    assert_eq!(printed, Ok(()));
    upstream.faults().end_watches();
}

/// Waits until an answer from memory has this color at this JSON pointer.
async fn shows_from_memory(program: &Program, path: &str, pointer: &str, color: &str) {
    let wanted = (color.to_owned(), "snapshot".to_owned());
    becomes("the answer", wanted, async || {
        let answer = program.proxied.get(Protocol::Http2, path).await;
        let json = answer.json();
        let shown = json.pointer(pointer).and_then(|color| color.as_str());
        let source = answer.header("x-watershed-source").to_owned();
        (shown.unwrap_or_default().to_owned(), source)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_of_a_custom_type_in_another_form_is_no_error_the_first_time() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let (state, widgets) = (upstream.state(), watershed_lab::sim::widgets());
    let program = Program::start(&upstream).await;
    let direct = Endpoint::new(
        upstream.address(),
        upstream.ca_pem(),
        upstream.admin_token(),
    );
    let shows = async |color: &str| {
        shows_from_memory(&program, LIST, "/items/0/spec/color", color).await;
        let list =
            async |of: &Endpoint| of.get(Protocol::Http2, LIST).await.json()["items"].clone();
        assert_eq!(list(&program.proxied).await, list(&direct).await);
    };
    state.create(&widgets, &widget("early", "yellow")).unwrap();
    shows("yellow").await;
    state.update(&widgets, &widget("early", "red")).unwrap();
    shows("red").await;
    let first = "objects differ, as after a change of the type's definition";
    let further = "upstream's events are inconsistent";

    print_differently(&upstream, &widgets, "default/early", ["red", "blue"]);
    program
        .until_logged(&[first, r#""level":"INFO""#, "widgets"])
        .await;
    shows("blue").await;
    assert!(!program.log().contains(further), "{}", program.log());

    // Only a known event can be repeated.
    state.update(&widgets, &widget("early", "brown")).unwrap();
    shows("brown").await;
    print_differently(&upstream, &widgets, "default/early", ["brown", "green"]);
    program
        .until_logged(&[further, r#""level":"ERROR""#, "widgets"])
        .await;
    shows("green").await;
    program.terminate().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_of_a_built_in_type_in_another_form_is_an_error() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let configmaps = GroupVersionResource::new("", "v1", "configmaps");
    let object = |color: &str| {
        format!(
            r#"{{"metadata":{{"name":"early","namespace":"default"}},"data":{{"color":"{color}"}}}}"#
        )
    };
    let state = upstream.state();
    state.create(&configmaps, &object("yellow")).unwrap();
    let program = Program::start(&upstream).await;
    let path = "/api/v1/namespaces/default/configmaps/early?resourceVersion=0";
    let shows = async |color| shows_from_memory(&program, path, "/data/color", color).await;
    shows("yellow").await;
    state.update(&configmaps, &object("red")).unwrap();
    shows("red").await;
    print_differently(&upstream, &configmaps, "default/early", ["red", "blue"]);
    let told = "upstream's events are inconsistent";
    program
        .until_logged(&[told, r#""level":"ERROR""#, "configmaps"])
        .await;
    shows("blue").await;
    program.terminate().await;
    upstream.shutdown().await;
}
