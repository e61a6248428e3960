//! Connections that there may be no more of.
use super::*;

/// Creates pools of several identities that have these limits each.
fn pools<const N: usize>(upstream: &Upstream, limits: [&PoolLimits; N]) -> [Pool; N] {
    let dialer = Arc::default();
    limits.map(|limits| Pool::new(upstream, TlsIdentity::NoCertificate, &dialer, limits))
}

/// Returns limits with which requests wait however slow the machine is.
fn patient(connections: usize) -> PoolLimits {
    PoolLimits {
        patience: Duration::from_mins(1),
        ..PoolLimits::within(connections)
    }
}

async fn ask(
    pool: &Pool,
    class: ConnectionClass,
    path: &str,
) -> Result<Response<UpstreamBody>, UpstreamError> {
    soon(pool.send(class, get(path), SendOptions::default())).await
}

/// Opens so many requests of a class, which are all that there may be.
async fn fill(pool: &Pool, class: ConnectionClass, most: usize) -> Vec<Response<UpstreamBody>> {
    let mut open = Vec::new();
    for _ in 0..most {
        open.push(ask(pool, class, "/open").await.unwrap());
    }
    assert_full(pool, class).await;
    open
}

async fn assert_full(pool: &Pool, class: ConnectionClass) {
    let more = ask(pool, class, "/open").await;
    assert!(matches!(more, Err(UpstreamError::Exhausted)), "{class:?}");
}

/// Starts a server whose answers to `/open` never end.
async fn api_with_open_answers(pki: &Pki, settings: Settings) -> Api {
    Api::start(pki, settings, |request, _| async move {
        match request.uri().path() {
            "/open" => Response::new(hanging()),
            _ => text("short".to_owned()),
        }
    })
    .await
}

#[tokio::test]
async fn relayed_requests_wait_for_connections_that_others_make() {
    const REQUESTS: usize = 90;
    let pki = Pki::new();
    let api = api_with_open_answers(&pki, HTTP2).await;
    let upstream = upstream_of(&pki, &api).await;
    // Not in the queue: there is always a stream, a connection that is being made, or room for one.
    let limits = PoolLimits {
        patience: Duration::ZERO,
        ..PoolLimits::within(16)
    };
    let [pool] = pools(&upstream, [&limits]);
    let class = ConnectionClass::Relayed;
    assert!(REQUESTS <= limits.relayed * class.windows().streams);
    let open = join_all((0..REQUESTS).map(|_| ask(&pool, class, "/open"))).await;
    let failed = open.iter().filter(|answer| answer.is_err()).count();
    assert_eq!(failed, 0, "there is room for all");
}

#[tokio::test]
async fn relayed_requests_that_are_sent_again_wait_for_connections_as_well() {
    const REQUESTS: usize = 100;
    let pki = Pki::new();
    let arrived = Arc::new(AtomicUsize::new(0));
    let of_api = Arc::clone(&arrived);
    let api = Api::start(&pki, HTTP2, move |_, _| {
        let number = of_api.fetch_add(1, Ordering::AcqRel);
        async move {
            if number < REQUESTS {
                std::future::pending::<()>().await;
            }
            text("again")
        }
    })
    .await;
    let upstream = upstream_of(&pki, &api).await;
    let [pool] = pools(&upstream, [&patient(16)]);
    let class = ConnectionClass::Relayed;
    let answers = join_all((0..REQUESTS).map(|_| ask(&pool, class, "/")));
    let restart = async {
        eventually(|| arrived.load(Ordering::Acquire) == REQUESTS).await;
        api.cut();
    };
    let (answers, ()) = tokio::join!(answers, restart);
    // The first request of a connection is not sent again.
    let is_refused = |answer: &&Result<_, _>| matches!(answer, Err(UpstreamError::Exhausted));
    let refused = answers.iter().filter(is_refused).count();
    assert_eq!(refused, 0, "there is room for all");
}

#[tokio::test]
async fn requests_that_stay_open_leave_connections_to_short_ones() {
    let pki = Pki::new();
    let api = api_with_open_answers(&pki, HTTP1).await;
    let upstream = upstream_of(&pki, &api).await;
    let limits = PoolLimits::within(8);
    let [one, other] = pools(&upstream, [&limits; 2]);
    let mut open = Vec::new();
    for (class, most) in [
        (ConnectionClass::Relayed, 4),
        (ConnectionClass::LongForward, 2),
    ] {
        open.extend(fill(&one, class, most).await);
        assert_full(&other, class).await;
    }
    let short = async |pool: &Pool| {
        let answer = ask(pool, ConnectionClass::Short, "/").await.unwrap();
        read(answer.into_body()).await.unwrap()
    };
    assert_eq!(short(&one).await, "short");
    // Each pool's connections are idle for a while before the next requests.
    for pool in [&one, &other] {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let both = join_all([(); 2].map(|()| short(pool))).await;
        assert_eq!(both, ["short"; 2]);
    }
    drop(open);
}

#[tokio::test]
async fn a_part_of_the_connections_leaves_the_others() {
    let pki = Pki::new();
    let api = api_with_open_answers(&pki, HTTP1).await;
    let upstream = upstream_of(&pki, &api).await;
    let limits = PoolLimits::within(16);
    let [known, unknown] = pools(&upstream, [&limits, &limits.part(4)]);
    let mut open = Vec::new();
    for (class, most) in [
        (ConnectionClass::Relayed, 2),
        (ConnectionClass::LongForward, 1),
        (ConnectionClass::Short, 1),
    ] {
        open.extend(fill(&unknown, class, most).await);
    }
    // Of twelve long ones, three are unknown callers'.
    open.extend(fill(&known, ConnectionClass::LongForward, 9).await);
    drop(open);
}

#[tokio::test]
async fn requests_wait_until_others_have_their_answers() {
    let pki = Pki::new();
    for settings in [
        HTTP1,
        Settings {
            streams: 1,
            ..HTTP2
        },
    ] {
        let api = Api::start(&pki, settings, |_, _| async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            text("short")
        })
        .await;
        let upstream = upstream_of(&pki, &api).await;
        let limits = patient(4);
        let pools = pools(&upstream, [&limits; 2]);
        let answers = pools.iter().map(|pool| {
            join_all((0..20).map(|_| async {
                let answer = ask(pool, ConnectionClass::Short, "/").await;
                read(answer.ok()?.into_body()).await.ok()
            }))
        });
        let answers = join_all(answers).await;
        let failed = answers.iter().flatten().filter(|it| it.is_none()).count();
        assert_eq!(failed, 0);
    }
}

#[tokio::test]
async fn connections_with_old_credentials_make_room_for_others() {
    let pki = Pki::new();
    let api = api_with_open_answers(
        &pki,
        Settings {
            streams: 1,
            ..HTTP2
        },
    )
    .await;
    let (dir, options) = kubeconfig(&pki, &api.url());
    let upstream = Upstream::load(&options).await.unwrap();
    let limits = PoolLimits {
        connections: 2,
        ..PoolLimits::default()
    };
    let [pool] = pools(&upstream, [&limits]);
    let class = ConnectionClass::LongForward;
    let open = join_all([(); 2].map(|()| ask(&pool, class, "/open"))).await;
    assert!(open.iter().all(Result::is_ok));
    drop(open);
    let (cert, key) = pki.issue("the-proxy", &[]);
    std::fs::write(dir.path().join("client.crt"), cert).unwrap();
    std::fs::write(dir.path().join("client.key"), key).unwrap();
    upstream.reload().await;
    assert!(ask(&pool, class, "/open").await.is_ok());
}
