//! What the operator chose, per type.
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::demand::{Demand, MOST};
use super::limit::UserLimits;
use crate::scope::Retention;
use crate::store::WindowLimits;
use watershed_protocol::{FieldRequirement, FieldSelector, GroupVersionResource, Selection};

/// A scope that was opened by demand is held for nobody for this long: longer than rollouts and
/// restarts of its clients take.
const IDLE: Duration = Duration::from_mins(10);

/// How lists and watches with `resourceVersion` unset are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ConsistentReads {
    /// From memory once it was shown to be no older than the request, else by upstream.
    #[default]
    Fence,
    /// By upstream.
    Forward,
    /// From memory as it is: **may be older than the request**. Gets, too.
    Cache,
}

/// What may be kept in memory of a type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// Nothing: all its reads are forwarded.
    Nothing,
    /// What upstream gives as `PartialObjectMetadata`. Reads of more than that are forwarded.
    Metadata,
    /// The objects.
    #[default]
    Objects,
}

impl Cache {
    /// As in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "never",
            Self::Metadata => "metadata",
            Self::Objects => "demand",
        }
    }
}

/// How the scopes of a type are opened and held. What is left open is as for types that are not
/// named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// They are opened at the start, and not only once somebody asks.
    pub always: bool,
    /// Of what the configuration names no part of, no more is held than what clients ask for.
    pub narrow: Option<bool>,
    /// Whether scopes of a namespace or of everything may take the place of many narrow ones.
    pub merge: Option<bool>,
    /// The most scopes in all versions and representations together, if they are narrow.
    pub most: Option<usize>,
    /// A scope is closed once nobody has used it for so long; zero for never.
    pub idle: Option<Duration>,
    /// How long events are kept.
    pub window_age: Option<Duration>,
    /// Upper bound of the events kept (bytes).
    pub window_bytes: Option<usize>,
}

impl Holding {
    fn or(self, other: Self) -> Self {
        Self {
            always: self.always,
            narrow: self.narrow.or(other.narrow),
            merge: self.merge.or(other.merge),
            most: self.most.or(other.most),
            idle: self.idle.or(other.idle),
            window_age: self.window_age.or(other.window_age),
            window_bytes: self.window_bytes.or(other.window_bytes),
        }
    }

    /// What may be opened by demand, if anything.
    fn demand(self) -> Option<Demand> {
        let demand = Demand {
            most: self.most.unwrap_or(MOST),
            merge: self.merge.unwrap_or(true),
        };
        self.narrow.unwrap_or(false).then_some(demand)
    }
}

/// A type in all its versions: API group (empty for the core group) and resource (plural).
pub type Name = (String, String);

/// Types of which nothing is kept unless they are named, whatever holds for the others.
const SENSITIVE: &[(&str, &str)] = &[("", "secrets")];
/// What is held of types of which no parts are named.
static EVERYTHING: LazyLock<Arc<Selection>> = LazyLock::new(Arc::default);

/// Types that are the same objects as another group's, and the group that stands for both.
/// Source: `kubernetes/pkg/registry/events/rest/storage_events.go`, which has the core group's
/// storage.
const SAME: &[(&str, &str, &str)] = &[("events.k8s.io", "events", "")];

/// What is done with requests where there is a choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// For types that are not named.
    pub consistent_reads: ConsistentReads,
    /// By API group (empty for the core group) and resource (plural).
    pub resources: HashMap<Name, ConsistentReads>,
    /// What may be kept of types that are not named. Sensitive ones are always to be named.
    pub cache: Cache,
    /// What may be kept of those that are named; written by [`keep`](Self::keep).
    pub caches: HashMap<Name, Cache>,
    /// The parts of types that are held, each by a scope of its own. Of types that are not named it
    /// is everything.
    pub scopes: HashMap<Name, Vec<Arc<Selection>>>,
    /// How scopes are opened and held, of types that are not named.
    pub holding: Holding,
    /// And of those that are; written by [`hold`](Self::hold).
    pub holdings: HashMap<Name, Holding>,
    /// What each caller may use.
    pub users: UserLimits,
}

