//! Hostile clients: each request is well-formed, and costs the proxy more than its sender.
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, Request, Response, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use watershed_lab::body::full_body;

use crate::abuse::Progress;
use crate::client::{Connection, Endpoint};
use crate::servers::ALL_PODS;

/// Time for which answers are left unread before others take their place.
const KEPT: Duration = Duration::from_secs(3);
/// Time limit for one answer that is read.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a request that failed, as clients are refused for a second.
const PAUSE: Duration = Duration::from_millis(10);

/// Types that the simulated API server has, and kube-apiserver, too.
const TYPES: [&str; 8] = [
    "/api/v1/pods",
    "/api/v1/nodes",
    "/api/v1/services",
    "/api/v1/configmaps",
    "/api/v1/namespaces",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/replicasets",
    "/apis/discovery.k8s.io/v1/endpointslices",
];
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// The versions that the proxy's history leads back to.
#[derive(Clone, Copy)]
pub(crate) struct VersionRange {
    pub(crate) oldest: u64,
    pub(crate) newest: u64,
}

/// Something that hostile clients do again and again.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// Clients at a time, each on a connection of its own.
    pub(crate) clients: usize,
    /// Returns the request of a number.
    request: fn(VersionRange, u64) -> AttackRequest,
    answers: AnswerUse,
}

/// Use of the answers by a hostile client.
#[derive(Clone, Copy)]
enum AnswerUse {
    /// It reads one after the other.
    Read,
    /// It leaves so many at a time unread.
    Kept(usize),
}

/// A path, and a header beside the usual ones.
struct AttackRequest {
    path: String,
    header: Option<(HeaderName, String)>,
}

/// All attacks.
pub(crate) const ATTACKS: [Attack; 9] = [
    Attack {
        name: "lists that nobody reads",
        clients: 20,
        request: |_, _| path(ALL_PODS.to_owned()),
        answers: AnswerUse::Kept(50),
    },
    Attack {
        name: "lists by 9,000 values",
        clients: 4,
        request: |_, _| path(format!("{ALL_PODS}&labelSelector={}", many_values())),
        answers: AnswerUse::Read,
    },
    Attack {
        name: "watches by 9,000 values",
        clients: 4,
        request: |_, _| {
            path(format!(
                "{ALL_PODS}&watch=1&labelSelector={}",
                many_values()
            ))
        },
        answers: AnswerUse::Kept(50),
    },
    Attack {
        name: "one object at old versions",
        clients: 8,
        request: |versions, number| {
            let version = versions.oldest + number % (versions.newest - versions.oldest).max(1);
            path(format!(
                "/api/v1/pods?limit=1&resourceVersionMatch=Exact&resourceVersion={version}"
            ))
        },
        answers: AnswerUse::Read,
    },
    Attack {
        name: "metadata of everything",
        clients: 4,
        request: |_, number| AttackRequest {
            path: format!("{}?resourceVersion=0", type_of(number)),
            header: Some((header::ACCEPT, METADATA.to_owned())),
        },
        answers: AnswerUse::Read,
    },
    Attack {
        name: "junk selectors of every type",
        clients: 4,
        request: |_, number| {
            let junk = fastrand::u32(..);
            path(format!(
                "{}?resourceVersion=0&labelSelector=junk%3D{junk}",
                type_of(number)
            ))
        },
        answers: AnswerUse::Read,
    },
    Attack {
        name: "documents by random queries",
        clients: 4,
        request: |_, _| path(format!("/openapi/v2?junk={}", fastrand::u64(..))),
        answers: AnswerUse::Read,
    },
    Attack {
        name: "random tokens",
        clients: 8,
        request: |_, _| AttackRequest {
            path: ALL_PODS.to_owned(),
            header: Some((
                header::AUTHORIZATION,
                format!("Bearer {}", fastrand::u64(..)),
            )),
        },
        answers: AnswerUse::Read,
    },
    Attack {
        name: "heads of 60 KB",
        clients: 8,
        request: |_, _| AttackRequest {
            path: "/api/v1/namespaces/default/pods/none".to_owned(),
            header: Some((header::REFERER, "x".repeat(60_000))),
        },
        answers: AnswerUse::Read,
    },
];

fn path(path: String) -> AttackRequest {
    AttackRequest { path, header: None }
}

fn type_of(number: u64) -> &'static str {
    TYPES[number as usize % TYPES.len()]
}

/// Returns a selector of 9,000 values, escaped.
fn many_values() -> String {
    let values: Vec<_> = (0..9_000).map(|value| format!("v{value:04}")).collect();
    format!("app%20notin%20%28{}%29", values.join("%2C"))
}

/// Attacks until it is over. Whatever a hostile client gets is right.
pub(crate) async fn run(
    attack: &Attack,
    clients: usize,
    versions: VersionRange,
    endpoint: &Endpoint,
    progress: Arc<Progress>,
) {
    let mut attackers = JoinSet::new();
    for _ in 0..clients {
        let (endpoint, progress) = (endpoint.clone(), Arc::clone(&progress));
        let (request, answers) = (attack.request, attack.answers);
        attackers.spawn(async move {
            while !progress.is_over() {
                let Ok(connection) = endpoint.connect_narrow(false).await else {
                    sleep(PAUSE).await;
                    continue;
                };
                while !progress.is_over() && !connection.is_closed() {
                    let next = || request(versions, progress.done.fetch_add(1, Ordering::AcqRel));
                    match answers {
                        AnswerUse::Read => read(&connection, next()).await,
                        AnswerUse::Kept(count) => keep(&connection, count, next, &progress).await,
                    }
                }
            }
        });
    }
    while attackers.join_next().await.is_some() {}
}

/// Reads an answer and throws it away.
async fn read(connection: &Connection, request: AttackRequest) {
    let answer = async {
        let answer = ask(connection, request).await?;
        let is_refused = !answer.status().is_success();
        let mut body = answer.into_body();
        while let Some(frame) = body.frame().await {
            frame?;
        }
        anyhow::Ok(is_refused)
    };
    if !matches!(timeout(PATIENCE, answer).await, Ok(Ok(false))) {
        sleep(PAUSE).await;
    }
}

/// Takes the heads of answers, and leaves the rest lying for a while.
async fn keep(
    connection: &Connection,
    count: usize,
    next: impl Fn() -> AttackRequest,
    progress: &Progress,
) {
    let mut kept = Vec::with_capacity(count);
    for _ in 0..count {
        let answer = timeout(PATIENCE, ask(connection, next())).await;
        kept.extend(answer.ok().and_then(Result::ok));
    }
    let ends = tokio::time::Instant::now() + KEPT;
    while tokio::time::Instant::now() < ends && !progress.is_over() {
        sleep(Duration::from_millis(50)).await;
    }
}

async fn ask(
    connection: &Connection,
    request: AttackRequest,
) -> anyhow::Result<Response<Incoming>> {
    let mut builder = Request::get(request.path);
    if let Some((name, value)) = request.header {
        builder = builder.header(name, value);
    }
    connection
        .pass_on(builder.body(full_body(Bytes::new()))?)
        .await
}
