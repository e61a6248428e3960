//! Scopes that open on demand. Few selector scopes merge into one of the whole type, and idle
//! scopes close.
use std::time::Duration;

use futures_util::future::join_all;
use http::Request;
use watershed::app::AppConfig;
use watershed::serve::ScopePolicy;
use watershed_lab::sim::{AccessRule, Options, SimulatedServer, fixtures};

use crate::support::client::{Endpoint, Lines, Next, Protocol, nothing};
use crate::support::follower::{Follower, Opening};
use crate::support::history::{Interest, WriteHistory};
use crate::support::program::{Program, resident_memory};
use crate::support::{Fixture, becomes, eventually, has_counted, small, start_configured};

/// Configures on-demand scopes of pods: at most `most`, which close after `idle` seconds.
fn selector_scopes(most: usize, idle: u64) -> impl FnOnce(&mut AppConfig) {
    move |config| {
        let idle = Some(Duration::from_secs(idle));
        let policy = ScopePolicy {
            selector_scopes: Some(true),
            max_scopes: Some(most),
            idle,
            ..ScopePolicy::default()
        };
        config.policy.types.entry("", "pods").scope_policy = policy;
    }
}

async fn source(endpoint: &Endpoint, path: &str) -> String {
    endpoint
        .get(Protocol::Http2, path)
        .await
        .header("x-watershed-source")
        .to_owned()
}

/// Opens a watch. The scope that answers it stays open meanwhile, also where the machine stalls for
/// longer than scopes may be idle.
async fn keep_open(endpoint: &Endpoint, path: &str) -> Lines {
    let path = format!("{path}&watch=1");
    endpoint.watch(Protocol::Http2, &path).await
}

/// Returns the path of a list of the pods in a namespace.
fn path_of(namespace: usize) -> String {
    format!(
        "/api/v1/namespaces/{}/pods?resourceVersion=0",
        fixtures::namespace_name(namespace)
    )
}

