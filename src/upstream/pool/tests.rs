use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::test_support::{
    Api, HTTP1, HTTP2, Pki, Settings, eventually, hanging, kubeconfig, read, soon, streamed, text,
    upstream_of,
};
use crate::upstream::UpstreamClient;

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
    ] {
        let response = soon(client.send(class, get("/"), SendOptions::default()))
            .await
            .unwrap();
        numbers.push(read(response.into_body()).await.unwrap());
    }
    assert_eq!(numbers, ["0", "1", "2"]);
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
async fn requests_survive_connections_that_died_while_idle() {
    let pki = Pki::new();
    for settings in [HTTP2, HTTP1] {
        let api = Api::start(&pki, settings, |request, _| async move {
            text(read(request.into_body()).await.unwrap_or_default())
        })
        .await;
        let client = client_of(&pki, &api).await;
        for round in 0..20 {
            if round % 2 == 0 {
                api.cut();
            } else {
                api.go_away();
            }
            // The end may have been seen by now or not: both must do.
            fetch(&client, "/").await;
        }
        api.cut();
        eventually(|| api.open() == 0).await;
        let posted = send(&client, post("/", "once")).await.unwrap();
        assert_eq!(read(posted.into_body()).await.unwrap(), "once");
    }
}

#[tokio::test]
async fn a_read_is_sent_again_when_its_pooled_connection_dies_and_a_write_is_not() {
    let pki = Pki::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    // Every connection answers one request and dies of the second.
    let api = Api::start(&pki, HTTP1, move |_, conn| {
        let first = counter.fetch_add(1, Ordering::AcqRel) == conn.number * 2;
        async move {
            assert!(first, "this connection dies of its second request");
            text(conn.number.to_string())
        }
    })
    .await;
    let client = client_of(&pki, &api).await;
    assert_eq!(fetch(&client, "/").await, "0");
    eventually(|| !waiting(&client).is_empty()).await;
    assert_eq!(
        fetch(&client, "/").await,
        "1",
        "sent again on a new connection"
    );

    eventually(|| !waiting(&client).is_empty()).await;
    let error = send(&client, post("/", "twice would be wrong"))
        .await
        .unwrap_err();
    assert!(matches!(error, UpstreamError::Closed { .. }), "{error}");
    assert_eq!(asked.load(Ordering::Acquire), 4);
}

#[tokio::test]
async fn a_refused_stream_is_tried_elsewhere() {
    let pki = Pki::new();
    let (address, raw) = raw_http2(&pki, |number, mut respond| {
        if number == 0 {
            respond.send_reset(h2::Reason::REFUSED_STREAM);
        } else {
            respond.send_response(Response::new(()), true).unwrap();
        }
    })
    .await;
    let (_dir, options) = kubeconfig(&pki, &address);
    let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
    assert_eq!(
        send(&client, get("/")).await.unwrap().status(),
        StatusCode::OK
    );
    assert_eq!(raw.load(Ordering::Acquire), 2);
}

#[tokio::test]
async fn a_write_that_upstream_did_not_process_is_sent_again() {
    let pki = Pki::new();
    let (address, raw) = raw_http2(&pki, |number, mut respond| match number % 3 {
        0 => respond.send_reset(h2::Reason::REFUSED_STREAM),
        1 => {
            respond.send_response(Response::new(()), true).unwrap();
        }
        _ => respond.send_reset(h2::Reason::CANCEL),
    })
    .await;
    let (_dir, options) = kubeconfig(&pki, &address);
    let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
    let bare = || Request::delete("/").body(body::empty()).unwrap();
    for (request, repeated) in [
        (post("/", "once"), post("/", "never twice")),
        (bare(), bare()),
    ] {
        let before = raw.load(Ordering::Acquire);
        assert_eq!(
            send(&client, request).await.unwrap().status(),
            StatusCode::OK
        );
        assert_eq!(raw.load(Ordering::Acquire), before + 2);
        // It may have been carried out.
        send(&client, repeated).await.unwrap_err();
        assert_eq!(raw.load(Ordering::Acquire), before + 3);
    }
}

