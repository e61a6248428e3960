//! The operator's choices per type: the cache mode, the scopes, and the source of consistent reads.
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use watershed_protocol::{
    Encoding, FieldRequirement, FieldSelector, GroupVersionResource, ManagedFields, Representation,
    Selection, is_built_in_group,
};

use super::client_rules::ClientRule;
use super::scope_choice::{ChosenScope, OnDemandLimits, ScopeChoice};
use crate::scope::{Derivation, Retention, ScopeKey};
use crate::store::WindowLimits;

/// Idle timeout of on-demand scopes. It is longer than rollouts and restarts of their clients take.
const ON_DEMAND_IDLE_TIMEOUT: Duration = Duration::from_mins(10);

/// Source of lists and watches with `resourceVersion` unset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ConsistentReads {
    /// Memory, once it is proven no older than the request; otherwise upstream.
    #[default]
    #[serde(rename = "linearizable", alias = "fence")]
    ProvenFresh,
    /// Upstream.
    #[serde(rename = "forward")]
    Upstream,
    /// Memory as it is: **answers may be older than the request**. This includes gets.
    #[serde(rename = "stale", alias = "cache")]
    PossiblyStale,
}

/// The part of a type that is cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// Nothing: all reads of the type are forwarded.
    Nothing,
    /// Upstream's `PartialObjectMetadata`. Reads of whole objects are forwarded.
    Metadata,
    /// Whole objects.
    #[default]
    Objects,
}

impl CacheMode {
    /// Returns the mode's name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "never",
            Self::Metadata => "metadata",
            Self::Objects => "onDemand",
        }
    }
}

/// Rules by which the scopes of a type are opened and kept. Unset fields follow the policy of
/// unnamed types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScopePolicy {
    /// Opens the type's scopes at the start, before the first request.
    pub always_open: bool,
    /// Opens scopes for the namespaces and selectors that clients ask for, instead of one scope of
    /// everything. Scopes that the configuration names stay as they are.
    pub selector_scopes: Option<bool>,
    /// Allows one scope of a namespace, or of everything, to replace many selector scopes.
    pub merge: Option<bool>,
    /// Upper bound of on-demand scopes, over all versions and representations of the type.
    pub max_scopes: Option<usize>,
    /// Closes a scope that nobody has used for this long; zero for never.
    pub idle: Option<Duration>,
    /// Age of the oldest event kept.
    pub window_age: Option<Duration>,
    /// Upper bound of the events kept, in bytes.
    pub window_bytes: Option<usize>,
    /// Time for which a scope that does not follow upstream is still served; zero for no limit.
    pub max_staleness: Option<Duration>,
    /// Derives JSON from the type's scope in protobuf, so that upstream has one watch of both.
    pub derive_json: Option<bool>,
    /// The treatment of `metadata.managedFields`.
    pub managed_fields: Option<ManagedFields>,
}

impl ScopePolicy {
    fn or(self, other: Self) -> Self {
        Self {
            always_open: self.always_open,
            selector_scopes: self.selector_scopes.or(other.selector_scopes),
            merge: self.merge.or(other.merge),
            max_scopes: self.max_scopes.or(other.max_scopes),
            idle: self.idle.or(other.idle),
            window_age: self.window_age.or(other.window_age),
            window_bytes: self.window_bytes.or(other.window_bytes),
            max_staleness: self.max_staleness.or(other.max_staleness),
            derive_json: self.derive_json.or(other.derive_json),
            managed_fields: self.managed_fields.or(other.managed_fields),
        }
    }

    /// Returns the limits of on-demand scopes; `None` if the type has no such scopes.
    fn on_demand(self) -> Option<OnDemandLimits> {
        let default = OnDemandLimits::default();
        let limits = OnDemandLimits {
            max_scopes: self.max_scopes.unwrap_or(default.max_scopes),
            merge: self.merge.unwrap_or(default.merge),
        };
        self.selector_scopes.unwrap_or(false).then_some(limits)
    }
}

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
    pub(super) fn is_off(self) -> bool {
        self.in_flight == 0 && self.per_second == 0
    }

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

/// A type in all its versions: API group (empty for the core group) and resource (plural).
pub type TypeName = (String, String);

/// Types that are cached only if the configuration names them.
const SENSITIVE: &[(&str, &str)] = &[("", "secrets")];
/// The scope of types for which the configuration names no scopes.
static EVERYTHING: LazyLock<Arc<Selection>> = LazyLock::new(Arc::default);

/// Types that are the same objects as another group's, and the group that stands for both.
/// Source: `kubernetes/pkg/registry/events/rest/storage_events.go`, which has the core group's
/// storage.
const SAME: &[(&str, &str, &str)] = &[("events.k8s.io", "events", "")];

