//! The common parts of all clients: the places they ask, the history they are judged by, and requests.
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use fastrand::Rng;
use http::{Request, StatusCode, header};
use http_body_util::BodyExt as _;
use watershed_lab::body::empty_body;
use watershed_lab::client::{ClientConnection, Endpoint, Lines, NextLine, Protocol};

use crate::history::{History, Part};
use crate::judge::is_planted;
use crate::report::Report;

/// Time after which a client gives a request up.
const IMPATIENCE: Duration = Duration::from_secs(40);

/// The kind of an answer that is upstream's, garbage included.
const FROM_UPSTREAM: &str = "from upstream";
/// The kind of an answer that is the proxy's own.
const FROM_MEMORY: &str = "from memory";

/// A proxy that clients ask.
pub(crate) struct Site {
    pub(crate) name: &'static str,
    pub(crate) endpoint: Endpoint,
}

/// The common parts of all clients.
pub(crate) struct World {
    pub(crate) history: History,
    pub(crate) report: Report,
    pub(crate) sites: Vec<Site>,
}

/// An answer to a read of one object.
pub(crate) enum ObjectAnswer {
    Found(GoodAnswer),
    /// 404 from memory, with its source.
    Absent(String),
}

/// A complete answer with status 200.
pub(crate) struct GoodAnswer {
    /// The proxy's word where it is from.
    pub(crate) source: String,
    pub(crate) body: Bytes,
}

/// The lines of a watch, and the source that its answer named.
pub(crate) struct WatchLines {
    lines: Lines,
    pub(crate) source: String,
}

/// The connection of one client to one site.
#[derive(Clone)]
pub(crate) struct Link {
    connection: ClientConnection,
    world: Arc<World>,
}

impl World {
    /// Connects to a site.
    pub(crate) async fn link(self: &Arc<Self>, site: usize, rng: &mut Rng) -> anyhow::Result<Link> {
        let protocol = if rng.u8(0..3) == 0 {
            Protocol::Http1
        } else {
            Protocol::Http2
        };
        let endpoint = &self.sites[site].endpoint;
        let connection = tokio::time::timeout(IMPATIENCE, endpoint.connect(protocol)).await??;
        Ok(Link {
            connection,
            world: Arc::clone(self),
        })
    }
}

impl Link {
    pub(crate) fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// Sends a read. Any other answer than a good one of the API is an error, and is counted: while
    /// upstream fails, forwarded requests get its failures. Memory must not answer 404.
    pub(crate) async fn read(&self, path: &str, accept: &str) -> anyhow::Result<GoodAnswer> {
        match self.read_object(path, accept).await? {
            ObjectAnswer::Found(answer) => Ok(answer),
            ObjectAnswer::Absent(source) => {
                let why = format!("404 for {path} from {source}");
                self.world.report.wrong(why.clone());
                bail!(why)
            }
        }
    }

    /// Sends a read of an object that memory may lack.
    pub(crate) async fn read_object(
        &self,
        path: &str,
        accept: &str,
    ) -> anyhow::Result<ObjectAnswer> {
        let request = Request::get(path)
            .header(header::ACCEPT, accept)
            .body(empty_body())?;
        let whole = async {
            let (head, body) = self.connection.send(request).await?.into_parts();
            anyhow::Ok((head, body.collect().await?.to_bytes()))
        };
        let (head, body) = tokio::time::timeout(IMPATIENCE, whole)
            .await
            .context("no answer")??;
        let header = |name: &str| {
            let value = head.headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let source = header("x-watershed-source");
        if head.status == StatusCode::NOT_FOUND && kind_of(&source) == FROM_MEMORY {
            return Ok(ObjectAnswer::Absent(source));
        }
        self.refuse(head.status, &source, &header("content-type"))?;
        if is_planted(&body) && is_from_upstream(&source) {
            bail!("garbage of upstream was passed on");
        }
        Ok(ObjectAnswer::Found(GoodAnswer { source, body }))
    }

    /// Opens a watch.
    pub(crate) async fn watch(&self, path: &str, part: &Part) -> anyhow::Result<WatchLines> {
        let request = Request::get(path)
            .header(header::ACCEPT, part.accept(false))
            .body(empty_body())?;
        let opening = tokio::time::timeout(IMPATIENCE, self.connection.send(request));
        let answer = opening.await.context("no answer to a watch")??;
        let header = |name: &str| {
            let value = answer
                .headers()
                .get(name)
                .and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let source = header("x-watershed-source");
        self.refuse(answer.status(), &source, &header("content-type"))?;
        self.world
            .report
            .count(&format!("watches, {}", kind_of(&source)));
        Ok(WatchLines {
            lines: Lines::new(&self.connection, answer),
            source,
        })
    }

    fn refuse(&self, status: StatusCode, source: &str, kind: &str) -> anyhow::Result<()> {
        if status != StatusCode::OK {
            self.world
                .report
                .count(&format!("answers with status {}", status.as_u16()));
            bail!("{status}");
        }
        if !kind.starts_with("application/json") {
            if !is_from_upstream(source) {
                self.world
                    .report
                    .wrong(format!("{kind} from {source}, which is not the API's"));
            }
            bail!("a page of upstream was passed on");
        }
        Ok(())
    }
}

impl WatchLines {
    pub(crate) async fn next(&mut self) -> NextLine {
        self.lines.next().await
    }
}

/// Returns true if upstream's garbage may be in an answer of this source.
pub(crate) fn is_from_upstream(source: &str) -> bool {
    kind_of(source) == FROM_UPSTREAM
}

/// Returns the kind of a source, without details.
pub(crate) fn kind_of(source: &str) -> &str {
    match source.split(';').next().unwrap_or_default() {
        // One answer of upstream may be for several clients that asked at once.
        "forward" | "coalesced" => FROM_UPSTREAM,
        "" => "without a source",
        _ => FROM_MEMORY,
    }
}