/// An API server goes away from a connection with each answer to somebody it does not know, and
/// names the last stream that it has looked at.
#[tokio::test]
async fn a_write_above_the_last_stream_that_a_goaway_names_is_sent_again_and_no_other() {
    // With a hundred streams allowed.
    const SETTINGS: [u8; 15] = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100];
    const GOAWAY: [u8; 9] = [0, 0, 8, 7, 0, 0, 0, 0, 0];
    let pki = Pki::new();
    for last in [0, 1] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("https://{}", listener.local_addr().unwrap());
        let acceptor = pki.acceptor();
        let (seen, mut looks) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            let (tcp, _) = listener.accept().await.unwrap();
            let mut first = acceptor.accept(tcp).await.unwrap();
            first.write_all(&SETTINGS).await.unwrap();
            first.flush().await.unwrap();
            let mut said = Vec::new();
            while !said.windows(7).any(|window| window == b"content") {
                assert_ne!(first.read_buf(&mut said).await.unwrap(), 0);
            }
            let goaway = [&GOAWAY[..], &[0, 0, 0, last], &[0, 0, 0, 0]].concat();
            first.write_all(&goaway).await.unwrap();
            first.flush().await.unwrap();
            if last == 1 {
                // It has been looked at, and the answer is lost.
                drop(first);
            }
            let (tcp, _) = listener.accept().await.unwrap();
            let mut second = h2::server::handshake(acceptor.accept(tcp).await.unwrap())
                .await
                .unwrap();
            while let Some(Ok((request, mut respond))) = second.accept().await {
                let seen = seen.clone();
                tokio::spawn(async move {
                    let mut body = request.into_body();
                    let mut whole = Vec::new();
                    while let Some(chunk) = body.data().await {
                        whole.extend_from_slice(&chunk.unwrap());
                    }
                    seen.send(whole).unwrap();
                    respond.send_response(Response::new(()), true).unwrap();
                });
            }
        });
        let (_dir, options) = kubeconfig(&pki, &address);
        let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
        let answer = send(&client, post("/", "content")).await;
        if last == 0 {
            assert_eq!(answer.unwrap().status(), StatusCode::OK);
            assert_eq!(soon(looks.recv()).await.unwrap(), b"content");
        } else {
            answer.unwrap_err();
            looks.try_recv().unwrap_err();
        }
    }
}

