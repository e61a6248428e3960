//! Malicious or badly broken clients. The proxy cuts them off, spends a bounded amount of memory on
//! them, and serves everybody else meanwhile. The program runs as a process of its own, so that its
//! memory can be measured.
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::{Request, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::task::JoinHandle;
use watershed_lab::sim::{Options, Population, SimulatedServer};

use crate::support::client::{BOTH, Endpoint, Protocol, Raw, nothing, whole, within};
use crate::support::frames::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, Frames, GOAWAY, HEADERS, PING, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, block, frame, get, length, long_head,
};
use crate::support::history::WriteHistory;
use crate::support::program::{Program, resident_memory};
use crate::support::{eventually, small};

const MIB: u64 = 1 << 20;

/// Short timeouts keep the tests fast. They are long enough that a well-behaved client on a busy
/// machine is not cut off.
const SHORT: &[&str] = &[
    "--handshake-timeout-seconds=8",
    "--header-timeout-seconds=8",
    "--idle-timeout-seconds=20",
    "--write-stall-seconds=8",
];

/// The shortest of these timeouts. A client that took longer may be cut off rightly: then the
/// machine stalls.
const LEAST: Duration = Duration::from_secs(8);

const LIST: &str = "/api/v1/pods?resourceVersion=0";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// Measures the peak growth of a process's memory.
struct Growth {
    pid: u32,
    before: u64,
    most: Arc<AtomicU64>,
    sampling: JoinHandle<()>,
}

