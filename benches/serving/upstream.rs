//! The objects that are served, and the writes that make events.
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use http::{Method, header};
use http_body_util::BodyExt as _;
use tokio::sync::Mutex;

use crate::client::{Connection, Endpoint};
use crate::limit;
use crate::stamp::{STAMP, STAMP_DIGITS};

/// Creations under way at a time.
const CREATORS: usize = 8;
pub(crate) const NAMESPACES: usize = 10;
/// So many values has the label `shard`, evenly.
pub(crate) const SHARDS: usize = 50;
/// All writes are one manager's, so that an object does not grow with the first patch.
const MANAGER: &str = "fieldManager=bench";

/// The pods at an upstream.
pub(crate) struct Seeded {
    /// The URL of each that was there from the start.
    pub(crate) paths: Arc<Vec<String>>,
    /// Variables that make a pod as large as it is to be.
    variables: usize,
    /// The newest version written, by whomever.
    pub(crate) version: Arc<AtomicU64>,
}

/// Makes events.
pub(crate) struct Writer {
    endpoint: Endpoint,
    how: How,
    written: AtomicUsize,
    version: Arc<AtomicU64>,
}

/// A writer with its connection. Not kept between runs: a server closes connections that are idle
/// for long.
pub(crate) struct Session<'a> {
    writer: &'a Writer,
    connection: Connection,
}

enum How {
    /// Patches one pod after the other.
    Patch(Arc<Vec<String>>),
    /// Hands the limit server a frame.
    Push(Template),
}

/// A frame without its version and its stamp.
struct Template {
    before: Bytes,
    between: Bytes,
    after: Bytes,
    /// Held while a frame is handed over, as a server's versions only rise.
    turn: Mutex<()>,
}

pub(crate) fn micros() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| now.as_micros() as u64)
}

pub(crate) fn node_name(number: usize) -> String {
    format!("node-{number:04}")
}

/// Creates pods of about `bytes` each, as the server prints them, evenly over namespaces and nodes.
pub(crate) async fn seed(
    endpoint: &Endpoint,
    pods: usize,
    nodes: usize,
    bytes: usize,
) -> anyhow::Result<Seeded> {
    let connection = endpoint.connect(false).await?;
    for number in 0..NAMESPACES {
        let body = format!(
            r#"{{"apiVersion":"v1","kind":"Namespace","metadata":{{"name":"bench-{number}"}}}}"#
        );
        write(
            &connection,
            Method::POST,
            "/api/v1/namespaces",
            "application/json",
            body,
        )
        .await?;
    }
    // A server adds fields of its own. Two probes tell how much, and what one more variable makes.
    let mut sizes = [0; 2];
    for (size, variables) in sizes.iter_mut().zip([0, 10]) {
        let name = format!("probe-{variables}");
        let body = pod("bench-0", &name, &node_name(0), 0, variables);
        *size = write(
            &connection,
            Method::POST,
            &collection("bench-0"),
            "application/json",
            body,
        )
        .await?
        .len();
        let path = format!("{}/{name}?gracePeriodSeconds=0", collection("bench-0"));
        write(
            &connection,
            Method::DELETE,
            &path,
            "application/json",
            String::new(),
        )
        .await?;
    }
    let variables = bytes.saturating_sub(sizes[0]) * 10 / (sizes[1] - sizes[0]).max(1);
    let created = create(&connection, 0..pods, |number| number % nodes, variables).await?;
    let newest = created
        .iter()
        .map(|(_, version)| *version)
        .max()
        .unwrap_or_default();
    let paths = created.into_iter().map(|(path, _)| path).collect();
    Ok(Seeded {
        paths: Arc::new(paths),
        variables,
        version: Arc::new(newest.into()),
    })
}

/// Creates more pods of the same size until there are so many, on further nodes. So each node has
/// as many pods in the end as it had in the beginning.
pub(crate) async fn grow(
    endpoint: &Endpoint,
    seeded: &Seeded,
    nodes: usize,
    pods: usize,
) -> anyhow::Result<()> {
    let before = seeded.paths.len();
    let further = ((pods - before) * nodes).div_ceil(before);
    let connection = endpoint.connect(false).await?;
    let node = |number| nodes + (number - before) % further;
    let created = create(&connection, before..pods, node, seeded.variables).await?;
    let newest = created
        .iter()
        .map(|(_, version)| *version)
        .max()
        .unwrap_or_default();
    seeded.version.fetch_max(newest, Ordering::AcqRel);
    Ok(())
}

/// Creates pods by their numbers. Returns the URL and the version of each.
async fn create(
    connection: &Connection,
    numbers: Range<usize>,
    node: impl Fn(usize) -> usize,
    variables: usize,
) -> anyhow::Result<Vec<(String, u64)>> {
    let node = &node;
    let created = futures_util::stream::iter(numbers).map(|number| async move {
        let (namespace, name) = (
            format!("bench-{}", number % NAMESPACES),
            format!("pod-{number:06}"),
        );
        let body = pod(
            &namespace,
            &name,
            &node_name(node(number)),
            number % SHARDS,
            variables,
        );
        let path = collection(&namespace);
        let answer = write(connection, Method::POST, &path, "application/json", body).await?;
        anyhow::Ok((
            format!("{path}/{name}"),
            version(&answer).unwrap_or_default(),
        ))
    });
    created.buffered(CREATORS).try_collect().await
}