#[tokio::test]
async fn a_reset_without_an_error_is_not_an_end() {
    let pki = Pki::new();
    let half_read = Arc::new(tokio::sync::Notify::new());
    let go_on = Arc::clone(&half_read);
    let (address, _) = raw_http2(&pki, move |_, mut respond| {
        let mut stream = respond.send_response(Response::new(()), false).unwrap();
        stream
            .send_data(Bytes::from_static(b"half an ans"), false)
            .unwrap();
        let go_on = Arc::clone(&go_on);
        tokio::spawn(async move {
            go_on.notified().await;
            stream.send_reset(h2::Reason::NO_ERROR);
        });
    })
    .await;
    let (_dir, options) = kubeconfig(&pki, &address);
    let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
    let mut answer = send(&client, get("/")).await.unwrap();
    soon(answer.body_mut().frame()).await.unwrap().unwrap();
    half_read.notify_one();
    let error = read(answer.into_body()).await.unwrap_err();
    assert!(
        error.to_string().contains("in the middle of an answer"),
        "{error}"
    );
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

#[tokio::test]
async fn a_request_can_ask_for_another_address_or_connection() {
    let pki = Pki::new();
    let one = Api::start(&pki, HTTP2, |_, conn| async move {
        text(conn.number.to_string())
    })
    .await;
    let two = Api::start(&pki, HTTP2, |_, conn| async move {
        text(conn.number.to_string())
    })
    .await;
    let (_dir, mut options) = kubeconfig(&pki, &one.url());
    options.servers = vec![one.url(), two.url()];
    let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
    for _ in 0..3 {
        let first = send(&client, get("/")).await.unwrap();
        let from = first
            .extensions()
            .get::<ServedBy>()
            .unwrap()
            .address
            .clone();
        let avoid = SendOptions {
            avoid: Some(from.clone()),
            ..SendOptions::default()
        };
        let second = soon(client.send(ConnectionClass::Short, get("/"), avoid))
            .await
            .unwrap();
        assert_ne!(second.extensions().get::<ServedBy>().unwrap().address, from);
    }
    let before = one.accepted() + two.accepted();
    let first = send(&client, get("/")).await.unwrap();
    let instead = SendOptions {
        instead_of: first.extensions().get().cloned(),
        ..SendOptions::default()
    };
    for _ in 0..2 * SPREAD {
        let second = soon(client.send(ConnectionClass::Short, get("/"), instead.clone()));
        let second = second.await.unwrap();
        assert!(!is_same_connection(&first, &second));
    }
    assert_eq!(one.accepted() + two.accepted(), before + 1);
}

fn is_same_connection(one: &Response<UpstreamBody>, other: &Response<UpstreamBody>) -> bool {
    let by = |answer: &Response<UpstreamBody>| answer.extensions().get::<ServedBy>().cloned();
    by(one).unwrap().is_same(&by(other).unwrap())
}

/// As when an API server starts anew and says 410 to every scope.
#[tokio::test]
async fn scopes_that_resume_elsewhere_share_a_few_connections_and_return_to_the_oldest() {
    const SCOPES: usize = 60;
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |_, _| async { Response::new(hanging()) }).await;
    let client = client_of(&pki, &api).await;
    let watch = |options| client.send(ConnectionClass::Watch, get("/watch"), options);
    let mut watches = soon(join_all((0..SCOPES).map(|_| watch(SendOptions::default())))).await;
    assert_eq!(api.accepted(), 1);
    for round in 1..=2 {
        let elsewhere = watches.iter().map(|watch| {
            let served_by = watch.as_ref().unwrap().extensions().get::<ServedBy>();
            watch_options(served_by.unwrap())
        });
        let next = soon(join_all(elsewhere.map(watch))).await;
        for (before, after) in watches.iter().zip(&next) {
            assert!(!is_same_connection(
                before.as_ref().unwrap(),
                after.as_ref().unwrap()
            ));
        }
        watches = next;
        assert!(api.accepted() <= 1 + round * SPREAD, "{}", api.accepted());
    }
    // More than one, so that a load balancer chooses more than once.
    assert!(api.accepted() > SPREAD);

    // Watches that end are opened again on the oldest connection, and the others go idle.
    drop(watches);
    let _watches = soon(join_all((0..SCOPES).map(|_| watch(SendOptions::default())))).await;
    let group = client.pool().group(ConnectionClass::Watch);
    eventually(|| {
        group.sweep(Duration::ZERO);
        api.open() == 1
    })
    .await;
}

/// Options of a watch after a bad answer by this server.
fn watch_options(by: &ServedBy) -> SendOptions {
    SendOptions {
        fresh_connection: true,
        avoid: Some(by.address.clone()),
        instead_of: Some(by.clone()),
        ..SendOptions::default()
    }
}

#[tokio::test]
async fn an_unread_stream_stops_only_its_own_sender() {
    const CHUNK: usize = 16 * 1024;
    let pki = Pki::new();
    for (class, unread) in [
        (ConnectionClass::Short, 99),
        (ConnectionClass::LongForward, 49),
    ] {
        let sent = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&sent);
        let api = Api::start(&pki, HTTP2, move |request, _| {
            let counter = Arc::clone(&counter);
            async move {
                if request.uri().path() == "/read" {
                    return text("x".repeat(4 * 1024 * 1024));
                }
                Response::new(streamed(futures_util::stream::repeat_with(move || {
                    counter.fetch_add(CHUNK, Ordering::AcqRel);
                    Ok(Bytes::from(vec![0; CHUNK]))
                })))
            }
        })
        .await;
        let client = client_of(&pki, &api).await;
        let lying = join_all(
            (0..unread).map(|_| soon(client.send(class, get("/unread"), SendOptions::default()))),
        )
        .await;
        assert!(lying.iter().all(Result::is_ok));

        for _ in 0..3 {
            let response = soon(client.send(class, get("/read"), SendOptions::default()))
                .await
                .unwrap();
            assert_eq!(
                read(response.into_body()).await.unwrap().len(),
                4 * 1024 * 1024
            );
        }
        assert_eq!(api.accepted(), 1, "all of it on one connection");

        // The window, and what the test's server has buffered itself.
        let window = usize::try_from(class.windows().stream).unwrap();
        let bound = unread * (window + 512 * 1024);
        assert!(sent.load(Ordering::Acquire) <= bound, "{sent:?} of {bound}");
    }
}

