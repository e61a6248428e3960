//! Keeps the catalog current.
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending};
use tokio::time::sleep;
use watershed_connect::one_line;
use watershed_protocol::{FieldTable, GroupVersionResource, TablePrinter};

use super::custom::{CustomType, CustomTypeName, CustomTypes, followed_definitions};
use super::discovery::DiscoveredType;
use super::discovery_error::DiscoveryError;
use super::object_feed::{ObjectFeed, ObjectNews};
use super::origin::{ApiServices, Origin, Origins, followed_services};
use super::reading::{DiscoveryReader, NeededTypes, Reading};
use super::types::{Catalog, ResourceType, Types};
use super::well_known::well_known_types;
use crate::log_throttle::LogThrottle;
use crate::scope::{ObjectShape, Scopes};
use crate::upstream::{Upstream, UpstreamClient};

/// Time to wait after a change of a CRD: they are written several times in a row while they are
/// established.
const SETTLE: Duration = Duration::from_millis(100);
/// Time after which the watches of a type that is gone end, where upstream does not end them.
const GONE: Duration = Duration::from_secs(30);
/// Time between two lines about an outage.
const REPORT_PAUSE: Duration = Duration::from_mins(1);

/// Keeps a [`Catalog`] current.
pub struct CatalogFollower {
    upstream: Upstream,
    scopes: Scopes,
    catalog: Catalog,
    /// Aggregated API groups that the operator vouches for.
    vouched: Vec<String>,
    discovery: DiscoveryReader,
    /// The types that discovery named last.
    discovered: Vec<DiscoveredType>,
    /// The servers that answer for them.
    origins: Origins,
    /// `origins` was read after the watch of the APIServices was last lost.
    are_origins_read: bool,
    /// Failures while types are known.
    failures: LogThrottle,
    /// Upstream's answer to another question, before which discovery is not read. It is `true` if
    /// upstream is there, and knows the proxy.
    first_answer: Option<BoxFuture<'static, bool>>,
    source: TypeSource,
    services: ApiServices,
    custom: CustomTypes,
}

/// The origin of the types that the catalog has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TypeSource {
    /// It has none yet.
    None,
    /// They are those that each API server has.
    WellKnown,
    /// Discovery named them.
    Discovered,
}

impl CatalogFollower {
    /// Creates a follower, and its catalog, which has no types yet. The types of the groups in
    /// `vouched` are taken in even if another server answers for them.
    pub fn new(client: UpstreamClient, scopes: Scopes, vouched: Vec<String>) -> (Self, Catalog) {
        let catalog = Catalog::default();
        let upstream = client.upstream().clone();
        let mut discovery = DiscoveryReader::new(client);
        if !vouched.is_empty() {
            discovery.need_aggregated();
        }
        let follower = Self {
            upstream,
            discovery,
            scopes,
            catalog: catalog.clone(),
            vouched,
            discovered: Vec::new(),
            origins: Origins::NotRead,
            are_origins_read: false,
            failures: LogThrottle::new(REPORT_PAUSE),
            first_answer: None,
            source: TypeSource::None,
            services: ApiServices::default(),
            custom: CustomTypes::default(),
        };
        (follower, catalog)
    }

    /// Follows these types alone.
    #[must_use]
    pub fn needing(mut self, needed: NeededTypes) -> Self {
        self.discovery.need(needed);
        let has_custom_types = needed == NeededTypes::All;
        self.catalog
            .settled
            .store(!has_custom_types, Ordering::Relaxed);
        self
    }

    /// Begins with the types that each API server has, and puts the first reading off, once
    /// `first_answer` is `true`. Once it is `false`, discovery is read instead.
    #[must_use]
    pub fn trusting(mut self, first_answer: impl Future<Output = bool> + Send + 'static) -> Self {
        self.first_answer = Some(first_answer.boxed());
        self
    }

