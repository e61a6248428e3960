//! Scopes that are opened at the start, before the first request, and again after they stopped.
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use watershed_protocol::{Encoding, Representation, Selection};

use super::policy::type_name::TypeName;
use super::reads::open::ScopeOpener;
use crate::catalog::{Catalog, ResourceType};
use crate::scope::ScopeOrigin;
use crate::upstream::Stopped;

/// Interval between checks. A type may appear later, and a stopped scope may be tried again.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Scopes that are opened at the same time. One whose list hangs does not hold up the others.
const OPENED_AT_A_TIME: usize = 4;

/// Keeps the scopes open that the policy wants always open. Returns only if there are none.
pub(super) async fn keep_open(opener: &ScopeOpener) {
    let ScopeOpener {
        catalog, policy, ..
    } = opener;
    let names: Vec<_> = policy.always_open().collect();
    while !names.is_empty() {
        let mut wanted = Vec::new();
        for name in &names {
            if let Some(resource) = newest_version(catalog, name) {
                let selections = policy.selections_of(name.group(), name.resource());
                wanted.extend(selections.into_iter().map(|it| (Arc::clone(&resource), it)));
            }
        }
        stream::iter(wanted)
            .for_each_concurrent(OPENED_AT_A_TIME, |(resource, selection)| async move {
                open(opener, &resource, &selection).await;
            })
            .await;
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Returns the type of this name in the version that upstream prefers.
fn newest_version(catalog: &Catalog, name: &TypeName) -> Option<Arc<ResourceType>> {
    let types = catalog.of_name(name.group(), name.resource());
    types
        .into_iter()
        .max_by(|a, b| by_priority(&a.gvr.version, &b.gvr.version))
}

/// Opens a scope in protobuf, as most clients read built-in types, or in JSON if the type has
/// nothing else.
async fn open(opener: &ScopeOpener, resource: &Arc<ResourceType>, selection: &Arc<Selection>) {
    let ScopeOpener { policy, scopes, .. } = opener;
    let gvr = &resource.gvr;
    let config = scopes.config();
    let options = policy.scope_options(gvr, ScopeOrigin::Configured, config.window);
    for encoding in [Encoding::Protobuf, Encoding::Json] {
        let representation = Representation::whole(encoding);
        let handle = scopes.acquire(gvr, representation, &resource.shape, |_| {
            Some((Arc::clone(selection), options.clone()))
        });
        let Ok(handle) = handle else { return };
        match tokio::time::timeout(config.sync_wait, handle.wait_until_settled()).await {
            Ok(Err(Stopped::NotAcceptable)) => {}
            _ => return,
        }
    }
}

/// Orders versions: stable ones before betas, betas before alphas, later ones before earlier ones,
/// all others last.
/// Source: `apimachinery/pkg/version/helpers.go` (CompareKubeAwareVersionStrings).
fn by_priority(a: &str, b: &str) -> Ordering {
    priority(a).cmp(&priority(b)).then_with(|| b.cmp(a))
}

/// Returns the stage, the major and the minor number of a version such as `v1beta2`.
fn priority(version: &str) -> Option<(u8, u32, u32)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let major = rest[..digits].parse().ok()?;
    let (stage, minor) = match &rest[digits..] {
        "" => (2, "0"),
        rest if rest.starts_with("beta") => (1, &rest[4..]),
        rest if rest.starts_with("alpha") => (0, &rest[5..]),
        _ => return None,
    };
    Some((stage, major, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_highest_priority_comes_first() {
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
