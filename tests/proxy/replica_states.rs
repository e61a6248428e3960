//! States from another replica (`--state-from`): a new proxy begins without a list, or lists.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use futures_util::{StreamExt as _, stream};
use http::{Request, StatusCode, header};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use watershed_lab::sim::{AccessRule, Options, SimulatedServer};
use watershed_protocol::GroupVersionResource;

use crate::checkpoints::{PODS, assert_exact, create_pod, lists};
use crate::support::client::{Answer, Endpoint, Protocol, nothing};
use crate::support::follower::{Follower, Opening};
use crate::support::history::{Interest, WriteHistory};
use crate::support::program::Program;
use crate::support::{becomes, loopback, small, unless_stalled};
use crate::trees::kubeconfig;

const CONFIGMAPS: &str = "/api/v1/configmaps?resourceVersion=0";
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// The media type that a replica asks for.
const CHECKPOINT: &str = "application/vnd.watershed.checkpoint;layout=2;encoding=json";
const CHECKPOINT_IN_PROTOBUF: &str =
    "application/vnd.watershed.checkpoint;layout=2;encoding=protobuf";

/// The way to other replicas, for `--state-from`.
struct StateFrom {
    file: PathBuf,
    _folder: TempDir,
}

impl StateFrom {
    fn new(server: &str, token: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("replicas");
        std::fs::write(&file, kubeconfig(server, token)).unwrap();
        Self {
            file,
            _folder: folder,
        }
    }

    fn program(program: &Program, token: &str) -> Self {
        let ca = base64::engine::general_purpose::STANDARD.encode(&program.ca);
        let address = program.proxied.address;
        let server = format!("server: https://{address}, certificate-authority-data: {ca}");
        Self::new(&server, token)
    }

    fn canned(peer: &CannedPeer) -> Self {
        Self::new(&format!("server: http://{}", peer.address), "any")
    }

    /// Starts a program that takes its first states from there.
    async fn launch(&self, upstream: &SimulatedServer) -> Program {
        let flags = ["--state-from", self.file.to_str().unwrap()];
        Program::with(upstream, &flags).await
    }

    /// Starts a program, and waits until memory answers lists of pods.
    async fn start(&self, upstream: &SimulatedServer) -> Program {
        let program = self.launch(upstream).await;
        from_memory(&program, PODS, JSON).await;
        program
    }
}

/// The answers of a replica that is not one.
#[derive(Clone)]
enum Canned {
    /// A status without a body.
    Status(u16),
    /// A body with the media type that was asked for.
    Whole(Vec<u8>),
    /// A part of a body, and then the connection ends.
    Cut(Vec<u8>),
    /// A part of a body, and then nothing.
    Stalled(Vec<u8>),
    /// Nothing.
    Silence,
}

/// A server that answers each question about pods with the next of some answers, or the last one
/// again, and all others with 503.
struct CannedPeer {
    address: SocketAddr,
    _task: AbortOnDropHandle<()>,
}

impl CannedPeer {
    async fn start(answers: impl Into<Vec<Canned>>) -> Self {
        let answers: Arc<[Canned]> = answers.into().into();
        let asked = Arc::new(AtomicUsize::new(0));
        let listener = TcpListener::bind(loopback()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answers, asked) = (Arc::clone(&answers), Arc::clone(&asked));
                tokio::spawn(async move {
                    let _ = answer(stream, &answers, &asked).await;
                });
            }
        });
        Self {
            address,
            _task: AbortOnDropHandle::new(task),
        }
    }
}

