//! The operator's choices per type: the cache mode, the scopes, and the source of consistent reads.
mod choices;
pub(super) mod client_rules;
pub(super) mod request_filter;
pub(super) mod scope_choice;
#[cfg(test)]
mod tests;
pub(super) mod type_name;
mod types;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use watershed_protocol::{
    Encoding, FieldRequirement, FieldSelector, GroupVersionResource, ManagedFields, Representation,
    Selection, is_built_in_group,
};

use crate::scope::{Derivation, ScopeKey, ScopeOptions, ScopeOrigin};
use crate::store::WindowLimits;
use client_rules::ClientRule;
use scope_choice::{ChosenScope, ScopeChoice};
use type_name::{TypeName, stored_in};

pub use choices::{CacheMode, ConsistentReads, ScopePolicy};
pub use types::{TypePolicies, TypePolicy};

/// Idle timeout of on-demand scopes. It is longer than rollouts and restarts of their clients take.
const ON_DEMAND_IDLE_TIMEOUT: Duration = Duration::from_mins(10);

/// Limits of each caller; zero stands for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserLimits {
    /// Requests at a time. A watch counts until it begins, as in kube-apiserver's priority and
    /// fairness.
    pub in_flight: u32,
    /// Requests a second.
    pub per_second: u32,
    /// Requests that may come at once; zero stands for twice the number of a second.
    pub burst: u32,
    /// Forwarded requests at a time, until their answers have ended.
    pub forwarded: u32,
    /// Sessions of exec, attach and port-forward at a time.
    pub tunnels: u32,
    /// Open watches that are served from memory.
    pub watches: u32,
    /// Bytes that the selectors of these watches take.
    pub selector_bytes: u64,
    /// Lists at a time that look at objects one by one.
    pub scans: u32,
    /// States that are kept for the next pages of lists.
    pub page_states: u32,
    /// Open scopes that were opened for selectors that the configuration does not name.
    pub scopes: u32,
}

impl Default for UserLimits {
    /// Returns limits that the agents of a fleet stay below, which are often one user.
    fn default() -> Self {
        Self {
            in_flight: 0,
            per_second: 0,
            burst: 0,
            forwarded: 20_000,
            tunnels: 2_000,
            watches: 100_000,
            selector_bytes: 64 << 20,
            scans: 2_000,
            page_states: 1_000,
            scopes: 1_000,
        }
    }
}

impl UserLimits {
    /// Returns the requests that a user may start at once.
    pub(super) fn burst(self) -> f64 {
        let burst = if self.burst == 0 {
            self.per_second.saturating_mul(2)
        } else {
            self.burst
        };
        f64::from(burst.max(1))
    }
}

/// The comparison of answers from memory with upstream's while the proxy serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Share of the gets and lists that are compared, in millionths.
    pub parts_per_million: u32,
    /// Forwards all requests, and notes what memory would have answered.
    pub shadow: bool,
}

/// Types that are cached only if the configuration names them.
const SENSITIVE: &[(&str, &str)] = &[("", "secrets")];
/// The scope of types for which the configuration names no scopes.
static EVERYTHING: LazyLock<Arc<Selection>> = LazyLock::new(Arc::default);

/// The operator's choices about caching and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CachingPolicy {
    /// Consistent reads of unnamed types.
    pub consistent_reads: ConsistentReads,
    /// Mode of unnamed types. Sensitive types always have to be named.
    pub mode: CacheMode,
    /// Scope policy of unnamed types.
    pub scope_policy: ScopePolicy,
    /// The choices for named types.
    pub types: TypePolicies,
    /// Features that are off for some clients.
    pub client_rules: Vec<ClientRule>,
    /// Limits of each caller.
    pub users: UserLimits,
    /// Comparison of answers with upstream.
    pub verification: Verification,
    /// The memory budget in bytes, instead of the flag's; zero for none.
    pub memory_limit: Option<u64>,
}

