//! Requests that are sent again.
use super::*;

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

/// As a load balancer whose servers are all gone.
#[tokio::test]
async fn a_server_that_ends_each_connection_at_once_is_an_error() {
    // Also while an earlier connection is open, and full.
    for open in [0, 1] {
        let pki = Pki::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("https://{}", listener.local_addr().unwrap());
        let (acceptor, accepted) = (pki.acceptor(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&accepted);
        tokio::spawn(async move {
            let mut settings = h2::server::Builder::new();
            settings.max_concurrent_streams(1);
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let number = count.fetch_add(1, Ordering::AcqRel);
                let tls = acceptor.accept(tcp).await.unwrap();
                let mut connection = settings.handshake::<_, Bytes>(tls).await.unwrap();
                if number >= open {
                    connection.abrupt_shutdown(h2::Reason::NO_ERROR);
                }
                let serving = async move {
                    // Until its end is sent.
                    let mut unanswered = Vec::new();
                    while let Some(Ok(request)) = connection.accept().await {
                        unanswered.push(request);
                    }
                };
                tokio::spawn(serving);
            }
        });
        let (_dir, options) = kubeconfig(&pki, &address);
        let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
        let waiting = client.clone();
        let waiting = tokio::spawn(async move {
            if open > 0 {
                let _ = send(&waiting, get("/open")).await;
            }
        });
        eventually(|| accepted.load(Ordering::Acquire) >= open).await;
        let error = send(&client, get("/")).await.unwrap_err();
        let accepted = accepted.load(Ordering::Acquire);
        assert!(accepted <= 20 + open, "{accepted} connections: {error}");
        waiting.abort();
    }
}

/// As API servers end requests that have taken too long.
#[tokio::test]
async fn a_read_that_upstream_gave_up_is_not_sent_again() {
    let pki = Pki::new();
    let (address, raw) = raw_http2(&pki, |number, mut respond| {
        if number == 0 {
            respond.send_response(Response::new(()), true).unwrap();
        } else {
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
        }
    })
    .await;
    let (_dir, options) = kubeconfig(&pki, &address);
    let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
    send(&client, get("/")).await.unwrap();
    let error = send(&client, get("/")).await.unwrap_err();
    assert!(error.is_given_up(), "{error}");
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

/// Clients send it again after the answer to this error.
#[tokio::test]
async fn a_write_that_upstream_refuses_each_time_is_known_not_to_be_done() {
    let pki = Pki::new();
    let (address, raw) = raw_http2(&pki, |_, mut respond| {
        respond.send_reset(h2::Reason::REFUSED_STREAM);
    })
    .await;
    let (_dir, options) = kubeconfig(&pki, &address);
    let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
    let error = send(&client, post("/", "content")).await.unwrap_err();
    assert!(!error.may_be_done(), "{error}");
    assert_eq!(raw.load(Ordering::Acquire), MAX_RESENDS + 1);
}

/// An API server goes away from a connection with each answer to somebody it does not know, and
/// names the last stream that it has looked at.
#[tokio::test]
async fn a_write_above_the_last_stream_that_a_goaway_names_is_sent_again_and_no_other() {
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
