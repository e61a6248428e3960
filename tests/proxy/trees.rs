//! Trees of proxies, whose upstream is a proxy, and loops of them.
use std::net::SocketAddr;
use std::time::Instant;

use base64::Engine as _;
use futures_util::future::join_all;
use http::{Request, StatusCode};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use watershed::app::RunningProxy;
use watershed::upstream::ListCompression;
use watershed_lab::sim::SimulatedServer;
use watershed_protocol::GroupVersionResource;

use crate::consistent_reads::{PODS, names, source, version};
use crate::node_start::on_node;
use crate::support::client::{Answer, Endpoint, Protocol, nothing, within};
use crate::support::follower::{Follower, Opening};
use crate::support::history::{Interest, WriteHistory};
use crate::support::program::Program;
use crate::support::{
    Fixture, becomes, eventually, has_counted, loopback, plain_request, small, start_configured,
    start_proxy, unless_stalled, with_secrets,
};

/// A proxy and its folder.
pub(crate) struct Tier {
    pub(crate) running: RunningProxy,
    _folder: TempDir,
    ca: String,
}

impl Tier {
    async fn start(kubeconfig: &str) -> Self {
        Self::new(start_proxy(kubeconfig).await.unwrap())
    }

    /// Starts a proxy that does not verify its upstream's certificate.
    pub(crate) async fn unverified(upstream: SocketAddr, token: &str) -> Self {
        let server = format!("server: https://{upstream}, insecure-skip-tls-verify: true");
        let kubeconfig = kubeconfig(&server, token);
        let started = start_configured(&kubeconfig, |config| {
            config.upstream.allow_insecure = true;
        });
        Self::new(started.await.unwrap())
    }

    pub(crate) fn new((running, folder): (RunningProxy, TempDir)) -> Self {
        let ca = std::fs::read_to_string(running.ca_file.as_ref().unwrap()).unwrap();
        Self {
            running,
            _folder: folder,
            ca,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.running.address.unwrap()
    }

    pub(crate) fn endpoint(&self, token: &str) -> Endpoint {
        Endpoint::new(self.address(), &self.ca, token)
    }

    /// Returns the kubeconfig of a proxy behind this one.
    fn kubeconfig(&self, token: &str) -> String {
        let ca = base64::engine::general_purpose::STANDARD.encode(&self.ca);
        let address = self.address();
        let server = format!("server: https://{address}, certificate-authority-data: {ca}");
        kubeconfig(&server, token)
    }

    pub(crate) async fn status(&self) -> Value {
        let admin = self.running.admin_address;
        let host = admin.to_string();
        let answer = plain_request(admin, "GET", "/status.json", &[("Host", &host)]).await;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    pub(crate) async fn stop(self) {
        self.running.shut_down().await;
    }
}

pub(crate) fn kubeconfig(server: &str, token: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: main\n\
         clusters: [{{name: main, cluster: {{{server}}}}}]\n\
         users: [{{name: main, user: {{token: {token}}}}}]\n\
         contexts: [{{name: main, context: {{cluster: main, user: main}}}}]\n"
    )
}

/// An address whose connections lead to a server that is known later, and can change.
struct LaterAddress {
    address: SocketAddr,
    target: watch::Sender<Option<SocketAddr>>,
}

impl LaterAddress {
    /// Connections close at once until the target is set.
    async fn new() -> Self {
        let listener = TcpListener::bind(loopback()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, target) = watch::channel(None);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut target = target.clone();
                let Some(to) = *target.borrow_and_update() else {
                    continue;
                };
                tokio::spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(to).await {
                        tokio::select! {
                            _ = copy_bidirectional(&mut client, &mut server) => {}
                            _ = target.changed() => {}
                        }
                    }
                });
            }
        });
        Self {
            address,
            target: sender,
        }
    }

    /// Has new connections lead to this server.
    fn lead_to(&self, target: SocketAddr) {
        self.target.send_replace(Some(target));
    }

    /// Cuts all connections. New ones are closed at once.
    fn cut(&self) {
        self.target.send_replace(None);
    }
}

