//! The proof at the end: what every client believes against what upstream has.
use std::collections::BTreeMap;

use serde_json::Value;

use super::client::{PodInterest, PodView};
use crate::sim::{ClusterState, pods};

/// Differences shown per client; the rest is counted.
const SHOWN: usize = 5;

/// Upstream's pods at the end, with what selectors look at.
pub(crate) struct Truth {
    pods: Vec<UpstreamPod>,
}

struct UpstreamPod {
    key: String,
    version: u64,
    namespace: String,
    node: String,
    labels: BTreeMap<String, String>,
}

/// A client whose view isn't upstream's.
#[derive(Debug)]
pub(crate) struct Difference {
    /// The client, counted from 0, and what it wants.
    pub(crate) client: usize,
    pub(crate) interest: String,
    /// The newest version it has heard of.
    pub(crate) version: u64,
    /// Descriptions of the differences.
    pub(crate) lines: Vec<String>,
    /// Differences that are not in `lines`.
    pub(crate) more: usize,
}

impl Truth {
    pub(crate) fn of(state: &ClusterState) -> Self {
        let pods = state
            .snapshot(&pods())
            .into_iter()
            .map(|(key, (version, bytes))| {
                let object: Value = serde_json::from_slice(&bytes).unwrap_or_default();
                let text = |at: &str| {
                    object
                        .pointer(at)
                        .and_then(Value::as_str)
                        .unwrap_or_default()
                        .to_owned()
                };
                let labels = object
                    .pointer("/metadata/labels")
                    .cloned()
                    .unwrap_or_default();
                UpstreamPod {
                    key,
                    version,
                    namespace: text("/metadata/namespace"),
                    node: text("/spec/nodeName"),
                    labels: serde_json::from_value(labels).unwrap_or_default(),
                }
            });
        Self {
            pods: pods.collect(),
        }
    }

    /// The clients whose view differs.
    pub(crate) fn compare<'a>(
        &self,
        views: impl Iterator<Item = (&'a PodInterest, PodView)>,
    ) -> Vec<Difference> {
        views
            .enumerate()
            .filter_map(|(n, (interest, view))| self.difference(n, interest, &view))
            .collect()
    }

    fn difference(
        &self,
        client: usize,
        interest: &PodInterest,
        view: &PodView,
    ) -> Option<Difference> {
        let wanted = self.pods.iter().filter(|pod| pod.concerns(interest));
        let wanted: BTreeMap<&str, u64> =
            wanted.map(|pod| (pod.key.as_str(), pod.version)).collect();
        let mut lines = Vec::new();
        if !view.synced {
            lines.push("never got its first state".to_owned());
        }
        for (key, version) in &wanted {
            match view.objects.get(*key) {
                None => lines.push(format!("{key} is missing (upstream has it at {version})")),
                Some(seen) if seen != version => {
                    lines.push(format!("{key} is at {seen}, upstream at {version}"));
                }
                Some(_) => {}
            }
        }
        let surplus = view
            .objects
            .iter()
            .filter(|(key, _)| !wanted.contains_key(key.as_str()));
        lines.extend(surplus.map(|(key, seen)| format!("{key} at {seen} should be gone")));
        if lines.is_empty() {
            return None;
        }
        let more = lines.len().saturating_sub(SHOWN);
        lines.truncate(SHOWN);
        Some(Difference {
            client,
            interest: interest.to_string(),
            version: view.version,
            lines,
            more,
        })
    }
}

impl UpstreamPod {
    fn concerns(&self, interest: &PodInterest) -> bool {
        match interest {
            PodInterest::All => true,
            PodInterest::Namespace(namespace) => self.namespace == *namespace,
            PodInterest::Node(node) => self.node == *node,
            PodInterest::Label(key, value) => self.labels.get(*key) == Some(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_difference_is_found() {
        let pod = |key: &str, version, node: &str| UpstreamPod {
            key: key.to_owned(),
            version,
            namespace: "n".to_owned(),
            node: node.to_owned(),
            labels: BTreeMap::new(),
        };
        let truth = Truth {
            pods: vec![pod("n/a", 1, "x"), pod("n/b", 2, "x"), pod("n/c", 3, "y")],
        };
        let view = |objects: &[(&str, u64)]| PodView {
            objects: objects.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect(),
            version: 3,
            synced: true,
        };
        let node = PodInterest::Node("x".to_owned());
        assert!(
            truth
                .difference(0, &node, &view(&[("n/a", 1), ("n/b", 2)]))
                .is_none()
        );
        let found = truth
            .difference(0, &node, &view(&[("n/b", 1), ("n/c", 3)]))
            .unwrap();
        assert_eq!(
            found.lines,
            [
                "n/a is missing (upstream has it at 1)",
                "n/b is at 1, upstream at 2",
                "n/c at 3 should be gone"
            ]
        );
    }
}
