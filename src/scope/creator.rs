//! The creation of scopes: a store, and the task that pumps what upstream sends into it.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use watershed_protocol::{Encoding, GroupVersionResource, ManagedFields, Representation};

use super::cached::{Scope, ScopeParts};
use super::config::{Derivation, ScopeConfig, ScopeOptions};
use super::derived::{DerivationFailures, DerivedFeed, JsonPrinter, OpenSource, PrintingThreads};
use super::key::{ObjectShape, ScopeKey};
use super::open_scopes::OpenScopes;
use super::pump::{PumpParts, ScopeFeed, ScopePump, SharedByPumps, ShownPhase};
use super::timeline::Timeline;
use crate::budget::MemoryBudget;
use crate::store;
use crate::upstream::{Reflector, ReflectorTarget, UpstreamClient};

/// Returns the treatment of managed fields of a type.
pub type ManagedFieldsPolicy = Arc<dyn Fn(&GroupVersionResource) -> ManagedFields + Send + Sync>;

/// Creates scopes, and holds what they share.
#[derive(Clone)]
pub(super) struct ScopeCreator {
    pub(super) client: UpstreamClient,
    pub(super) config: ScopeConfig,
    pub(super) shared: SharedByPumps,
    pub(super) timeline: Timeline,
    /// The timelines of aggregated API groups, whose servers number their versions by themselves.
    pub(super) aggregated: Arc<HashMap<String, Timeline>>,
    pub(super) budget: MemoryBudget,
    /// Threads that print the JSON of others.
    printing: PrintingThreads,
    pub(super) managed_fields: ManagedFieldsPolicy,
}

impl ScopeCreator {
    /// Creates scopes that `client` lists and watches. Those that stop are removed from `open`.
    pub(super) fn new(client: UpstreamClient, config: ScopeConfig, open: OpenScopes) -> Self {
        Self {
            client,
            config,
            shared: SharedByPumps::new(open, DerivationFailures::new(config.derive_again)),
            timeline: Timeline::default(),
            aggregated: Arc::default(),
            budget: MemoryBudget::default(),
            printing: PrintingThreads::of_process(),
            managed_fields: Arc::new(|_| ManagedFields::Keep),
        }
    }

    /// Creates a scope, and starts its task. If it is to be derived, `opener` gets the key and the
    /// options of its source, and returns what opens that.
    pub(super) fn create(
        &self,
        key: &ScopeKey,
        shape: &ObjectShape,
        options: ScopeOptions,
        opener: impl FnOnce(ScopeKey, ScopeOptions) -> OpenSource,
    ) -> Arc<Scope> {
        let target = ReflectorTarget {
            gvr: key.gvr.clone(),
            selection: Arc::clone(&key.selection),
            kind: Arc::clone(&shape.kind),
            representation: key.representation,
            fields: Arc::clone(&shape.fields),
            managed_fields: (self.managed_fields)(&key.gvr),
        };
        self.start(key.clone(), target, options, opener)
    }

    /// Starts the task of a new scope.
    fn start(
        &self,
        key: ScopeKey,
        target: ReflectorTarget,
        options: ScopeOptions,
        opener: impl FnOnce(ScopeKey, ScopeOptions) -> OpenSource,
    ) -> Arc<Scope> {
        let window = self.config.window_of(&key.gvr, options.window);
        let (writer, reader) = store::new(window);
        let (shown_phase, phase) = ShownPhase::syncing();
        let group = &key.gvr.group;
        let aggregated = self.aggregated.get(&**group).cloned();
        let scope = Arc::new(Scope::new(ScopeParts {
            client: &self.client,
            target: &target,
            timeline: aggregated.unwrap_or_else(|| self.timeline.of_group(group)),
            key,
            options: &options,
            reader,
            phase,
            budget: &self.budget,
        }));
        // What the proxy itself needs is held however short memory is.
        let budget = if options.origin.is_indispensable() {
            MemoryBudget::default()
        } else {
            self.budget.clone()
        };
        let parts = PumpParts {
            client: self.client.clone(),
            target: target.clone(),
            scope: Arc::clone(&scope),
            feed: self.feed(&scope, target, &options, opener),
            writer,
            phase: shown_phase,
            budget,
            max_staleness: options.max_staleness.unwrap_or(self.config.max_staleness),
            overdue: self.config.overdue,
            share: options.origin.into_share(),
        };
        let pump = ScopePump::new(parts, self.shared.clone());
        tokio::spawn(pump.run());
        scope
    }

    /// Returns the source of a scope's changes.
    fn feed(
        &self,
        scope: &Arc<Scope>,
        target: ReflectorTarget,
        options: &ScopeOptions,
        opener: impl FnOnce(ScopeKey, ScopeOptions) -> OpenSource,
    ) -> ScopeFeed {
        let mut derived = self.derived(scope, &target, options, opener);
        let mut reflector = Reflector::new(self.client.clone(), target)
            .compressed(self.config.compression)
            .beginning_with_any_state(options.begins_with_any_state)
            .lasting(self.config.watch_lifetime);
        if !options.origin.is_indispensable() {
            let estimates = !self.shared.unfit.is_to_be_tried(&scope.key, Instant::now());
            derived = derived.map(|derived| derived.within(&self.budget, estimates));
            reflector = reflector.within(&self.budget, estimates);
        }
        ScopeFeed::new(scope, reflector, derived, &self.shared.failures)
    }

    /// Returns the feed of a scope in JSON whose changes are derived from the type's scope in
    /// protobuf; `None` if they are not to be derived.
    fn derived(
        &self,
        scope: &Scope,
        target: &ReflectorTarget,
        options: &ScopeOptions,
        opener: impl FnOnce(ScopeKey, ScopeOptions) -> OpenSource,
    ) -> Option<DerivedFeed> {
        let key = &scope.key;
        let Representation {
            encoding,
            metadata_only,
        } = key.representation;
        // The servers of aggregated groups print as they like.
        let may_derive = options.derivation == Derivation::Derived
            && encoding == Encoding::Json
            && !self.aggregated.contains_key(&*key.gvr.group);
        if !may_derive {
            return None;
        }
        let printer = JsonPrinter::of_type(&key.gvr, &target.kind, metadata_only)?;
        let source = ScopeKey {
            representation: Representation {
                encoding: Encoding::Protobuf,
                metadata_only,
            },
            ..key.clone()
        };
        let options = options.clone().of_source(self.config.window);
        Some(DerivedFeed::new(
            self.client.clone(),
            target.clone(),
            printer,
            opener(source, options),
            scope.reader.clone(),
            &self.printing,
        ))
    }
}
