use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::StreamExt;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

use super::*;
use crate::fairness::{CallerKey, ShareLimits, Shares};
use crate::test_support::{
    Api, HTTP1, HTTP2, OWN_TOKEN, Pki, Proxy, Settings, eventually, get, hanging, kubeconfig_with,
    read, soon, streamed, text, upstream_of,
};

async fn proxied<H, F>(settings: Settings, handler: H) -> (Api, Proxy)
where
    H: Fn(Request<Incoming>, bool) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let pki = Pki::new();
    let api = Api::start(&pki, settings, move |request, conn| {
        handler(request, conn.client_cert)
    })
    .await;
    let proxy = Proxy::start(&upstream_of(&pki, &api).await).await;
    (api, proxy)
}

/// A request as one client or the other sends it.
async fn ask(
    proxy: &Proxy,
    http2: bool,
    request: Request<Body>,
) -> hyper::Result<Response<Incoming>> {
    if http2 {
        let (mut parts, body) = request.into_parts();
        parts.headers.remove("host");
        parts.uri = format!("https://localhost{}", parts.uri).parse().unwrap();
        soon(
            proxy
                .http2()
                .await
                .send_request(Request::from_parts(parts, body)),
        )
        .await
    } else {
        soon(proxy.http1().await.send_request(request)).await
    }
}

const BOTH: [(bool, Settings); 4] = [(true, HTTP2), (true, HTTP1), (false, HTTP2), (false, HTTP1)];

#[tokio::test]
async fn callers_requests_never_carry_the_proxys_credentials() {
    let mirror = |request: Request<Incoming>, client_cert| async move {
        let mut seen: Vec<_> = request
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        seen.sort();
        text(format!("certificate={client_cert}\n{}", seen.join("\n")))
    };
    for (http2, settings) in BOTH {
        let (_api, proxy) = proxied(settings, mirror).await;
        for path in ["/short", "/long"] {
            let seen = read(ask(&proxy, http2, get(path)).await.unwrap())
                .await
                .unwrap();
            assert!(seen.starts_with("certificate=false"), "{seen}");
            assert!(
                !seen.contains("authorization") && !seen.contains(OWN_TOKEN),
                "{seen}"
            );
            assert!(
                !seen.contains("x-forwarded") && !seen.contains("user-agent"),
                "nothing is added: {seen}"
            );

            let mut request = get(path);
            request
                .headers_mut()
                .insert("authorization", "Bearer callers".parse().unwrap());
            request
                .headers_mut()
                .insert("impersonate-user", "jane".parse().unwrap());
            let seen = read(ask(&proxy, http2, request).await.unwrap())
                .await
                .unwrap();
            assert!(seen.contains("authorization: Bearer callers"), "{seen}");
            assert!(seen.contains("impersonate-user: jane"), "{seen}");
        }
    }
}

#[tokio::test]
async fn callers_upgrades_never_carry_the_proxys_credentials() {
    let (_api, proxy) = proxied(HTTP2, |request, client_cert| async move {
        text(format!(
            "certificate={client_cert} {:?}",
            request.headers().get("authorization")
        ))
    })
    .await;
    let refused = ask(&proxy, false, upgrade("/exec")).await.unwrap();
    assert_eq!(read(refused).await.unwrap(), "certificate=false None");
}

