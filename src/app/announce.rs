//! Log lines about the policy, at the start.
use std::time::Duration;

use tokio::time::sleep;

use crate::catalog::Catalog;
use crate::serve::{CacheMode, CachingException, CachingPolicy};

/// Interval between looks at the catalog, until it has types.
const LOOK: Duration = Duration::from_secs(1);

/// Logs what an operator has chosen differently from the defaults, once upstream's types are known.
pub(super) async fn announce(policy: CachingPolicy, catalog: Catalog) {
    while catalog.is_empty() {
        sleep(LOOK).await;
    }
    for name in policy.possibly_stale() {
        tracing::warn!(
            resource = name,
            "consistent reads may get an older state (consistentReads: stale in --config)"
        );
    }
    for name in policy.without_managed_fields() {
        tracing::warn!(
            resource = name,
            "held and answered without metadata.managedFields (managedFields: drop in --config); \
             clients that read them, as for server-side apply, must not use this proxy for the type"
        );
    }
    let exceptions = policy.exceptions();
    for exception in &exceptions {
        announce_exception(exception);
    }
    for (name, scopes) in policy.types.scopes() {
        let selections: Vec<_> = scopes.iter().map(ToString::to_string).collect();
        tracing::info!(
            group = name.group(),
            resource = name.resource(),
            ?selections,
            "only these parts are cached, each from its first request on"
        );
    }
    // Until then, the catalog may have no more than the types that each API server has.
    while !catalog.is_read() {
        sleep(LOOK).await;
    }
    for unknown in unknown_types(&exceptions, &catalog) {
        tracing::warn!(
            resource = unknown.name(),
            cache = unknown.cache(),
            "upstream has no type of this name (resources in --config)"
        );
    }
}

/// Returns the types that upstream's discovery should have named.
fn unknown_types<'a>(
    exceptions: &'a [CachingException],
    catalog: &Catalog,
) -> impl Iterator<Item = &'a CachingException> {
    exceptions.iter().filter(|exception| {
        // A type of another group may be defined later.
        catalog.is_read()
            && catalog.has(&exception.group, None)
            && exception.resource != "*"
            && !catalog.has_resource(&exception.group, &exception.resource)
    })
}

/// Logs the caching of a type that is an exception from the policy's default.
fn announce_exception(exception: &CachingException) {
    let (resource, cache) = (exception.name(), exception.cache());
    match (exception.sensitive, exception.mode) {
        (true, CacheMode::Objects) => {
            tracing::warn!(
                resource,
                cache,
                "held in this process's memory, by choice (cache in --config)"
            );
        }
        (true, CacheMode::Metadata) => tracing::warn!(
            resource,
            cache,
            "the metadata is held in memory, by choice (cache in --config); \
             kubectl apply keeps what it was given in annotations, and so there"
        ),
        (_, CacheMode::Nothing) => {
            tracing::info!(
                resource,
                cache,
                "not held in memory; its reads are forwarded (cache in --config)"
            );
        }
        (false, _) => tracing::info!(
            resource,
            cache,
            "held in memory by choice (cache in --config)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use watershed_protocol::{FieldTable, GroupVersionResource};

    use super::*;
    use crate::catalog::ResourceType;

    fn core(name: &str) -> ResourceType {
        let gvr = GroupVersionResource::new("", "v1", name);
        ResourceType {
            fields: Arc::new(FieldTable::builtin(&gvr, true).unwrap()),
            gvr,
            kind: name.into(),
            namespaced: true,
            printer: None,
        }
    }

    #[test]
    fn types_are_called_unknown_only_once_discovery_was_read() {
        let mut policy = CachingPolicy::of_node("node-001");
        policy.types.entry("", "configmaps").mode = Some(CacheMode::Nothing);
        policy.types.entry("", "pdos").mode = Some(CacheMode::Objects);
        let exceptions = policy.exceptions();
        let names = |catalog| -> Vec<_> {
            let unknown = unknown_types(&exceptions, catalog);
            unknown.map(CachingException::name).collect()
        };
        let unread = Catalog::default();
        unread.insert(core("pods"));
        assert_eq!(names(&unread), Vec::<String>::new());
        let read = Catalog::of(["pods", "nodes", "secrets", "configmaps"].map(core));
        assert_eq!(names(&read), ["pdos"]);
    }
}
