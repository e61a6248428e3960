//! Scopes that are opened at the start, before anybody asks, and again when they stopped.
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use super::Inner;
use crate::catalog::ResourceType;
use crate::upstream::Stopped;
use watershed_protocol::{Encoding, Representation, Selection};

/// How often it is looked whether all are open. A type may come later, and what stopped may be
/// tried again.
const LOOK: Duration = Duration::from_secs(5);

impl Inner {
    /// Never ends, unless there is nothing to open.
    pub(super) async fn keep_scopes_open(&self) {
        let names: Vec<_> = self.policy.always_open().collect();
        while !names.is_empty() {
            for name in &names {
                let types = self.catalog.of_name(&name.0, &name.1);
                let newest = types
                    .iter()
                    .max_by(|a, b| by_priority(&a.gvr.version, &b.gvr.version));
                if let Some(resource) = newest {
                    for selection in self.policy.selections_of(name) {
                        self.hold(resource, &selection).await;
                    }
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// In protobuf, as most clients of built-in types have it, or in JSON, if the type has nothing
    /// else.
    async fn hold(&self, resource: &Arc<ResourceType>, selection: &Arc<Selection>) {
        let gvr = &resource.gvr;
        let keep = self
            .policy
            .retention(gvr, false, self.scopes.config().window);
        for encoding in [Encoding::Protobuf, Encoding::Json] {
            let of = (gvr, Representation::whole(encoding));
            let lent = self
                .scopes
                .acquire(of, &resource.kind, &resource.fields, |_| {
                    Some((Arc::clone(selection), keep))
                });
            let Some(lent) = lent else { return };
            match tokio::time::timeout(self.scopes.config().sync_wait, lent.wait_until_settled())
                .await
            {
                Ok(Err(Stopped::NotAcceptable)) => {}
                _ => return,
            }
        }
    }
}

/// Stable versions before betas, betas before alphas, later ones before earlier ones, all others
/// last.
/// Source: `apimachinery/pkg/version/helpers.go` (CompareKubeAwareVersionStrings).
fn by_priority(a: &str, b: &str) -> Ordering {
    let parsed = |version: &str| {
        let rest = version.strip_prefix('v')?;
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let major: u32 = rest[..digits].parse().ok()?;
        let (stage, minor) = match &rest[digits..] {
            "" => (2, "0"),
            rest if rest.starts_with("beta") => (1, &rest[4..]),
            rest if rest.starts_with("alpha") => (0, &rest[5..]),
            _ => return None,
        };
        Some((stage, major, minor.parse::<u32>().ok()?))
    };
    parsed(a).cmp(&parsed(b)).then_with(|| b.cmp(a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_highest_priority_is_held() {
        let mut versions = [
            "v1alpha1", "v2", "foo1", "v1", "v2beta1", "v10", "v1beta2", "bar",
        ];
        versions.sort_by(|a, b| by_priority(b, a));
        assert_eq!(
            versions,
            [
                "v10", "v2", "v1", "v2beta1", "v1beta2", "v1alpha1", "bar", "foo1"
            ]
        );
    }
}
