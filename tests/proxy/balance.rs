//! Clients move to another replica behind a load balancer (`--goaway-chance`).
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Method, Request, StatusCode};
use parking_lot::Mutex;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use crate::support::client::{Connection, Protocol, nothing, whole, within};
use crate::support::follower::{Follower, Opening};
use crate::support::frames::{
    ACK, END_HEADERS, END_STREAM, Frames, HEADERS, PING, WINDOW_UPDATE, block, frame, get,
};
use crate::support::history::{Interest, WriteHistory};
use crate::support::{Fixture, eventually, loopback, small, start_configured, unless_stalled};
use crate::trees::Tier;

/// A load balancer of connections, which gives each to the next target.
pub(crate) struct Balancer {
    pub(crate) address: SocketAddr,
    pub(crate) targets: Arc<Mutex<Vec<SocketAddr>>>,
    /// Connections so far.
    accepted: Arc<AtomicUsize>,
}

impl Balancer {
    pub(crate) async fn new(target: SocketAddr) -> Self {
        let listener = TcpListener::bind(loopback()).await.unwrap();
        let balancer = Self {
            address: listener.local_addr().unwrap(),
            targets: Arc::new(Mutex::new(vec![target])),
            accepted: Arc::default(),
        };
        let (targets, accepted) = (
            Arc::clone(&balancer.targets),
            Arc::clone(&balancer.accepted),
        );
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let number = accepted.fetch_add(1, Ordering::Relaxed);
                let target = {
                    let targets = targets.lock();
                    targets[number % targets.len()]
                };
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(target).await else {
                        return;
                    };
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        balancer
    }
}

async fn create(connection: &Connection, name: &str) -> StatusCode {
    let body = format!(r#"{{"metadata":{{"name":"{name}","namespace":"default"}}}}"#);
    let request = Request::builder()
        .method(Method::POST)
        .uri("/api/v1/namespaces/default/configmaps")
        .header("content-type", "application/json")
        .body(whole(body))
        .unwrap();
    within(name, connection.read(request)).await.unwrap().status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_when_its_connection_takes_no_more_requests() {
    let fixture = Fixture::configured(small(), |config| config.limits.goaway_chance = 1.0).await;
    let history = WriteHistory::new(fixture.upstream.state(), 1);
    let connection = fixture.proxied.connect(Protocol::Http2).await.unwrap();
    let follower = Follower::start(&connection, Interest::All, Opening::WatchList);
    follower.judge(&history).await;
    eventually("GOAWAY", async || {
        let request = Request::get("/version").body(nothing()).unwrap();
        match connection.read(request).await {
            Err(_) => Ok(()),
            Ok(answer) => Err(format!("{answer:?}")),
        }
    })
    .await;
    history.writes(100).await;
    follower.judge_undisturbed(&history).await;
    let plain = fixture.proxied.connect(Protocol::Http1).await.unwrap();
    for _ in 0..2 {
        let request = Request::get("/version").body(nothing()).unwrap();
        let answer = within("HTTP/1.1", plain.read(request)).await.unwrap();
        assert_eq!(answer.status, StatusCode::OK);
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_move_to_a_new_replica_and_lose_nothing() {
    // A leaf is the client: as client-go does, it sends what was not processed again.
    let fixture = Fixture::configured(small(), |config| config.limits.goaway_chance = 0.3).await;
    let token = fixture.upstream.admin_token();
    let history = WriteHistory::new(fixture.upstream.state(), 1);
    let balancer = Balancer::new(fixture.proxied.address).await;
    let leaf = Tier::unverified(balancer.address, token).await;
    let connection = leaf.endpoint(token).connect(Protocol::Http2).await.unwrap();
    let follower = Follower::start(&connection, Interest::All, Opening::List);
    follower.judge(&history).await;

    let kubeconfig = fixture.upstream.kubeconfig_yaml();
    let second = start_configured(&kubeconfig, |config| {
        config.limits.goaway_chance = 0.3;
    });
    let second = Tier::new(second.await.unwrap());
    balancer.targets.lock().push(second.address());
    let before = balancer.accepted.load(Ordering::Relaxed);
    for n in 0..100 {
        assert_eq!(
            create(&connection, &format!("n{n}")).await,
            StatusCode::CREATED
        );
    }
    history.writes(50).await;
    follower.judge_undisturbed(&history).await;
    let moved = balancer.accepted.load(Ordering::Relaxed) - before;
    assert!(moved >= 5, "{moved} new connections after 100 requests");
    leaf.stop().await;
    second.stop().await;
    fixture.stop().await;
}

/// An API server does the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_takes_no_more_requests_after_an_unknown_caller() {
    let fixture = Fixture::start(small()).await;
    let stranger = fixture.proxied.as_user("no-token");
    for path in ["/api/v1/pods?resourceVersion=0", "/version"] {
        let connection = stranger.connect(Protocol::Http2).await.unwrap();
        eventually("GOAWAY", async || {
            let request = Request::get(path).body(nothing()).unwrap();
            match connection.read(request).await {
                Err(_) => Ok(()),
                Ok(answer) => {
                    assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
                    Err(format!("{answer:?}"))
                }
            }
        })
        .await;
    }
    fixture.stop().await;
}

/// A reset would cost a client answers that it has received and not yet read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_connection_does_not_reset_a_client_that_still_writes() {
    let fixture = Fixture::start(small()).await;
    let head = block(&get("/version", "Bearer no-token"));
    let request = frame(HEADERS, END_STREAM | END_HEADERS, 1, &head);
    let window = frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes());
    unless_stalled("writes after the end", async || {
        let mut frames = Frames::open(&fixture.proxied, 1 << 20).await;
        assert!(frames.send(&request).await, "the connection is open");
        // With it comes the first GOAWAY, and the second one follows the answer to it.
        let ping = frames.find(|received| received.kind == PING).await;
        let payload = ping.expect("GOAWAY").payload;
        assert!(
            frames.send(&frame(PING, ACK, 0, &payload)).await,
            "it is open"
        );
        frames.closed().await;
        for writes in 0..10 {
            if !frames.send(&window).await {
                return Err(format!("a reset after {writes} writes"));
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    })
    .await;
    fixture.stop().await;
}
