//! Keeps the catalog current.
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;
use watershed_protocol::{FieldTable, GroupVersionResource};

use super::custom::{CustomType, CustomTypeName, CustomTypes};
use super::definitions::{DefinitionFeed, DefinitionNews};
use super::discovery::{self, DiscoveredType, DiscoveryError};
use super::origin::{Origin, Origins};
use super::types::{Catalog, ResourceType, Types};
use crate::scope::Scopes;
use crate::upstream::UpstreamClient;

/// Interval between readings of discovery. Custom types are followed without waiting for it.
const REFRESH: Duration = Duration::from_mins(1);
/// Interval after a reading that failed.
const RETRY: Duration = Duration::from_secs(5);
/// Time to wait after a change of a CRD: they are written several times in a row while they are
/// established.
const SETTLE: Duration = Duration::from_millis(100);
/// Time after which the watches of a type that is gone end, where upstream does not end them.
const GONE: Duration = Duration::from_secs(30);

/// Keeps a [`Catalog`] current.
pub struct CatalogFollower {
    client: UpstreamClient,
    scopes: Scopes,
    catalog: Catalog,
    /// Aggregated API groups that the operator vouches for.
    vouched: Vec<String>,
    reading: Reading,
    custom: CustomTypes,
    /// Interval between readings of discovery.
    refresh: Duration,
}

impl CatalogFollower {
    /// Reads discovery once, so that the process does not start without types. The types of the
    /// groups in `vouched` are taken in even if another server answers for them.
    pub async fn start(
        client: UpstreamClient,
        scopes: Scopes,
        vouched: Vec<String>,
    ) -> Result<(Self, Catalog), DiscoveryError> {
        let catalog = Catalog::default();
        let reading = Reading::take(&client).await?;
        if matches!(reading.origins, Origins::NotReadable) {
            tracing::info!("APIServices cannot be read; only built-in and custom types are cached");
        }
        let mut follower = Self {
            client,
            scopes,
            catalog: catalog.clone(),
            vouched,
            reading,
            custom: CustomTypes::default(),
            refresh: REFRESH,
        };
        follower.publish();
        Ok((follower, catalog))
    }

    /// Follows the types. Never returns.
    pub async fn run(mut self) {
        let mut definitions = DefinitionFeed::new();
        let client = self.client.clone();
        let mut timeline = self.scopes.timeline().changes();
        // A reading that hangs holds up nothing else.
        let mut next = std::pin::pin!(Reading::take_after(&client, self.refresh));
        loop {
            tokio::select! {
                // Upstream's versions went back: it may have other types, too.
                Ok(()) = timeline.changed() => {
                    self.custom.forget_versions();
                    next.set(Reading::take_after(&client, Duration::ZERO));
                }
                read = &mut next => {
                    let wait = match read {
                        Ok(read) => {
                            self.reading = read;
                            self.publish();
                            self.refresh.mul_f64(0.9 + fastrand::f64() / 5.0)
                        }
                        Err(error) => {
                            tracing::warn!(%error, "discovery failed");
                            RETRY
                        }
                    };
                    next.set(Reading::take_after(&client, wait));
                }
                news = definitions.news(&self.catalog, &self.scopes) => {
                    match news {
                        DefinitionNews::Changed => {
                            sleep(SETTLE).await;
                            self.update_definitions(&definitions);
                        }
                        DefinitionNews::Unknown => self.custom = CustomTypes::default(),
                    }
                    self.publish();
                    self.catalog.settled.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    fn update_definitions(&mut self, definitions: &DefinitionFeed) {
        let Some(snapshot) = definitions.snapshot() else {
            return;
        };
        if !snapshot.is_listed() {
            // It is listed again. What is known until then is better than nothing.
            return;
        }
        for name in self.custom.update(&snapshot) {
            self.schema_changed(&name);
        }
    }

    fn schema_changed(&self, changed: &CustomTypeName) {
        let types = self.catalog.types.load_full();
        let affected = types
            .keys()
            .filter(|gvr| *gvr.group == *changed.group && *gvr.resource == *changed.plural);
        affected.for_each(|gvr| self.scopes.schema_changed(gvr));
    }

    fn is_vouched(&self, gvr: &GroupVersionResource) -> bool {
        self.vouched.iter().any(|group| **group == *gvr.group)
    }

    /// Publishes the types of discovery and definitions, and closes scopes that do not fit them.
    fn publish(&mut self) {
        let mut types = Types::new();
        for entry in &self.reading.types {
            // What custom types are is for their definitions to say: discovery does not tell their
            // fields.
            if self.reading.origins.of(&entry.gvr) != Some(Origin::BuiltIn)
                && !self.is_vouched(&entry.gvr)
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
        for resource in self.custom.all().flat_map(CustomType::resources) {
            if self.reading.origins.of(&resource.gvr) == Some(Origin::Aggregated) {
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

/// The types that discovery named.
struct Reading {
    types: Vec<DiscoveredType>,
    origins: Origins,
}

impl Reading {
    /// Reads discovery.
    async fn take(client: &UpstreamClient) -> Result<Self, DiscoveryError> {
        let types = discovery::read(client).await?;
        // Read afterwards: what was discovered of another server has its APIService by then.
        let origins = Origins::read(client).await?;
        Ok(Self { types, origins })
    }

    /// Waits, and reads discovery.
    async fn take_after(client: &UpstreamClient, wait: Duration) -> Result<Self, DiscoveryError> {
        sleep(wait).await;
        Self::take(client).await
    }
}

#[cfg(test)]
mod tests;
