//! The identity of the cluster, so that no checkpoint of another one is used.

use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio::time::timeout;
use watershed_protocol::{GroupVersionResource, Selection};

use crate::scope::timeline::Timeline;
use crate::upstream::{Probe, UpstreamClient};

/// Timeout of the question.
const ANSWER: Duration = Duration::from_secs(4);
/// Time for which a failed question is not asked again. All scopes ask at the start.
const FAILED: Duration = Duration::from_secs(5);

/// The unique id of the namespace kube-system.
pub(super) struct ClusterIdentity {
    probe: Probe,
    timeline: Timeline,
    known: Mutex<KnownCluster>,
}

#[derive(Default)]
struct KnownCluster {
    /// The id, and the number of the timeline in which it was read.
    id: Option<(u64, String)>,
    failed: Option<Instant>,
}

impl ClusterIdentity {
    pub(super) fn new(client: &UpstreamClient, timeline: &Timeline) -> Self {
        let namespaces = GroupVersionResource::new("", "v1", "namespaces");
        let selection = Selection::named(None, "kube-system");
        Self {
            probe: Probe::new(client.clone(), &namespaces, &selection, false),
            timeline: timeline.clone(),
            known: Mutex::default(),
        }
    }

    /// Returns the id in the present timeline; `None` if upstream does not tell.
    pub(super) async fn get(&self) -> Option<String> {
        let mut known = self.known.lock().await;
        let number = self.timeline.number();
        if let Some((known_in, id)) = &known.id
            && *known_in == number
        {
            return Some(id.clone());
        }
        if known.failed.is_some_and(|at| at.elapsed() < FAILED) {
            return None;
        }
        let asked = timeout(ANSWER, self.probe.first_uid()).await;
        let id = match asked {
            Ok(Ok((_, id))) => id.filter(|id| !id.is_empty()),
            Ok(Err(error)) => {
                tracing::debug!(%error, "cannot read the identity of the cluster");
                None
            }
            Err(_) => None,
        };
        if self.timeline.number() != number {
            return None;
        }
        match &id {
            Some(id) => known.id = Some((number, id.clone())),
            None => known.failed = Some(Instant::now()),
        }
        id
    }
}