impl Policy {
    /// The types whose consistent reads may get something older; `*` stands for all that are not
    /// named.
    pub fn weakened(&self) -> Vec<String> {
        let all = (self.consistent_reads == ConsistentReads::Cache).then(|| "*".to_owned());
        let named = self
            .resources
            .iter()
            .filter(|(_, choice)| **choice == ConsistentReads::Cache);
        let named = named.map(|((group, resource), _)| qualified(group, resource));
        all.into_iter().chain(named).collect()
    }

    /// Says what may be kept of a type, under whichever of its groups it is named. Gives back what
    /// was said of it before.
    pub fn keep(&mut self, group: &str, resource: &str, cache: Cache) -> Option<Cache> {
        self.caches.insert(name(group, resource), cache)
    }

    /// Says how the scopes of a type are opened and held, under whichever of its groups it is
    /// named.
    pub fn hold(&mut self, group: &str, resource: &str, holding: Holding) {
        self.holdings.insert(name(group, resource), holding);
    }

    /// How the scopes of a type are opened and held.
    pub fn holding(&self, group: &str, resource: &str) -> Holding {
        if self.holdings.is_empty() {
            return self.holding;
        }
        match self.holdings.get(&name(group, resource)) {
            Some(named) => named.or(self.holding),
            None => self.holding,
        }
    }

    /// How long a scope of the type is held, and how much of its history, if all others have
    /// `window`.
    pub(super) fn kept_for(
        &self,
        gvr: &GroupVersionResource,
        by_demand: bool,
        window: WindowLimits,
    ) -> Retention {
        let holding = self.holding(&gvr.group, &gvr.resource);
        let idle = holding
            .idle
            .or_else(|| by_demand.then_some(IDLE))
            .filter(|idle| !idle.is_zero());
        let own = holding.window_age.is_some() || holding.window_bytes.is_some();
        let window = WindowLimits {
            age: holding.window_age.unwrap_or(window.age),
            bytes: holding.window_bytes.unwrap_or(window.bytes),
        };
        Retention {
            on_demand: by_demand,
            idle: idle.filter(|_| !holding.always),
            window: own.then_some(window),
        }
    }

    /// The types whose scopes are opened at the start.
    pub(super) fn always(&self) -> impl Iterator<Item = &Name> {
        self.holdings
            .iter()
            .filter(|(_, holding)| holding.always)
            .map(|(name, _)| name)
    }

    /// The parts of a type that are held, if it is not named everything.
    pub(super) fn parts(&self, name: &Name) -> Vec<Arc<Selection>> {
        self.scopes
            .get(name)
            .cloned()
            .unwrap_or_else(|| vec![Arc::clone(&EVERYTHING)])
    }

    /// The preset for a cache on a node, for what runs there: of pods those of the node, the node
    /// itself, and its lease. Nothing else is kept, unless it is named.
    pub fn of_node(name: &str) -> Self {
        let mut policy = Self {
            cache: Cache::Nothing,
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
            policy.keep(group, resource, Cache::Objects);
            policy.scopes.insert(
                (group.to_owned(), resource.to_owned()),
                vec![Arc::new(selection)],
            );
        }
        policy
    }

    /// Whether anything may be kept of a type.
    pub fn may_hold(&self, group: &str, resource: &str) -> bool {
        self.cache(&GroupVersionResource::new(group, "", resource)) != Cache::Nothing
    }

    /// Where the objects that a read asks for are held, or may be; `None` if no scope of the
    /// configuration covers them, and none is to be opened for what it asks for.
    ///
    /// The narrowest that certainly has them all. One object may be found where not all of its kind
    /// are.
    pub(super) fn held_in(
        &self,
        gvr: &GroupVersionResource,
        one: bool,
        asked: impl FnOnce() -> Selection,
    ) -> Option<Coverage> {
        let complete = |selection: &Arc<Selection>| {
            Coverage::Held(HeldIn {
                selection: Arc::clone(selection),
                is_complete: true,
            })
        };
        let demand = self.holding(&gvr.group, &gvr.resource).demand();
        let scopes = if self.scopes.is_empty() {
            None
        } else {
            self.scopes.get(&name(&gvr.group, &gvr.resource))
        };
        if scopes.is_none() && demand.is_none() {
            return Some(complete(&EVERYTHING));
        }
        let scopes = scopes.map(Vec::as_slice).unwrap_or_default();
        let asked = asked();
        let mut narrowest: Option<&Arc<Selection>> = None;
        for scope in scopes.iter().filter(|scope| scope.covers(&asked)) {
            if narrowest.is_none_or(|known| known.covers(scope)) {
                narrowest = Some(scope);
            }
        }
        if let Some(scope) = narrowest {
            return Some(complete(scope));
        }
        if let Some(demand) = demand {
            return Some(Coverage::ByDemand {
                asked: Arc::new(asked),
                one,
                demand,
            });
        }
        let may_have = |scope: &&Arc<Selection>| {
            scope.namespace.is_none() || scope.namespace == asked.namespace
        };
        let scope = scopes.iter().filter(|_| one).find(may_have)?;
        Some(Coverage::Held(HeldIn {
            selection: Arc::clone(scope),
            is_complete: false,
        }))
    }

