use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::body;
use crate::test_support::{
    Api, HTTP1, HTTP2, Pki, Settings, eventually, hanging, kubeconfig, read, soon, streamed, text,
    upstream_of,
};
use crate::upstream::UpstreamClient;
use crate::upstream::connection::ServedBy;
use watershed_connect::{Address, CONNECT_TIMEOUT};

mod answers;
mod elsewhere;
mod limits;
mod resends;

/// The settings of an HTTP/2 server that allows a hundred streams.
const SETTINGS: [u8; 15] = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100];

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(body::empty()).unwrap()
}

fn post(path: &str, content: &'static str) -> Request<Body> {
    Request::post(path).body(body::full(content)).unwrap()
}

async fn send(
    client: &UpstreamClient,
    request: Request<Body>,
) -> Result<Response<UpstreamBody>, UpstreamError> {
    soon(client.send(ConnectionClass::Short, request, SendOptions::default())).await
}

async fn fetch(client: &UpstreamClient, path: &str) -> String {
    read(send(client, get(path)).await.unwrap().into_body())
        .await
        .unwrap()
}

async fn client_of(pki: &Pki, api: &Api) -> UpstreamClient {
    UpstreamClient::new(&upstream_of(pki, api).await)
}

/// An HTTP/2 server without manners.
async fn raw_http2(
    pki: &Pki,
    answer: impl Fn(usize, h2::server::SendResponse<Bytes>) + Clone + Send + Sync + 'static,
) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let acceptor = pki.acceptor();
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let (acceptor, answer, counter) =
                (acceptor.clone(), answer.clone(), Arc::clone(&counter));
            tokio::spawn(async move {
                let tls = acceptor.accept(tcp).await.unwrap();
                let mut connection = h2::server::handshake(tls).await.unwrap();
                while let Some(Ok((_, respond))) = connection.accept().await {
                    answer(counter.fetch_add(1, Ordering::AcqRel), respond);
                }
            });
        }
    });
    (address, requests)
}

#[tokio::test]
async fn a_full_connection_is_followed_by_another() {
    let pki = Pki::new();
    for (peers, streams, connections) in [(250, 150, 2), (10, 25, 3)] {
        let settings = Settings {
            http2: true,
            streams: peers,
        };
        let api = Api::start(&pki, settings, |_, _| async { Response::new(hanging()) }).await;
        let client = client_of(&pki, &api).await;
        let open = join_all((0..streams).map(|_| send(&client, get("/watch")))).await;
        assert!(open.iter().all(Result::is_ok));
        assert_eq!(
            api.accepted(),
            connections,
            "{streams} streams, {peers} allowed by the peer"
        );

        // Streams that end make room again.
        drop(open);
        let again = join_all((0..streams).map(|_| send(&client, get("/watch")))).await;
        assert!(again.iter().all(Result::is_ok));
        assert_eq!(api.accepted(), connections);
    }
}

#[tokio::test]
async fn classes_do_not_share_connections() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |_, conn| async move {
        text(conn.number.to_string())
    })
    .await;
    let client = client_of(&pki, &api).await;
    let mut numbers = Vec::new();
    for class in [
        ConnectionClass::Watch,
        ConnectionClass::Short,
        ConnectionClass::LongForward,
        ConnectionClass::Relayed,
    ] {
        let response = soon(client.send(class, get("/"), SendOptions::default()))
            .await
            .unwrap();
        numbers.push(read(response.into_body()).await.unwrap());
    }
    assert_eq!(numbers, ["0", "1", "2", "3"]);
}

#[tokio::test]
async fn relayed_requests_share_connections_only_where_there_can_be_no_more() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |request, conn| async move {
        match request.uri().path() {
            "/open" => Response::new(hanging()),
            _ => text(conn.number.to_string()),
        }
    })
    .await;
    let upstream = upstream_of(&pki, &api).await;
    let limits = PoolLimits {
        relayed: 2,
        ..PoolLimits::default()
    };
    let pool = Pool::new(
        &upstream,
        TlsIdentity::NoCertificate,
        &Arc::default(),
        &limits,
    );
    let ask = async |path: &str| {
        let class = ConnectionClass::Relayed;
        soon(pool.send(class, get(path), SendOptions::default())).await
    };
    let asked = async || {
        let response = ask("/").await.unwrap();
        read(response.into_body()).await.unwrap()
    };
    let unused = || {
        let state = pool.group(ConnectionClass::Relayed).state.lock();
        state.http2.iter().filter(|it| it.streams() == 0).count()
    };
    for _ in 0..2 {
        assert_eq!(asked().await, "0");
        eventually(|| unused() == 1).await;
    }
    let first = ask("/open").await.unwrap();
    assert_eq!(asked().await, "1", "the first is in use");
    eventually(|| unused() == 1).await;
    let rest = [ask("/open").await, ask("/open").await, ask("/open").await];
    assert!(
        rest.iter().all(Result::is_ok),
        "they are shared at the limit"
    );
    assert_eq!(api.accepted(), 2);
    drop((first, rest));
}

