use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rustls::RootCertStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::*;
use crate::body::{self, Body};
use crate::drain;
use crate::listener::connection::Peer;
use crate::test_support::{
    connect, connect_after, eventually, get, get2, http1_client, http2_client, read, roots, soon,
    streamed, text, tls_options,
};

struct Server {
    address: SocketAddr,
    roots: RootCertStore,
    trigger: drain::DrainTrigger,
    served: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Server {
    async fn start(limits: ConnectionLimits) -> Server {
        Self::behind(TrustedProxies::default(), limits).await
    }

    async fn behind(balancers: TrustedProxies, limits: ConnectionLimits) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let tls = ServerTls::load(tls_options(&dir)).await.unwrap();
        let roots = roots(&std::fs::read_to_string(tls.ca_file().unwrap()).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (trigger, watch) = drain::channel();
        let service = {
            let watch = watch.clone();
            move |mut request: Request<Incoming>, peer: Peer| {
                let watch = watch.clone();
                async move {
                    if request.uri().path() == "/tunnel" {
                        tunnel(&mut request)
                    } else {
                        answer(&request, &peer, watch)
                    }
                }
            }
        };
        let served = tokio::spawn(serve(listener, tls, service, limits, balancers, watch));
        Server {
            address,
            roots,
            trigger,
            served,
            _dir: dir,
        }
    }

    async fn http1(&self) -> hyper::client::conn::http1::SendRequest<Body> {
        http1_client(
            connect(self.address, &self.roots, b"http/1.1", None)
                .await
                .unwrap(),
        )
        .await
    }

    async fn http2(&self) -> hyper::client::conn::http2::SendRequest<Body> {
        http2_client(
            connect(self.address, &self.roots, b"h2", None)
                .await
                .unwrap(),
        )
        .await
    }
}

fn answer(request: &Request<Incoming>, peer: &Peer, drain: drain::DrainWatch) -> Response<Body> {
    match request.uri().path() {
        "/panic" => panic!("on purpose"),
        // Ends with the drain, as a good watch does.
        "/watch" => {
            let last = futures_util::stream::once(async move {
                drain.draining().await;
                Ok(Bytes::from_static(b"bookmark\n"))
            });
            let first = futures_util::stream::iter([Ok(Bytes::from_static(b"open\n"))]);
            Response::new(streamed(futures_util::StreamExt::chain(first, last)))
        }
        "/known" => {
            peer.connection.set_known();
            text("known")
        }
        "/stuck" => Response::new(crate::test_support::hanging()),
        _ => text(format!(
            "{:?} from {}",
            request.version(),
            peer.address.ip()
        )),
    }
}

/// Switches protocols, and reads until the client is gone.
fn tunnel(request: &mut Request<Incoming>) -> Response<Body> {
    let upgrade = hyper::upgrade::on(request);
    tokio::spawn(async move {
        let mut tunnel = hyper_util::rt::TokioIo::new(upgrade.await.unwrap());
        let _ = tunnel.read_to_end(&mut Vec::new()).await;
    });
    Response::builder()
        .status(http::StatusCode::SWITCHING_PROTOCOLS)
        .header("connection", "upgrade")
        .header("upgrade", "test")
        .body(body::empty())
        .unwrap()
}

#[tokio::test]
async fn both_protocols_are_served() {
    let server = Server::start(ConnectionLimits::default()).await;
    let answer = soon(server.http1().await.send_request(get("/")))
        .await
        .unwrap();
    assert_eq!(read(answer).await.unwrap(), "HTTP/1.1 from 127.0.0.1");
    let answer = soon(server.http2().await.send_request(get2("/")))
        .await
        .unwrap();
    assert_eq!(read(answer).await.unwrap(), "HTTP/2.0 from 127.0.0.1");
}

#[tokio::test]
async fn a_balancer_tells_the_clients_address() {
    let loopback = TrustedProxies::new(["127.0.0.0/8".parse().unwrap()]);
    let limits = ConnectionLimits {
        connections_per_address: Some(1),
        ..ConnectionLimits::default()
    };
    let server = Server::behind(loopback, limits).await;
    let through = async |header: &[u8]| {
        connect_after(header, server.address, &server.roots, b"http/1.1", None).await
    };
    let header = b"PROXY TCP4 192.0.2.1 10.0.0.1 8080 443\r\n";
    let mut client = http1_client(through(header).await.unwrap()).await;
    let answer = soon(client.send_request(get("/"))).await.unwrap();
    assert_eq!(read(answer).await.unwrap(), "HTTP/1.1 from 192.0.2.1");
    assert!(
        through(header).await.is_err(),
        "the client's connections are limited"
    );
    let other = b"PROXY TCP4 192.0.2.2 10.0.0.1 8080 443\r\n";
    let _other = through(other).await.unwrap();
    let _own = through(b"PROXY UNKNOWN\r\n").await.unwrap();
    assert!(through(b"").await.is_err(), "there is no header");
    assert!(through(b"PROXY TCP4 1.2.3.4\r\n").await.is_err());
}

#[tokio::test]
async fn only_a_balancer_tells_a_clients_address() {
    let elsewhere = TrustedProxies::new(["192.0.2.0/24".parse().unwrap()]);
    let server = Server::behind(elsewhere, ConnectionLimits::default()).await;
    let answer = soon(server.http1().await.send_request(get("/")))
        .await
        .unwrap();
    assert_eq!(read(answer).await.unwrap(), "HTTP/1.1 from 127.0.0.1");
    let header = b"PROXY TCP4 192.0.2.1 10.0.0.1 8080 443\r\n";
    let forged = connect_after(header, server.address, &server.roots, b"http/1.1", None).await;
    assert!(forged.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_balancer_that_sends_no_header_is_cut() {
    let loopback = TrustedProxies::new(["127.0.0.0/8".parse().unwrap()]);
    let server = Server::behind(loopback, ConnectionLimits::default()).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    silent.write_all(b"PROXY TCP4").await.unwrap();
    let mut rest = Vec::new();
    assert_eq!(silent.read_to_end(&mut rest).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn head_is_answered_without_a_body() {
    let server = Server::start(ConnectionLimits::default()).await;
    let (mut one, mut two) = (get("/"), get2("/"));
    (*one.method_mut(), *two.method_mut()) = (http::Method::HEAD, http::Method::HEAD);
    let one = soon(server.http1().await.send_request(one)).await.unwrap();
    let two = soon(server.http2().await.send_request(two)).await.unwrap();
    for answer in [one, two] {
        assert_eq!(answer.headers()["content-length"], "23", "{answer:?}");
        assert_eq!(read(answer).await.unwrap(), "");
    }
}

#[tokio::test]
async fn a_panic_is_one_requests_affair() {
    let server = Server::start(ConnectionLimits::default()).await;
    let mut http2 = server.http2().await;
    let mut watch = soon(http2.send_request(get2("/watch"))).await.unwrap();
    let answer = soon(http2.send_request(get2("/panic"))).await.unwrap();
    assert_eq!(answer.status(), http::StatusCode::INTERNAL_SERVER_ERROR);
    let answer = soon(server.http1().await.send_request(get("/panic")))
        .await
        .unwrap();
    assert_eq!(answer.status(), http::StatusCode::INTERNAL_SERVER_ERROR);
    soon(watch.frame()).await.unwrap().unwrap();
    assert!(
        soon(http2.send_request(get2("/")))
            .await
            .unwrap()
            .status()
            .is_success()
    );
}

#[tokio::test]
async fn a_drain_lets_running_answers_end() {
    let server = Server::start(ConnectionLimits::default()).await;
    let (mut http1, mut http2) = (server.http1().await, server.http2().await);
    let idle = server.http2().await;
    let one = soon(http1.send_request(get("/watch"))).await.unwrap();
    let two = soon(http2.send_request(get2("/watch"))).await.unwrap();
    server.trigger.drain(std::time::Duration::from_hours(1));
    assert_eq!(read(one).await.unwrap(), "open\nbookmark\n");
    assert_eq!(read(two).await.unwrap(), "open\nbookmark\n");
    soon(server.served).await.unwrap();
    eventually(|| idle.is_closed()).await;
    TcpStream::connect(server.address).await.unwrap_err();
}

#[tokio::test]
async fn a_drain_waits_for_nobody_who_has_said_nothing() {
    let server = Server::start(ConnectionLimits::default()).await;
    let http1 = connect(server.address, &server.roots, b"http/1.1", None)
        .await
        .unwrap();
    // Not even the beginning of HTTP/2, without which nothing can be said to its client.
    let http2 = connect(server.address, &server.roots, b"h2", None)
        .await
        .unwrap();
    server.trigger.drain(std::time::Duration::from_hours(1));
    soon(server.served).await.unwrap();
    drop((http1, http2));
}

#[tokio::test]
async fn the_protocol_is_the_one_that_was_agreed_on() {
    let server = Server::start(ConnectionLimits::default()).await;
    let mut client = connect(server.address, &server.roots, b"http/1.1", None)
        .await
        .unwrap();
    client
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();
    let mut answer = Vec::new();
    // However it ends, it does, and HTTP/2 is not spoken.
    let _ = soon(client.read_to_end(&mut answer)).await;
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn a_drain_cuts_what_does_not_end() {
    let server = Server::start(ConnectionLimits::default()).await;
    let (mut http1, mut http2) = (server.http1().await, server.http2().await);
    let one = soon(http1.send_request(get("/stuck"))).await.unwrap();
    let two = soon(http2.send_request(get2("/stuck"))).await.unwrap();
    // Half a handshake must not hold it either.
    let _half = TcpStream::connect(server.address).await.unwrap();
    server.trigger.drain(std::time::Duration::from_millis(50));
    assert!(read(one).await.is_err());
    assert!(read(two).await.is_err());
    soon(server.served).await.unwrap();
}

#[tokio::test]
async fn over_the_limit_connections_wait() {
    let server = Server::start(ConnectionLimits {
        connections: 1,
        connections_per_address: Some(usize::MAX),
        ..ConnectionLimits::default()
    })
    .await;
    let mut first = server.http1().await;
    let stuck = soon(first.send_request(get("/stuck"))).await.unwrap();
    let mut waiting = TcpStream::connect(server.address).await.unwrap();
    // A busy connection makes no room: nobody answers this nonsense yet.
    waiting
        .write_all(b"no TLS at all, and long enough to be seen as that")
        .await
        .unwrap();
    let nothing =
        tokio::time::timeout(std::time::Duration::from_millis(200), waiting.read_u8()).await;
    nothing.unwrap_err();
    drop((first, stuck));
    // Now it is refused in TLS' words.
    let mut alert = Vec::new();
    let _ = soon(waiting.read_to_end(&mut alert)).await;
    assert!(
        soon(server.http2().await.send_request(get2("/")))
            .await
            .unwrap()
            .status()
            .is_success()
    );
}

/// Opens a tunnel through a server.
async fn open_tunnel(server: &Server) -> hyper::upgrade::Upgraded {
    let mut client = server.http1().await;
    let mut request = get("/tunnel");
    let headers = request.headers_mut();
    headers.insert("connection", "upgrade".parse().unwrap());
    headers.insert("upgrade", "test".parse().unwrap());
    let answer = soon(client.send_request(request)).await.unwrap();
    soon(hyper::upgrade::on(answer)).await.unwrap()
}

#[tokio::test]
async fn a_tunnel_counts_for_its_address_until_it_ends() {
    let server = Server::start(ConnectionLimits {
        connections_per_address: Some(1),
        ..ConnectionLimits::default()
    })
    .await;
    let tunnel = open_tunnel(&server).await;
    let another = async || connect(server.address, &server.roots, b"http/1.1", None).await;
    // The task of its connection may take a moment to end.
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(another().await.is_err(), "the address has one connection");
    drop(tunnel);
    soon(async { while another().await.is_err() {} }).await;
}

#[tokio::test]
async fn a_tunnel_keeps_the_place_of_its_connection_until_it_ends() {
    let server = Server::start(ConnectionLimits {
        connections: 1,
        connections_per_address: Some(usize::MAX),
        ..ConnectionLimits::default()
    })
    .await;
    let tunnel = open_tunnel(&server).await;
    let another = connect(server.address, &server.roots, b"http/1.1", None);
    let mut another = std::pin::pin!(another);
    let waiting = tokio::time::timeout(std::time::Duration::from_millis(300), another.as_mut());
    assert!(waiting.await.is_err(), "there is no place for another");
    drop(tunnel);
    soon(another).await.unwrap();
}

#[tokio::test]
async fn idle_connections_are_closed_and_busy_ones_are_not() {
    // Longer than a busy machine takes from the handshake to the first request.
    let short = std::time::Duration::from_secs(6);
    let server = Server::start(ConnectionLimits {
        idle: short,
        start: short,
        ..ConnectionLimits::default()
    })
    .await;
    let mut busy = server.http2().await;
    let mut watch = soon(busy.send_request(get2("/stuck"))).await.unwrap();
    soon(watch.frame()).await.unwrap().unwrap();
    let mut idle = server.http2().await;
    read(soon(idle.send_request(get2("/"))).await.unwrap())
        .await
        .unwrap();
    let unused = server.http2().await;
    eventually(|| idle.is_closed() && unused.is_closed()).await;
    assert!(
        soon(busy.send_request(get2("/")))
            .await
            .unwrap()
            .status()
            .is_success()
    );
}

#[tokio::test]
async fn plain_http_is_served_for_admin() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (trigger, watch) = drain::channel();
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    let service = move |_: Request<Incoming>, peer: Peer| {
        let counter = Arc::clone(&counter);
        async move {
            assert!(peer.tls.is_none());
            counter.fetch_add(1, Ordering::AcqRel);
            Response::new(body::full("ok"))
        }
    };
    let served = tokio::spawn(serve_admin(
        listener,
        None,
        service,
        ConnectionLimits::default(),
        watch,
    ));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    assert_eq!(count.load(Ordering::Acquire), 1);
    trigger.drain(std::time::Duration::ZERO);
    soon(served).await.unwrap();
}

#[tokio::test]
async fn a_request_without_a_host_is_refused_in_the_words_of_go() {
    let server = Server::start(ConnectionLimits::default()).await;
    let connected = connect(server.address, &server.roots, b"http/1.1", None);
    let mut stream = connected.await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    let text = "400 Bad Request: missing required Host header";
    assert!(
        answer.starts_with(&format!("HTTP/1.1 {text}\r\n")),
        "{answer}"
    );
    assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
    assert!(answer.ends_with(&format!("\r\n\r\n{text}")), "{answer}");
}

#[tokio::test]
async fn the_longest_idle_unknown_connection_makes_room_for_another() {
    let server = Server::start(ConnectionLimits {
        connections: 3,
        connections_per_address: Some(usize::MAX),
        ..ConnectionLimits::default()
    })
    .await;
    let mut known = server.http1().await;
    soon(known.send_request(get("/known"))).await.unwrap();
    let mut oldest = server.http1().await;
    soon(oldest.send_request(get("/"))).await.unwrap();
    let mut younger = server.http1().await;
    soon(younger.send_request(get("/"))).await.unwrap();
    // Silent clients make room for each other, and then for whoever speaks.
    let mut silent = Vec::new();
    for _ in 0..3 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    eventually(|| oldest.is_closed()).await;
    let mut newest = server.http2().await;
    soon(newest.send_request(get2("/"))).await.unwrap();
    soon(known.send_request(get("/"))).await.unwrap();
}

#[tokio::test]
async fn strangers_that_read_no_answer_make_room_for_others() {
    let server = Server::start(ConnectionLimits {
        connections: 2,
        connections_per_address: Some(usize::MAX),
        slow_stranger: Duration::from_millis(500),
        ..ConnectionLimits::default()
    })
    .await;
    let mut known = server.http2().await;
    soon(known.send_request(get2("/known"))).await.unwrap();
    let _stuck = soon(known.send_request(get2("/stuck"))).await.unwrap();
    let mut stranger = server.http1().await;
    let unread = soon(stranger.send_request(get("/stuck"))).await.unwrap();
    let mut newest = server.http2().await;
    soon(newest.send_request(get2("/"))).await.unwrap();
    assert!(soon(read(unread)).await.is_err(), "it was cut");
    soon(known.send_request(get2("/"))).await.unwrap();
}
