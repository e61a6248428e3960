//! Which resource types there are, from discovery and from the CustomResourceDefinitions.
//!
//! The CRDs are themselves followed through a scope, so that a new type is known as soon as
//! upstream has established it, and a changed schema makes the type's scopes list again.
mod custom;
mod definitions;
mod discovery;
pub mod metrics;
mod origin;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::{Instant, sleep, sleep_until};

use crate::scope::Scopes;
use crate::upstream::UpstreamClient;
use watershed_protocol::{FieldTable, GroupVersionResource};

use custom::{Custom, Parsed};
use definitions::Definitions;
pub use discovery::DiscoveryError;
use origin::{Origin, Origins};

/// Discovery is read again this often; custom types are followed without waiting for it.
const REFRESH: Duration = Duration::from_mins(1);
/// And this soon after it failed.
const RETRY: Duration = Duration::from_secs(5);
/// CRDs are written several times in a row while they are established.
const SETTLE: Duration = Duration::from_millis(100);
/// Upstream ends the watches of a type that is gone. Where it does not, they end after this.
const GONE: Duration = Duration::from_secs(30);

/// One listable and watchable type.
#[derive(Debug)]
pub struct ResourceType {
    /// Its name.
    pub gvr: GroupVersionResource,
    /// The kind of its objects.
    pub kind: Arc<str>,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// Its selectable fields.
    pub fields: Arc<FieldTable>,
}

/// The types known at a moment.
pub type Types = HashMap<GroupVersionResource, Arc<ResourceType>>;

/// Gives the types known now. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    types: Arc<ArcSwap<Types>>,
    settled: Arc<AtomicBool>,
}

impl Catalog {
    /// The type with this name, if it can be listed and watched.
    pub fn get(&self, gvr: &GroupVersionResource) -> Option<Arc<ResourceType>> {
        self.types.load().get(gvr).cloned()
    }

    /// Whether a type of this group, in this version or in any, is known.
    pub fn has(&self, group: &str, version: Option<&str>) -> bool {
        let is = |gvr: &GroupVersionResource| {
            *gvr.group == *group && version.is_none_or(|version| *gvr.version == *version)
        };
        self.types.load().keys().any(is)
    }

    /// Whether a type of this name is known, in any version.
    pub fn has_resource(&self, group: &str, resource: &str) -> bool {
        self.types
            .load()
            .keys()
            .any(|gvr| *gvr.group == *group && *gvr.resource == *resource)
    }

    /// Every type known, in no order.
    pub fn all(&self) -> Vec<Arc<ResourceType>> {
        self.types.load().values().cloned().collect()
    }

    /// The types of this name, in all their versions.
    pub fn of_name(&self, group: &str, resource: &str) -> Vec<Arc<ResourceType>> {
        let types = self.types.load();
        let found = types
            .values()
            .filter(|of| *of.gvr.group == *group && *of.gvr.resource == *resource);
        found.cloned().collect()
    }

    /// How many types are known.
    pub fn len(&self) -> usize {
        self.types.load().len()
    }

    /// Whether discovery has not succeeded yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the custom types are known, too, as far as the proxy may know them.
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }
}

/// Keeps a [`Catalog`] current.
pub struct CatalogFollower {
    client: UpstreamClient,
    scopes: Scopes,
    catalog: Catalog,
    /// Aggregated API groups that the operator vouches for.
    vouched: Vec<String>,
    /// What discovery said last.
    discovered: Vec<discovery::Entry>,
    origins: Origins,
    parsed: Parsed,
}

impl CatalogFollower {
    /// Reads discovery once, so that the process does not start blind. The types of the groups in
    /// `vouched` are taken in even though another server behind the API server answers for them.
    pub async fn start(
        client: UpstreamClient,
        scopes: Scopes,
        vouched: Vec<String>,
    ) -> Result<(Self, Catalog), DiscoveryError> {
        let catalog = Catalog::default();
        let mut follower = Self {
            client,
            scopes,
            catalog: catalog.clone(),
            vouched,
            discovered: Vec::new(),
            origins: Origins::NotReadable,
            parsed: Parsed::default(),
        };
        follower.discover().await?;
        if matches!(follower.origins, Origins::NotReadable) {
            tracing::info!("APIServices cannot be read; only built-in and custom types are cached");
        }
        follower.publish();
        Ok((follower, catalog))
    }

