//! Requests that want another connection.
use super::*;
use crate::upstream::pool::elsewhere::SPREAD;

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
            avoid: vec![from.clone()].into(),
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

#[tokio::test]
async fn a_request_that_avoids_all_addresses_but_one_goes_there() {
    let pki = Pki::new();
    let start = || Api::start(&pki, HTTP2, |_, _| async { text("well") });
    let apis = [start().await, start().await, start().await];
    let (_dir, mut options) = kubeconfig(&pki, &apis[0].url());
    options.servers = apis.iter().map(Api::url).collect();
    let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
    let addresses = client.upstream().addresses();
    // The second time, there are connections to choose from.
    for _ in 0..2 {
        for wanted in &addresses {
            let others = addresses.iter().filter(|other| *other != wanted);
            let options = SendOptions {
                fresh_connection: true,
                avoid: others.cloned().collect::<Vec<_>>().into(),
                ..SendOptions::default()
            };
            let answer = soon(client.send(ConnectionClass::Short, get("/"), options)).await;
            let by: Option<ServedBy> = answer.unwrap().extensions().get().cloned();
            assert_eq!(by.unwrap().address, *wanted);
        }
    }
}

#[tokio::test]
async fn servers_that_hang_hold_up_no_connection_to_another() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |_, _| async { text("well") }).await;
    // The system accepts connections, and nobody answers them.
    let bind = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stuck = [bind(), bind()];
    let (_dir, mut options) = kubeconfig(&pki, &api.url());
    let url = |stuck: &std::net::TcpListener| format!("https://{}", stuck.local_addr().unwrap());
    options.servers = stuck.iter().map(url).chain([api.url()]).collect();
    let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
    for _ in 0..3 {
        let fresh = SendOptions {
            fresh_connection: true,
            ..SendOptions::default()
        };
        let sent = client.send(ConnectionClass::Short, get("/"), fresh);
        // One after the other, both would take as long.
        let answer = tokio::time::timeout(2 * CONNECT_TIMEOUT, sent).await;
        assert!(answer.expect("an answer").is_ok());
    }
}

/// Starts a server that tells the number of a request's connection, and never answers at `/stuck`.
async fn api_with_a_stuck_path(pki: &Pki) -> Api {
    Api::start(pki, HTTP2, |request, conn| async move {
        if request.uri().path() == "/stuck" {
            std::future::pending::<()>().await;
        }
        text(conn.number.to_string())
    })
    .await
}

/// As with a load balancer whose server is stuck, and whose other servers are well.
#[tokio::test]
async fn a_connection_without_answers_is_left_by_the_proxys_own_requests() {
    let pki = Pki::new();
    let api = api_with_a_stuck_path(&pki).await;
    let client = client_of(&pki, &api).await;
    let ask = async |purpose, path| {
        let options = SendOptions {
            purpose,
            ..SendOptions::default()
        };
        let asked = client.send(ConnectionClass::Short, get(path), options);
        let answer = tokio::time::timeout(Duration::from_secs(3), asked).await;
        read(answer.ok()?.unwrap().into_body()).await.ok()
    };
    for (purpose, stays) in [
        // A client may ask for what takes long, and go away. That counts only later.
        (RequestPurpose::Forward, true),
        (RequestPurpose::Internal, false),
    ] {
        let first = ask(purpose, "/well").await.unwrap();
        // The clock goes on by itself where everything waits for it.
        tokio::time::pause();
        for _ in 0..3 {
            assert_eq!(ask(purpose, "/stuck").await, None);
        }
        tokio::time::resume();
        let next = ask(purpose, "/well").await.unwrap();
        assert_eq!(next == first, stays, "{purpose:?}");
    }
}

/// Clients may wait for ever, and then no request is given up.
#[tokio::test]
async fn a_connection_without_answers_is_left_by_clients_requests() {
    let pki = Pki::new();
    let api = api_with_a_stuck_path(&pki).await;
    let client = client_of(&pki, &api).await;
    let ask = async |path| {
        let options = SendOptions {
            purpose: RequestPurpose::Forward,
            ..SendOptions::default()
        };
        let answer = client
            .send(ConnectionClass::Short, get(path), options)
            .await;
        read(answer.unwrap().into_body()).await.unwrap()
    };
    let first = ask("/well").await;
    let stuck = futures_util::future::join_all([ask("/stuck"), ask("/stuck"), ask("/stuck")]);
    tokio::time::pause();
    let waiting = async {
        tokio::select! {
            _ = stuck => unreachable!("nothing answers them"),
            () = tokio::time::sleep(Duration::from_secs(11)) => {}
        }
        tokio::time::resume();
        ask("/well").await
    };
    assert_ne!(waiting.await, first);
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
        avoid: vec![by.address.clone()].into(),
        instead_of: Some(by.clone()),
        ..SendOptions::default()
    }
}

/// The proxy's certificate was renewed while a watch is open.
#[tokio::test]
async fn questions_beside_a_watch_are_not_asked_with_an_old_certificate() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |_, _| async { text("here") }).await;
    let (dir, options) = kubeconfig(&pki, &api.url());
    let upstream = Upstream::load(&options).await.unwrap();
    let client = UpstreamClient::new(&upstream);
    let ask = async |client: &UpstreamClient| {
        let answer = client.send(ConnectionClass::Watch, get("/"), SendOptions::default());
        let answer = soon(answer).await.unwrap();
        let by = answer.extensions().get::<ServedBy>().unwrap().clone();
        (answer, by)
    };
    let (_watch, followed) = ask(&client).await;
    let beside = client.beside(&followed);
    assert!(ask(&beside).await.1.is_same(&followed));
    let (cert, key) = pki.issue("the-proxy", &[]);
    std::fs::write(dir.path().join("client.crt"), cert).unwrap();
    std::fs::write(dir.path().join("client.key"), key).unwrap();
    upstream.reload().await;
    assert!(!ask(&beside).await.1.is_same(&followed));
    assert!(!followed.takes_requests(), "another one is to be followed");
}
