//! What the operator chose, per type.
use std::collections::HashMap;

use serde::Deserialize;

use super::limit::UserLimits;
use crate::kube::GroupVersionResource;

/// How lists and watches with `resourceVersion` unset are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ConsistentReads {
    /// From memory once it was shown to be no older than the request, else by upstream.
    #[default]
    Fence,
    /// By upstream.
    Forward,
    /// From memory as it is: **may be older than the request**. Gets, too.
    Cache,
}

/// What is done with requests where there is a choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// For types that are not named.
    pub consistent_reads: ConsistentReads,
    /// By API group (empty for the core group) and resource (plural).
    pub resources: HashMap<(String, String), ConsistentReads>,
    /// What each caller may use.
    pub users: UserLimits,
}

impl Policy {
    /// The types whose consistent reads may get something older; `*` stands for all that are not named.
    pub fn weakened(&self) -> Vec<String> {
        let all = (self.consistent_reads == ConsistentReads::Cache).then(|| "*".to_owned());
        let named = self.resources.iter().filter(|(_, choice)| **choice == ConsistentReads::Cache);
        let named = named.map(|((group, resource), _)| match group.as_str() {
            "" => resource.clone(),
            group => format!("{resource}.{group}"),
        });
        all.into_iter().chain(named).collect()
    }

    pub(super) fn consistent_reads(&self, gvr: &GroupVersionResource) -> ConsistentReads {
        if self.resources.is_empty() {
            return self.consistent_reads;
        }
        let key = (gvr.group.to_string(), gvr.resource.to_string());
        self.resources.get(&key).copied().unwrap_or(self.consistent_reads)
    }
}