impl Growth {
    fn watch(pid: u32) -> Self {
        let before = resident_memory(pid);
        let most = Arc::new(AtomicU64::new(before));
        let peak = Arc::clone(&most);
        let sampling = tokio::spawn(async move {
            loop {
                peak.fetch_max(resident_memory(pid), Ordering::AcqRel);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        Self {
            pid,
            before,
            most,
            sampling,
        }
    }

    fn end(self) -> u64 {
        self.sampling.abort();
        self.most
            .load(Ordering::Acquire)
            .max(resident_memory(self.pid))
            - self.before
    }

    fn stays_below(self, limit: u64) {
        let grown = self.end();
        eprintln!(
            "grew by {} KiB, at most {} MiB are allowed",
            grown / 1024,
            limit / MIB
        );
        assert!(grown < limit, "grew by {grown} bytes, more than {limit}");
    }
}

/// Well-behaved clients that send requests all the time. Each request has to succeed.
struct Good {
    over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<u64>>,
}

impl Good {
    fn start(endpoint: &Endpoint) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let ask = |protocol| {
            let (endpoint, over) = (endpoint.clone(), Arc::clone(&over));
            tokio::spawn(async move {
                let mut asked = 0;
                while !over.load(Ordering::Acquire) || asked == 0 {
                    let began = Instant::now();
                    match a_few_reads(&endpoint, protocol).await {
                        Ok(reads) => asked += reads,
                        Err(error) => assert!(began.elapsed() >= LEAST, "{error:#}"),
                    }
                }
                asked
            })
        };
        let tasks = BOTH.map(ask).into();
        Self { over, tasks }
    }

    async fn all_were_served(self) {
        self.over.store(true, Ordering::Release);
        for task in self.tasks {
            assert!(within("the last answer", task).await.unwrap() > 0);
        }
    }
}

/// Sends a few reads on a connection of its own, because new connections have to work, too.
async fn a_few_reads(endpoint: &Endpoint, protocol: Protocol) -> anyhow::Result<u64> {
    let connection = within("a connection", endpoint.connect(protocol)).await?;
    let paths = [
        "/api/v1/pods?resourceVersion=0&limit=20",
        "/api/v1/namespaces/team-00/pods?limit=1",
        "/version",
    ];
    for path in paths {
        let request = Request::get(path).body(nothing()).unwrap();
        let answer = within(path, connection.read(request)).await?;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
    }
    Ok(paths.len() as u64)
}

struct Scene {
    upstream: SimulatedServer,
    program: Program,
    good: Good,
    bearer: String,
}

impl Scene {
    async fn start(options: Options, flags: &[&str]) -> Self {
        let upstream = SimulatedServer::start(options).await.unwrap();
        let program = Program::with(&upstream, flags).await;
        // The cache is filled before any memory is measured.
        for protocol in BOTH {
            program.proxied.get(protocol, LIST).await;
        }
        let good = Good::start(&program.proxied);
        let bearer = format!("Bearer {}", upstream.admin_token());
        Self {
            upstream,
            program,
            good,
            bearer,
        }
    }

    fn proxied(&self) -> &Endpoint {
        &self.program.proxied
    }

    async fn metric(&self, series: &str) -> f64 {
        self.program.metric(series).await
    }

    async fn cut(&self, reason: &str) -> f64 {
        self.metric(&format!(
            r#"watershed_connections_terminated_total{{listener="proxy",reason="{reason}"}}"#
        ))
        .await
    }

    async fn end(self) {
        self.good.all_were_served().await;
        self.program.terminate().await;
        assert!(self.program.ended().await.success());
        self.upstream.shutdown().await;
    }
}

/// Reads until the other side closes the connection.
async fn ends(stream: &mut (impl tokio::io::AsyncRead + Unpin)) {
    let mut rest = Vec::new();
    let _ = within("the end of a connection", stream.read_to_end(&mut rest)).await;
}

/// Opens a connection and sends a part of a request's head. Returns `None` if the connection was
/// cut before that.
async fn half_a_head(endpoint: &Endpoint, after_another: bool) -> Option<Raw> {
    let mut raw = Raw {
        stream: endpoint.tls(Protocol::Http1).await.ok()?,
        text: String::new(),
    };
    if after_another {
        raw.stream
            .write_all(b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n")
            .await
            .ok()?;
        raw.read_until(|text| text.contains("\r\n\r\n"))
            .await
            .then_some(())?;
    }
    raw.stream.write_all(b"GET / HTTP/1.1\r\n").await.ok()?;
    raw.stream.flush().await.ok()?;
    Some(raw)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_handshakes_and_slow_headers_are_cut_off() {
    let scene = Scene::start(small(), SHORT).await;
    let growth = Growth::watch(scene.program.pid());
    let address = scene.proxied().address;
    let mut tasks = Vec::new();
    for n in 0..150 {
        let endpoint = scene.proxied().clone();
        tasks.push(tokio::spawn(async move {
            match n % 3 {
                // Half-open: no byte is sent.
                0 => ends(&mut TcpStream::connect(address).await.unwrap()).await,
                // A ClientHello of 16 KB, a byte at a time.
                1 => {
                    let mut stream = TcpStream::connect(address).await.unwrap();
                    let hello = [&[22, 3, 1, 64, 0, 1, 0, 63, 252, 3, 3][..], &[0; 1000]].concat();
                    for byte in hello {
                        if stream.write_all(&[byte]).await.is_err() {
                            return;
                        }
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    ends(&mut stream).await;
                }
                // A head that never ends. On half of the connections it follows a complete request.
                _ => {
                    let mut raw = loop {
                        let began = Instant::now();
                        match half_a_head(&endpoint, n % 2 == 0).await {
                            Some(raw) => break raw,
                            None => assert!(began.elapsed() >= LEAST, "cut before its time"),
                        }
                    };
                    while raw.stream.write_all(b"x").await.is_ok()
                        && raw.stream.flush().await.is_ok()
                    {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        }));
    }
    for task in tasks {
        within("all to be cut", task).await.unwrap();
    }
    growth.stays_below(16 * MIB);
    assert!(scene.cut("handshake-timeout").await >= 100.0);
    assert!(scene.cut("header-timeout").await >= 50.0);
    scene.end().await;
}

/// Opens a connection over HTTP/2 and sends the beginning of a head, of 16 KB for each part.
async fn begun_head(scene: &Scene, parts: usize) -> Frames {
    let list = block(&get(LIST, &scene.bearer));
    let mut frames = Frames::open(scene.proxied(), 65_535).await;
    let mut bytes = frame(HEADERS, END_STREAM, 1, &list);
    let more = block(&[("x-more", &"a".repeat(16_000))]);
    for _ in 0..parts {
        bytes.extend(frame(CONTINUATION, 0, 1, &more));
    }
    frames.send(&bytes).await;
    frames
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_over_http2_that_are_not_completed_are_cut_off() {
    let scene = Scene::start(small(), SHORT).await;
    let mut open = Vec::new();
    for _ in 0..20 {
        open.push(begun_head(&scene, 1).await);
    }
    for frames in &mut open {
        frames.closed().await;
    }
    assert!(scene.cut("header-timeout").await >= 20.0);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_long_heads_are_cut_off_before_they_take_much_memory() {
    const HEADS: usize = 60;
    // Heads that are not complete may take 2 MiB together.
    let scene = Scene::start(small(), &["--memory-limit", "64Mi"]).await;
    let mut open = Vec::new();
    for _ in 0..HEADS {
        open.push(begun_head(&scene, 5).await);
    }
    eventually("the end of most of them", async || {
        let cut = scene.cut("header-timeout").await;
        (cut >= HEADS as f64 / 2.0)
            .then_some(())
            .ok_or(format!("{cut} were cut"))
    })
    .await;
    // Others are served while the rest of them are open.
    let answer = scene.proxied().get(Protocol::Http2, LIST).await;
    assert_eq!(answer.status, StatusCode::OK);
    drop(open);
    scene.end().await;
}

/// Sends so many requests at once, on each of so many connections that take at most `window` bytes of
/// each answer.
async fn bursts(scene: &Scene, connections: usize, requests: u32, window: u32) -> Vec<Frames> {
    let list = block(&get(LIST, "Bearer unknown"));
    let heads = (0..requests).map(|n| frame(HEADERS, END_STREAM | END_HEADERS, n * 2 + 1, &list));
    let burst = heads.collect::<Vec<_>>().concat();
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(Frames::open(scene.proxied(), window).await);
    }
    for frames in &mut open {
        frames.send(&burst).await;
    }
    open
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_requests_of_strangers_at_once_take_little_memory() {
    // Those that nobody has looked at may take 4 MiB.
    let scene = Scene::start(small(), &["--memory-limit", "64Mi"]).await;
    let growth = Growth::watch(scene.program.pid());
    let mut open = bursts(&scene, 60, 1_000, 0).await;
    open.extend(bursts(&scene, 10, 1_000, 1).await);
    // Each that nobody reads on may take 2 KiB, for two seconds.
    eventually("refusals to be cut", async || {
        let cut = scene
            .metric(r#"watershed_responses_terminated_total{reason="refusal"}"#)
            .await;
        (cut >= 5_000.0)
            .then_some(())
            .ok_or(format!("{cut} were cut"))
    })
    .await;
    growth.stays_below(32 * MIB);
    drop(open);
    scene.end().await;
}

/// Returns requests in each of which a small entry of HPACK's table is in a frame of 15 KiB.
fn sliced_entries(requests: u32) -> Vec<u8> {
    let request = |n: u32| {
        let mut head = block(&get(LIST, "Bearer unknown"));
        // Without indexing, a field that is large; with indexing, a small `:path`.
        head.extend([0x00]);
        for text in ["x-filler", &"a".repeat(15_000)] {
            length(&mut head, text.len());
            head.extend(text.as_bytes());
        }
        head.extend([0x44, 0x02, b'/', b'a' + (n % 26) as u8]);
        frame(HEADERS, END_STREAM | END_HEADERS, n * 2 + 1, &head)
    };
    (0..requests).map(request).collect::<Vec<_>>().concat()
}

/// Returns a request with a field of 190 KB in Huffman's code, which are a third as many bytes of text.
fn long_coded_field() -> Vec<u8> {
    const CODED: usize = 190_000;
    let mut head = block(&get(LIST, "Bearer unknown"));
    head.extend([0x00]);
    length(&mut head, "x-filler".len());
    head.extend(b"x-filler");
    let value = head.len();
    length(&mut head, CODED);
    head[value] |= 0x80;
    // The code of the byte 255 has 26 bits.
    let code = (0..26).rev().map(|bit| 0x3ff_ffee_u32 >> bit & 1);
    let bits: Vec<_> = code.cycle().take(CODED * 8 / 26 * 26).collect();
    let mut bytes = bits.chunks(8).map(|bits| {
        let padded = bits.iter().copied().chain(std::iter::repeat(1)).take(8);
        padded.fold(0, |byte, bit| byte << 1 | bit as u8)
    });
    head.extend(bytes.by_ref());
    head.resize(head.len().max(value + 4 + CODED), 0xff);
    long_head(1, &head)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_have_their_decoder_keep_much_end_the_connection() {
    const CONNECTIONS: usize = 60;
    // The decoders may keep 1 MiB together for strangers.
    let scene = Scene::start(small(), &["--memory-limit", "64Mi"]).await;
    let growth = Growth::watch(scene.program.pid());
    let mut open = Vec::new();
    for (name, heads) in [
        ("entries", sliced_entries(100)),
        ("long fields", long_coded_field()),
    ] {
        let before = scene.cut("header-table").await;
        for _ in 0..CONNECTIONS {
            let mut frames = Frames::open(scene.proxied(), 65_535).await;
            frames.send(&heads).await;
            open.push(frames);
        }
        eventually(name, async || {
            let cut = scene.cut("header-table").await - before;
            (cut >= CONNECTIONS as f64 / 2.0)
                .then_some(())
                .ok_or(format!("{cut} were cut"))
        })
        .await;
    }
    growth.stays_below(32 * MIB);
    drop(open);
    scene.end().await;
}

/// Bodies that nobody reads, in small pieces between other frames.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_bodies_in_small_pieces_end_the_connection() {
    const CONNECTIONS: usize = 20;
    let flags = [
        "--memory-limit",
        "64Mi",
        // Users stay known while reviews are held back.
        "--authentication-token-webhook-cache-ttl",
        "10m",
    ];
    let scene = Scene::start(small(), &flags).await;
    let faults = scene.upstream.faults();
    faults.set(|active| active.hold = Some(REVIEWS.to_owned()));
    let growth = Growth::watch(scene.program.pid());
    let list = block(&get(LIST, "Bearer unknown"));
    let update = frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes());
    let piece = [frame(DATA, 0, 1, &[b'a'; 256]), update.repeat(640)].concat();
    let body = [frame(HEADERS, END_HEADERS, 1, &list), piece.repeat(800)].concat();
    let send = async || {
        let mut frames = Frames::open(scene.proxied(), 65_535).await;
        frames.send(&body).await;
        frames
    };
    let open = join_all((0..CONNECTIONS).map(|_| send())).await;
    eventually("connections to be cut", async || {
        let cut = scene.cut("unread-bodies").await;
        (cut >= CONNECTIONS as f64 / 2.0)
            .then_some(())
            .ok_or(format!("{cut} were cut"))
    })
    .await;
    growth.stays_below(16 * MIB);
    faults.set(|active| active.hold = None);
    drop(open);
    // One that upstream reads is whatever its client likes.
    let mut post = get("/api/v1/namespaces/team-00/configmaps", &scene.bearer);
    post[0].1 = "POST";
    let mut frames = Frames::open(scene.proxied(), 65_535).await;
    frames
        .send(&frame(HEADERS, END_HEADERS, 1, &block(&post)))
        .await;
    for _ in 0..50 {
        assert!(frames.send(&piece.repeat(10)).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    frames.send(&frame(DATA, END_STREAM, 1, b"a")).await;
    loop {
        let answer = frames.next().await.expect("an answer");
        assert_ne!(answer.kind, GOAWAY, "{answer:?}");
        if (answer.kind, answer.stream) == (HEADERS, 1) {
            break;
        }
    }
    drop(frames);
    scene.end().await;
}

/// Their pieces come between each other's, and they seldom wait for the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_bodies_at_once_that_upstream_reads_are_whatever_their_client_likes() {
    const ROUNDS: usize = 5;
    let scene = Scene::start(small(), &["--memory-limit", "64Mi"]).await;
    let connection = scene.proxied().connect(Protocol::Http2).await.unwrap();
    let value = "a".repeat(2 * MIB as usize);
    for round in 0..ROUNDS {
        let create = async |number: usize| {
            let name = format!("long-{round}-{number}");
            let object =
                format!(r#"{{"metadata":{{"name":"{name}"}},"data":{{"key":"{value}"}}}}"#);
            let path = "/api/v1/namespaces/team-00/configmaps";
            let request = Request::post(path).body(whole(object)).unwrap();
            let answer = within("an answer", connection.read(request)).await.unwrap();
            assert_eq!(answer.status, StatusCode::CREATED);
        };
        join_all((0..4).map(create)).await;
    }
    assert!(!connection.is_closed());
    let cut = scene.cut("unread-bodies").await;
    assert!(cut < 1.0, "{cut} were cut");
    drop(connection);
    scene.end().await;
}

/// A value that differs from request to request, in heads of 50 KB, has documents of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_for_made_up_headers_keep_none_of_the_heads() {
    let scene = Scene::start(small(), &["--memory-limit", "64Mi"]).await;
    let connection = scene.proxied().connect(Protocol::Http1).await.unwrap();
    let filler = "a".repeat(50_000);
    let growth = Growth::watch(scene.program.pid());
    for n in 0..2_000 {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let request = Request::get("/apis")
            .header("accept", format!("{accept},x/{n}"))
            .header("x-filler", &filler)
            .body(nothing())
            .unwrap();
        let answer = within("a document", connection.read(request)).await;
        assert_eq!(answer.unwrap().status, StatusCode::OK);
    }
    growth.stays_below(16 * MIB);
    let counted = scene
        .metric(r#"watershed_memory_bytes{class="documents"}"#)
        .await;
    assert!(counted > 1e6, "{counted} bytes of documents");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_again_and_again_end_the_connection() {
    let scene = Scene::start(small(), &[]).await;
    let mut open = bursts(&scene, 1, 900, 0).await;
    let frames = &mut open[0];
    let window = |bytes: u32| [&[0, 4][..], &bytes.to_be_bytes()].concat();
    let toggle = [1, 0].map(|bytes| frame(SETTINGS, 0, 0, &window(bytes)));
    let toggles = toggle.concat().repeat(100);
    while frames.send(&toggles).await {}
    frames.closed().await;
    assert!(scene.cut("settings").await >= 1.0);
    scene.end().await;
}

/// Each flood runs until the server closes the connection, or until a leak would be visible.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frame_floods_end_the_connection_or_use_little_memory() {
    let scene = Scene::start(small(), SHORT).await;
    let bearer = scene.bearer.clone();
    let list = block(&get(LIST, &bearer));
    let mut post = get("/api/v1/namespaces/team-00/configmaps", &bearer);
    post[0] = (":method", "POST");
    let post = block(&post);
    let growth = Growth::watch(scene.program.pid());
    for path in ["/api/v1/pods/x", LIST] {
        let request = block(&get(path, &bearer));
        reset_at_once(&scene, &request).await;
    }
    reset_begun_requests(&scene, &post).await;
    send_endless_headers(&scene, &list).await;
    send_expanding_headers(&scene, &list).await;
    flood_with_small_frames(&scene, &post).await;
    growth.stays_below(48 * MIB);
    scene.end().await;
}

/// Sends requests that are reset at once: rapid reset (CVE-2023-44487). The server has to end the
/// connection.
async fn reset_at_once(scene: &Scene, head: &[u8]) {
    let mut frames = Frames::open(scene.proxied(), 65_535).await;
    for batch in 0..4_000 {
        let mut bytes = Vec::new();
        for n in 0..10 {
            let id = (batch * 10 + n) * 2 + 1;
            bytes.extend(frame(HEADERS, END_STREAM | END_HEADERS, id, head));
            bytes.extend(frame(RST_STREAM, 0, id, &8_u32.to_be_bytes()));
        }
        if !frames.send(&bytes).await {
            break;
        }
    }
    // The connection may be read for another moment.
    let last = 80_001;
    frames
        .send(&frame(HEADERS, END_STREAM | END_HEADERS, last, head))
        .await;
    let answer = frames.find(|received| received.kind == HEADERS && received.stream == last);
    let answer = answer.await;
    assert!(answer.is_none(), "40,000 resets are too many: {answer:?}");
}

/// Resets requests a little slower, so that each begins before its reset. If too few have begun,
/// the HTTP/2 library's own limit may end the connection first. Then this tries again.
async fn reset_begun_requests(scene: &Scene, post: &[u8]) {
    let mut attempts = 0;
    while scene.cut("resets").await < 1.0 {
        attempts += 1;
        assert!(
            attempts <= 20,
            "resets of requests that were begun are counted here"
        );
        take_back(&mut Frames::open(scene.proxied(), 65_535).await, post).await;
    }
}

/// Sends CONTINUATION frames without an end (CVE-2024-27316).
async fn send_endless_headers(scene: &Scene, list: &[u8]) {
    let mut frames = Frames::open(scene.proxied(), 65_535).await;
    frames.send(&frame(HEADERS, END_STREAM, 1, list)).await;
    let more = frame(
        CONTINUATION,
        0,
        1,
        &block(&[("x-more", &"a".repeat(8_000))]),
    );
    let mut sent = 0;
    while frames.send(&more).await {
        sent += 1;
        assert!(
            sent < 10_000,
            "CONTINUATION frames are taken without an end"
        );
    }
}

/// Sends a small header block that HPACK's table expands: one entry of 4,000 bytes, used 12,000
/// times.
async fn send_expanding_headers(scene: &Scene, list: &[u8]) {
    let mut frames = Frames::open(scene.proxied(), 65_535).await;
    let mut bomb = list.to_vec();
    bomb.push(0x40);
    for text in ["x-bomb", &"a".repeat(3_900)] {
        length(&mut bomb, text.len());
        bomb.extend(text.as_bytes());
    }
    bomb.extend(vec![0xbe; 12_000]);
    frames
        .send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &bomb))
        .await;
    if let Some(answer) = frames
        .find(|frame| frame.stream == 1 || frame.kind == GOAWAY)
        .await
    {
        let refused =
            answer.kind != HEADERS || answer.payload.windows(3).any(|part| part == b"431");
        assert!(
            refused || answer.payload.first() == Some(&0x08),
            "{answer:?}"
        );
    }
}

/// Sends frames that each require an answer, which nobody reads, and frames without content.
async fn flood_with_small_frames(scene: &Scene, post: &[u8]) {
    let floods = [
        frame(PING, 0, 0, &[7; 8]),
        frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]),
        frame(DATA, 0, 1, &[]),
        frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
    ];
    for flood in floods {
        let mut frames = Frames::open(scene.proxied(), 65_535).await;
        frames.send(&frame(HEADERS, END_HEADERS, 1, post)).await;
        let many = flood.repeat(1_000);
        let flooding = async {
            for _ in 0..300 {
                if !frames.send(&many).await {
                    break;
                }
            }
        };
        // A server that cannot write its answers stops reading at some point.
        let _ = tokio::time::timeout(Duration::from_secs(1), flooding).await;
    }
}

/// Begins requests and resets them, fifteen at a time, until the connection ends.
async fn take_back(frames: &mut Frames, request: &[u8]) {
    let (mut sent, mut open) = (0, true);
    while open {
        assert!(sent < 20_000, "so many requests were taken back");
        let (mut begin, mut reset) = (Vec::new(), Vec::new());
        for id in (0..15).map(|n| (sent + n) * 2 + 1) {
            begin.extend(frame(HEADERS, END_HEADERS, id, request));
            reset.extend(frame(RST_STREAM, 0, id, &8_u32.to_be_bytes()));
        }
        sent += 15;
        begin.extend(frame(PING, 0, 0, &[1; 8]));
        open = frames.send(&begin).await
            && frames.find(|frame| frame.kind == PING).await.is_some()
            && frames.send(&reset).await;
    }
}

/// Reads and acknowledges all frames within the window, and counts the reset streams.
fn attend(mut frames: Frames) -> Arc<AtomicU64> {
    let resets = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&resets);
    tokio::spawn(async move {
        while let Some(received) = frames.next().await {
            match received.kind {
                SETTINGS if received.payload.is_empty() => {}
                SETTINGS => drop(frames.send(&frame(SETTINGS, ACK, 0, &[])).await),
                PING => drop(frames.send(&frame(PING, ACK, 0, &received.payload)).await),
                RST_STREAM => drop(counter.fetch_add(1, Ordering::AcqRel)),
                _ => {}
            }
        }
    });
    resets
}

/// Returns options that make a list of 6 MB, too large for a socket's buffer.
fn large() -> Options {
    let mut options = small();
    options.population = Population {
        pods: 1_500,
        ..options.population
    };
    options
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_are_cut_off_and_use_little_memory() {
    let scene = Scene::start(large(), SHORT).await;
    let bearer = scene.bearer.clone();
    let version = scene
        .proxied()
        .get(Protocol::Http2, "/api/v1/pods?resourceVersion=0&limit=1")
        .await
        .json();
    let version = version["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    let watch = format!("/api/v1/pods?watch=1&resourceVersion={version}&timeoutSeconds=600");
    let paths = [LIST.to_owned(), format!("{watch}&allowWatchBookmarks=true")];
    let growth = Growth::watch(scene.program.pid());

    // A quiet watch has no pending bytes, so its client is not a stalled one.
    let quiet = "/api/v1/namespaces/team-00/secrets?watch=1&resourceVersion=0&timeoutSeconds=600";
    let mut quiet = Some(scene.proxied().watch(Protocol::Http2, quiet).await);

    let (mut plain, mut streams, mut attentive) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..20 {
        // HTTP/1.1: the socket's buffer fills up.
        let path = &paths[n % 2];
        let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nAuthorization: {bearer}\r\n\r\n");
        plain.push(scene.proxied().raw(request.as_bytes(), |_| true).await);
    }
    for window in [0, 1, 1_000, i32::MAX.cast_unsigned()] {
        // HTTP/2: the window is closed, or it is open and the socket's buffer fills up.
        let mut frames = Frames::open(scene.proxied(), window).await;
        frames
            .send(&frame(WINDOW_UPDATE, 0, 0, &0x7000_0000_u32.to_be_bytes()))
            .await;
        for n in 0..40_u32 {
            let head = block(&get(&paths[n as usize % 2], &bearer));
            frames
                .send(&frame(HEADERS, END_STREAM | END_HEADERS, n * 2 + 1, &head))
                .await;
        }
        if window == i32::MAX.cast_unsigned() {
            streams.push(frames);
        } else {
            attentive.push((window, attend(frames)));
        }
    }
    let history = WriteHistory::new(scene.upstream.state(), 3);
    // Each watch has twice as many bytes as a socket's buffer holds.
    for _ in 0..20 {
        history.writes(100).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Streams with a closed window are reset one by one, and the connection stays.
    for (window, resets) in &attentive {
        eventually(
            "streams that are not taken to be reset",
            async || match resets.load(Ordering::Acquire) {
                20.. => Ok(()),
                few => Err(format!("{few} with a window of {window}")),
            },
        )
        .await;
    }
    eventually("all to be cut", async || {
        let (connections, answers) = (
            scene.cut("write-stall").await,
            scene
                .metric(r#"watershed_responses_terminated_total{reason="write-stall"}"#)
                .await,
        );
        let done = connections >= 20.0 && answers >= 60.0;
        if done {
            Ok(())
        } else {
            Err(format!("{connections} connections, {answers} answers"))
        }
    })
    .await;
    growth.stays_below(96 * MIB);

    let secrets = watershed_protocol::GroupVersionResource::new("", "v1", "secrets");
    let object = r#"{"metadata":{"name":"late","namespace":"team-00"}}"#;
    scene.upstream.state().create(&secrets, object).unwrap();
    let mut quiet = quiet.take().unwrap();
    while !quiet.line().await.contains("late") {}
    drop((plain, streams));
    scene.end().await;
}

/// Each answer fits into what HTTP/2 takes at once, and upstream does not tell its length.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_one_chunk_that_are_not_taken_are_cut_off() {
    let mut options = small();
    options.population.configmaps = 1;
    options.population.configmap_bytes = 50 << 10;
    let scene = Scene::start(options, SHORT).await;
    let bearer = scene.bearer.clone();
    let configmaps = scene
        .proxied()
        .get(Protocol::Http2, "/api/v1/configmaps")
        .await;
    let first = configmaps.json()["items"][0]["metadata"].clone();
    let (namespace, name) = (&first["namespace"], &first["name"]);
    let path = format!(
        "/api/v1/namespaces/{}/configmaps/{}",
        namespace.as_str().unwrap(),
        name.as_str().unwrap()
    );
    let from_memory = format!("{path}?resourceVersion=0");
    for path in [&path, &from_memory] {
        let mut frames = Frames::open(scene.proxied(), 1).await;
        for n in 0..40_u32 {
            let head = block(&get(path, &bearer));
            frames
                .send(&frame(HEADERS, END_STREAM | END_HEADERS, n * 2 + 1, &head))
                .await;
        }
        let resets = attend(frames);
        eventually("the answers to be cut", async || {
            let resets = resets.load(Ordering::Acquire);
            (resets == 40)
                .then_some(())
                .ok_or(format!("{resets} of {path}"))
        })
        .await;
    }
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_per_address_are_limited() {
    let scene = Scene::start(
        small(),
        &[
            "--max-connections-per-address",
            "120",
            "--handshake-timeout-seconds",
            "40",
        ],
    )
    .await;
    let growth = Growth::watch(scene.program.pid());
    let rejected = r#"watershed_connections_rejected_total{listener="proxy",reason="per-address"}"#;
    // The well-behaved clients have this address, too. They need a free slot until the end.
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(
            within("a handshake", scene.proxied().tls(Protocol::Http2))
                .await
                .unwrap(),
        );
    }
    assert!(scene.metric(rejected).await < 1.0);
    assert!(
        scene
            .metric(r#"watershed_connections{listener="proxy"}"#)
            .await
            >= 100.0
    );
    drop(idle);
    growth.stays_below(32 * MIB);
    let Scene {
        upstream,
        program,
        good,
        ..
    } = scene;
    good.all_were_served().await;
    let mut held = Vec::new();
    loop {
        match program.proxied.tls(Protocol::Http2).await {
            Ok(stream) => held.push(stream),
            Err(_) => break,
        }
        assert!(held.len() <= 120);
    }
    assert!(program.metric(rejected).await >= 1.0);
    drop(held);
    eventually("room for others", async || {
        let connected = program.proxied.tls(Protocol::Http1).await;
        connected.map(drop).map_err(|error| error.to_string())
    })
    .await;
    program.terminate().await;
    assert!(program.ended().await.success());
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_bytes_are_refused() {
    let scene = Scene::start(small(), SHORT).await;
    let growth = Growth::watch(scene.program.pid());
    let mut random = fastrand::Rng::with_seed(11);
    for n in 0..120 {
        let mut bytes = vec![0; 4 + random.usize(..3_000)];
        random.fill(&mut bytes);
        match n % 3 {
            0 => {
                let mut stream = TcpStream::connect(scene.proxied().address).await.unwrap();
                let _ = stream.write_all(&bytes).await;
                ends(&mut stream).await;
            }
            1 => {
                let mut raw = scene.proxied().raw(&bytes, |_| false).await;
                let said = &raw.text;
                assert!(
                    said.is_empty() || said.starts_with("HTTP/1.1 400 "),
                    "{said:?}"
                );
                ends(&mut raw.stream).await;
            }
            _ => {
                let mut frames = Frames::open(scene.proxied(), 65_535).await;
                frames.send(&bytes).await;
                frames.closed().await;
            }
        }
    }
    growth.stays_below(16 * MIB);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_check_detects_growth() {
    // A process that keeps its input stands for a leak. Other tests share the memory of this
    // process.
    let mut keeps = Command::new("tail")
        .args(["-c", "200000000"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let told = vec![1; 1 << 20];
    let mut input = keeps.stdin.take().unwrap();
    // Once it reads, it has memory of its own. Until then it may count that of the process that
    // started it.
    input.write_all(&told).await.unwrap();
    let growth = Growth::watch(keeps.id().unwrap());
    for _ in 0..128 {
        input.write_all(&told).await.unwrap();
    }
    assert!(growth.end() > 100 * MIB);
    keeps.kill().await.unwrap();
}