/// The operator's choices about caching and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CachingPolicy {
    /// Consistent reads of unnamed types.
    pub consistent_reads: ConsistentReads,
    /// Consistent reads of named types.
    pub consistent_reads_by_type: HashMap<TypeName, ConsistentReads>,
    /// Mode of unnamed types. Sensitive types always have to be named.
    pub mode: CacheMode,
    /// Mode of named types; [`set_mode`](Self::set_mode) writes it.
    pub mode_by_type: HashMap<TypeName, CacheMode>,
    /// Selections of a type that have a scope each. Unnamed types have one scope of everything.
    pub scopes: HashMap<TypeName, Vec<Arc<Selection>>>,
    /// Scope policy of unnamed types.
    pub scope_policy: ScopePolicy,
    /// Scope policy of named types; [`set_scope_policy`](Self::set_scope_policy) writes it.
    pub scope_policy_by_type: HashMap<TypeName, ScopePolicy>,
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
            policy.set_mode(group, resource, CacheMode::Objects);
            policy.scopes.insert(
                (group.to_owned(), resource.to_owned()),
                vec![Arc::new(selection)],
            );
        }
        policy
    }

    /// Returns the types whose consistent reads may be stale; `*` stands for all unnamed types.
    pub fn possibly_stale(&self) -> Vec<String> {
        let all = (self.consistent_reads == ConsistentReads::PossiblyStale).then(|| "*".to_owned());
        let named = self
            .consistent_reads_by_type
            .iter()
            .filter(|(_, choice)| **choice == ConsistentReads::PossiblyStale)
            .map(|((group, resource), _)| qualified(group, resource));
        all.into_iter().chain(named).collect()
    }

    /// Returns the types that are held without managed fields; `*` stands for all unnamed types.
    pub fn without_managed_fields(&self) -> Vec<String> {
        let drops = |scopes: &ScopePolicy| scopes.managed_fields == Some(ManagedFields::Drop);
        let all = drops(&self.scope_policy).then(|| "*".to_owned());
        let named = self
            .scope_policy_by_type
            .iter()
            .filter(|(_, scopes)| drops(scopes))
            .map(|((group, resource), _)| qualified(group, resource));
        let mut types: Vec<_> = all.into_iter().chain(named).collect();
        types.sort();
        types
    }

    /// Returns the treatment of a type's managed fields.
    pub fn managed_fields(&self, gvr: &GroupVersionResource) -> ManagedFields {
        let scopes = self.scope_policy(&gvr.group, &gvr.resource);
        scopes.managed_fields.unwrap_or_default()
    }

    /// Sets the mode of a type, under any of its groups, and returns the previous one.
    pub fn set_mode(&mut self, group: &str, resource: &str, mode: CacheMode) -> Option<CacheMode> {
        self.mode_by_type.insert(type_name(group, resource), mode)
    }

    /// Sets the scope policy of a type, under any of its groups.
    pub fn set_scope_policy(&mut self, group: &str, resource: &str, scopes: ScopePolicy) {
        self.scope_policy_by_type
            .insert(type_name(group, resource), scopes);
    }

    /// Returns the scope policy of a type.
    pub fn scope_policy(&self, group: &str, resource: &str) -> ScopePolicy {
        // Most configurations name no type: no key is made for nothing.
        if self.scope_policy_by_type.is_empty() {
            return self.scope_policy;
        }
        match self.scope_policy_by_type.get(&type_name(group, resource)) {
            Some(named) => named.or(self.scope_policy),
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
        let named = self.mode_by_type.iter();
        let mut cached = named.filter(|(_, mode)| **mode != CacheMode::Nothing);
        self.mode == CacheMode::Nothing && cached.all(|((group, name), _)| is_meant(group, name))
    }

    /// Returns `true` if objects of the type may be stored on disk. Sensitive ones never are, even
    /// if they are cached.
    pub fn may_store(&self, group: &str, resource: &str) -> bool {
        self.may_cache(group, resource) && !is_sensitive(stored_in(group, resource), resource)
    }

    /// Returns the types that are cached in another way than by default, sorted by name. `*` stands
    /// for all unnamed types.
    pub fn exceptions(&self) -> Vec<CachingException> {
        let sensitive = SENSITIVE
            .iter()
            .filter(|(group, resource)| !self.is_named(group, resource))
            .map(|(group, resource)| (*group, *resource, CacheMode::Nothing));
        let named = self
            .mode_by_type
            .iter()
            .map(|((group, resource), mode)| (&**group, &**resource, *mode));
        let mut exceptions: Vec<_> = sensitive
            .chain(named)
            .map(|(group, resource, mode)| CachingException {
                group: group.to_owned(),
                resource: resource.to_owned(),
                mode,
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
                sensitive: false,
            });
        }
        exceptions.sort_by_key(CachingException::name);
        exceptions
    }

    /// Returns how long a scope of the type stays open, and how much history it keeps. `window`
    /// applies where the policy sets nothing.
    pub(super) fn retention(
        &self,
        gvr: &GroupVersionResource,
        on_demand: bool,
        window: WindowLimits,
    ) -> Retention {
        let scopes = self.scope_policy(&gvr.group, &gvr.resource);
        let idle = scopes
            .idle
            .or_else(|| on_demand.then_some(ON_DEMAND_IDLE_TIMEOUT))
            .filter(|idle| !idle.is_zero() && !scopes.always_open);
        let has_own_window = scopes.window_age.is_some() || scopes.window_bytes.is_some();
        let own_window = WindowLimits {
            age: scopes.window_age.unwrap_or(window.age),
            bytes: scopes.window_bytes.unwrap_or(window.bytes),
            ..window
        };
        Retention {
            on_demand,
            indispensable: false,
            derivation: match scopes.derive_json {
                Some(false) => Derivation::None,
                None | Some(true) => Derivation::Derived,
            },
            idle,
            window: has_own_window.then_some(own_window),
            max_staleness: scopes.max_staleness,
            begins_with_any_state: false,
            owner: None,
        }
    }

    /// Returns the scope of a built-in type in which the proxy may follow its objects for itself,
    /// and its retention. `None` if there is not exactly one, or none of whole objects. `window`
    /// applies where the policy sets nothing.
    pub fn followed_scope(
        &self,
        gvr: GroupVersionResource,
        window: WindowLimits,
    ) -> Option<(ScopeKey, Retention)> {
        let scopes = self.scope_policy(&gvr.group, &gvr.resource);
        if self.mode(&gvr) != CacheMode::Objects || scopes.on_demand().is_some() {
            return None;
        }
        let selections = self.selections_of(&type_name(&gvr.group, &gvr.resource));
        let [selection] = selections.as_slice() else {
            return None;
        };
        let retention = self.retention(&gvr, false, window);
        // The encoding that upstream is asked for anyway, as soon as a client reads the type.
        let (encoding, retention) = match retention.derivation {
            Derivation::None => (Encoding::Json, retention),
            Derivation::Derived | Derivation::Source => {
                (Encoding::Protobuf, retention.of_source(window))
            }
        };
        let key = ScopeKey {
            gvr,
            selection: Arc::clone(selection),
            representation: Representation::whole(encoding),
        };
        Some((key, retention))
    }

    /// Returns the types whose scopes are opened at the start.
    pub(super) fn always_open(&self) -> impl Iterator<Item = &TypeName> {
        self.scope_policy_by_type
            .iter()
            .filter(|(_, scopes)| scopes.always_open)
            .map(|(name, _)| name)
    }

    /// Returns the selections of a type that have a scope each.
    pub(super) fn selections_of(&self, name: &TypeName) -> Vec<Arc<Selection>> {
        self.scopes
            .get(name)
            .cloned()
            .unwrap_or_else(|| vec![Arc::clone(&EVERYTHING)])
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
        let configured = if self.scopes.is_empty() {
            None
        } else {
            self.scopes.get(&type_name(&gvr.group, &gvr.resource))
        };
        if configured.is_none() && on_demand.is_none() {
            return Some(ScopeChoice::Configured(ChosenScope::complete(&EVERYTHING)));
        }
        let scopes = configured.map(Vec::as_slice).unwrap_or_default();
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
        let named = if self.mode_by_type.is_empty() {
            None
        } else {
            let key = (group.to_owned(), gvr.resource.to_string());
            self.mode_by_type.get(&key).copied()
        };
        match named {
            Some(mode) => mode,
            None if is_sensitive(group, &gvr.resource) => CacheMode::Nothing,
            None => self.mode,
        }
    }

    /// Returns how consistent reads of a type are answered.
    pub(super) fn consistent_reads(&self, gvr: &GroupVersionResource) -> ConsistentReads {
        if self.consistent_reads_by_type.is_empty() {
            return self.consistent_reads;
        }
        let key = (gvr.group.to_string(), gvr.resource.to_string());
        self.consistent_reads_by_type
            .get(&key)
            .copied()
            .unwrap_or(self.consistent_reads)
    }

    fn is_named(&self, group: &str, resource: &str) -> bool {
        self.mode_by_type
            .contains_key(&(group.to_owned(), resource.to_owned()))
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
    /// The type is cached only because the configuration names it.
    pub sensitive: bool,
}

impl CachingException {
    /// Returns `resource.group`, or the bare resource in the core group.
    pub fn name(&self) -> String {
        qualified(&self.group, &self.resource)
    }
}

/// Returns a type's name under the group that stands for all with the same objects.
pub fn type_name(group: &str, resource: &str) -> TypeName {
    (stored_in(group, resource).to_owned(), resource.to_owned())
}

fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}.{group}")
    }
}

fn is_sensitive(group: &str, resource: &str) -> bool {
    SENSITIVE.contains(&(group, resource))
}

/// Returns the group that stands for all in which upstream serves the same objects.
fn stored_in<'a>(group: &'a str, resource: &str) -> &'a str {
    let same = SAME
        .iter()
        .find(|(other, of, _)| *other == group && *of == resource);
    same.map_or(group, |(_, _, group)| *group)
}
