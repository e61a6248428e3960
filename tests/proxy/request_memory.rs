//! The memory that the requests of one user take, whatever it does with the answers.
use futures_util::future::join_all;
use http::{Request, StatusCode};
use watershed_lab::sim::SimulatedServer;

use crate::support::client::{Answer, Connection, Endpoint, Protocol, nothing, within};
use crate::support::frames::{
    END_HEADERS, END_STREAM, Frames, HEADERS, block, frame, get, long_head,
};
use crate::support::program::Program;
use crate::support::{eventually, small};

const LIST: &str = "/api/v1/pods?resourceVersion=0";
const SECRETS: &str = "/api/v1/secrets";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// The share of one user is an eighth: 15 MiB.
const FLAGS: [&str; 6] = [
    "--memory-limit",
    "120Mi",
    "--trusted-proxies",
    "127.0.0.1/32",
    // Users stay known while reviews are held back.
    "--authentication-token-webhook-cache-ttl",
    "10m",
];
const SHARE: f64 = (15 << 20) as f64;

/// A proxy with little memory, and the users of its upstream.
struct Scene {
    upstream: SimulatedServer,
    program: Program,
    /// A user who may do all, and does.
    hostile: Endpoint,
    /// Another user.
    other: Connection,
}

impl Scene {
    async fn start() -> Self {
        Self::with_secrets(5).await
    }

    async fn with_secrets(secrets: usize) -> Self {
        let mut options = small();
        options.population.secrets = secrets;
        let upstream = SimulatedServer::start(options).await.unwrap();
        let program = Program::with(&upstream, &FLAGS).await;
        let hostile = program.proxied.as_user(upstream.admin_token());
        let other = program.proxied.as_user(upstream.viewer_token());
        let other = other.connect(Protocol::Http2).await.unwrap();
        let scene = Self {
            upstream,
            program,
            hostile,
            other,
        };
        // Both users are known, and the list is in memory.
        scene.hostile.get(Protocol::Http2, LIST).await;
        eventually("the list to be in memory", async || {
            let answer = read(&scene.other, LIST).await;
            let source = answer.header("x-watershed-source").to_owned();
            if source == "snapshot" {
                Ok(())
            } else {
                Err(source)
            }
        })
        .await;
        scene
    }

    /// Opens streams of the hostile user, which take nothing of their answers.
    async fn open(&self, streams: u32, path: &str) -> Frames {
        let bearer = format!("Bearer {}", self.upstream.admin_token());
        self.open_with(streams, &get(path, &bearer)).await
    }

    async fn open_with(&self, streams: u32, fields: &[(&str, &str)]) -> Frames {
        let head = block(fields);
        let mut frames = Frames::open(&self.hostile, 0).await;
        for stream in 0..streams {
            let flags = END_STREAM | END_HEADERS;
            frames
                .send(&frame(HEADERS, flags, stream * 2 + 1, &head))
                .await;
        }
        frames
    }

    async fn metric(&self, series: &str) -> f64 {
        self.program.metric(series).await
    }