impl CachingPolicy {
    /// Returns the preset for a cache on a node: the node, its pods and its lease. Other types are
    /// not cached unless the configuration names them.
    pub fn of_node(name: &str) -> Self {
        let mut policy = Self {
            mode: CacheMode::Nothing,
            ..Self::default()
        };
        let bound = FieldSelector::default().and(FieldRequirement::equals("spec.nodeName", name));
        let pods = Selection {
            fields: bound,
            ..Selection::default()
        };
        let lease = Selection::named(Some("kube-node-lease"), name);
        let parts = [
            ("", "pods", pods),
            ("", "nodes", Selection::named(None, name)),
            ("coordination.k8s.io", "leases", lease),
        ];
        for (group, resource, selection) in parts {
            let named = policy.types.entry(group, resource);
            named.mode = Some(CacheMode::Objects);
            named.scopes = vec![Arc::new(selection)];
        }
        policy
    }

    /// Returns the types whose consistent reads may be stale; `*` stands for all unnamed types.
    pub fn possibly_stale(&self) -> Vec<String> {
        let all = (self.consistent_reads == ConsistentReads::PossiblyStale).then(|| "*".to_owned());
        let named = self
            .types
            .iter()
            .filter(|(_, named)| named.consistent_reads == Some(ConsistentReads::PossiblyStale))
            .map(|(name, _)| name.to_string());
        all.into_iter().chain(named).collect()
    }

    /// Returns the types that are held without managed fields; `*` stands for all unnamed types.
    pub fn without_managed_fields(&self) -> Vec<String> {
        let drops = |scopes: &ScopePolicy| scopes.managed_fields == Some(ManagedFields::Drop);
        let all = drops(&self.scope_policy).then(|| "*".to_owned());
        let named = self
            .types
            .iter()
            .filter(|(_, named)| drops(&named.scope_policy))
            .map(|(name, _)| name.to_string());
        let mut types: Vec<_> = all.into_iter().chain(named).collect();
        types.sort();
        types
    }

    /// Returns the treatment of a type's managed fields.
    pub fn managed_fields(&self, gvr: &GroupVersionResource) -> ManagedFields {
        let scopes = self.scope_policy(&gvr.group, &gvr.resource);
        scopes.managed_fields.unwrap_or_default()
    }

    /// Returns the scope policy of a type.
    pub fn scope_policy(&self, group: &str, resource: &str) -> ScopePolicy {
        match self.types.get(group, resource) {
            Some(named) => named.scope_policy.or(self.scope_policy),
            None => self.scope_policy,
        }
    }

    /// Returns `true` if the mode of the type allows to cache anything.
    pub fn may_cache(&self, group: &str, resource: &str) -> bool {
        self.mode(&GroupVersionResource::new(group, "", resource)) != CacheMode::Nothing
    }

    /// Returns `true` if the policy allows to cache anything of a type that is not built in.
    pub fn may_cache_custom_types(&self) -> bool {
        !self.caches_only(|group, _| is_built_in_group(group))
    }

    /// Returns `true` if the policy caches no unnamed types, and of the named ones only those that
    /// `is_meant` returns `true` for, by group and resource.
    pub fn caches_only(&self, is_meant: impl Fn(&str, &str) -> bool) -> bool {
        let named = self.types.chosen(|named| named.mode);
        let mut cached = named.filter(|(_, mode)| *mode != CacheMode::Nothing);
        self.mode == CacheMode::Nothing
            && cached.all(|(name, _)| is_meant(name.group(), name.resource()))
    }

    /// Returns `true` if metadata of the type's objects may be stored on disk. Sensitive types never
    /// are, even if they are cached.
    pub fn may_store_metadata(&self, group: &str, resource: &str) -> bool {
        self.may_cache(group, resource) && !is_sensitive(stored_in(group, resource), resource)
    }

    /// Returns `true` if whole objects of the type may be stored on disk.
    pub fn may_store_objects(&self, group: &str, resource: &str) -> bool {
        let gvr = GroupVersionResource::new(group, "", resource);
        self.may_store_metadata(group, resource) && self.mode(&gvr) == CacheMode::Objects
    }