    /// What is kept of the types for which that is not the rule, and of all others (`*`) where it
    /// is not all: by name, in order.
    pub fn kept(&self) -> Vec<Kept> {
        let sensitive = SENSITIVE
            .iter()
            .filter(|(group, resource)| !self.is_named(group, resource));
        let sensitive = sensitive.map(|(group, resource)| (*group, *resource, Cache::Nothing));
        let named = self
            .caches
            .iter()
            .map(|((group, resource), cache)| (&**group, &**resource, *cache));
        let exceptions = sensitive.chain(named);
        let exceptions = exceptions.filter(|(group, resource, cache)| {
            *cache != Cache::Objects
                || is_sensitive(group, resource)
                || self.cache != Cache::Objects
        });
        let mut kept: Vec<_> = exceptions
            .map(|(group, resource, cache)| Kept {
                group: group.to_owned(),
                resource: resource.to_owned(),
                cache,
                sensitive: is_sensitive(group, resource),
            })
            .collect();
        if self.cache != Cache::Objects {
            let resource = "*".to_owned();
            kept.push(Kept {
                group: String::new(),
                resource,
                cache: self.cache,
                sensitive: false,
            });
        }
        kept.sort_by_key(Kept::name);
        kept
    }

    fn is_named(&self, group: &str, resource: &str) -> bool {
        self.caches
            .contains_key(&(group.to_owned(), resource.to_owned()))
    }

    pub(super) fn cache(&self, gvr: &GroupVersionResource) -> Cache {
        let group = stored_in(&gvr.group, &gvr.resource);
        let unnamed = || {
            if is_sensitive(group, &gvr.resource) {
                Cache::Nothing
            } else {
                self.cache
            }
        };
        if self.caches.is_empty() {
            return unnamed();
        }
        let key = (group.to_owned(), gvr.resource.to_string());
        self.caches.get(&key).copied().unwrap_or_else(unnamed)
    }

    pub(super) fn consistent_reads(&self, gvr: &GroupVersionResource) -> ConsistentReads {
        if self.resources.is_empty() {
            return self.consistent_reads;
        }
        let key = (gvr.group.to_string(), gvr.resource.to_string());
        self.resources
            .get(&key)
            .copied()
            .unwrap_or(self.consistent_reads)
    }
}

/// Where a read is answered from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Coverage {
    /// A scope that the configuration names, or everything.
    Held(HeldIn),
    /// A scope that was opened for what clients ask for, or is to be.
    ByDemand {
        asked: Arc<Selection>,
        one: bool,
        demand: Demand,
    },
}

/// The scope that a read is answered from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeldIn {
    /// What it covers.
    pub(super) selection: Arc<Selection>,
    /// All that is asked for is there, if it exists. Otherwise what is found is right, and what is
    /// not found says nothing.
    pub(super) is_complete: bool,
}

/// What is kept of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The API group.
    pub group: String,
    /// The plural name, or `*`.
    pub resource: String,
    /// What is kept.
    pub cache: Cache,
    /// Nothing would be, had the operator not said otherwise.
    pub sensitive: bool,
}

