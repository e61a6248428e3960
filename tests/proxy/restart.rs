//! An API server that restarts without its history.
use crate::support::client::{Next, Protocol};
use crate::support::follower::Follower;
use crate::support::history::WriteHistory;
use crate::support::{Fixture, small};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_costs_one_list_per_type_and_no_watch_event() {
    let fixture = Fixture::start(small()).await;
    let history = WriteHistory::new(fixture.upstream.state(), 1);
    let crowd = Follower::crowd(&fixture.proxied, 100).await;
    // More types with several watches each.
    let others = [
        "/api/v1/nodes",
        "/api/v1/configmaps",
        "/apis/apps/v1/deployments",
    ];
    let mut quiet = Vec::new();
    for path in others {
        let list = fixture
            .proxied
            .get(Protocol::Http2, &format!("{path}?resourceVersion=0"))
            .await
            .json();
        let version = list["metadata"]["resourceVersion"].as_str().unwrap();
        let path = format!("{path}?watch=1&resourceVersion={version}&timeoutSeconds=600");
        for _ in 0..5 {
            quiet.push(fixture.proxied.watch(Protocol::Http2, &path).await);
        }
    }
    history.writes(50).await;
    for follower in &crowd {
        follower.judge_undisturbed(&history).await;
    }
    let lists = |resource: &str| fixture.upstream.stats().states_of(resource);
    let resources = ["pods", "nodes", "configmaps", "deployments.apps"];
    let before = resources.map(lists);

    // No watch sees the writes during the restart.
    fixture.upstream.faults().set(|active| active.silent = true);
    history.writes(30).await;
    fixture.upstream.restart();
    fixture
        .upstream
        .faults()
        .set(|active| active.silent = false);
    history.writes(30).await;
    let mut told = 0;
    for follower in &crowd {
        follower.judge(&history).await;
        let log = follower.log();
        assert_eq!(log.ends, [], "a watch goes on or ends with 410");
        told += usize::from(log.tracks.len() == 2);
    }
    assert_eq!(
        told,
        crowd.len(),
        "events were lost for good, so every watch of pods is told"
    );
    for (resource, before) in resources.into_iter().zip(before) {
        let relists = lists(resource) - before;
        assert!(
            relists <= 1,
            "{relists} lists of {resource} after one restart"
        );
    }
    assert_eq!(lists("pods"), before[0] + 1);

    // The watches of quiet types continued or ended with 410.
    let deployments = watershed_protocol::GroupVersionResource::new("apps", "v1", "deployments");
    fixture
        .upstream
        .state()
        .create(&deployments, r#"{"metadata":{"name":"w"}}"#)
        .unwrap();
    for mut watch in quiet.split_off(10) {
        match watch.next().await {
            Next::Line(line) => {
                let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
                let expired = line["type"] == "ERROR" && line["object"]["code"] == 410;
                assert!(
                    expired || line["object"]["metadata"]["name"] == "w",
                    "{line}"
                );
            }
            end => panic!("{end:?}"),
        }
    }
    drop(quiet);
    fixture.stop().await;
}