/// Answers the one request of a connection.
async fn answer(
    mut stream: TcpStream,
    answers: &[Canned],
    asked: &AtomicUsize,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let is_of_pods = head.starts_with(b"GET /api/v1/pods?");
    let canned = if is_of_pods {
        let number = asked.fetch_add(1, Ordering::Relaxed);
        &answers[number.min(answers.len() - 1)]
    } else {
        &Canned::Status(503)
    };
    let (status, body, more) = match canned {
        Canned::Status(status) => (*status, &[][..], 0),
        Canned::Whole(body) => (200, &body[..], 0),
        Canned::Cut(body) | Canned::Stalled(body) => (200, &body[..], 1),
        Canned::Silence => std::future::pending().await,
    };
    let length = body.len() + more;
    let head = format!(
        "HTTP/1.1 {status} Canned\r\nContent-Type: {CHECKPOINT}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await?;
    stream.flush().await?;
    if let Canned::Stalled(_) = canned {
        std::future::pending::<()>().await;
    }
    Ok(())
}

async fn get(endpoint: &Endpoint, path: &str, accept: &str) -> Answer {
    let request = Request::get(path).header(header::ACCEPT, accept);
    let request = request.body(nothing()).unwrap();
    endpoint.send(Protocol::Http2, request).await.unwrap()
}

/// Waits until memory answers.
async fn from_memory(program: &Program, path: &str, accept: &str) {
    becomes("memory answers", "snapshot".to_owned(), async || {
        let list = get(&program.proxied, path, accept).await;
        list.header("x-watershed-source").to_owned()
    })
    .await;
}

/// Returns an error with the log if the machine stalled, so that a state was not taken in time.
fn unless_late(program: &Program) -> Result<(), String> {
    let log = program.log();
    let late = [
        "no answer within",
        "nothing of the answer came",
        "the answer comes too slowly",
        "too many other states are being loaded",
        "cannot be reached",
    ];
    if late.iter().any(|text| log.contains(text)) {
        return Err(log);
    }
    Ok(())
}

/// Makes a few checks at a time: each starts a program.
async fn some_at_once(checks: impl IntoIterator<Item = impl Future<Output = ()>>) {
    let checks = stream::iter(checks);
    checks.for_each_concurrent(3, |check| check).await;
}

async fn taken(program: &Program, result: &str) -> f64 {
    let series = format!(r#"watershed_replica_states_total{{result="{result}"}}"#);
    program.metric(&series).await
}

/// Waits until a replica gives a state. It must know the release that printed the objects.
async fn gives(replica: &Program, path: &str, media_type: &str) {
    becomes("a replica gives a state", StatusCode::OK, async || {
        get(&replica.proxied, path, media_type).await.status
    })
    .await;
}

/// Returns the checkpoint of all pods that a replica gives. There was an event of pods before.
async fn checkpoint_of_pods(program: &Program) -> Vec<u8> {
    let answer = get(&program.proxied, PODS, CHECKPOINT).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("content-type"), CHECKPOINT);
    answer.body.to_vec()
}

/// Starts a replica that has pods in memory, and has got an event of them.
async fn replica_with_pods(upstream: &SimulatedServer) -> Program {
    let program = Program::start(upstream).await;
    from_memory(&program, PODS, JSON).await;
    create_pod(upstream, "noticed");
    assert_exact(&program, upstream).await;
    gives(&program, PODS, CHECKPOINT).await;
    program
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_replica_begins_with_the_state_of_another_without_a_list() {
    let options = Options {
        protobuf: true,
        ..small()
    };
    let upstream = SimulatedServer::start(options).await.unwrap();
    let history = WriteHistory::new(upstream.state(), 1);
    let first = Program::start(&upstream).await;
    let forms = [(PODS, JSON), (CONFIGMAPS, JSON), (CONFIGMAPS, PROTOBUF)];
    for (path, accept) in forms {
        from_memory(&first, path, accept).await;
    }
    history.writes(50).await;
    let gvr = GroupVersionResource::new("", "v1", "configmaps");
    let object = r#"{"metadata":{"name":"noticed","namespace":"default"},"data":{"a":"b"}}"#;
    upstream.state().create(&gvr, object).unwrap();
    assert_exact(&first, &upstream).await;
    let direct = Endpoint::new(
        upstream.address(),
        upstream.ca_pem(),
        upstream.admin_token(),
    );
    let listed = |resource| upstream.stats().requests_on("LIST", resource);
    let listed_whole = |resource: &str| {
        let key = ("LIST".to_owned(), resource.to_owned());
        upstream
            .stats()
            .whole
            .get(&key)
            .copied()
            .unwrap_or_default()
    };
    for (path, accept) in &forms[1..] {
        let theirs = get(&direct, path, accept).await.body;
        becomes("all objects", theirs, async || {
            get(&first.proxied, path, accept).await.body
        })
        .await;
    }

    let checkpoints = [
        (PODS, CHECKPOINT),
        (CONFIGMAPS, CHECKPOINT),
        (CONFIGMAPS, CHECKPOINT_IN_PROTOBUF),
    ];
    for (path, media_type) in checkpoints {
        gives(&first, path, media_type).await;
    }
    let types = ["pods", "configmaps"];
    let (mut replicas, mut started) = (vec![first], None);
    // The third takes its states from the second, which has seen no event but the repeated ones.
    while replicas.len() < 3 {
        let other = replicas.last().unwrap();
        let from = StateFrom::program(other, upstream.admin_token());
        unless_stalled("a replica begins without a list", async || {
            let before = (types.map(listed), types.map(listed_whole));
            let next = from.launch(&upstream).await;
            for (path, accept) in forms {
                from_memory(&next, path, accept).await;
                let ours = get(&next.proxied, path, accept).await.body;
                let others = get(&other.proxied, path, accept).await.body;
                assert_eq!(ours, others, "{path} as {accept}");
                unless_late(&next)?;
            }
            let log = next.log();
            assert_eq!(types.map(listed_whole), before.1, "{log}");
            assert!(taken(&next, "restored").await >= 3.0, "{log}");
            assert!(lists(&next).await < 1.0);
            // One for each state asks for the version of its type.
            let [pods, configmaps] = before.0;
            assert_eq!(types.map(listed), [pods + 1, configmaps + 2], "{log}");
            started = Some(next);
            Ok(())
        })
        .await;
        let next = started.take().unwrap();
        for (path, media_type) in checkpoints {
            gives(&next, path, media_type).await;
        }
        replicas.push(next);
    }
    let second = replicas.pop().unwrap();

    let connection = second.proxied.connect(Protocol::Http2).await.unwrap();
    let followers = [Opening::List, Opening::WatchList]
        .map(|opening| Follower::start(&connection, Interest::All, opening));
    for follower in &followers {
        follower.synced().await;
    }
    for replica in replicas {
        replica.kill().await;
    }
    history.writes(50).await;
    for follower in &followers {
        follower.judge_undisturbed(&history).await;
    }
    assert_exact(&second, &upstream).await;
    second.kill().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_type_that_turns_out_not_to_be_derived_begins_without_a_list() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    // Pods are not offered in protobuf, which both find out by asking.
    let first = replica_with_pods(&upstream).await;
    let from = StateFrom::program(&first, upstream.admin_token());
    unless_stalled("a replica begins without a list", async || {
        let flags = [
            "--derive-json",
            "true",
            "--state-from",
            from.file.to_str().unwrap(),
        ];
        let next = Program::with(&upstream, &flags).await;
        from_memory(&next, PODS, JSON).await;
        becomes(
            "the log tells why, or an answer is late",
            true,
            async || {
                let log = next.log();
                log.contains("it is not cached in protobuf") || unless_late(&next).is_err()
            },
        )
        .await;
        unless_late(&next)?;
        assert!(lists(&next).await < 1.0, "{}", next.log());
        next.kill().await;
        Ok(())
    })
    .await;
    first.kill().await;
    upstream.shutdown().await;
}

/// Each answer costs a list and nothing else. None of them ends the timeline, which would end all
/// watches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_is_of_no_use_is_replaced_by_a_list() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let replica = replica_with_pods(&upstream).await;
    let state = checkpoint_of_pods(&replica).await;
    replica.kill().await;
    let other = SimulatedServer::start(small()).await.unwrap();
    let namespaces = GroupVersionResource::new("", "v1", "namespaces");
    let cluster = r#"{"metadata":{"name":"kube-system"}}"#;
    other
        .state()
        .delete(&namespaces, "", "kube-system")
        .unwrap();
    other.state().create(&namespaces, cluster).unwrap();
    let replica_elsewhere = replica_with_pods(&other).await;
    let elsewhere = checkpoint_of_pods(&replica_elsewhere).await;
    replica_elsewhere.kill().await;
    other.shutdown().await;
    let mut damaged = state.clone();
    damaged[state.len() / 2] ^= 1;
    let mut endless = state[..24].to_vec();
    endless.extend_from_slice(&u32::MAX.to_le_bytes());
    let cases = [
        (Canned::Status(503), "not-held"),
        (Canned::Status(406), "refused"),
        (Canned::Status(403), "refused"),
        (Canned::Silence, "unreachable"),
        (
            Canned::Cut(state[..state.len() - 1].to_vec()),
            "unreachable",
        ),
        (Canned::Cut(Vec::new()), "unreachable"),
        (Canned::Stalled(state[..state.len() / 2].to_vec()), "late"),
        (Canned::Whole(damaged), "damaged"),
        (Canned::Whole([&state[..], b"x"].concat()), "damaged"),
        (Canned::Whole(state[..state.len() / 2].to_vec()), "damaged"),
        (Canned::Whole(b"{}".to_vec()), "damaged"),
        (Canned::Whole(endless), "damaged"),
        (Canned::Whole(elsewhere), "foreign"),
    ];
    let checks = cases
        .into_iter()
        .enumerate()
        .map(async |(case, (canned, result))| {
            let peer = CannedPeer::start([canned]).await;
            unless_stalled("a state is of no use", async || {
                let program = StateFrom::canned(&peer).start(&upstream).await;
                assert!(lists(&program).await >= 1.0, "case {case}");
                let log = program.log();
                assert!(!log.contains("has another history"), "case {case}: {log}");
                assert_exact(&program, &upstream).await;
                if taken(&program, result).await < 1.0 {
                    unless_late(&program)?;
                    panic!("case {case}: {log}");
                }
                program.kill().await;
                Ok(())
            })
            .await;
        });
    some_at_once(checks).await;
    upstream.shutdown().await;
}

/// One replica is no reason to list what another one has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_no_use_is_passed_over() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let replica = replica_with_pods(&upstream).await;
    let state = checkpoint_of_pods(&replica).await;
    replica.kill().await;
    let part = state[..state.len() / 2].to_vec();
    let checks = [
        Canned::Silence,
        Canned::Stalled(part.clone()),
        Canned::Cut(part),
        Canned::Status(406),
        Canned::Status(429),
    ];
    let checks = checks.into_iter().map(async |first| {
        unless_stalled("another replica is asked", async || {
            let answers = [first.clone(), Canned::Whole(state.clone())];
            let peer = CannedPeer::start(answers).await;
            let program = StateFrom::canned(&peer).start(&upstream).await;
            if lists(&program).await >= 1.0 {
                unless_late(&program)?;
                panic!("{}", program.log());
            }
            assert!(taken(&program, "restored").await >= 1.0);
            program.kill().await;
            Ok(())
        })
        .await;
    });
    some_at_once(checks).await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_cannot_be_reached_costs_a_list() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    // Without a listener. As it is bound, no other process gets the port.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(loopback()).unwrap();
    let address = socket.local_addr().unwrap();
    let from = StateFrom::new(&format!("server: http://{address}"), "any");
    let program = from.start(&upstream).await;
    assert!(lists(&program).await >= 1.0);
    assert!(taken(&program, "unreachable").await >= 1.0);
    assert_exact(&program, &upstream).await;
    drop(socket);
    program.kill().await;
    upstream.shutdown().await;
}