    /// Waits for the first types. If that fails or is cancelled, [`CatalogFollower::run`] goes on
    /// from there.
    pub async fn begin(&mut self) -> Result<(), DiscoveryError> {
        if self.first_answer.is_some() {
            let is_there = answered(&mut self.first_answer).await;
            self.take_first_answer(is_there);
        }
        match self.source {
            TypeSource::None => self.read().await,
            TypeSource::WellKnown | TypeSource::Discovered => Ok(()),
        }
    }

    fn take_first_answer(&mut self, is_there: bool) {
        self.first_answer = None;
        if is_there {
            self.begin_with_well_known();
        }
    }

    fn begin_with_well_known(&mut self) {
        self.discovery.put_off();
        self.source = TypeSource::WellKnown;
        self.discovered = well_known_types();
        self.publish();
        tracing::info!(
            types = self.catalog.len(),
            "starting with built-in types; reading discovery later"
        );
    }

    /// Reads discovery once. After an error, [`CatalogFollower::run`] goes on trying.
    pub async fn read(&mut self) -> Result<(), DiscoveryError> {
        let read = self.discovery.next().await?;
        self.take(read);
        Ok(())
    }

    /// Follows the types. Never returns.
    pub async fn run(mut self) {
        let mut definitions = ObjectFeed::new(followed_definitions());
        let mut services = ObjectFeed::new(followed_services());
        let mut timeline = self.scopes.timeline().changes();
        let mut releases = self.scopes.releases();
        loop {
            // Without discovery it is unknown if upstream has definitions.
            let follows_definitions = self.source != TypeSource::None && self.reads_all();
            // Where the APIServices could not be read, they cannot be followed.
            let follows_services = follows_definitions && self.origins != Origins::NotRead;
            let awaits_first_answer = self.first_answer.is_some();
            tokio::select! {
                // Upstream's versions went back: it may have other types, too.
                Ok(()) = timeline.changed() => {
                    self.custom.forget_versions();
                    self.services.forget_versions();
                    self.are_origins_read = false;
                    self.discovery.read_anew();
                }
                // Another release has other types.
                Ok(()) = releases.changed() => {
                    if let Some(server) = &*releases.borrow_and_update() {
                        self.discovery.read_at(server);
                    }
                }
                is_there = answered(&mut self.first_answer), if awaits_first_answer => {
                    self.take_first_answer(is_there);
                }
                // A reading that hangs holds up nothing else.
                read = self.discovery.next(), if !awaits_first_answer => match read {
                    Ok(read) => {
                        self.take(read);
                        self.compare_services(&services);
                    }
                    Err(error) => self.report(&error),
                },
                news = definitions.news(&self.catalog, &self.scopes), if follows_definitions => {
                    match news {
                        ObjectNews::Changed => {
                            // Objects of a changed type are not served from this moment on.
                            self.update_definitions(&definitions);
                            sleep(SETTLE).await;
                            self.update_definitions(&definitions);
                        }
                        ObjectNews::Unknown => self.custom = CustomTypes::default(),
                    }
                    self.publish();
                    self.catalog.settled.store(true, Ordering::Relaxed);
                }
                news = services.news(&self.catalog, &self.scopes), if follows_services => {
                    match news {
                        ObjectNews::Changed => self.update_services(&services),
                        ObjectNews::Unknown => self.lose_services(),
                    }
                }
            }
        }
    }

    fn take(&mut self, read: Reading) {
        let is_first =
            std::mem::replace(&mut self.source, TypeSource::Discovered) != TypeSource::Discovered;
        self.discovered = read.types;
        if !self.discovery.follows_services() {
            self.origins = read.origins;
            self.are_origins_read = true;
        } else if self.origins != read.origins {
            // The watch brings nothing any more, or the reading is older.
            self.origins.add_aggregated(&read.origins);
            self.lose_services();
        }
        if is_first && self.reads_all() && self.origins == Origins::NotRead {
            tracing::info!("APIServices cannot be read; only built-in and custom types are cached");
        }
        self.publish();
        if is_first {
            self.catalog.read.store(true, Ordering::Relaxed);
            tracing::info!(types = self.catalog.len(), "read discovery");
        }
    }