#[tokio::test]
async fn dropping_an_answer_cancels_it_at_upstream() {
    struct Ended(Arc<AtomicUsize>);
    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }
    let pki = Pki::new();
    for settings in [HTTP2, HTTP1] {
        let ended = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&ended);
        let api = Api::start(&pki, settings, move |request, _| {
            let guard = Ended(Arc::clone(&counter));
            async move {
                if request.uri().path() == "/slow" {
                    std::future::pending::<()>().await;
                }
                let first = futures_util::stream::iter([Ok(Bytes::from_static(b"open\n"))]);
                Response::new(streamed(
                    first
                        .chain(futures_util::stream::pending())
                        .inspect(move |_| {
                            let _held = &guard;
                        }),
                ))
            }
        })
        .await;
        let client = client_of(&pki, &api).await;
        let mut watch = send(&client, get("/watch")).await.unwrap();
        soon(watch.body_mut().frame()).await.unwrap().unwrap();
        assert_eq!(ended.load(Ordering::Acquire), 0);
        drop(watch);
        eventually(|| ended.load(Ordering::Acquire) == 1).await;

        // Before its headers, too.
        let accepted = api.accepted();
        let unanswered = client.send(ConnectionClass::Short, get("/slow"), SendOptions::default());
        tokio::time::timeout(Duration::from_millis(300), unanswered)
            .await
            .unwrap_err();
        eventually(|| ended.load(Ordering::Acquire) == 2).await;
        if settings.http2 {
            assert_eq!(
                fetch_status(&client).await,
                accepted,
                "the connection lives on"
            );
        }
    }
}

async fn fetch_status(client: &UpstreamClient) -> usize {
    drop(send(client, get("/watch")).await.unwrap());
    client
        .pool()
        .group(ConnectionClass::Short)
        .state
        .lock()
        .http2
        .len()
}

#[tokio::test]
async fn trailers_arrive() {
    let pki = Pki::new();
    for settings in [HTTP2, HTTP1] {
        let api = Api::start(&pki, settings, |_, _| async {
            let mut trailers = http::HeaderMap::new();
            trailers.insert("x-sum", "42".parse().unwrap());
            let body = streamed(futures_util::stream::iter([Ok(Bytes::from_static(
                b"body",
            ))]))
            .with_trailers(std::future::ready(Some(Ok(trailers))));
            Response::builder()
                .header("trailer", "x-sum")
                .body(body.boxed_unsync())
                .unwrap()
        })
        .await;
        let client = client_of(&pki, &api).await;
        let mut request = get("/");
        request
            .headers_mut()
            .insert("te", "trailers".parse().unwrap());
        let collected = soon(send(&client, request).await.unwrap().into_body().collect())
            .await
            .unwrap();
        assert_eq!(collected.trailers().unwrap()["x-sum"], "42");
        assert_eq!(collected.to_bytes(), "body");
    }
}

#[tokio::test]
async fn a_cut_answer_is_an_error() {
    let pki = Pki::new();
    for settings in [HTTP2, HTTP1] {
        let api = Api::start(&pki, settings, |_, _| async { Response::new(hanging()) }).await;
        let client = client_of(&pki, &api).await;
        let mut watch = send(&client, get("/watch")).await.unwrap();
        soon(watch.body_mut().frame()).await.unwrap().unwrap();
        api.cut();
        let error = read(watch.into_body()).await.unwrap_err();
        assert!(
            error.to_string().contains(&api.address.to_string()),
            "{error}"
        );
    }
}
