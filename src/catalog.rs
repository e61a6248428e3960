//! Which resource types there are, from discovery and from the CustomResourceDefinitions.
//!
//! The CRDs are themselves followed through a scope, so that a new type is known as soon as
//! upstream has established it, and a changed schema makes the type's scopes list again.
mod custom;
mod discovery;

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::kube::{Encoding, FieldTable, GroupVersionResource};
use crate::scope::{Scope, ScopeKey, Scopes};
use crate::store::{Interest, Start, Step, Subscription};
use crate::upstream::Client;

use custom::{Custom, Parsed};
pub use discovery::DiscoveryError;

/// Discovery is read again this often; custom types are followed without waiting for it.
const REFRESH: Duration = Duration::from_mins(1);
/// And this soon after it failed.
const RETRY: Duration = Duration::from_secs(5);
/// CRDs are written several times in a row while they are established.
const SETTLE: Duration = Duration::from_millis(100);
/// After a schema change upstream builds the type's storage anew, within about a second; a list
/// taken before that would still show objects under the old schema.
const REBUILT: Duration = Duration::from_secs(2);
/// Upstream ends the watches of a type that is gone. Where it does not, they end after this.
const GONE: Duration = Duration::from_secs(30);

/// One listable and watchable type.
#[derive(Debug)]
pub struct Resource {
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
pub type Types = HashMap<GroupVersionResource, Arc<Resource>>;

/// Gives the types known now. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    types: Arc<ArcSwap<Types>>,
}

impl Catalog {
    /// The type with this name, if it can be listed and watched.
    pub fn get(&self, gvr: &GroupVersionResource) -> Option<Arc<Resource>> {
        self.types.load().get(gvr).cloned()
    }

    /// How many types are known.
    pub fn len(&self) -> usize {
        self.types.load().len()
    }

    /// Whether discovery has not succeeded yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Keeps a [`Catalog`] current.
pub struct Follower {
    client: Client,
    scopes: Scopes,
    catalog: Catalog,
    /// What discovery said last.
    discovered: Vec<discovery::Entry>,
    parsed: Parsed,
}

impl Follower {
    /// Reads discovery once, so that the process does not start blind.
    pub async fn start(client: Client, scopes: Scopes) -> Result<(Self, Catalog), DiscoveryError> {
        let catalog = Catalog::default();
        let mut follower = Self {
            client,
            scopes,
            catalog: catalog.clone(),
            discovered: Vec::new(),
            parsed: Parsed::default(),
        };
        follower.discovered = discovery::read(&follower.client).await?;
        follower.publish();
        Ok((follower, catalog))
    }

    /// Follows for ever.
    pub async fn run(mut self) {
        let definitions = self.open_definitions();
        let mut changes = Changes::new(definitions);
        let mut wait = Duration::ZERO;
        loop {
            tokio::select! {
                () = tokio::time::sleep(wait) => {
                    wait = match discovery::read(&self.client).await {
                        Ok(entries) => {
                            self.discovered = entries;
                            REFRESH.mul_f64(0.9 + fastrand::f64() / 5.0)
                        }
                        Err(error) => {
                            tracing::warn!(%error, "discovery failed");
                            RETRY
                        }
                    };
                }
                () = changes.next(&self.scopes) => tokio::time::sleep(SETTLE).await,
            }
            if let Some(scope) = changes.scope() {
                for name in self.parsed.update(&scope.reader.snapshot()) {
                    self.schema_changed(&name);
                }
            }
            self.publish();
        }
    }

    fn open_definitions(&self) -> Option<Arc<Scope>> {
        let gvr = custom::definitions();
        let resource = self.catalog.get(&gvr)?;
        let key = ScopeKey { gvr, encoding: Encoding::Json };
        Some(self.scopes.open(&key, &resource.kind, &resource.fields))
    }

    fn schema_changed(&self, changed: &custom::Name) {
        let types = self.catalog.types.load_full();
        let affected =
            types.keys().filter(|gvr| *gvr.group == *changed.group && *gvr.resource == *changed.plural);
        for gvr in affected {
            let (scopes, gvr) = (self.scopes.clone(), gvr.clone());
            tokio::spawn(async move {
                tokio::time::sleep(REBUILT).await;
                scopes.relist(&gvr);
            });
        }
    }

    /// Puts discovery and definitions together. A definition says more of a custom type than
    /// discovery does, and says it earlier.
    fn publish(&mut self) {
        let mut types = Types::new();
        for entry in &self.discovered {
            let definition = self.parsed.get(&entry.gvr.group, &entry.gvr.resource);
            if definition.is_some() || (self.parsed.was_custom(&entry.gvr.group, &entry.gvr.resource)) {
                continue;
            }
            let Some(fields) = FieldTable::builtin(&entry.gvr, entry.namespaced) else { continue };
            let resource = Resource {
                gvr: entry.gvr.clone(),
                kind: entry.kind.as_str().into(),
                namespaced: entry.namespaced,
                fields: Arc::new(fields),
            };
            types.insert(entry.gvr.clone(), Arc::new(resource));
        }
        for resource in self.parsed.all().flat_map(Custom::resources) {
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
            if after.get(&scope.key.gvr).is_some_and(|now| now.fields != scope.fields) {
                self.scopes.close(&scope.key.gvr, Duration::ZERO);
            }
        }
    }
}

/// Tells when the definitions changed.
struct Changes {
    scope: Option<Arc<Scope>>,
    subscription: Option<Subscription>,
}

impl Changes {
    fn new(scope: Option<Arc<Scope>>) -> Self {
        Self { scope, subscription: None }
    }

    fn scope(&self) -> Option<&Arc<Scope>> {
        self.scope.as_ref()
    }

    /// Returns when something changed since the last call; the first list counts as a change.
    async fn next(&mut self, scopes: &Scopes) {
        let Some(scope) = &self.scope else { return std::future::pending().await };
        let Some(subscription) = &mut self.subscription else {
            if scope.ready(Duration::MAX / 4).await.is_err() {
                // Not allowed to see them: discovery alone must do. Tried again with the next refresh.
                tokio::time::sleep(REFRESH).await;
            } else {
                self.subscription = Some(scope.reader.subscribe(Start::Now, Interest::All).0);
            }
            return;
        };
        let broken = poll_fn(|context| {
            loop {
                match subscription.step(context, 64) {
                    Step::Events(events) if events.is_empty() => {}
                    Step::Events(_) => return Poll::Ready(false),
                    Step::CaughtUp(_) => return Poll::Pending,
                    Step::Expired { .. } | Step::Closed(_) => return Poll::Ready(true),
                }
            }
        })
        .await;
        if broken {
            let scope = Arc::clone(scope);
            self.subscription = None;
            self.scope = Some(scopes.open(&scope.key, &"CustomResourceDefinition".into(), &scope.fields));
        }
    }
}