#[tokio::test]
async fn bodies_and_targets_pass_as_they_are() {
    for (http2, settings) in BOTH {
        let (_api, proxy) = proxied(settings, |request, _| async move {
            let target = request.uri().path_and_query().unwrap().to_string();
            let method = request.method().clone();
            if method == Method::HEAD {
                // hyper's HTTP/2 server would send the body.
                return Response::builder()
                    .header("content-length", 8)
                    .body(body::empty())
                    .unwrap();
            }
            text(format!(
                "{method} {target} {}",
                read(request.into_body()).await.unwrap().len()
            ))
        })
        .await;
        let target = "/api/v1/namespaces/a%2Fb/pods?labelSelector=x%20in%20(a,b)&fieldManager=";
        for (body, length) in [
            (body::full(vec![b'x'; 3_000_000]), 3_000_000),
            (body::empty(), 0),
        ] {
            let request = Request::patch(target)
                .header("host", "localhost")
                .body(body)
                .unwrap();
            let answer = ask(&proxy, http2, request).await.unwrap();
            assert_eq!(
                read(answer).await.unwrap(),
                format!("PATCH {target} {length}")
            );
        }
        let request = Request::head("/")
            .header("host", "localhost")
            .body(body::empty())
            .unwrap();
        let answer = ask(&proxy, http2, request).await.unwrap();
        assert_eq!(answer.headers()["content-length"], "8");
    }
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let (_api, proxy) = proxied(HTTP2, |request, _| async move {
        let collected = request.into_body().collect().await.unwrap();
        let trailers = collected.trailers().cloned();
        let back = http_body_util::Full::new(collected.to_bytes()).map_err(|never| match never {});
        Response::new(
            back.with_trailers(std::future::ready(trailers.map(Ok)))
                .boxed_unsync(),
        )
    })
    .await;
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "42".parse().unwrap());
    let body = http_body_util::Full::new(Bytes::from_static(b"there and back"))
        .map_err(|never| match never {})
        .with_trailers(std::future::ready(Some(Ok(trailers))));
    let request = Request::post("/").body(body.boxed_unsync()).unwrap();
    let collected = soon(ask(&proxy, true, request).await.unwrap().collect())
        .await
        .unwrap();
    assert_eq!(collected.trailers().unwrap()["x-sum"], "42");
    assert_eq!(collected.to_bytes(), "there and back");
}