/// Returns the number of open watches of pods at upstream.
fn watches(upstream: &SimulatedServer) -> u64 {
    upstream
        .stats()
        .open_watches
        .get("pods")
        .copied()
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn selector_scopes_merge_into_one_without_interrupting_watches() {
    let fixture = Fixture::configured(small(), selector_scopes(4, 2)).await;
    let history = WriteHistory::new(fixture.upstream.state(), 7);
    let start = |interest: Interest, opening| {
        let proxied = fixture.proxied.clone();
        async move {
            Follower::start(
                &proxied.connect(Protocol::Http2).await.unwrap(),
                interest,
                opening,
            )
        }
    };
    let first = start(
        Interest::Namespace(fixtures::namespace_name(0)),
        Opening::List,
    )
    .await;
    first.judge(&history).await;
    assert_eq!(watches(&fixture.upstream), 1, "the watch of one namespace");
    // The scope answers every read that it covers, of any client.
    assert_eq!(
        source(
            &fixture.proxied,
            &format!("{}&labelSelector=tier", path_of(0))
        )
        .await,
        "snapshot"
    );
    let name = fixture
        .upstream
        .state()
        .snapshot(&watershed_lab::sim::pods())
        .into_keys()
        .find(|key| key.starts_with(&fixtures::namespace_name(0)));
    let name = name.unwrap().replace('/', "/pods/");
    assert_eq!(
        source(
            &fixture.proxied,
            &format!("/api/v1/namespaces/{name}?resourceVersion=0")
        )
        .await,
        "snapshot"
    );
    assert_eq!(
        source(
            &fixture.proxied,
            "/api/v1/namespaces/elsewhere/pods/one?resourceVersion=0"
        )
        .await,
        "forward; reason=not-covered"
    );
    assert_eq!(watches(&fixture.upstream), 1);
    let second = start(Interest::Node(fixtures::node_name(1)), Opening::WatchList).await;
    second.judge(&history).await;
    let third = keep_open(&fixture.proxied, &path_of(1)).await;
    assert_eq!(source(&fixture.proxied, &path_of(1)).await, "snapshot");
    becomes("watches of selector scopes", 3, async || {
        watches(&fixture.upstream)
    })
    .await;
    // The next scope would exceed the limit, so it covers the whole type.
    let others = [
        start(Interest::Tier(fixtures::TIERS[0]), Opening::List).await,
        start(
            Interest::Namespace(fixtures::namespace_name(2)),
            Opening::WatchList,
        )
        .await,
        start(Interest::All, Opening::List).await,
    ];
    history.writes(60).await;
    for follower in others.iter().chain([&first, &second]) {
        follower.judge(&history).await;
    }
    assert!(watches(&fixture.upstream) <= 4);
    // New reads use the wide scope. Selector scopes without watches close, and open watches
    // continue.
    drop(third);
    becomes("watches that are still needed", 3, async || {
        assert_eq!(source(&fixture.proxied, &path_of(1)).await, "snapshot");
        watches(&fixture.upstream)
    })
    .await;
    history.writes(30).await;
    for follower in others.iter().chain([&first, &second]) {
        follower.judge_undisturbed(&history).await;
    }
    drop((first, second));
    becomes("the wide watch", 1, async || watches(&fixture.upstream)).await;
    drop(others);
    becomes("no watch", 0, async || watches(&fixture.upstream)).await;
    // A new read opens a scope again.
    let _open = keep_open(&fixture.proxied, &path_of(0)).await;
    assert_eq!(source(&fixture.proxied, &path_of(0)).await, "snapshot");
    assert_eq!(watches(&fixture.upstream), 1);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_whole_type_scopes_close_only_if_configured() {
    let fixture = Fixture::configured(small(), |config| {
        let idle = Some(Duration::from_secs(1));
        config.policy.types.entry("", "services").scope_policy = ScopePolicy {
            idle,
            ..ScopePolicy::default()
        };
        config.policy.types.entry("", "nodes").scope_policy = ScopePolicy {
            always_open: true,
            ..ScopePolicy::default()
        };
    })
    .await;
    let open = |resource: &str| {
        fixture
            .upstream
            .stats()
            .open_watches
            .get(resource)
            .copied()
            .unwrap_or_default()
    };
    becomes("a watch of nodes, before anybody asks", 1, async || {
        open("nodes")
    })
    .await;
    let services = "/api/v1/services?resourceVersion=0";
    let reader = keep_open(&fixture.proxied, services).await;
    for path in [services, "/api/v1/configmaps?resourceVersion=0"] {
        assert_eq!(source(&fixture.proxied, path).await, "snapshot");
    }
    assert_eq!((open("services"), open("configmaps")), (1, 1));
    drop(reader);
    becomes("watches of services without readers", 0, async || {
        open("services")
    })
    .await;
    assert_eq!((open("nodes"), open("configmaps")), (1, 1));
    assert_eq!(source(&fixture.proxied, services).await, "snapshot");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_that_hangs_does_not_hold_up_others_that_are_kept_open() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    upstream
        .faults()
        .set(|active| active.hold = Some("/api/v1/configmaps".to_owned()));
    let keep_open = |config: &mut AppConfig| {
        config.scopes.sync_wait = Duration::from_mins(10);
        for resource in ["configmaps", "nodes"] {
            config.policy.types.entry("", resource).scope_policy = ScopePolicy {
                always_open: true,
                ..ScopePolicy::default()
            };
        }
    };
    let (running, _folder) = start_configured(&upstream.kubeconfig_yaml(), keep_open)
        .await
        .unwrap();
    becomes("a watch of nodes", 1, async || {
        let open = upstream.stats().open_watches;
        open.get("nodes").copied().unwrap_or_default()
    })
    .await;
    running.shut_down().await;
    upstream.shutdown().await;
}

/// The proxy's identity may read pods in one namespace only, as that of a sidecar.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_affects_only_its_scope() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    upstream.access().add_user("sidecar-token", "sidecar", &[]);
    let rule = AccessRule::read("sidecar", &["pods"]).in_namespace(&fixtures::namespace_name(0));
    let reviews = [
        "tokenreviews.authentication.k8s.io",
        "subjectaccessreviews.authorization.k8s.io",
    ];
    let rules = [
        rule,
        AccessRule::read("sidecar", &["nodes"]),
        AccessRule::new("sidecar", &["create"], &reviews),
    ];
    for rule in rules {
        upstream.access().allow(rule);
    }
    let kubeconfig = upstream
        .kubeconfig_yaml()
        .replace(upstream.admin_token(), "sidecar-token");
    let (running, _folder) = start_configured(&kubeconfig, selector_scopes(4, 60))
        .await
        .unwrap();
    let ca = std::fs::read_to_string(running.ca_file.as_ref().unwrap()).unwrap();
    let proxied = Endpoint::new(running.address.unwrap(), &ca, upstream.admin_token());
    let direct = Endpoint::new(
        upstream.address(),
        upstream.ca_pem(),
        upstream.admin_token(),
    );
    let refused = "forward; reason=not-permitted";
    for _ in 0..2 {
        for (path, wanted) in [
            (path_of(0).as_str(), "snapshot"),
            (&path_of(1), refused),
            (&format!("{}&labelSelector=tier", path_of(1)), refused),
            ("/api/v1/pods?resourceVersion=0", refused),
            ("/api/v1/services?resourceVersion=0", refused),
            ("/api/v1/nodes?resourceVersion=0", "snapshot"),
        ] {
            assert_eq!(source(&proxied, path).await, wanted, "{path}");
            let [here, there] =
                [&proxied, &direct].map(|endpoint| endpoint.get(Protocol::Http2, path));
            assert_eq!(here.await.essence(), there.await.essence(), "{path}");
        }
    }
    assert_eq!(watches(&upstream), 1);
    let stopped =
        r#"watershed_scopes_stopped_total{group="",resource="services",reason="forbidden"}"#;
    assert!(has_counted(running.admin_address, stopped, 1).await);
    // After the right is given, the proxy retries the refused scope. Other scopes do not notice.
    upstream
        .access()
        .allow(AccessRule::read("sidecar", &["pods"]));
    eventually("the refused scope is cached", async || {
        match source(&proxied, &path_of(1)).await.as_str() {
            "snapshot" => Ok(()),
            other => Err(other.to_owned()),
        }
    })
    .await;
    assert_eq!(
        source(&proxied, "/api/v1/services?resourceVersion=0").await,
        refused
    );
    running.shut_down().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_type_closes_only_its_scopes() {
    let widgets = watershed_lab::sim::widgets();
    let fixture = Fixture::configured(small(), |config| {
        config.policy.scope_policy = ScopePolicy {
            selector_scopes: Some(true),
            ..ScopePolicy::default()
        };
    })
    .await;
    let state = fixture.upstream.state();
    let history = WriteHistory::new(state, 3);
    let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
    let beside = Follower::start(
        &connection,
        Interest::Namespace(fixtures::namespace_name(1)),
        Opening::List,
    );
    beside.judge(&history).await;
    let path = |namespace: &str| format!("/apis/example.com/v1/namespaces/{namespace}/widgets");
    let [here, there] = ["default", "kube-system"].map(path);
    let held = async |path: &str, wanted: &str| {
        becomes("the list's source", wanted.to_owned(), async || {
            source(&fixture.proxied, &format!("{path}?resourceVersion=0")).await
        })
        .await;
    };
    let mut watches = Vec::new();
    for path in [&here, &there] {
        held(path, "snapshot").await;
        watches.push(
            fixture
                .proxied
                .watch(
                    Protocol::Http2,
                    &format!("{path}?watch=1&resourceVersion=0"),
                )
                .await,
        );
    }
    let open = || {
        let all = fixture.upstream.stats().open_watches;
        all.get("widgets.example.com").copied().unwrap_or_default()
    };
    assert_eq!(open(), 2);
    state.serve_custom(&widgets, false);
    for watch in watches {
        assert_eq!(watch.rest().await.1, Next::End, "as upstream ends it");
    }
    held(&here, "forward; reason=unknown-type").await;
    becomes("watches of the removed type", 0, async || open()).await;
    history.writes(20).await;
    beside.judge_undisturbed(&history).await;
    state.serve_custom(&widgets, true);
    held(&there, "snapshot").await;
    assert_eq!(open(), 1, "a watch of the one requested namespace");
    beside.judge_undisturbed(&history).await;
    fixture.stop().await;
}

/// Measures an idle scope: a watch on a shared upstream connection, a task, and little memory.
#[expect(clippy::print_stdout, reason = "docs/benchmarks.md shows the figure")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_scopes_share_connections_and_use_little_memory() {
    const SCOPES: usize = 2_000;
    let quiet = Duration::from_mins(1);
    let upstream = SimulatedServer::start(Options {
        bookmark_every: quiet,
        progress_every: quiet,
        ..small()
    })
    .await
    .unwrap();
    let namespaces: Vec<_> = (0..SCOPES).map(|n| format!("tenant-{n}")).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    let text = format!(
        "scopes:\n- resource: configmaps\n  namespaces: [{}]\n",
        namespaces.join(", ")
    );
    std::fs::write(&file, text).unwrap();
    let program = Program::with(&upstream, &["--config", file.to_str().unwrap()]).await;
    let connection = program.proxied.connect(Protocol::Http2).await.unwrap();
    let pid = program.pid();
    let read = async |namespace: &str| {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps?resourceVersion=0");
        let answer = connection
            .read(Request::get(path).body(nothing()).unwrap())
            .await
            .unwrap();
        answer.header("x-watershed-source").to_owned()
    };
    assert_eq!(read(&namespaces[0]).await, "snapshot");
    let (before, connections) = (resident_memory(pid), upstream.stats().connections);
    for some in namespaces[1..].chunks(50) {
        let sources = join_all(some.iter().map(|namespace| read(namespace))).await;
        assert!(
            sources.iter().all(|source| source == "snapshot"),
            "{sources:?}"
        );
    }
    // A watch may be opened again after a stall.
    becomes("watches at upstream", SCOPES as u64, async || {
        upstream.stats().open_watches["configmaps"]
    })
    .await;
    let counts = upstream.stats();
    let each = (resident_memory(pid) - before) as f64 / 1024.0 / (SCOPES - 1) as f64;
    let further = counts.connections - connections;
    println!("{each:.1} KiB for each of {SCOPES} scopes, on {further} further connections");
    assert!(each < 64.0, "{each} KiB a scope");
    // A connection carries nearly a hundred streams. A few more connections serve short requests.
    assert!(further <= SCOPES as u64 / 100 + 4, "{further} connections");
    program.terminate().await;
    assert_eq!(program.ended().await.code(), Some(0));
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_open_no_more_scopes_is_forwarded_and_affects_no_other() {
    let fixture = Fixture::configured(small(), |config| {
        selector_scopes(8, 1)(config);
        config.policy.users.scopes = 1;
    })
    .await;
    let viewer = fixture.proxied.as_user(fixture.upstream.viewer_token());
    let [first, second] = [path_of(0), path_of(1)];
    let of_first = keep_open(&fixture.proxied, &first).await;
    assert_eq!(source(&fixture.proxied, &first).await, "snapshot");
    let forwarded = "forward; reason=not-covered";
    assert_eq!(source(&fixture.proxied, &second).await, forwarded);
    // Whoever opened it, it answers everybody.
    assert_eq!(source(&viewer, &first).await, "snapshot");
    let of_second = keep_open(&viewer, &second).await;
    assert_eq!(source(&viewer, &second).await, "snapshot");
    assert_eq!(source(&fixture.proxied, &second).await, "snapshot");
    // A scope that is closed no longer counts.
    drop((of_first, of_second));
    let third = path_of(2);
    eventually("another scope to be allowed", async || {
        match &*source(&fixture.proxied, &third).await {
            "snapshot" => Ok(()),
            other => Err(other.to_owned()),
        }
    })
    .await;
    fixture.stop().await;
}
