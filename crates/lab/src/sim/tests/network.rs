//! The running server as kube-rs sees it.
use std::pin::pin;

use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Config, ResourceExt as _};

use super::*;
use crate::sim::{Population, SimulatedServer};

async fn client(server: &SimulatedServer) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(&server.kubeconfig_yaml()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    Client::try_from(config).unwrap()
}

async fn server_with_pods(pods: usize) -> SimulatedServer {
    let population = Population {
        pods,
        nodes: 1,
        namespaces: 1,
        ..Population::default()
    };
    SimulatedServer::start(Options {
        population,
        ..Options::default()
    })
    .await
    .unwrap()
}

/// Reads to the end of the initial state. Returns the number of its objects.
async fn initial_objects(
    stream: &mut (impl Stream<Item = watcher::Result<Event<Pod>>> + Unpin),
) -> usize {
    let mut objects = 0;
    loop {
        match next(stream).await {
            Event::InitApply(_) => objects += 1,
            Event::InitDone => return objects,
            _ => {}
        }
    }
}

async fn next(
    stream: &mut (impl Stream<Item = watcher::Result<Event<Pod>>> + Unpin),
) -> Event<Pod> {
    loop {
        let event = tokio::time::timeout(Duration::from_secs(20), stream.next())
            .await
            .unwrap()
            .unwrap();
        // The watcher reports a broken connection and goes on.
        if let Ok(event) = event {
            return event;
        }
    }
}

#[tokio::test]
async fn kube_rs_reads_watches_and_survives_a_restart() {
    let server = server_with_pods(3).await;
    let client = client(&server).await;
    assert_eq!(
        client.apiserver_version().await.unwrap().git_version,
        "v1.37.1"
    );
    let groups = client.list_api_groups().await.unwrap();
    assert!(groups.groups.iter().any(|g| g.name == "example.com"));
    let api: Api<Pod> = Api::all(client);
    let list = api
        .list(&kube::api::ListParams::default().limit(2))
        .await
        .unwrap();
    assert_eq!(
        (list.items.len(), list.metadata.remaining_item_count),
        (2, Some(1))
    );

    let mut stream = pin!(watcher::watcher(
        api,
        watcher::Config::default().streaming_lists()
    ));
    assert_eq!(initial_objects(&mut stream).await, 3);
    server
        .state()
        .create(&pods(), &pod("n/new", "node-1", "red"))
        .unwrap();
    assert!(matches!(next(&mut stream).await, Event::Apply(pod) if pod.name_any() == "new"));

    // Another type moves the global version, so the client can't resume its watch and starts over.
    server
        .state()
        .create(
            &crate::sim::widgets(),
            r#"{"metadata":{"name":"w","namespace":"n"}}"#,
        )
        .unwrap();
    server.restart();
    initial_objects(&mut stream).await;
    assert!(server.stats().connections > 1);
    server.shutdown().await;
}