impl Kept {
    /// `resource.group`, or the bare resource in the core group.
    pub fn name(&self) -> String {
        qualified(&self.group, &self.resource)
    }
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

/// A type's name, whichever of the groups that have the same objects it is named in.
pub fn name(group: &str, resource: &str) -> Name {
    (stored_in(group, resource).to_owned(), resource.to_owned())
}

/// The group that stands for all in which upstream serves the same objects.
fn stored_in<'a>(group: &'a str, resource: &str) -> &'a str {
    let same = SAME
        .iter()
        .find(|(other, of, _)| *other == group && *of == resource);
    same.map_or(group, |(_, _, group)| *group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use watershed_protocol::LabelSelector;

    fn cache(policy: &Policy, group: &str, version: &str, resource: &str) -> Cache {
        policy.cache(&GroupVersionResource::new(group, version, resource))
    }

    #[test]
    fn nothing_is_kept_of_secrets_unless_they_are_named() {
        for others in [Cache::Nothing, Cache::Metadata, Cache::Objects] {
            let mut policy = Policy {
                cache: others,
                ..Policy::default()
            };
            assert_eq!(cache(&policy, "", "v1", "secrets"), Cache::Nothing);
            assert_eq!(cache(&policy, "", "v1", "pods"), others);
            // Another group's type of this name is another type.
            assert_eq!(cache(&policy, "example.test", "v1", "secrets"), others);
            policy.keep("", "configmaps", Cache::Nothing);
            assert_eq!(cache(&policy, "", "v1", "secrets"), Cache::Nothing);
            for chosen in [Cache::Metadata, Cache::Objects] {
                policy.keep("", "secrets", chosen);
                assert_eq!(cache(&policy, "", "v1", "secrets"), chosen);
            }
        }
    }

    #[test]
    fn a_choice_holds_in_every_version_and_group_of_the_same_objects() {
        for group in ["", "events.k8s.io"] {
            let mut policy = Policy::default();
            assert_eq!(policy.keep(group, "events", Cache::Nothing), None);
            assert_eq!(cache(&policy, "", "v1", "events"), Cache::Nothing);
            assert_eq!(
                cache(&policy, "events.k8s.io", "v1", "events"),
                Cache::Nothing
            );
            assert_eq!(
                cache(&policy, "events.k8s.io", "v1beta1", "events"),
                Cache::Nothing
            );
            assert_eq!(
                cache(&policy, "example.test", "v1", "events"),
                Cache::Objects
            );
            assert_eq!(
                policy.keep("events.k8s.io", "events", Cache::Metadata),
                Some(Cache::Nothing)
            );
        }
    }

    #[test]
    fn exceptions_are_told() {
        let told = |policy: &Policy| {
            let told = policy.kept().into_iter();
            told.map(|kept| (kept.name(), kept.cache.as_str(), kept.sensitive))
                .collect::<Vec<_>>()
        };
        let mut policy = Policy::default();
        assert_eq!(told(&policy), [("secrets".to_owned(), "never", true)]);
        policy.keep("", "secrets", Cache::Objects);
        policy.keep("", "pods", Cache::Objects);
        policy.keep("apps", "deployments", Cache::Metadata);
        let chosen = ("deployments.apps".to_owned(), "metadata", false);
        assert_eq!(
            told(&policy),
            [chosen.clone(), ("secrets".to_owned(), "demand", true)]
        );
        policy.cache = Cache::Nothing;
        assert_eq!(
            told(&policy),
            [
                ("*".to_owned(), "never", false),
                chosen,
                ("pods".to_owned(), "demand", false),
                ("secrets".to_owned(), "demand", true),
            ]
        );
    }

    #[test]
    fn the_narrowest_scope_that_has_everything_is_looked_at() {
        let selection = |namespace: Option<&str>, labels: &str, fields: &str| Selection {
            namespace: namespace.map(str::to_owned),
            labels: LabelSelector::parse(labels).unwrap(),
            fields: FieldSelector::parse(fields).unwrap(),
        };
        let pods = GroupVersionResource::new("", "v1", "pods");
        let held_in = |policy: &Policy, asked: &Selection, one| {
            policy
                .held_in(&pods, one, || asked.clone())
                .map(|held| match held {
                    Coverage::Held(held) => (held.selection.to_string(), held.is_complete),
                    Coverage::ByDemand { asked, .. } => (format!("by demand: {asked}"), false),
                })
        };
        let everything = Some((String::new(), true));
        assert_eq!(
            held_in(&Policy::default(), &selection(None, "", ""), false),
            everything
        );
        let node = Policy::of_node("n1");
        let bound = Some(("fieldSelector=spec.nodeName=n1".to_owned(), true));
        assert_eq!(
            held_in(&node, &selection(None, "", "spec.nodeName=n1"), false),
            bound
        );
        assert_eq!(
            held_in(
                &node,
                &selection(Some("a"), "app=x", "spec.nodeName=n1"),
                false
            ),
            bound
        );
        for fields in [
            "",
            "spec.nodeName=n2",
            "spec.nodeName!=n2",
            "metadata.name=p",
        ] {
            assert_eq!(
                held_in(&node, &selection(None, "", fields), false),
                None,
                "{fields}"
            );
        }
        // One pod may be the node's; if it is not found, that says nothing.
        let named = Selection::named(Some("a"), "p");
        assert_eq!(
            held_in(&node, &named, true),
            Some(("fieldSelector=spec.nodeName=n1".to_owned(), false))
        );
        // Other types are not concerned.
        let nodes = GroupVersionResource::new("", "v1", "nodes");
        for (name, has_it) in [("n1", true), ("n2", false)] {
            let held = node.held_in(&nodes, true, || Selection::named(None, name));
            assert!(
                matches!(held, Some(Coverage::Held(held)) if held.is_complete == has_it),
                "{name}"
            );
        }
        assert!(
            node.held_in(&nodes, false, || selection(None, "", ""))
                .is_none()
        );

        let mut policy = Policy::default();
        let scopes = [
            selection(Some("a"), "", ""),
            selection(None, "app", ""),
            selection(Some("b"), "app=x", ""),
        ];
        policy
            .scopes
            .insert(name("", "pods"), scopes.into_iter().map(Arc::new).collect());
        let asked = selection(Some("b"), "app=x", "spec.nodeName=n1");
        assert_eq!(
            held_in(&policy, &asked, false),
            Some(("namespace=b; labelSelector=app=x".to_owned(), true))
        );
        let asked = selection(Some("b"), "app=y", "");
        assert_eq!(
            held_in(&policy, &asked, false),
            Some(("labelSelector=app".to_owned(), true))
        );
        assert_eq!(
            held_in(&policy, &named, true),
            Some(("namespace=a".to_owned(), true))
        );
        // What is in no part is held by demand, if it may be.
        assert_eq!(held_in(&policy, &selection(None, "", ""), false), None);
        policy.holding.narrow = Some(true);
        let by_demand = Some(("by demand: namespace=c".to_owned(), false));
        assert_eq!(
            held_in(&policy, &selection(Some("c"), "", ""), false),
            by_demand
        );
        assert_eq!(
            held_in(&policy, &selection(Some("a"), "", ""), false),
            Some(("namespace=a".to_owned(), true))
        );
    }

    #[test]
    fn scopes_are_held_as_their_type_or_all_types_say() {
        let gvr = |resource: &str| GroupVersionResource::new("", "v1", resource);
        let window = WindowLimits {
            age: Duration::from_mins(5),
            bytes: 1 << 20,
        };
        let mut policy = Policy::default();
        let kept = |policy: &Policy, resource, by_demand| {
            let keep = policy.kept_for(&gvr(resource), by_demand, window);
            (
                keep.idle.map(|idle| idle.as_secs()),
                keep.window
                    .map(|window| (window.age.as_secs(), window.bytes)),
            )
        };
        assert_eq!(kept(&policy, "pods", false), (None, None));
        assert_eq!(kept(&policy, "pods", true), (Some(600), None));
        policy.holding.idle = Some(Duration::from_mins(1));
        let second = Some(Duration::from_secs(1));
        policy.hold(
            "",
            "pods",
            Holding {
                window_age: second,
                ..Holding::default()
            },
        );
        policy.hold(
            "",
            "nodes",
            Holding {
                idle: Some(Duration::ZERO),
                window_bytes: Some(7),
                ..Holding::default()
            },
        );
        policy.hold(
            "",
            "services",
            Holding {
                idle: second,
                always: true,
                ..Holding::default()
            },
        );
        assert_eq!(kept(&policy, "pods", false), (Some(60), Some((1, 1 << 20))));
        assert_eq!(kept(&policy, "nodes", true), (None, Some((300, 7))));
        assert_eq!(kept(&policy, "services", false), (None, None));
    }
}
