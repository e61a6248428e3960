//! Log lines about the policy, at the start.
use std::collections::BTreeSet;
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
    let (risks, choices): (Vec<_>, Vec<_>) = exceptions
        .iter()
        .partition(|exception| exception.sensitive && exception.mode != CacheMode::Nothing);
    for exception in risks {
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
    for exception in choices {
        if !is_unknown(exception, &catalog) {
            announce_exception(exception);
        }
    }
    for unknown in exceptions.iter().filter(|it| is_unknown(it, &catalog)) {
        tracing::warn!(
            resource = unknown.name(),
            cache = unknown.cache(),
            of_other_groups = ?other_groups(unknown, &catalog),
            "upstream has no type of this name in this group (resources in --config)"
        );
    }
}

/// Returns the other groups that have a resource of the same name.
fn other_groups(exception: &CachingException, catalog: &Catalog) -> BTreeSet<String> {
    let types = catalog.all();
    let same = types
        .iter()
        .filter(|it| *it.gvr.resource == *exception.resource);
    same.map(|it| it.gvr.group.to_string()).collect()
}

/// Returns `true` if upstream's discovery should have named a type, and did not.
fn is_unknown(exception: &CachingException, catalog: &Catalog) -> bool {
    // A type of another group may be defined later.
    catalog.is_read()
        && catalog.has(&exception.group, None)
        && exception.resource != "*"
        && !catalog.has_resource(&exception.group, &exception.resource)
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
    use watershed_protocol::{FieldTable, GroupVersionResource};

    use super::*;
    use crate::catalog::ResourceType;
    use crate::scope::ObjectShape;

    fn core(name: &str) -> ResourceType {
        let gvr = GroupVersionResource::new("", "v1", name);
        ResourceType {
            shape: ObjectShape::new(name, FieldTable::builtin(&gvr, true).unwrap()),
            gvr,
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
            let unknown = exceptions.iter().filter(|it| is_unknown(it, catalog));
            unknown.map(CachingException::name).collect()
        };
        let unread = Catalog::default();
        unread.insert(core("pods"));
        assert_eq!(names(&unread), Vec::<String>::new());
        let read = Catalog::of(["pods", "nodes", "secrets", "configmaps"].map(core));
        assert_eq!(names(&read), ["pdos"]);
    }

    #[test]
    fn a_type_of_another_group_is_named() {
        let mut policy = CachingPolicy::of_node("node-001");
        policy.types.entry("", "deployments").mode = Some(CacheMode::Nothing);
        let mut deployments = core("pods");
        deployments.gvr = GroupVersionResource::new("apps", "v1", "deployments");
        let catalog = Catalog::of([core("pods"), deployments]);
        let exceptions = policy.exceptions();
        let unknown = exceptions.iter().find(|it| is_unknown(it, &catalog));
        assert!(other_groups(unknown.unwrap(), &catalog).iter().eq(["apps"]));
    }
}