    fn reads_all(&self) -> bool {
        self.discovery.needed() == NeededTypes::All
    }

    fn report(&self, error: &DiscoveryError) {
        match self.source {
            TypeSource::None => error.report(&self.upstream),
            TypeSource::WellKnown | TypeSource::Discovered => {
                if let Some(failures) = self.failures.count(1) {
                    tracing::warn!(
                        error = one_line(error),
                        advice = error.advice(&self.upstream),
                        failures,
                        "discovery failed; the types known before stay, trying again"
                    );
                }
            }
        }
    }

    /// Relies on readings of the APIServices from now on, as they cannot be followed.
    fn lose_services(&mut self) {
        self.are_origins_read = false;
        self.discovery.services_are_lost();
    }

    /// Takes in the APIServices that are followed. Until the watch is [relied on](Self::rely_on), they only
    /// take types out.
    fn update_services(&mut self, services: &ObjectFeed) {
        let Some(origins) = self.followed_origins(services) else {
            return;
        };
        if !self.discovery.follows_services() {
            if self.are_origins_read && !self.rely_on(&origins) {
                self.discovery.services_changed();
            }
            // Readings may go on failing.
            if self.origins.add_aggregated(&origins) {
                self.publish();
            }
            return;
        }
        if self.origins.differ_in_built_in(&origins) {
            self.discovery.services_changed();
        }
        if self.origins != origins {
            self.origins = origins;
            self.publish();
        }
    }

    /// Compares the APIServices that were read with those that are followed.
    fn compare_services(&mut self, services: &ObjectFeed) {
        if !self.discovery.follows_services()
            && let Some(origins) = self.followed_origins(services)
        {
            self.rely_on(&origins);
        }
    }

    /// Relies on a watch if it has brought what was read, and returns `true` then. A watch that is open
    /// again may have older APIServices.
    fn rely_on(&mut self, followed: &Origins) -> bool {
        let is_same = self.are_origins_read && self.origins == *followed;
        if is_same {
            self.discovery.services_are_followed();
        }
        is_same
    }

    /// Returns the origins by the APIServices that are followed; `None` while they are not.
    fn followed_origins(&mut self, services: &ObjectFeed) -> Option<Origins> {
        let snapshot = services.snapshot()?;
        // Otherwise they are listed again.
        snapshot
            .is_listed()
            .then(|| self.services.update(&snapshot))
    }

    fn update_definitions(&mut self, definitions: &ObjectFeed) {
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
                shape: ObjectShape::new(entry.kind.as_str(), fields),
                namespaced: entry.namespaced,
                printer: TablePrinter::builtin(&entry.gvr),
            };
            types.insert(entry.gvr.clone(), Arc::new(resource));
        }
        for resource in self.custom.all().flat_map(CustomType::resources) {
            if self.origins.of(&resource.gvr) == Some(Origin::Aggregated) {
                continue;
            }
            types.insert(resource.gvr.clone(), Arc::new(resource));
        }
        let before = self.catalog.types.swap(Arc::new(types));
        let after = self.catalog.types.load();
        for (gvr, resource) in before.iter() {
            match after.get(gvr) {
                Some(now) if now.shape == resource.shape => {}
                // Scopes scanned with the old fields are of no use any more.
                Some(_) => self.scopes.close(gvr, Duration::ZERO),
                None => self.scopes.close(gvr, GONE),
            }
        }
        // Requests that were on their way meanwhile may have opened one with the old fields.
        for scope in self.scopes.all() {
            if after
                .get(&scope.key.gvr)
                .is_some_and(|now| now.shape.fields != scope.fields)
            {
                self.scopes.close(&scope.key.gvr, Duration::ZERO);
            }
        }
    }
}

/// Returns the answer, or waits forever if none is awaited. Cancelling a call loses nothing.
async fn answered(first_answer: &mut Option<BoxFuture<'static, bool>>) -> bool {
    match first_answer {
        Some(answer) => answer.await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests;