fn collection(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

fn pod(namespace: &str, name: &str, node: &str, shard: usize, variables: usize) -> String {
    let mut random = fastrand::Rng::with_seed(variables as u64);
    let variable = |number: usize| {
        let value: String = (0..32).map(|_| random.digit(16)).collect();
        format!(r#"{{"name":"SETTING_{number:03}","value":"{value}"}}"#)
    };
    let environment: Vec<_> = (0..variables).map(variable).collect();
    format!(
        concat!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}","#,
            r#""namespace":"{namespace}","labels":{{"app":"bench","shard":"{shard:02}","#,
            r#""tier":"backend"}},"annotations":{{"bench/stamp":"{stamp:0width$}"}}}},"#,
            r#""spec":{{"nodeName":"{node}","containers":[{{"name":"main","#,
            r#""image":"registry.example.com/bench:1","env":[{environment}],"#,
            r#""resources":{{"requests":{{"cpu":"100m","memory":"64Mi"}}}}}}]}}}}"#
        ),
        name = name,
        namespace = namespace,
        shard = shard,
        stamp = 0,
        width = STAMP_DIGITS,
        node = node,
        environment = environment.join(","),
    )
}

async fn write(
    connection: &Connection,
    method: Method,
    path: &str,
    content_type: &str,
    body: String,
) -> anyhow::Result<Bytes> {
    let separator = if path.contains('?') { '&' } else { '?' };
    let path = format!("{path}{separator}{MANAGER}");
    let body = (!body.is_empty()).then(|| (content_type, Bytes::from(body)));
    let answer = connection.send(method, &path, body).await?;
    debug_assert!(answer.headers().contains_key(header::CONTENT_TYPE));
    Ok(answer.into_body().collect().await?.to_bytes())
}

const VERSION: &[u8] = br#""resourceVersion":""#;

/// The first resourceVersion in an object or a list is its own.
pub(crate) fn version(object: &[u8]) -> Option<u64> {
    let digits = &object[memchr::memmem::find(object, VERSION)? + VERSION.len()..];
    std::str::from_utf8(&digits[..memchr::memchr(b'"', digits)?])
        .ok()?
        .parse()
        .ok()
}

/// Returns the time as a stamp.
fn stamp(micros: u64) -> String {
    format!("{micros:0STAMP_DIGITS$}")
}

impl Template {
    fn of(object: &[u8]) -> anyhow::Result<Self> {
        let after = |key: &[u8]| memchr::memmem::find(object, key).map(|at| at + key.len());
        let version = after(VERSION).context("the object has no version")?;
        let stamp = after(STAMP).context("the object has no stamp")?;
        let digits = object[version..].iter().take_while(|byte| **byte != b'"');
        let version_end = version + digits.count();
        ensure!(
            version_end < stamp,
            "the object's stamp precedes its version"
        );
        let before = [br#"{"type":"MODIFIED","object":"#, &object[..version]].concat();
        let after = [&object[stamp + STAMP_DIGITS..], b"}\n"].concat();
        Ok(Self {
            before: before.into(),
            between: Bytes::copy_from_slice(&object[version_end..stamp]),
            after: after.into(),
            turn: Mutex::default(),
        })
    }

    /// Makes the frame of this moment.
    fn frame(&self, version: u64) -> Vec<u8> {
        let (version, stamp) = (version.to_string(), stamp(micros()));
        let pieces: [&[u8]; 5] = [
            &self.before,
            version.as_bytes(),
            &self.between,
            stamp.as_bytes(),
            &self.after,
        ];
        pieces.concat()
    }
}

impl Writer {
    /// Events by patches at the upstream.
    pub(crate) fn patches(upstream: &Endpoint, seeded: &Seeded) -> Self {
        Self::new(
            upstream,
            How::Patch(Arc::clone(&seeded.paths)),
            Arc::clone(&seeded.version),
        )
    }

    /// Events by frames that hold `object` in versions above `version`, pushed into the limit
    /// server.
    pub(crate) fn pushes(limit: &Endpoint, object: &[u8], version: u64) -> anyhow::Result<Self> {
        let template = Template::of(object.trim_ascii_end())?;
        Ok(Self::new(
            limit,
            How::Push(template),
            Arc::new(version.into()),
        ))
    }

    fn new(endpoint: &Endpoint, how: How, version: Arc<AtomicU64>) -> Self {
        Self {
            endpoint: endpoint.clone(),
            how,
            written: AtomicUsize::new(0),
            version,
        }
    }

    pub(crate) async fn open(&self) -> anyhow::Result<Session<'_>> {
        Ok(Session {
            writer: self,
            connection: self.endpoint.connect(false).await?,
        })
    }

    /// Every event so far has at most this version.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

impl Session<'_> {
    /// Makes one event.
    pub(crate) async fn emit(&self) -> anyhow::Result<()> {
        self.emit_due(micros()).await
    }

    /// Makes one event that was due at a moment, which is its stamp if it is a write. Frames are
    /// handed over one by one, so their stamps are the moments of that.
    pub(crate) async fn emit_due(&self, due: u64) -> anyhow::Result<()> {
        let number = self.writer.written.fetch_add(1, Ordering::Relaxed);
        match &self.writer.how {
            How::Patch(paths) => {
                let stamp = stamp(due);
                let body =
                    format!(r#"{{"metadata":{{"annotations":{{"bench/stamp":"{stamp}"}}}}}}"#);
                let path = &paths[number % paths.len()];
                let kind = "application/merge-patch+json";
                let answer = write(&self.connection, Method::PATCH, path, kind, body).await?;
                self.writer
                    .version
                    .fetch_max(version(&answer).unwrap_or_default(), Ordering::AcqRel);
            }
            How::Push(template) => {
                let _turn = template.turn.lock().await;
                let version = self.writer.version.fetch_add(1, Ordering::AcqRel) + 1;
                let frame = template.frame(version);
                let body = Some(("application/json", Bytes::from(frame)));
                let answer = self
                    .connection
                    .send(Method::POST, limit::PUSH, body)
                    .await?;
                answer.into_body().collect().await?;
            }
        }
        Ok(())
    }
}