/// A Service leads to the new replica, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_asks_itself_lists() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let (own, target) = relay_to_later().await;
    let server = format!("server: https://{own}, insecure-skip-tls-verify: true");
    let from = StateFrom::new(&server, upstream.admin_token());
    let program = from.launch(&upstream).await;
    target.send(Some(program.proxied.address)).unwrap();
    from_memory(&program, PODS, JSON).await;
    assert!(lists(&program).await >= 1.0);
    assert!(taken(&program, "restored").await < 1.0);
    // If the program took long to start, its first questions had no answer in time.
    let refused = taken(&program, "not-held").await + taken(&program, "unreachable").await;
    assert!(refused >= 1.0);
    assert_exact(&program, &upstream).await;
    assert!(!program.log().contains("loop of proxies"));
    program.kill().await;
    upstream.shutdown().await;
}

/// Returns an address whose connections lead to a server that is known later, and wait until then.
async fn relay_to_later() -> (SocketAddr, watch::Sender<Option<SocketAddr>>) {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (target, known) = watch::channel(None);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut known = known.clone();
            tokio::spawn(async move {
                let target = known.wait_for(Option::is_some).await.map(|target| *target);
                if let Ok(Some(target)) = target
                    && let Ok(mut server) = TcpStream::connect(target).await
                {
                    let _ = copy_bidirectional(&mut client, &mut server).await;
                }
            });
        }
    });
    (address, target)
}

