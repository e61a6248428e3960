//! Features that are turned off for some clients: those are answered as by an API server without
//! the feature, and others as ever.
use http::{Request, StatusCode};
use watershed::app::AppConfig;
use watershed::serve::{AgentPattern, ClientRule};
use watershed_lab::sim::{SimulatedServer, WatchListSupport};

use crate::support::client::{Answer, Endpoint, Protocol, nothing, within};
use crate::support::{Fixture, eventually, small};

const PODS: &str = "/api/v1/pods?resourceVersion=0";
/// A watch that begins with the state and marks its end.
const STREAMED: &str = "/api/v1/pods?watch=1&allowWatchBookmarks=true&sendInitialEvents=true\
                        &resourceVersionMatch=NotOlderThan&resourceVersion=0&timeoutSeconds=1";
/// The same of a type that is not cached.
const FORWARDED: &str = "/api/v1/secrets?watch=1&allowWatchBookmarks=true&sendInitialEvents=true\
                         &resourceVersionMatch=NotOlderThan&resourceVersion=0&timeoutSeconds=1";
/// Objects reduced to their metadata.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

fn rules(config: &mut AppConfig) {
    config.policy.client_rules = vec![
        ClientRule {
            user_agent: Some(AgentPattern::BeginsWith("old-agent/".to_owned())),
            watch_compression: Some(false),
            ..ClientRule::default()
        },
        ClientRule {
            user_agent: Some(AgentPattern::Exactly("agent".to_owned())),
            watch_list: Some(false),
            ..ClientRule::default()
        },
    ];
}

/// Opens a watch that takes gzip, and returns its whole answer.
async fn watch(of: &Endpoint, path: &str, agent: &str) -> Answer {
    let request = Request::get(path)
        .header("accept-encoding", "gzip")
        .header("user-agent", agent)
        .body(nothing())
        .unwrap();
    within(path, of.send(Protocol::Http2, request))
        .await
        .unwrap()
}

/// Waits until the proxy compresses watches, and so knows that upstream does.
async fn compresses(fixture: &Fixture) {
    eventually("watches are compressed", async || {
        let answer = watch(&fixture.proxied, STREAMED, "other").await;
        if answer.headers.contains_key("content-encoding")
            && answer.header("x-watershed-source") == "snapshot"
        {
            Ok(())
        } else {
            Err(format!("{:?}", answer.headers))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_named_clients_are_not_compressed() {
    let fixture = Fixture::configured(small(), rules).await;
    compresses(&fixture).await;
    for path in [STREAMED, FORWARDED] {
        for (agent, is_compressed) in [
            ("old-agent/4.0.0", false),
            ("old-agent", true),
            ("agent/1", true),
            ("", true),
        ] {
            let answer = watch(&fixture.proxied, path, agent).await;
            assert_eq!(answer.status, StatusCode::OK, "{path} {agent}");
            let coding = answer.headers.get("content-encoding");
            assert_eq!(coding.is_some(), is_compressed, "{path} {agent}");
            if !is_compressed {
                assert!(answer.body.starts_with(br#"{"type":""#), "{path}");
            }
        }
    }
    // Lists are answered from memory as ever.
    let list = watch(&fixture.proxied, PODS, "old-agent/4.0.0").await;
    assert_eq!(list.header("x-watershed-source"), "snapshot");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initial_events_are_refused_to_named_clients_as_by_a_server_without_them() {
    let fixture = Fixture::configured(small(), rules).await;
    compresses(&fixture).await;
    let without = SimulatedServer::start(small()).await.unwrap();
    without.faults().watch_list(WatchListSupport::Refused);
    let older = Endpoint::new(without.address(), without.ca_pem(), without.admin_token());
    let asked = || fixture.upstream.stats().requests_on("WATCH", "pods");
    let before = asked();
    let (ours, theirs) = (
        watch(&fixture.proxied, STREAMED, "agent").await,
        watch(&older, STREAMED, "agent").await,
    );
    assert_eq!(ours.header("x-watershed-source"), "client-rule");
    assert_eq!(ours.status, theirs.status);
    assert_eq!(ours.body, theirs.body);
    assert_eq!(ours.header("content-type"), theirs.header("content-type"));
    assert_eq!(asked(), before, "upstream is not asked");
    // What is forwarded is refused by upstream.
    let forwarded = watch(&fixture.proxied, FORWARDED, "agent").await;
    assert_eq!(forwarded.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        forwarded
            .header("x-watershed-source")
            .starts_with("forward")
    );
    // So is what is refused in another form than plain JSON.
    let mut request = Request::get(STREAMED).body(nothing()).unwrap();
    let headers = request.headers_mut();
    headers.insert("user-agent", "agent".parse().unwrap());
    headers.insert("accept", METADATA.parse().unwrap());
    let forwarded = within("metadata", fixture.proxied.send(Protocol::Http2, request)).await;
    let forwarded = forwarded.unwrap();
    assert_eq!(forwarded.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        forwarded.header("x-watershed-source"),
        "forward; reason=representation"
    );
    // Who is not allowed to watch hears that first.
    let nobody = fixture.proxied.as_user("nobody");
    assert_eq!(
        watch(&nobody, STREAMED, "agent").await.status,
        StatusCode::UNAUTHORIZED
    );
    // Other watches and other clients are answered as ever.
    let plain = PODS.to_owned() + "&watch=1&timeoutSeconds=1";
    for (path, agent) in [(&*plain, "agent"), (STREAMED, "agent/2"), (FORWARDED, "")] {
        assert_eq!(
            watch(&fixture.proxied, path, agent).await.status,
            StatusCode::OK,
            "{path}"
        );
    }
    without.shutdown().await;
    fixture.stop().await;
}