    /// Returns the named types that have settings, and are not cached only because unnamed types are
    /// not, or because they are sensitive.
    pub fn without_effect(&self) -> impl Iterator<Item = &TypeName> {
        let has_settings = |named: &TypePolicy| {
            named.mode.is_none()
                && (named.consistent_reads.is_some()
                    || !named.scopes.is_empty()
                    || named.scope_policy != ScopePolicy::default())
        };
        let names = self
            .types
            .iter()
            .filter(move |(_, named)| has_settings(named));
        names
            .map(|(name, _)| name)
            .filter(|name| !self.may_cache(name.group(), name.resource()))
    }

    /// Returns the types that are cached in another way than by default, sorted by name. `*` stands
    /// for all unnamed types.
    pub fn exceptions(&self) -> Vec<CachingException> {
        let sensitive = SENSITIVE
            .iter()
            .filter(|(group, resource)| self.named_mode(group, resource).is_none())
            .map(|(group, resource)| (*group, *resource, CacheMode::Nothing));
        let named = self
            .types
            .chosen(|named| named.mode)
            .map(|(name, mode)| (name.group(), name.resource(), mode));
        let mut exceptions: Vec<_> = sensitive
            .chain(named)
            .map(|(group, resource, mode)| CachingException {
                group: group.to_owned(),
                resource: resource.to_owned(),
                mode,
                always_open: self
                    .types
                    .get(group, resource)
                    .is_some_and(|named| named.scope_policy.always_open),
                sensitive: is_sensitive(group, resource),
            })
            .filter(|exception| {
                exception.mode != CacheMode::Objects
                    || exception.sensitive
                    || self.mode != CacheMode::Objects
            })
            .collect();
        if self.mode != CacheMode::Objects {
            exceptions.push(CachingException {
                group: String::new(),
                resource: "*".to_owned(),
                mode: self.mode,
                always_open: false,
                sensitive: false,
            });
        }
        exceptions.sort_by_key(CachingException::name);
        exceptions
    }

    /// Returns how a scope of the type is kept. `window` applies where the policy sets nothing.
    pub(super) fn scope_options(
        &self,
        gvr: &GroupVersionResource,
        origin: ScopeOrigin,
        window: WindowLimits,
    ) -> ScopeOptions {
        let scopes = self.scope_policy(&gvr.group, &gvr.resource);
        let idle = scopes
            .idle
            .or_else(|| origin.is_on_demand().then_some(ON_DEMAND_IDLE_TIMEOUT))
            .filter(|idle| !idle.is_zero() && !scopes.always_open);
        let has_own_window = scopes.window_age.is_some() || scopes.window_bytes.is_some();
        let own_window = WindowLimits {
            age: scopes.window_age.unwrap_or(window.age),
            bytes: scopes.window_bytes.unwrap_or(window.bytes),
            ..window
        };
        ScopeOptions {
            origin,
            derivation: match scopes.derive_json {
                Some(false) => Derivation::None,
                None | Some(true) => Derivation::Derived,
            },
            idle,
            window: has_own_window.then_some(own_window),
            max_staleness: scopes.max_staleness,
            begins_with_any_state: false,
        }
    }

    /// Returns the scope of a built-in type in which the proxy may follow its objects for itself,
    /// and its options. `None` if there is not exactly one, or none of whole objects. `window`
    /// applies where the policy sets nothing.
    pub fn followed_scope(
        &self,
        gvr: GroupVersionResource,
        window: WindowLimits,
    ) -> Option<(ScopeKey, ScopeOptions)> {
        let scopes = self.scope_policy(&gvr.group, &gvr.resource);
        if self.mode(&gvr) != CacheMode::Objects || scopes.on_demand().is_some() {
            return None;
        }
        let selections = self.selections_of(&gvr.group, &gvr.resource);
        let [selection] = selections.as_slice() else {
            return None;
        };
        let options = self.scope_options(&gvr, ScopeOrigin::Configured, window);
        // The encoding that upstream is asked for anyway, as soon as a client reads the type.
        let (encoding, options) = match options.derivation {
            Derivation::None => (Encoding::Json, options),
            Derivation::Derived | Derivation::Source => {
                (Encoding::Protobuf, options.of_source(window))
            }
        };
        let key = ScopeKey {
            gvr,
            selection: Arc::clone(selection),
            representation: Representation::whole(encoding),
        };
        Some((key, options))
    }