/// The other replica has not noticed the restore yet. Its versions are ahead of upstream's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_of_a_lost_history_is_not_shown() {
    for (others, result) in [(0, "ahead"), (60, "not-continued")] {
        let upstream = SimulatedServer::start(small()).await.unwrap();
        let backup = upstream.state().branch();
        let replica = replica_with_pods(&upstream).await;
        let peer = CannedPeer::start([Canned::Whole(checkpoint_of_pods(&replica).await)]).await;
        replica.kill().await;
        // The same cluster, restored from a backup, has other objects in the same versions.
        for n in 0..others {
            let pod = format!(r#"{{"metadata":{{"name":"other-{n}","namespace":"default"}}}}"#);
            let pods = GroupVersionResource::new("", "v1", "pods");
            backup.create(&pods, &pod).unwrap();
        }
        upstream.restore(&backup);
        unless_stalled("the state is refused", async || {
            let program = StateFrom::canned(&peer).launch(&upstream).await;
            becomes("memory answers", "snapshot".to_owned(), async || {
                let list = program.proxied.get(Protocol::Http2, PODS).await;
                assert!(!list.json().to_string().contains(r#""noticed""#));
                list.header("x-watershed-source").to_owned()
            })
            .await;
            assert_exact(&program, &upstream).await;
            assert!(lists(&program).await >= 1.0);
            // Nor does it say anything about the other types.
            assert!(!program.log().contains("has another history"));
            if taken(&program, result).await < 1.0 {
                unless_late(&program)?;
                panic!("{}", program.log());
            }
            program.kill().await;
            Ok(())
        })
        .await;
        upstream.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_whose_history_upstream_has_compacted_is_replaced_by_a_list() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let replica = replica_with_pods(&upstream).await;
    let peer = CannedPeer::start([Canned::Whole(checkpoint_of_pods(&replica).await)]).await;
    replica.kill().await;
    for n in 0..10 {
        create_pod(&upstream, &format!("later-{n}"));
    }
    upstream.state().forget_history();
    let program = StateFrom::canned(&peer).start(&upstream).await;
    assert!(lists(&program).await >= 1.0);
    assert!(taken(&program, "not-continued").await >= 1.0);
    assert_exact(&program, &upstream).await;
    program.kill().await;
    upstream.shutdown().await;
}

/// A checkpoint shows all objects of a list, so whoever may not list them does not get it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_is_given_to_those_who_may_list_it() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let access = upstream.access();
    access.add_user("reader", "reader", &[]);
    access.add_user("inside", "inside", &[]);
    access.allow(AccessRule::read("reader", &["pods"]));
    access.allow(AccessRule::read("inside", &["pods"]).in_namespace("default"));
    let replica = replica_with_pods(&upstream).await;
    let reviews = || {
        let reviews = "subjectaccessreviews.authorization.k8s.io";
        upstream.stats().requests_on("POST", reviews)
    };
    let inside = "/api/v1/namespaces/default/pods?resourceVersion=0";
    let selected = "/api/v1/pods?resourceVersion=0&labelSelector=a%3Db";
    let nodes = "/api/v1/nodes?resourceVersion=0";
    for (token, path, status, source) in [
        ("reader", PODS, 200, "snapshot"),
        // Whether a type is held is no secret, so it costs no review.
        ("reader", nodes, 503, "no-state"),
        ("inside", PODS, 403, "forward; reason=representation"),
        // What may be listed is not what is held.
        ("inside", inside, 503, "no-state"),
        ("reader", selected, 503, "no-state"),
        ("inside", selected, 403, "forward; reason=representation"),
        ("unknown", PODS, 401, "forward; reason=identity"),
        ("", PODS, 403, "forward; reason=identity"),
        // Only a state as a whole is one.
        ("reader", "/api/v1/pods", 406, "forward; reason=parameters"),
        (
            "reader",
            "/api/v1/pods?resourceVersion=0&watch=1",
            406,
            "forward; reason=representation",
        ),
    ] {
        let reviewed = reviews();
        let answer = get(&replica.proxied.as_user(token), path, CHECKPOINT).await;
        let got = (answer.status.as_u16(), answer.header("x-watershed-source"));
        assert_eq!(got, (status, source), "{token:?} at {path}");
        let is_reviewed = reviews() > reviewed;
        assert!(!(is_reviewed && path == nodes), "{token:?} at {path}");
        let shows = answer.body.windows(7).any(|part| part == b"noticed");
        assert_eq!(shows, status == 200, "{token:?} at {path}");
    }
    let from = StateFrom::program(&replica, "inside");
    let program = from.start(&upstream).await;
    assert!(taken(&program, "refused").await >= 1.0);
    assert!(lists(&program).await >= 1.0);
    program.kill().await;
    replica.kill().await;
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_replica_gives_secrets() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = TempDir::new().unwrap();
    let config = folder.path().join("config.yaml");
    let secrets = "/api/v1/secrets?resourceVersion=0";
    let text = "resources: [{resource: secrets, cache: onDemand}]\n";
    std::fs::write(&config, text).unwrap();
    let flags = ["--config", config.to_str().unwrap()];
    let replica = Program::with(&upstream, &flags).await;
    from_memory(&replica, secrets, JSON).await;
    let answer = get(&replica.proxied, secrets, CHECKPOINT).await;
    assert_eq!(answer.status, StatusCode::NOT_ACCEPTABLE);
    assert_eq!(
        answer.header("x-watershed-source"),
        "forward; reason=policy"
    );
    replica.kill().await;
    upstream.shutdown().await;
}