    /// Waits until more than so many requests are refused because a share is used up.
    async fn refuses(&self, requests: f64, reason: &str) {
        let series = format!(r#"watershed_requests_limited_total{{reason="{reason}"}}"#);
        eventually("the share to be used", async || {
            let limited = self.metric(&series).await;
            (limited > requests)
                .then_some(())
                .ok_or(format!("{limited} limited"))
        })
        .await;
    }

    /// Checks that the proxy is as it was, for all but the hostile user.
    async fn serves_others_from_memory(&self) {
        let answers = self
            .metric(r#"watershed_memory_bytes{class="answers"}"#)
            .await;
        assert!(answers <= SHARE + 1e6, "{answers} bytes of answers");
        let answer = read(&self.other, LIST).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.header("x-watershed-source"), "snapshot");
    }

    async fn end(self) {
        self.program.terminate().await;
        assert!(self.program.ended().await.success());
        self.upstream.shutdown().await;
    }
}

async fn read(connection: &Connection, path: &str) -> Answer {
    let request = Request::get(path).body(nothing()).unwrap();
    within(path, connection.read(request)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_a_user_does_not_take_leave_the_memory_of_others_alone() {
    let scene = Scene::start().await;
    let mut held = Vec::new();
    // Requests that are still under way take a little more than their answers will.
    let refused = loop {
        held.push(scene.open(100, LIST).await);
        let answer = scene.hostile.get(Protocol::Http1, LIST).await;
        if answer.status != StatusCode::OK {
            break answer;
        }
        assert!(held.len() < 100, "nothing is refused");
    };
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    scene.refuses(0.0, "request-memory").await;
    scene.serves_others_from_memory().await;
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(refused.header("x-watershed-source"), "limit");
    let words = [
        "a caller exceeds a limit",
        "request-memory",
        "admin",
        "127.0.0.1",
    ];
    scene.program.until_logged(&words).await;
    drop(held);
    eventually("the user to be served again", async || {
        let answer = scene.hostile.get(Protocol::Http1, LIST).await;
        (answer.status == StatusCode::OK)
            .then_some(())
            .ok_or(answer.status.to_string())
    })
    .await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_lists_that_a_user_does_not_take_are_bounded() {
    let scene = Scene::start().await;
    // Its compressed form is in memory from now on.
    let compressed = Request::get(LIST).header("accept-encoding", "gzip");
    let read = scene.other.read(compressed.body(nothing()).unwrap());
    let answer = within(LIST, read).await.unwrap();
    assert_eq!(answer.header("content-encoding"), "gzip");
    let bearer = format!("Bearer {}", scene.upstream.admin_token());
    let mut fields = get(LIST, &bearer);
    fields.push(("accept-encoding", "gzip"));
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(scene.open_with(100, &fields).await);
    }
    scene.refuses(100.0, "request-memory").await;
    scene.serves_others_from_memory().await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarded_answers_that_a_user_does_not_take_are_bounded() {
    // Each answer is longer than what counts of it, so the share is used up whenever the answers come.
    let scene = Scene::with_secrets(3_000).await;
    let length = scene.hostile.get(Protocol::Http2, SECRETS).await.body.len();
    assert!(length > 512 << 10, "{length}");
    let _held = scene.open(100, SECRETS).await;
    scene.refuses(60.0, "request-memory").await;
    scene.serves_others_from_memory().await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_take_no_memory_of_known_users() {
    let scene = Scene::start().await;
    // Connecting may take as long as it likes. What waits, waits for seconds only.
    let mut strangers = Vec::new();
    for _ in 0..250 {
        strangers.push(Frames::open(&scene.hostile, 0).await);
    }
    let faults = scene.upstream.faults();
    faults.set(|active| active.hold = Some(REVIEWS.to_owned()));
    // Some 150 of them are as much as strangers may have waiting.
    let filler = "x".repeat(48 << 10);
    for (host, stranger) in (1..).zip(&mut strangers) {
        let (address, bearer) = (format!("192.0.2.{host}"), format!("Bearer nobody-{host}"));
        let mut fields = get(LIST, &bearer);
        fields.extend([("x-forwarded-for", &*address), ("x-filler", &*filler)]);
        assert!(stranger.send(&long_head(1, &block(&fields))).await);
    }
    scene.refuses(20.0, "unknown-request-memory").await;
    scene.serves_others_from_memory().await;
    let forwarded = read(&scene.other, "/api/v1/pods").await;
    assert_eq!(forwarded.status, StatusCode::OK);
    drop(strangers);
    scene.upstream.faults().set(|active| active.hold = None);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_requests_that_upstream_does_not_answer_take_a_users_share() {
    let scene = Scene::start().await;
    scene
        .upstream
        .faults()
        .set(|active| active.hold = Some(SECRETS.to_owned()));
    let path = format!("{SECRETS}?labelSelector={}", vec!["a"; 28_000].join(","));
    let connection = scene.hostile.connect(Protocol::Http2).await.unwrap();
    let requests =
        tokio::spawn(async move { join_all((0..180).map(|_| read(&connection, &path))).await });
    scene.refuses(20.0, "request-memory").await;
    scene.serves_others_from_memory().await;
    scene.upstream.faults().set(|active| active.hold = None);
    let answers = requests.await.unwrap();
    let count = |status| {
        answers
            .iter()
            .filter(|answer| answer.status == status)
            .count()
    };
    let counts = [count(StatusCode::OK), count(StatusCode::TOO_MANY_REQUESTS)];
    assert!(
        counts.iter().sum::<usize>() == 180 && counts[0] > 10,
        "{counts:?}"
    );
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarded_watches_that_are_not_read_are_cut_at_a_users_share() {
    let scene = Scene::start().await;
    let watch = format!("{SECRETS}?watch=1&resourceVersion=0");
    let idle = scene.hostile.watch(Protocol::Http2, &watch).await;
    let _stalled = scene.open(100, &watch).await;
    eventually("some watches to be cut", async || {
        let cut = scene
            .metric(r#"watershed_responses_terminated_total{reason="memory-share"}"#)
            .await;
        (cut > 20.0).then_some(()).ok_or(format!("{cut} cut"))
    })
    .await;
    eventually("what is held to be the share", async || {
        let held = scene
            .metric(r#"watershed_limited_memory_in_use_bytes{limit="request-memory"}"#)
            .await;
        (held <= SHARE).then_some(()).ok_or(format!("{held} bytes"))
    })
    .await;
    scene.serves_others_from_memory().await;
    drop(idle);
    scene.end().await;
}
