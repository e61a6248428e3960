//! Lists and gets at a fixed rate, independent of the answers to earlier ones.
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::connect::{Connections, LoadRequest};
use super::group::ClientGroup;
use super::tally::{RequestTally, RoundTally};
use super::trouble::LoadError;
use crate::rate::Rate;
use watershed_protocol::{Encoding, Representation};

/// For a whole answer.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(2);
/// Answers that may be waited for on one connection; API servers allow 100 requests.
const PER_CONNECTION: usize = 50;
/// Connections of lists and gets, at most.
const MAX_CONNECTIONS: usize = 16;
/// Different objects that gets ask for.
const MAX_NAMES: usize = 500;
const MAX_NAMES_BYTES: usize = 16 << 20;

/// The kind of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadVerb {
    List,
    Get,
}

/// The requests of a round.
pub(super) struct RequestSender {
    connections: Connections,
    /// Permits of the answers that may be waited for.
    permits: Arc<Semaphore>,
    tally: Arc<RoundTally>,
}

impl RequestSender {
    /// `connections` makes them for a number of lanes.
    pub(super) fn new(
        wanted: usize,
        connect: impl FnOnce(usize) -> Connections,
        tally: &Arc<RoundTally>,
    ) -> Arc<Self> {
        let connections = connect(wanted.clamp(1, MAX_CONNECTIONS));
        let permits = Semaphore::new(connections.count() * PER_CONNECTION);
        Arc::new(Self {
            connections,
            permits: Arc::new(permits),
            tally: Arc::clone(tally),
        })
    }

    fn counts(&self, read: ReadVerb) -> &RequestTally {
        match read {
            ReadVerb::List => &self.tally.lists,
            ReadVerb::Get => &self.tally.gets,
        }
    }

    /// Sends until it is stopped, then waits for the answers for a while.
    pub(super) async fn run(
        self: Arc<Self>,
        group: Arc<ClientGroup>,
        read: ReadVerb,
        names: Arc<Vec<String>>,
        stop: CancellationToken,
        settle: Duration,
    ) {
        let rate: Rate = match read {
            ReadVerb::List => group.lists,
            ReadVerb::Get => group.gets,
        };
        let started = Instant::now();
        let mut under_way = JoinSet::new();
        for n in 0_usize.. {
            let due = started + rate.due(n as u64);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = sleep_until(due) => {}
            }
            while under_way.try_join_next().is_some() {}
            // Taken here: after a stall many requests are due before the first task runs.
            let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
                self.counts(read).skipped.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let (short, group, names) = (Arc::clone(&self), Arc::clone(&group), Arc::clone(&names));
            under_way.spawn(async move {
                let _permit = permit;
                let answer = timeout(ANSWER_TIMEOUT, short.one(&group, read, n, &names)).await;
                match answer.unwrap_or(Err(LoadError::Silent(ANSWER_TIMEOUT))) {
                    // Counts from the time a request was due. Otherwise a stalled server would hide
                    // the requests that it delayed.
                    Ok(bytes) => short.counts(read).add(due.elapsed(), bytes),
                    Err(error) => short.tally.error(read.name(), error),
                }
            });
        }
        let deadline = Instant::now() + settle;
        while let Ok(Some(_)) = timeout_at(deadline, under_way.join_next()).await {}
        for _ in 0..under_way.len() {
            self.tally
                .error(read.name(), "no answer when the round was over");
        }
    }

    async fn one(
        &self,
        group: &ClientGroup,
        read: ReadVerb,
        n: usize,
        names: &[String],
    ) -> Result<u64, LoadError> {
        let version = if group.consistent {
            ""
        } else {
            "&resourceVersion=0"
        };
        let representation = group.representation();
        let (path, accept) = match read {
            ReadVerb::List => {
                let selection = group.selection(n);
                let query = format!("{version}{}", selection.query);
                (
                    joined(&selection.path, &query),
                    representation.list_accept_header(),
                )
            }
            ReadVerb::Get => {
                let name = names.get(n % names.len().max(1)).map_or("/", |name| name);
                // Its `as` is that of a watch's events; what a watch adds to protobuf's media type
                // is left out.
                let accept = match (representation.metadata_only, representation.encoding) {
                    (false, encoding) => encoding.content_type(),
                    (true, _) => representation.watch_accept_header(),
                };
                (joined(name, version), accept)
            }
        };
        let mut bytes = 0;
        let answer = self
            .connections
            .send(n, LoadRequest::get(path, accept, group.gzip))
            .await?;
        answer
            .read(|data| {
                bytes += data.len() as u64;
                Ok(())
            })
            .await?;
        Ok(bytes)
    }
}

impl ReadVerb {
    fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Get => "get",
        }
    }
}

/// A path with parameters, each of which has an `&` before it.
fn joined(path: &str, parameters: &str) -> String {
    match parameters.strip_prefix('&') {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    }
}

#[derive(Deserialize)]
struct NameList {
    /// `null` in a list of metadata without objects.
    items: Option<Vec<NameListItem>>,
}

#[derive(Deserialize)]
struct NameListItem {
    metadata: NameListMetadata,
}

#[derive(Deserialize)]
struct NameListMetadata {
    name: String,
    #[serde(default)]
    namespace: String,
}

/// Paths of objects that a group's gets can ask for.
pub(super) async fn names(
    connections: &Connections,
    group: &ClientGroup,
) -> anyhow::Result<Vec<String>> {
    let selection = group.selection(0);
    let path = joined(
        &selection.path,
        &format!("&limit={MAX_NAMES}{}", selection.query),
    );
    let metadata = Representation {
        encoding: Encoding::Json,
        metadata_only: true,
    };
    let asked = async {
        let request = LoadRequest::get(path, metadata.list_accept_header(), false);
        connections
            .send(0, request)
            .await?
            .whole(MAX_NAMES_BYTES)
            .await
    };
    let what = group.resource.0.qualified_resource();
    let body = asked
        .await
        .with_context(|| format!("cannot list {what} to learn what to get (--writer)"))?;
    let list: NameList =
        serde_json::from_slice(&body).with_context(|| format!("cannot read a list of {what}"))?;
    let path = |NameListItem {
                    metadata: NameListMetadata { name, namespace },
                }| { format!("{}/{name}", group.resource.collection(&namespace)) };
    let items = list.items.unwrap_or_default();
    let names: Vec<_> = items.into_iter().take(MAX_NAMES).map(path).collect();
    ensure!(
        !names.is_empty(),
        "there are no {what} to get (--gets, --resource, --namespace, --selector)"
    );
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_joined() {
        assert_eq!(joined("/api/v1/pods", ""), "/api/v1/pods");
        assert_eq!(joined("/api/v1/pods", "&a=b&c=d"), "/api/v1/pods?a=b&c=d");
    }
}