#[tokio::test]
async fn many_relayed_requests_share_connections() {
    const ALONE: usize = 20;
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |_, _| async { Response::new(hanging()) }).await;
    let upstream = upstream_of(&pki, &api).await;
    let limits = PoolLimits {
        alone: ALONE,
        ..PoolLimits::default()
    };
    for at_once in [true, false] {
        let before = api.accepted();
        let pool = Pool::new(
            &upstream,
            TlsIdentity::NoCertificate,
            &Arc::default(),
            &limits,
        );
        let class = ConnectionClass::Relayed;
        let ask = || soon(pool.send(class, get("/"), SendOptions::default()));
        let mut open = Vec::new();
        if at_once {
            open.extend(join_all((0..ALONE).map(|_| ask())).await);
        } else {
            for _ in 0..3 * ALONE {
                open.push(ask().await);
            }
        }
        assert!(open.iter().all(Result::is_ok));
        let accepted = api.accepted() - before;
        // Of many at once, some may have to share.
        let least = if at_once { 16 } else { ALONE };
        assert!((least..=ALONE).contains(&accepted), "{accepted}");
        let state = pool.group(class).state.lock();
        let most = state.http2.iter().map(|it| it.streams()).max();
        assert!(
            at_once || most == Some(3),
            "they are spread evenly: {most:?}"
        );
    }
}

#[tokio::test]
async fn http1_connections_serve_one_request_after_the_other() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP1, |request, _| async move {
        if request.uri().path() == "/watch" {
            Response::new(hanging())
        } else {
            text("hello")
        }
    })
    .await;
    let client = client_of(&pki, &api).await;
    for _ in 0..3 {
        assert_eq!(fetch(&client, "/").await, "hello");
        // The connection comes back a moment after the answer's end.
        eventually(|| !waiting(&client).is_empty()).await;
    }
    assert_eq!(api.accepted(), 1);

    let watches = join_all((0..3).map(|_| send(&client, get("/watch")))).await;
    assert_eq!(api.accepted(), 3);
    assert!(waiting(&client).is_empty());
    drop(watches);
    eventually(|| api.open() == 0).await;
}

fn waiting(client: &UpstreamClient) -> Vec<Address> {
    let group = client.pool().group(ConnectionClass::Short);
    group
        .idle_http1
        .connections
        .lock()
        .iter()
        .map(|connection| connection.address.clone())
        .collect()
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let pki = Pki::new();
    for settings in [HTTP2, HTTP1] {
        let api = Api::start(&pki, settings, |request, _| async move {
            if request.uri().path() == "/watch" {
                Response::new(hanging())
            } else {
                text("hello")
            }
        })
        .await;
        let client = client_of(&pki, &api).await;
        let watch = send(&client, get("/watch")).await.unwrap();
        fetch(&client, "/").await;
        let group = client.pool().group(ConnectionClass::Short);
        group.sweep(Duration::ZERO);
        eventually(|| {
            group.sweep(Duration::ZERO);
            api.open() == 1
        })
        .await;
        drop(watch);
        eventually(|| {
            group.sweep(Duration::ZERO);
            api.open() == 0
        })
        .await;
    }
}

#[tokio::test]
async fn addresses_fail_over() {
    let pki = Pki::new();
    let closed = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let api = Api::start(&pki, HTTP2, |_, _| async { text("hello") }).await;
    let (_dir, mut options) = kubeconfig(&pki, "https://127.0.0.1:1");
    options.servers = vec![format!("https://{closed}"), api.url()];
    let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
    for _ in 0..4 {
        let fresh = SendOptions {
            fresh_connection: true,
            ..SendOptions::default()
        };
        let response = soon(client.send(ConnectionClass::Short, get("/"), fresh))
            .await
            .unwrap();
        assert_eq!(read(response.into_body()).await.unwrap(), "hello");
    }

    options.servers.pop();
    let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
    let error = send(&client, get("/")).await.unwrap_err();
    assert!(matches!(error, UpstreamError::Connect { .. }));
    assert!(error.to_string().contains(&closed.to_string()), "{error}");
}

#[tokio::test]
async fn a_failed_connection_fails_every_request_that_waits_for_it() {
    let pki = Pki::new();
    let closed = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let (_dir, options) = kubeconfig(&pki, &format!("https://{closed}"));
    let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
    let results = join_all((0..200).map(|_| send(&client, get("/")))).await;
    assert!(results.iter().all(Result::is_err));
}