#[tokio::test]
async fn a_request_that_strips_its_identity_is_refused() {
    let (api, proxy) = proxied(HTTP2, |_, _| async { text("reached") }).await;
    let mut request = get("/");
    request
        .headers_mut()
        .insert("connection", "close, impersonate-user".parse().unwrap());
    request
        .headers_mut()
        .insert("impersonate-user", "jane".parse().unwrap());
    let answer = ask(&proxy, false, request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    assert_eq!(api.accepted(), 0);
}

#[tokio::test]
async fn expect_100_continue_works() {
    let (_api, proxy) = proxied(HTTP2, |request, _| async move {
        text(read(request.into_body()).await.unwrap().to_uppercase())
    })
    .await;
    let mut tls = proxy.connect(b"http/1.1").await;
    let head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\
        Connection: close\r\n\r\n";
    tls.write_all(head.as_bytes()).await.unwrap();
    let mut interim = vec![0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    soon(tls.read_exact(&mut interim)).await.unwrap();
    assert_eq!(interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    tls.write_all(b"hello").await.unwrap();
    let mut answer = String::new();
    soon(tls.read_to_string(&mut answer)).await.unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("HELLO"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_cut_answer_is_a_cut_for_the_client() {
    for (http2, settings) in BOTH {
        let (api, proxy) = proxied(settings, |_, _| async { Response::new(hanging()) }).await;
        let mut answer = ask(&proxy, http2, get("/long")).await.unwrap();
        let first = soon(answer.frame()).await.unwrap().unwrap();
        assert_eq!(first.data_ref().unwrap(), "open\n");
        api.cut();
        assert!(
            read(answer).await.is_err(),
            "client {http2}, upstream {}",
            settings.http2
        );
    }
}

#[tokio::test]
async fn a_dead_upstream_is_a_bad_gateway() {
    let begun = Arc::new(AtomicUsize::new(0));
    let beginning = Arc::clone(&begun);
    let (api, proxy) = proxied(HTTP2, move |_, _| {
        beginning.fetch_add(1, Ordering::AcqRel);
        std::future::pending()
    })
    .await;
    let asking = tokio::spawn(async move {
        ask(
            &proxy,
            true,
            Request::post("/").body(body::empty()).unwrap(),
        )
        .await
    });
    eventually(|| begun.load(Ordering::Acquire) == 1).await;
    api.cut();
    let answer = soon(asking).await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
    assert!(
        read(answer)
            .await
            .unwrap()
            .contains("broke off before answering")
    );
}

#[tokio::test]
async fn a_request_cut_by_its_client_is_not_completed() {
    let (told, mut outcome) = mpsc::channel(4);
    let (_api, proxy) = proxied(HTTP2, move |request, _| {
        let told = told.clone();
        async move {
            let mut body = request.into_body();
            let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
            told.send(Ok(first)).await.unwrap();
            let end = body.frame().await.map(|frame| frame.map(|_| ()));
            told.send(Err(format!("{end:?}"))).await.unwrap();
            text("")
        }
    })
    .await;
    // A client that resets its stream as if all were well.
    let (sender, driver) = h2::client::handshake(proxy.connect(b"h2").await)
        .await
        .unwrap();
    tokio::spawn(driver);
    let request = Request::patch("https://localhost/").body(()).unwrap();
    let (_answer, mut stream) = sender
        .ready()
        .await
        .unwrap()
        .send_request(request, false)
        .unwrap();
    stream
        .send_data(Bytes::from_static(b"kind: Pod\n"), false)
        .unwrap();
    assert_eq!(soon(outcome.recv()).await.unwrap().unwrap(), "kind: Pod\n");
    stream.send_reset(h2::Reason::NO_ERROR);
    // Upstream either sees an error or its handler is dropped with the stream; never an end.
    match soon(outcome.recv()).await {
        None => {}
        Some(end) => {
            let end = end.unwrap_err();
            assert!(end.starts_with("Some(Err("), "{end}");
        }
    }
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_its_request() {
    struct Ended(Arc<AtomicUsize>);
    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::AcqRel);
        }
    }
    for (http2, settings) in BOTH {
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (beginning, ending) = (Arc::clone(&begun), Arc::clone(&ended));
        let (_api, proxy) = proxied(settings, move |request, _| {
            beginning.fetch_add(1, Ordering::AcqRel);
            let guard = Ended(Arc::clone(&ending));
            async move {
                if request.uri().path() == "/silent" {
                    std::future::pending::<()>().await;
                }
                let first = futures_util::stream::iter([Ok(Bytes::from_static(b"open\n"))]);
                let rest = futures_util::stream::pending();
                Response::new(streamed(first.chain(rest).inspect(move |_| {
                    let _held = &guard;
                })))
            }
        })
        .await;
        let mut answer = ask(&proxy, http2, get("/long")).await.unwrap();
        soon(answer.frame()).await.unwrap().unwrap();
        drop(answer);
        eventually(|| ended.load(Ordering::Acquire) == 1).await;

        let asking = tokio::spawn(async move {
            let _ = ask(&proxy, http2, get("/silent")).await;
            drop(proxy);
        });
        eventually(|| begun.load(Ordering::Acquire) == 2).await;
        assert_eq!(ended.load(Ordering::Acquire), 1);
        asking.abort();
        eventually(|| ended.load(Ordering::Acquire) == 2).await;
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_only_its_own_answer() {
    const CHUNK: usize = 64 * 1024;
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let (api, proxy) = proxied(HTTP2, move |request, _| {
        let counter = Arc::clone(&counter);
        async move {
            if request.uri().path() == "/long/read" {
                return text("x".repeat(8 * 1024 * 1024));
            }
            Response::new(streamed(futures_util::stream::repeat_with(move || {
                counter.fetch_add(CHUNK, Ordering::AcqRel);
                Ok(Bytes::from(vec![0; CHUNK]))
            })))
        }
    })
    .await;
    let mut lying = Vec::new();
    for _ in 0..10 {
        lying.push(ask(&proxy, true, get("/long/unread")).await.unwrap());
        lying.push(ask(&proxy, false, get("/long/unread")).await.unwrap());
    }
    for http2 in [true, false] {
        let answer = ask(&proxy, http2, get("/long/read")).await.unwrap();
        assert_eq!(read(answer).await.unwrap().len(), 8 * 1024 * 1024);
    }
    assert_eq!(api.accepted(), 1, "all of it on one upstream connection");

    // It stops: two looks in a row see the same.
    let mut before = usize::MAX;
    soon(async {
        while before != sent.load(Ordering::Acquire) {
            before = sent.load(Ordering::Acquire);
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    })
    .await;
    // Windows and buffers of four hops and the kernel's sockets.
    assert!(before < lying.len() * 16 * 1024 * 1024, "{before}");
    drop(lying);
}

// === upgrades ===

fn upgrade(path: &str) -> Request<Body> {
    Request::post(path)
        .header("host", "localhost")
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .header("x-stream-protocol-version", "v4.channel.k8s.io")
        .body(body::empty())
        .unwrap()
}

#[tokio::test]
async fn each_direction_of_a_tunnel_ends_on_its_own() {
    let (_api, proxy) = proxied(HTTP2, |mut request, _| async move {
        assert_eq!(request.version(), Version::HTTP_11);
        assert_eq!(request.headers()["upgrade"], "SPDY/3.1");
        let version = request.headers()["x-stream-protocol-version"].clone();
        tokio::spawn(async move {
            let mut io = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
            io.write_all(b"ready\n").await.unwrap();
            let mut input = Vec::new();
            // The output of `sort` comes after the input's end.
            io.read_to_end(&mut input).await.unwrap();
            input.reverse();
            io.write_all(&input).await.unwrap();
            io.shutdown().await.unwrap();
        });
        Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "Upgrade")
            .header("upgrade", "SPDY/3.1")
            .header("x-stream-protocol-version", version)
            .body(body::empty())
            .unwrap()
    })
    .await;
    let mut answer = ask(&proxy, false, upgrade("/exec")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(answer.headers()["upgrade"], "SPDY/3.1");
    assert_eq!(
        answer.headers()["x-stream-protocol-version"],
        "v4.channel.k8s.io"
    );
    let mut io = TokioIo::new(soon(hyper::upgrade::on(&mut answer)).await.unwrap());
    let mut ready = [0; 6];
    soon(io.read_exact(&mut ready)).await.unwrap();
    let input: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
    io.write_all(&input).await.unwrap();
    io.shutdown().await.unwrap();
    let mut output = Vec::new();
    soon(io.read_to_end(&mut output)).await.unwrap();
    output.reverse();
    assert_eq!(output, input);
}

#[tokio::test]
async fn a_refused_upgrade_is_an_answer() {
    let (_api, proxy) = proxied(HTTP2, |_, _| async {
        let mut answer = text("no such pod");
        *answer.status_mut() = StatusCode::NOT_FOUND;
        answer
    })
    .await;
    let answer = ask(&proxy, false, upgrade("/exec")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::NOT_FOUND);
    assert_eq!(read(answer).await.unwrap(), "no such pod");
}

#[tokio::test]
async fn a_tunnel_is_cut_with_either_end() {
    let (told, mut outcome) = mpsc::channel(4);
    let (api, proxy) = proxied(HTTP2, move |mut request, _| {
        let told = told.clone();
        async move {
            tokio::spawn(async move {
                let mut io = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
                let mut byte = [0];
                let _ = io.read(&mut byte).await;
                told.send(()).await.unwrap();
            });
            Response::builder()
                .status(StatusCode::SWITCHING_PROTOCOLS)
                .header("connection", "Upgrade")
                .header("upgrade", "SPDY/3.1")
                .body(body::empty())
                .unwrap()
        }
    })
    .await;
    let mut answer = ask(&proxy, false, upgrade("/exec")).await.unwrap();
    let io = soon(hyper::upgrade::on(&mut answer)).await.unwrap();
    drop(io);
    soon(outcome.recv()).await.unwrap();
    drop(api);
}

// === back-pressure of requests ===

#[tokio::test]
async fn an_upload_that_upstream_does_not_read_stops_its_sender() {
    let (_api, proxy) = proxied(HTTP2, |request, _| async move {
        let _unread = request.into_body();
        std::future::pending().await
    })
    .await;
    let (sender, receiver) = mpsc::channel::<Bytes>(1);
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|chunk| (Ok(chunk), receiver))
    });
    let request = Request::post("https://localhost/")
        .body(streamed(stream))
        .unwrap();
    let mut client = proxy.http2().await;
    let asking = tokio::spawn(async move { client.send_request(request).await });
    let mut sent = 0;
    let mut sender = PollSender::new(sender);
    loop {
        let reserved = std::future::poll_fn(|cx| sender.poll_reserve(cx));
        match tokio::time::timeout(std::time::Duration::from_secs(1), reserved).await {
            Ok(Ok(())) => sender.send_item(Bytes::from(vec![0; 64 * 1024])).unwrap(),
            Ok(Err(_)) => panic!("the request ended"),
            Err(_stalled) => break,
        }
        sent += 64 * 1024;
        assert!(
            sent < 64 * 1024 * 1024,
            "nobody reads it, and it still goes"
        );
    }
    asking.abort();
}

#[tokio::test]
async fn connect_is_refused() {
    let (api, proxy) = proxied(HTTP2, |_, _| async { text("reached") }).await;
    let request = Request::connect("localhost:443")
        .body(body::empty())
        .unwrap();
    let answer = soon(proxy.http1().await.send_request(request))
        .await
        .unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    assert_eq!(api.accepted(), 0);
}

/// Returns the header fields that upstream sees of this request.
async fn seen_as(
    authority: ForwardIdentity,
    user: &str,
    http2: bool,
    request: Request<Body>,
) -> String {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |request: Request<Incoming>, conn| async move {
        let fields = request.headers().iter();
        let mut seen: Vec<_> = fields
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        seen.sort();
        text(format!(
            "certificate={}\n{}",
            conn.client_cert,
            seen.join("\n")
        ))
    })
    .await;
    let (_folder, options) = kubeconfig_with(&pki, &api.url(), user);
    let upstream = Upstream::load(&options).await.unwrap();
    let proxy = Proxy::start_as(&upstream, authority).await;
    read(ask(&proxy, http2, request).await.unwrap())
        .await
        .unwrap()
}

fn full_of_claims(mut request: Request<Body>) -> Request<Body> {
    for (name, value) in [
        ("authorization", "Bearer callers"),
        ("impersonate-user", "admin"),
        ("impersonate-group", "system:masters"),
        ("impersonate-extra-a", "b"),
        ("impersonate-anything", "c"),
        ("x-remote-user", "admin"),
        ("x-remote-extra-scopes", "all"),
        ("accept", "application/json"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    request
}

fn acting(pairs: &[(&'static str, &str)]) -> ForwardIdentity {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, value.parse().unwrap());
    }
    ForwardIdentity::Impersonated(Arc::new(headers))
}

const JANE: &[(&str, &str)] = &[
    ("impersonate-user", "jane"),
    ("impersonate-group", "a"),
    ("impersonate-group", "b"),
];

#[tokio::test]
async fn an_impersonated_caller_cannot_claim_another_identity() {
    let own = format!("{{token: {OWN_TOKEN}}}");
    for (http2, request) in [
        (true, get("/short")),
        (false, get("/long")),
        (false, upgrade("/exec")),
    ] {
        let seen = seen_as(acting(JANE), &own, http2, full_of_claims(request)).await;
        assert!(
            seen.contains(&format!("authorization: Bearer {OWN_TOKEN}")),
            "{seen}"
        );
        assert!(seen.contains("accept: application/json"), "{seen}");
        let claims: Vec<_> = seen
            .lines()
            .filter(|line| line.starts_with("impersonate-") || line.starts_with("x-remote-"))
            .collect();
        assert_eq!(
            claims,
            [
                "impersonate-group: a",
                "impersonate-group: b",
                "impersonate-user: jane"
            ],
            "{seen}"
        );
        assert!(!seen.contains("callers"), "{seen}");
    }
}

#[tokio::test]
async fn a_proxy_that_impersonates_a_user_cannot_impersonate_its_callers() {
    let own = format!("{{token: {OWN_TOKEN}, as: admin, as-groups: [\"system:masters\"]}}");
    let seen = seen_as(acting(JANE), &own, true, get("/short")).await;
    assert!(
        seen.contains("cannot impersonate its callers") && !seen.contains("impersonate-"),
        "{seen}"
    );
}

#[tokio::test]
async fn impersonation_is_forwarded_with_the_proxys_own_identity() {
    let own = format!("{{token: {OWN_TOKEN}}}");
    let seen = seen_as(
        ForwardIdentity::Own,
        &own,
        true,
        full_of_claims(get("/short")),
    )
    .await;
    assert!(
        seen.contains(&format!("authorization: Bearer {OWN_TOKEN}")),
        "{seen}"
    );
    assert!(
        seen.contains("impersonate-user: admin") && !seen.contains("x-remote-"),
        "{seen}"
    );
}

#[tokio::test]
async fn impersonation_is_refused_if_the_proxy_impersonates_a_user() {
    let own = format!("{{token: {OWN_TOKEN}, as: bob}}");
    let seen = seen_as(ForwardIdentity::Own, &own, true, get("/short")).await;
    assert!(seen.contains("impersonate-user: bob"), "{seen}");
    let seen = seen_as(
        ForwardIdentity::Own,
        &own,
        true,
        full_of_claims(get("/short")),
    )
    .await;
    assert!(
        seen.contains("cannot impersonate its callers") && !seen.contains("impersonate-"),
        "{seen}"
    );
}

#[test]
fn dot_segments_are_found_in_every_spelling() {
    for path in [
        "/a/../b",
        "/..",
        "/a/./b",
        "/%2e%2E/b",
        "/a/.%2e",
        "/a%2f..%2fb",
        "/a\\..\\b",
        "/a/..%5Cb",
    ] {
        assert!(has_dot_segments(path), "{path}");
    }
    for path in ["/", "/a/b", "/a/...", "/a/.b", "/a/b..", "/a/%2e%2e%2e"] {
        assert!(!has_dot_segments(path), "{path}");
    }
}

// === unknown callers ===

#[tokio::test]
async fn unknown_callers_share_no_connection_with_others() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |_, conn| async move {
        text(conn.number.to_string())
    })
    .await;
    let forwarder = Forwarder::new(&upstream_of(&pki, &api).await);
    let connection = async |identity, long| {
        let options = ForwardOptions {
            long,
            identity,
            share: None,
        };
        let request = get("/api/v1/pods").map(|_| body::empty());
        let answer = forwarder.forward_body(request, options).await.unwrap();
        read(answer.into_body()).await.unwrap()
    };
    for long in [false, true] {
        let known = connection(ForwardIdentity::Caller, long).await;
        let unknown = connection(ForwardIdentity::UnknownCaller, long).await;
        assert_ne!(known, unknown);
        assert_eq!(known, connection(ForwardIdentity::Caller, long).await);
        assert_eq!(
            unknown,
            connection(ForwardIdentity::UnknownCaller, long).await
        );
    }
}

#[tokio::test]
async fn a_share_is_held_until_its_answer_has_ended() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |_, _| async { Response::new(hanging()) }).await;
    let forwarder = Forwarder::new(&upstream_of(&pki, &api).await);
    let limits = ShareLimits { all: 0, each: 1 };
    let shares = Shares::new(limits, crate::metric::Gauge::noop());
    let take = || shares.take(CallerKey::user("ann"), 1);
    let options = ForwardOptions {
        long: true,
        identity: ForwardIdentity::Caller,
        share: take(),
    };
    let request = get("/api/v1/pods?watch=1").map(|_| body::empty());
    let answer = forwarder.forward_body(request, options).await.unwrap();
    assert!(take().is_none(), "the answer goes on");
    drop(answer);
    assert!(take().is_some());
}