fn read(answer: &Answer, what: &str) -> String {
    answer.json()[what].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_shows_the_proxies_before_the_api_server() {
    let fixture = Fixture::start(small()).await;
    let token = fixture.upstream.admin_token();
    let middle = Tier::unverified(fixture.proxied.address, token).await;
    let leaf = Tier::start(&middle.kubeconfig(token)).await;
    // The first answers of a proxy may precede its upstream's.
    becomes("the middle proxy knows its upstream", 1, async || {
        middle.status().await["upstream"]["proxies"]
            .as_array()
            .unwrap()
            .len()
    })
    .await;
    eventually("the leaf knows both proxies", async || {
        leaf.endpoint(token).get(Protocol::Http2, PODS).await;
        let upstream = leaf.status().await["upstream"].clone();
        let middle = middle.status().await["upstream"].clone();
        let wanted = [&middle["id"], &middle["proxies"][0]];
        let shown: Vec<_> = upstream["proxies"].as_array().unwrap().iter().collect();
        let is_as_wanted = shown == wanted && upstream["isLoop"] == false;
        is_as_wanted.then_some(()).ok_or(upstream.to_string())
    })
    .await;
    let admin = leaf.running.admin_address;
    let host = admin.to_string();
    let page = plain_request(admin, "GET", "/status", &[("Host", &host)]).await;
    assert!(
        page.contains("the first of 2 watersheds before the API server"),
        "{page}"
    );
    for path in [PODS, "/api/v1/pods?resourceVersion=0", "/version"] {
        let answer = leaf.endpoint(token).get(Protocol::Http2, path).await;
        let header = answer.headers.get("x-watershed-via");
        assert_eq!(header, None, "{path}: the client is no proxy");
    }
    leaf.stop().await;
    middle.stop().await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consistent_reads_of_many_leaves_cost_the_api_server_a_few_requests() {
    let fixture = Fixture::start(small()).await;
    let token = fixture.upstream.admin_token();
    let mut leaves = Vec::new();
    for _ in 0..4 {
        leaves.push(Tier::unverified(fixture.proxied.address, token).await);
    }
    let endpoints: Vec<_> = leaves.iter().map(|leaf| leaf.endpoint(token)).collect();
    for endpoint in &endpoints {
        becomes("memory answers", "linearizable".to_owned(), async || {
            source(&endpoint.get(Protocol::Http2, PODS).await).to_owned()
        })
        .await;
    }
    let mut connections = Vec::new();
    for endpoint in &endpoints {
        connections.push(endpoint.connect(Protocol::Http2).await.unwrap());
    }
    let direct = names(&fixture.direct.get(Protocol::Http2, PODS).await);
    let lists = || fixture.upstream.stats().requests_on("LIST", "pods");
    // Reads that wait for too long are forwarded.
    unless_stalled("reads share proofs", async || {
        let (begun, before) = (Instant::now(), lists());
        let written = fixture.upstream.state().version();
        let reads = (0..120).map(|n| {
            let connection = connections[n % connections.len()].clone();
            async move {
                let request = Request::get(PODS).body(nothing()).unwrap();
                within(PODS, connection.read(request)).await.unwrap()
            }
        });
        for answer in join_all(reads).await {
            if answer.status != StatusCode::OK {
                return Err(format!("{answer:?}"));
            }
            assert_eq!(names(&answer), direct);
            assert!(version(&answer) >= written, "no older than the request");
        }
        match lists() - before {
            0..=20 => Ok(()),
            more => Err(format!("{more} lists in {:?}", begun.elapsed())),
        }
    })
    .await;
    for leaf in leaves {
        leaf.stop().await;
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_proxies_of_many_nodes_follow_rbac_without_lists_at_the_api_server() {
    let fixture = Fixture::start(small()).await;
    let token = fixture.upstream.admin_token();
    let server = fixture.proxied.address;
    let server = format!("server: https://{server}, insecure-skip-tls-verify: true");
    let kubeconfig = kubeconfig(&server, token);
    let namespaces = GroupVersionResource::new("", "v1", "namespaces");
    let kinds = ["clusterroles", "clusterrolebindings"];
    let kinds = kinds.map(|kind| format!("{kind}.rbac.authorization.k8s.io"));
    let asked = || {
        let stats = fixture.upstream.stats();
        kinds.each_ref().map(|kind| {
            let of = |verb| stats.requests_on(verb, kind);
            (of("LIST"), of("WATCH"))
        })
    };
    let mut leaves = Vec::new();
    let mut before = None;
    for number in 0..5 {
        // What the tier has is not the most recent version any more.
        let name = format!(r#"{{"metadata":{{"name":"other-{number}"}}}}"#);
        let state = fixture.upstream.state();
        state.create(&namespaces, &name).unwrap();
        let leaf = start_configured(&kubeconfig, |config| {
            config.upstream.allow_insecure = true;
            on_node(config);
        });
        let leaf = Tier::new(leaf.await.unwrap());
        becomes("the types of RBAC that the leaf follows", 2, async || {
            let status = leaf.status().await;
            let scopes = status["scopes"].as_array().unwrap().iter();
            scopes.filter(|scope| scope["phase"] == "ready").count()
        })
        .await;
        leaves.push(leaf);
        // The first leaf has the tier open its own watches.
        assert_eq!(*before.get_or_insert_with(asked), asked(), "{number}");
    }
    for leaf in leaves {
        leaf.stop().await;
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaf_takes_compressed_streams_and_receives_the_same_events() {
    let fixture = Fixture::start(small()).await;
    let token = fixture.upstream.admin_token();
    let history = WriteHistory::new(fixture.upstream.state(), 1);
    let packed = Tier::unverified(fixture.proxied.address, token).await;
    let server = fixture.proxied.address;
    let server = format!("server: https://{server}, insecure-skip-tls-verify: true");
    let plain = start_configured(&kubeconfig(&server, token), |config| {
        config.upstream.allow_insecure = true;
        config.scopes.compression = ListCompression::Never;
    })
    .await;
    let plain = Tier::new(plain.unwrap());
    let mut followers = Vec::new();
    for tier in [&plain, &packed] {
        let connection = tier.endpoint(token).connect(Protocol::Http2).await.unwrap();
        let follower = Follower::start(&connection, Interest::All, Opening::List);
        follower.synced().await;
        followers.push(follower);
    }
    history.writes(300).await;
    for follower in &followers {
        follower.judge_undisturbed(&history).await;
    }
    let received = async |tier: &Tier| {
        let traffic = tier.status().await["upstream"]["traffic"].clone();
        let rows = traffic.as_array().unwrap().iter();
        let of_types = rows.filter(|row| row["purpose"] == "watch" || row["purpose"] == "list");
        of_types
            .map(|row| row["receivedBytes"].as_u64().unwrap())
            .sum::<u64>()
    };
    let (plain_bytes, packed_bytes) = (received(&plain).await, received(&packed).await);
    assert!(
        packed_bytes * 3 < plain_bytes * 2,
        "{packed_bytes} bytes compressed, and {plain_bytes} plain"
    );
    packed.stop().await;
    plain.stop().await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_go_on_at_the_same_tier_need_no_list() {
    let fixture = Fixture::start(small()).await;
    let token = fixture.upstream.admin_token();
    let path = "/api/v1/configmaps?resourceVersion=0";
    let another = Tier::unverified(fixture.direct.address, token).await;
    let is_held = async |endpoint: &Endpoint| {
        becomes("an answer from memory", true, async || {
            source(&endpoint.get(Protocol::Http2, path).await) == "snapshot"
        })
        .await;
    };
    // A tier that does not hold the type yet forwards its first watches.
    is_held(&fixture.proxied).await;
    is_held(&another.endpoint(token)).await;
    let way = LaterAddress::new().await;
    way.lead_to(fixture.proxied.address);
    let leaf = Tier::unverified(way.address, token).await;
    is_held(&leaf.endpoint(token)).await;
    let is_followed = async || {
        let status = leaf.status().await;
        let mut scopes = status["scopes"].as_array().unwrap().iter();
        let config_maps = scopes.find(|scope| scope["resource"] == "configmaps");
        config_maps.unwrap()["following"] == true
    };
    let lists = || fixture.upstream.stats().requests_on("LIST", "configmaps");
    let costs_a_list = async |tier: SocketAddr| {
        let before = lists();
        way.cut();
        becomes("the watch is lost", false, is_followed).await;
        way.lead_to(tier);
        becomes("the watch goes on", true, is_followed).await;
        lists() > before
    };
    // A watch that is cut before its server told its release has the objects read again.
    let same = fixture.proxied.address;
    becomes("a list", false, async || costs_a_list(same).await).await;
    assert!(costs_a_list(another.address()).await);
    let same = another.address();
    becomes("a list", false, async || costs_a_list(same).await).await;
    leaf.stop().await;
    another.stop().await;
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_proxies_name_their_history_until_the_type_is_listed_again() {
    let fixture = Fixture::start(small()).await;
    let name = async |is_proxy: bool| {
        let path = "/api/v1/configmaps?watch=1&resourceVersion=0&timeoutSeconds=1";
        let mut request = Request::get(path);
        if is_proxy {
            request = request.header("x-watershed-via", "0123456789abcdef");
        }
        let request = request.body(nothing()).unwrap();
        let answer = fixture
            .proxied
            .send(Protocol::Http2, request)
            .await
            .unwrap();
        answer.headers.get("x-watershed-history").cloned()
    };
    let is_named = async || name(true).await.is_some();
    becomes("a name of the history", true, is_named).await;
    let first = name(true).await;
    assert_eq!(name(true).await, first);
    assert_eq!(name(false).await, None);
    let (state, faults) = (fixture.upstream.state(), fixture.upstream.faults());
    faults.stall_watches();
    let config_maps = GroupVersionResource::new("", "v1", "configmaps");
    let new = r#"{"metadata":{"name":"new","namespace":"team-00"}}"#;
    state.create(&config_maps, new).unwrap();
    state.forget_history();
    faults.cut_watches();
    becomes("another name", true, async || {
        let next = name(true).await;
        next.is_some() && next != first
    })
    .await;
    fixture.stop().await;
}

/// The proxy in between forwards the watch: it has no such history.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarded_answers_name_no_history() {
    let fixture = Fixture::configured(small(), with_secrets).await;
    let token = fixture.upstream.admin_token();
    let middle = Tier::unverified(fixture.proxied.address, token).await;
    let name = async |endpoint: &Endpoint| {
        let path = "/api/v1/secrets?watch=1&resourceVersion=0&timeoutSeconds=1";
        let request = Request::get(path).header("x-watershed-via", "0123456789abcdef");
        let request = request.body(nothing()).unwrap();
        let answer = endpoint.send(Protocol::Http2, request).await.unwrap();
        assert_eq!(answer.status, StatusCode::OK);
        answer.headers.get("x-watershed-history").cloned()
    };
    let is_named = async || name(&fixture.proxied).await.is_some();
    becomes("a name of the history", true, is_named).await;
    assert_eq!(name(&middle.endpoint(token)).await, None);
    middle.stop().await;
    fixture.stop().await;
}

/// Checks that requests through proxies in a circle end with a clear refusal.
async fn assert_refused(tiers: &[&Tier], token: &str) {
    for tier in tiers {
        let answer = tier.endpoint(token).get(Protocol::Http2, PODS).await;
        assert_eq!(answer.status, StatusCode::LOOP_DETECTED);
        assert_eq!(read(&answer, "reason"), "LoopDetected");
        let message = read(&answer, "message");
        assert!(
            message.contains("its upstream leads to itself"),
            "{message}"
        );
        eventually("the status page shows the loop", async || {
            let upstream = tier.status().await["upstream"].clone();
            let is_loop = upstream["isLoop"] == true;
            is_loop.then_some(()).ok_or(upstream.to_string())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_leads_to_itself_refuses() {
    let server = SimulatedServer::start(small()).await.unwrap();
    let token = server.admin_token();
    let later = LaterAddress::new().await;
    let proxy = Tier::unverified(later.address, token).await;
    later.lead_to(proxy.address());
    assert_refused(&[&proxy], token).await;
    let series = r#"watershed_loops_refused_total{reason="loop"}"#;
    assert!(has_counted(proxy.running.admin_address, series, 1).await);
    proxy.stop().await;
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxies_that_lead_to_each_other_refuse() {
    let server = SimulatedServer::start(small()).await.unwrap();
    let token = server.admin_token();
    let later = LaterAddress::new().await;
    let first = Tier::unverified(later.address, token).await;
    let second = Tier::unverified(first.address(), token).await;
    later.lead_to(second.address());
    assert_refused(&[&first, &second], token).await;
    second.stop().await;
    first.stop().await;
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_that_no_proxy_wrote_is_refused() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let program = Program::start(&upstream).await;
    let sent = async |value: &str| {
        let request =
            Request::get("/api/v1/pods?resourceVersion=0").header("x-watershed-via", value);
        let request = request.body(nothing()).unwrap();
        program
            .proxied
            .send(Protocol::Http2, request)
            .await
            .unwrap()
    };
    let damaged = sent("nonsense").await;
    assert_eq!(damaged.status, StatusCode::BAD_REQUEST);
    let long = ["0123456789abcdef"; 8].join(", ");
    let refused = sent(&long).await;
    assert_eq!(refused.status, StatusCode::LOOP_DETECTED);
    for answer in [&damaged, &refused] {
        assert!(!answer.header("audit-id").is_empty());
        assert_eq!(answer.headers.get("x-watershed-via"), None);
    }
    for reason in ["malformed", "too-many-proxies"] {
        let series = format!(r#"watershed_loops_refused_total{{reason="{reason}"}}"#);
        assert!((program.metric(&series).await - 1.0).abs() < f64::EPSILON);
    }
    let words = [
        "malformed x-watershed-via header: no watershed wrote it",
        "127.0.0.1",
    ];
    program.until_logged(&words).await;
    let answer = sent("0123456789abcdef").await;
    assert_eq!(answer.status, StatusCode::OK);
    let ids = answer.header("x-watershed-via").to_owned();
    assert_eq!(ids.len(), 16);
    // The id is no mark: it neither ends the request nor raises the alarm.
    assert_eq!(sent(&ids).await.status, StatusCode::OK);
    program.kill().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_learn_of_no_proxy() {
    let fixture = Fixture::start(small()).await;
    let token = fixture.upstream.admin_token();
    let middle = Tier::unverified(fixture.proxied.address, token).await;
    becomes("the middle proxy knows its upstream", 1, async || {
        let upstream = middle.status().await["upstream"].clone();
        upstream["proxies"].as_array().unwrap().len()
    })
    .await;
    let stranger = middle.endpoint("nobody-has-this-token");
    for path in [
        PODS,
        "/api/v1/pods?resourceVersion=0",
        "/version",
        "/healthz",
    ] {
        let request = Request::get(path).header("x-watershed-via", "0123456789abcdef");
        let request = request.body(nothing()).unwrap();
        let answer = stranger.send(Protocol::Http2, request).await.unwrap();
        assert_eq!(answer.headers.get("x-watershed-via"), None, "{path}");
    }
    middle.stop().await;
    fixture.stop().await;
}
