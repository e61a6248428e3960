//! The identity of the cluster, so that no checkpoint of another one is used.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::time::timeout;
use watershed_protocol::{GroupVersionResource, Selection};

use crate::scope::timeline::Timeline;
use crate::upstream::{Probe, UpstreamClient};

/// Timeout of the question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
/// Time for which a failed question is not asked again. All scopes ask at the start.
const FAILED: Duration = Duration::from_secs(5);

/// Knows the cluster by the unique id of the namespace kube-system.
///
/// Others get a digest of the id: it tells that two are the same, and not what it is.
#[derive(Debug)]
pub struct ClusterIdentity {
    probe: Probe,
    timeline: Timeline,
    known: Mutex<KnownCluster>,
}

#[derive(Debug, Default)]
struct KnownCluster {
    /// The digest, and the number of the timeline in which it was read.
    digest: Option<(u64, String)>,
    failed: Option<Instant>,
}

impl ClusterIdentity {
    pub(in crate::scope) fn new(client: &UpstreamClient, timeline: &Timeline) -> Self {
        let namespaces = GroupVersionResource::new("", "v1", "namespaces");
        let selection = Selection::named(None, "kube-system");
        Self {
            probe: Probe::new(client.clone(), &namespaces, &selection, false),
            timeline: timeline.clone(),
            known: Mutex::default(),
        }
    }

    /// Returns the digest in the present timeline; `None` if upstream does not tell.
    pub(in crate::scope) async fn get(&self) -> Option<String> {
        let mut known = self.known.lock().await;
        let number = self.timeline.number();
        if let Some((known_in, digest)) = &known.digest
            && *known_in == number
        {
            return Some(digest.clone());
        }
        if known.failed.is_some_and(|at| at.elapsed() < FAILED) {
            return None;
        }
        let asked = self.ask().await;
        if self.timeline.number() != number {
            return None;
        }
        match &asked {
            Some(digest) => known.digest = Some((number, digest.clone())),
            None => known.failed = Some(Instant::now()),
        }
        asked
    }

    /// Asks upstream; `None` if it does not tell.
    async fn ask(&self) -> Option<String> {
        match timeout(ANSWER_TIMEOUT, self.probe.first_uid()).await {
            Ok(Ok((_, uid))) => {
                let uid = uid.filter(|uid| !uid.is_empty())?;
                Some(blake3::hash(uid.as_bytes()).to_hex().to_string())
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot read the identity of the cluster");
                None
            }
            Err(_) => None,
        }
    }
}