    /// Follows for ever.
    pub async fn run(mut self) {
        let mut definitions = Definitions::new();
        let mut due = Instant::now() + REFRESH;
        loop {
            tokio::select! {
                () = sleep_until(due) => {
                    let wait = match self.discover().await {
                        Ok(()) => REFRESH.mul_f64(0.9 + fastrand::f64() / 5.0),
                        Err(error) => {
                            tracing::warn!(%error, "discovery failed");
                            RETRY
                        }
                    };
                    due = Instant::now() + wait;
                }
                () = definitions.changed(&self.catalog, &self.scopes) => {
                    sleep(SETTLE).await;
                    match definitions.snapshot() {
                        Some(snapshot) => {
                            for name in self.parsed.update(&snapshot) {
                                self.schema_changed(&name);
                            }
                        }
                        None => self.parsed = Parsed::default(),
                    }
                    self.publish();
                    self.catalog.settled.store(true, Ordering::Relaxed);
                    continue;
                }
            }
            self.publish();
        }
    }

    async fn discover(&mut self) -> Result<(), DiscoveryError> {
        let discovered = discovery::read(&self.client).await?;
        // Read afterwards: what was discovered of another server has its APIService by then.
        self.origins = Origins::read(&self.client).await?;
        self.discovered = discovered;
        Ok(())
    }

    fn schema_changed(&self, changed: &custom::Name) {
        let types = self.catalog.types.load_full();
        let affected = types
            .keys()
            .filter(|gvr| *gvr.group == *changed.group && *gvr.resource == *changed.plural);
        affected.for_each(|gvr| self.scopes.schema_changed(gvr));
    }

    fn is_vouched(&self, gvr: &GroupVersionResource) -> bool {
        self.vouched.iter().any(|group| **group == *gvr.group)
    }

    /// Puts discovery and definitions together.
    fn publish(&mut self) {
        let mut types = Types::new();
        for entry in &self.discovered {
            // What custom types are is for their definitions to say: discovery does not tell their
            // fields.
            if self.origins.of(&entry.gvr) != Some(Origin::BuiltIn) && !self.is_vouched(&entry.gvr)
            {
                continue;
            }
            let Some(fields) = FieldTable::builtin(&entry.gvr, entry.namespaced) else {
                continue;
            };
            let resource = ResourceType {
                gvr: entry.gvr.clone(),
                kind: entry.kind.as_str().into(),
                namespaced: entry.namespaced,
                fields: Arc::new(fields),
            };
            types.insert(entry.gvr.clone(), Arc::new(resource));
        }
        for resource in self.parsed.all().flat_map(Custom::resources) {
            if self.origins.of(&resource.gvr) == Some(Origin::Aggregated) {
                continue;
            }
            types.insert(resource.gvr.clone(), Arc::new(resource));
        }
        let before = self.catalog.types.swap(Arc::new(types));
        let after = self.catalog.types.load();
        for (gvr, resource) in before.iter() {
            match after.get(gvr) {
                Some(now) if now.kind == resource.kind && now.fields == resource.fields => {}
                // Scopes scanned with the old fields are of no use any more.
                Some(_) => self.scopes.close(gvr, Duration::ZERO),
                None => self.scopes.close(gvr, GONE),
            }
        }
        // Requests that were on their way meanwhile may have opened one with the old fields.
        for scope in self.scopes.all() {
            if after
                .get(&scope.key.gvr)
                .is_some_and(|now| now.fields != scope.fields)
            {
                self.scopes.close(&scope.key.gvr, Duration::ZERO);
            }
        }
    }
}
