//! The bodies of answers.
use super::*;

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

/// Returns answers of which nobody reads more than the head, and the bytes that were sent of them.
async fn unread(
    (pki, class): (&Pki, ConnectionClass),
    streams: usize,
    chunk: usize,
) -> (
    Api,
    UpstreamClient,
    Vec<Response<UpstreamBody>>,
    Arc<AtomicUsize>,
) {
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let api = Api::start(pki, HTTP2, move |request, _| {
        let counter = Arc::clone(&counter);
        async move {
            if request.uri().path() == "/read" {
                return text("x".repeat(4 * 1024 * 1024));
            }
            Response::new(streamed(futures_util::stream::repeat_with(move || {
                counter.fetch_add(chunk, Ordering::AcqRel);
                Ok(Bytes::from(vec![0; chunk]))
            })))
        }
    })
    .await;
    let client = client_of(pki, &api).await;
    let lying = join_all(
        (0..streams).map(|_| soon(client.send(class, get("/unread"), SendOptions::default()))),
    );
    let lying = lying.await.into_iter().map(Result::unwrap).collect();
    (api, client, lying, sent)
}

#[tokio::test]
async fn an_unread_stream_stops_only_its_own_sender() {
    const CHUNK: usize = 16 * 1024;
    let pki = Pki::new();
    for (class, streams) in [
        (ConnectionClass::Short, 99),
        (ConnectionClass::LongForward, 49),
    ] {
        let (api, client, _lying, sent) = unread((&pki, class), streams, CHUNK).await;
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
        let bound = streams * (window + 512 * 1024);
        assert!(sent.load(Ordering::Acquire) <= bound, "{sent:?} of {bound}");
    }
}

/// Each event of a watch comes in a piece of its own.
#[tokio::test]
async fn small_events_that_nobody_reads_end_no_connection() {
    const STREAMS: usize = 30;
    let pki = Pki::new();
    let class = ConnectionClass::LongForward;
    let (api, client, lying, sent) = unread((&pki, class), STREAMS, 100).await;
    let window = STREAMS * usize::try_from(class.windows().stream).unwrap();
    eventually(|| sent.load(Ordering::Acquire) >= window).await;
    let response = soon(client.send(class, get("/read"), SendOptions::default())).await;
    let whole = soon(read(response.unwrap().into_body())).await.unwrap();
    assert_eq!(whole.len(), 4 * 1024 * 1024);
    for response in lying {
        let mut body = response.into_body();
        let first = soon(body.frame()).await.unwrap();
        assert!(first.is_ok(), "{first:?}");
    }
    assert_eq!(api.accepted(), 1);
}

/// Returns the frames of an answer with so many fields of a kilobyte. Go's server sends 16 KiB in each.
fn answer_with_fields(stream: &[u8], fields: usize) -> Vec<u8> {
    const STATUS_200: u8 = 0x88;
    const LENGTH_1000: [u8; 3] = [0x7f, 0xe9, 0x06];
    const HEADERS: u8 = 1;
    const CONTINUATION: u8 = 9;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    let mut block = vec![STATUS_200];
    for n in 0..fields {
        block.extend([0, 6]);
        block.extend(format!("x-{n:04}").as_bytes());
        block.extend(LENGTH_1000);
        block.extend([b'~'; 1_000]);
    }
    let parts: Vec<_> = block.chunks(16 * 1024).collect();
    let mut frames = Vec::new();
    for (n, part) in parts.iter().enumerate() {
        let is_last = n + 1 == parts.len();
        let length = u32::try_from(part.len()).unwrap().to_be_bytes();
        frames.extend_from_slice(&length[1..]);
        frames.push(if n == 0 { HEADERS } else { CONTINUATION });
        frames.push(u8::from(n == 0) * END_STREAM + u8::from(is_last) * END_HEADERS);
        frames.extend_from_slice(stream);
        frames.extend_from_slice(part);
    }
    frames
}

#[tokio::test]
async fn large_headers_end_no_connection() {
    const PREFACE: usize = 24;
    const HEADERS: u8 = 1;
    let pki = Pki::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://{}", listener.local_addr().unwrap());
    let acceptor = pki.acceptor();
    tokio::spawn(async move {
        let (tcp, _) = listener.accept().await.unwrap();
        let mut only = acceptor.accept(tcp).await.unwrap();
        only.write_all(&SETTINGS).await.unwrap();
        only.flush().await.unwrap();
        only.read_exact(&mut [0; PREFACE]).await.unwrap();
        let mut head = [0; 9];
        while only.read_exact(&mut head).await.is_ok() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            only.read_exact(&mut payload).await.unwrap();
            if head[3] == HEADERS {
                let answer = answer_with_fields(&head[5..], 230);
                only.write_all(&answer).await.unwrap();
                only.flush().await.unwrap();
            }
        }
    });
    let (_dir, options) = kubeconfig(&pki, &address);
    let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
    for _ in 0..3 {
        let response = send(&client, get("/")).await.unwrap();
        assert_eq!(response.headers().len(), 230);
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
        let asked = Arc::new(tokio::sync::Notify::new());
        let slow = Arc::clone(&asked);
        let api = Api::start(&pki, settings, move |request, _| {
            let guard = Ended(Arc::clone(&counter));
            let slow = Arc::clone(&slow);
            async move {
                if request.uri().path() == "/slow" {
                    slow.notify_one();
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
        tokio::select! {
            _ = unanswered => panic!("nobody answers"),
            () = soon(asked.notified()) => {}
        }
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

#[tokio::test]
async fn a_connection_that_leads_back_is_not_used_again_once_it_is_a_second_old() {
    let pki = Pki::new();
    for settings in [HTTP1, HTTP2] {
        let api = Api::start(&pki, settings, |_, conn| async move {
            let mut response = text(conn.number.to_string());
            *response.status_mut() = StatusCode::LOOP_DETECTED;
            response
        })
        .await;
        let upstream = upstream_of(&pki, &api).await;
        let client = UpstreamClient::new(&upstream);
        let first = fetch(&client, "/").await;
        tokio::time::sleep(Duration::from_millis(1100)).await;
        if settings.http2 {
            assert_eq!(fetch(&client, "/").await, first, "no loop of this proxy");
        }
        let mut came_back = http::HeaderMap::new();
        upstream.chain().mark_own(&mut came_back);
        assert!(upstream.chain().accept(&came_back).is_err());
        assert_eq!(fetch(&client, "/").await, first);
        assert_ne!(fetch(&client, "/").await, first);
    }
}