    /// Returns the types whose scopes are opened at the start.
    pub(super) fn always_open(&self) -> impl Iterator<Item = &TypeName> {
        self.types
            .iter()
            .filter(|(_, named)| named.scope_policy.always_open)
            .map(|(name, _)| name)
    }

    /// Returns the selections of a type that have a scope each.
    pub(super) fn selections_of(&self, group: &str, resource: &str) -> Vec<Arc<Selection>> {
        let configured = self.configured_scopes(group, resource);
        if configured.is_empty() {
            vec![Arc::clone(&EVERYTHING)]
        } else {
            configured.to_vec()
        }
    }

    /// Returns the selections of a type that the configuration names.
    pub(crate) fn configured_scopes(&self, group: &str, resource: &str) -> &[Arc<Selection>] {
        let named = self.types.get(group, resource);
        named.map_or(&[], |named| &named.scopes)
    }

    /// Returns the scope that holds the objects a read asks for: the narrowest that certainly has
    /// all of them. `None` if no configured scope covers them and the type has no on-demand scopes.
    ///
    /// A read of one object may look into a scope that does not have all of its kind.
    pub(super) fn scope_for(
        &self,
        gvr: &GroupVersionResource,
        one: bool,
        asked: impl FnOnce() -> Selection,
    ) -> Option<ScopeChoice> {
        let on_demand = self.scope_policy(&gvr.group, &gvr.resource).on_demand();
        let scopes = self.configured_scopes(&gvr.group, &gvr.resource);
        if scopes.is_empty() && on_demand.is_none() {
            return Some(ScopeChoice::Configured(ChosenScope::complete(&EVERYTHING)));
        }
        let asked = asked();
        let narrowest = scopes
            .iter()
            .filter(|scope| scope.covers(&asked))
            .reduce(|known, scope| if known.covers(scope) { scope } else { known });
        if let Some(scope) = narrowest {
            return Some(ScopeChoice::Configured(ChosenScope::complete(scope)));
        }
        if let Some(limits) = on_demand {
            return Some(ScopeChoice::OnDemand {
                asked: Arc::new(asked),
                one,
                limits,
            });
        }
        let scope = scopes
            .iter()
            .filter(|_| one)
            .find(|scope| scope.namespace.is_none() || scope.namespace == asked.namespace)?;
        Some(ScopeChoice::Configured(ChosenScope::partial(scope)))
    }

    /// Returns the mode of a type.
    pub(super) fn mode(&self, gvr: &GroupVersionResource) -> CacheMode {
        let group = stored_in(&gvr.group, &gvr.resource);
        match self.named_mode(group, &gvr.resource) {
            Some(mode) => mode,
            None if is_sensitive(group, &gvr.resource) => CacheMode::Nothing,
            None => self.mode,
        }
    }

    /// Returns how consistent reads of a type are answered.
    pub(super) fn consistent_reads(&self, gvr: &GroupVersionResource) -> ConsistentReads {
        self.types
            .get(&gvr.group, &gvr.resource)
            .and_then(|named| named.consistent_reads)
            .unwrap_or(self.consistent_reads)
    }

    fn named_mode(&self, group: &str, resource: &str) -> Option<CacheMode> {
        self.types.get(group, resource)?.mode
    }
}

/// A type that is cached in another way than by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachingException {
    /// The API group.
    pub group: String,
    /// The plural name, or `*`.
    pub resource: String,
    /// The type's mode.
    pub mode: CacheMode,
    /// It is held from the start on.
    pub always_open: bool,
    /// The type is cached only because the configuration names it.
    pub sensitive: bool,
}

impl CachingException {
    /// Returns the mode as the configuration file has it.
    pub fn cache(&self) -> &'static str {
        if self.always_open {
            "always"
        } else {
            self.mode.as_str()
        }
    }

    /// Returns `resource.group`, or the bare resource in the core group.
    pub fn name(&self) -> String {
        TypeName::new(&self.group, &self.resource).to_string()
    }
}

fn is_sensitive(group: &str, resource: &str) -> bool {
    SENSITIVE.contains(&(group, resource))
}
