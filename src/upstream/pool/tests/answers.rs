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
