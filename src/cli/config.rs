//! The configuration file.
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde_saphyr::Spanned;

use crate::serve::{CacheMode, CachingPolicy, ConsistentReads, ScopePolicy, type_name};
use watershed_protocol::{FieldSelector, LabelSelector, Selection};

/// The configuration file. Unknown keys are refused: a misspelt one would leave a silent default.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct File {
    /// Source of lists and watches with `resourceVersion` unset.
    consistent_reads: ConsistentReads,
    /// What the cache holds of types that `resources` does not name.
    #[serde(deserialize_with = "not_empty")]
    #[schemars(with = "Choice")]
    cache: Option<Spanned<Choice>>,
    /// Opens scopes for the namespaces and selectors that clients ask for, instead of one scope of
    /// everything, for all types.
    #[serde(deserialize_with = "not_empty")]
    #[schemars(with = "bool")]
    selector_scopes: Option<bool>,
    /// Closes a scope that nobody has read for this long (seconds).
    #[serde(deserialize_with = "not_empty")]
    #[schemars(with = "u64")]
    idle_seconds: Option<u64>,
    /// Settings of single types.
    #[schemars(with = "Vec<Override>")]
    resources: Vec<Spanned<Override>>,
    /// The parts of types to cache, instead of everything.
    #[schemars(with = "Vec<Part>")]
    scopes: Vec<Spanned<Part>>,
}

/// A part of a type that one list and watch at upstream covers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Part {
    /// API group; unset for the core group.
    #[serde(default, deserialize_with = "group")]
    #[schemars(regex(pattern = "^[a-z0-9.-]*$"))]
    group: String,
    /// Plural name, as in URLs.
    #[serde(deserialize_with = "resource")]
    #[schemars(regex(pattern = "^[a-z0-9-]+$"))]
    resource: String,
    /// Namespaces, each with a scope of its own; unset for one scope of all namespaces.
    #[serde(default)]
    namespaces: Vec<String>,
    /// Label selector, as in kubectl's `-l`.
    #[serde(default, deserialize_with = "labels")]
    #[schemars(with = "String")]
    label_selector: LabelSelector,
    /// Field selector, such as `spec.nodeName=node-1`.
    #[serde(default, deserialize_with = "fields")]
    #[schemars(with = "String")]
    field_selector: FieldSelector,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Override {
    /// API group; unset for the core group.
    #[serde(default, deserialize_with = "group")]
    #[schemars(regex(pattern = "^[a-z0-9.-]*$"))]
    group: String,
    /// Plural name, as in URLs.
    #[serde(deserialize_with = "resource")]
    #[schemars(regex(pattern = "^[a-z0-9-]+$"))]
    resource: String,
    /// Source of its lists and watches with `resourceVersion` unset.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "ConsistentReads")]
    consistent_reads: Option<ConsistentReads>,
    /// What the cache holds of it.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "Choice")]
    cache: Option<Choice>,
    /// Opens scopes for the namespaces and selectors that clients ask for, instead of one scope of
    /// everything.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "bool")]
    selector_scopes: Option<bool>,
    /// Allows one scope of a namespace, or of everything, to replace many selector scopes. Default:
    /// true.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "bool")]
    merge: Option<bool>,
    /// Maximum number of on-demand scopes, each with a watch at upstream, over all versions and
    /// representations. Default: 8.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "usize")]
    max_upstream_watches: Option<usize>,
    /// Closes a scope that nobody has used for this long (seconds); 0 for never. Default: 600 for
    /// on-demand scopes, never for others.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "u64")]
    idle_seconds: Option<u64>,
    /// Age up to which its events are kept (seconds), instead of `--window-seconds`.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "u64")]
    window_seconds: Option<u64>,
    /// Size up to which events are kept in each of its scopes (MiB), instead of `--window-mib`.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "usize")]
    window_mib: Option<usize>,
}

/// What the cache holds of a type, and from when on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// Nothing.
    Never,
    /// Metadata, from the first request on.
    Metadata,
    /// The objects, from the first request on.
    OnDemand,
    /// The objects, from the start.
    Always,
}

impl Choice {
    fn cache(self) -> CacheMode {
        match self {
            Self::Never => CacheMode::Nothing,
            Self::Metadata => CacheMode::Metadata,
            Self::OnDemand | Self::Always => CacheMode::Objects,
        }
    }
}

impl<'de> Deserialize<'de> for Choice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Word;

        impl Visitor<'_> for Word {
            type Value = Choice;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("onDemand (or true), always, metadata or never (or false)")
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Choice, E> {
                Ok(if value {
                    Choice::OnDemand
                } else {
                    Choice::Never
                })
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Choice, E> {
                match value {
                    "onDemand" => Ok(Choice::OnDemand),
                    "demand" => Err(E::custom("`demand` is now `onDemand`")),
                    "always" => Ok(Choice::Always),
                    "metadata" => Ok(Choice::Metadata),
                    "never" => Ok(Choice::Never),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }
        }

        deserializer.deserialize_any(Word)
    }
}

impl JsonSchema for Choice {
    fn schema_name() -> Cow<'static, str> {
        "Cache".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "onDemand (or true): the objects, from the first request on; always: from the start; metadata: no more than PartialObjectMetadata; never (or false): nothing.",
            "enum": ["onDemand", "always", "metadata", "never", true, false],
        })
    }
}

impl Override {
    fn holding(&self) -> ScopePolicy {
        ScopePolicy {
            always_open: self.cache == Some(Choice::Always),
            selector_scopes: self.selector_scopes,
            merge: self.merge,
            max_scopes: self.max_upstream_watches,
            idle: self.idle_seconds.map(Duration::from_secs),
            window_age: self.window_seconds.map(Duration::from_secs),
            window_bytes: self.window_mib.map(|mib| mib.saturating_mul(1 << 20)),
        }
    }
}

/// Reads a key that may be absent, but not empty.
fn not_empty<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Reads the name of an API group. A misspelt name would configure nothing, silently.
fn group<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let fits = text
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b));
    if fits {
        Ok(text)
    } else {
        Err(D::Error::custom(format!(
            "{text:?} is not the name of an API group"
        )))
    }
}

/// Reads the plural name of a resource.
fn resource<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let plain = text
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    let fits = plain && !text.is_empty();
    let why =
        || format!("{text:?} is not the name of a resource: they are in the plural and lower case");
    if fits {
        Ok(text)
    } else {
        Err(D::Error::custom(why()))
    }
}

fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LabelSelector, D::Error> {
    let text = String::deserialize(deserializer)?;
    LabelSelector::parse(&text).map_err(|error| D::Error::custom(format!("{text:?}: {error}")))
}

fn fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FieldSelector, D::Error> {
    let text = String::deserialize(deserializer)?;
    FieldSelector::parse(&text).map_err(|error| D::Error::custom(format!("{text:?}: {error}")))
}

/// Returns the JSON schema of the file.
pub(super) fn schema() -> Schema {
    SchemaGenerator::default().into_root_schema_for::<File>()
}

/// Reads the file. What it does not set stays as in `preset`.
pub(super) fn read(path: &Path, preset: CachingPolicy) -> anyhow::Result<CachingPolicy> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read {} (--config)", path.display()))?;
    parse(&text, preset)
        .with_context(|| format!("{} (--config) is not a configuration", path.display()))
}

/// Keys that have a new name, with it.
const RENAMED: [(&str, &str); 1] = [("narrow", "selectorScopes")];

/// Returns the parser's message, with the new name of a key that was renamed.
fn explained(error: &serde_saphyr::Error) -> String {
    let message = error.without_snippet().to_string();
    let renamed = RENAMED
        .iter()
        .find(|(old, _)| message.contains(&format!("unknown field `{old}`")));
    match renamed {
        Some((old, new)) => format!("`{old}` is now `{new}`: {message}"),
        None => message,
    }
}

fn parse(text: &str, preset: CachingPolicy) -> anyhow::Result<CachingPolicy> {
    // A file with nothing but comments is valid.
    let file: Option<File> =
        serde_saphyr::from_str(text).map_err(|error| anyhow!("{}", explained(&error)))?;
    let File {
        consistent_reads,
        cache,
        selector_scopes,
        idle_seconds,
        resources,
        scopes,
    } = file.unwrap_or_default();
    if let Some(cache) = cache.as_ref().filter(|cache| cache.value == Choice::Always) {
        bail!(
            "line {}: cache: always is only for single types, under resources",
            cache.referenced.line()
        );
    }
    let mode = cache.map_or(preset.mode, |cache| cache.value.cache());
    let mut policy = CachingPolicy {
        consistent_reads,
        mode,
        ..preset
    };
    policy.scope_policy = ScopePolicy {
        selector_scopes,
        idle: idle_seconds.map(Duration::from_secs),
        ..ScopePolicy::default()
    };
    let preset = std::mem::take(&mut policy.mode_by_type);
    let mut names = HashSet::new();
    // Of these parts must be named.
    let mut parted = Vec::new();
    for part in resources {
        let (line, said) = (part.referenced.line(), part.value);
        let holding = said.holding();
        let Override {
            group,
            resource,
            consistent_reads,
            cache,
            ..
        } = said;
        let name = if group.is_empty() {
            resource.clone()
        } else {
            format!("{resource}.{group}")
        };
        ensure!(
            consistent_reads.is_some() || cache.is_some() || holding != ScopePolicy::default(),
            "line {line}: {name} has no settings"
        );
        if let Some(cache) = cache.map(Choice::cache) {
            let before = policy.set_mode(&group, &resource, cache);
            ensure!(
                before.is_none_or(|before| before == cache),
                "line {line}: {name} has another cache in an earlier entry, in this group or in one with \
                 the same objects"
            );
        }
        if holding != ScopePolicy::default() {
            let has_selector_scopes = holding.selector_scopes.or(selector_scopes).unwrap_or(false);
            let unused = cache == Some(Choice::Never);
            ensure!(
                !unused,
                "line {line}: {name} has cache: never, so that settings of scopes do not apply"
            );
            ensure!(
                has_selector_scopes || (holding.merge.is_none() && holding.max_scopes.is_none()),
                "line {line}: merge and maxUpstreamWatches need selector scopes: add selectorScopes: true to {name}"
            );
            ensure!(
                holding.max_scopes != Some(0),
                "line {line}: {name} has maxUpstreamWatches: 0; use cache: never instead"
            );
            ensure!(
                !(holding.always_open && holding.idle.is_some()),
                "line {line}: {name} has cache: always, so that idleSeconds does not apply"
            );
            if holding.always_open && has_selector_scopes {
                parted.push((line, name.clone(), type_name(&group, &resource)));
            }
            policy.set_scope_policy(&group, &resource, holding);
        }
        if let Some(consistent_reads) = consistent_reads {
            policy
                .consistent_reads_by_type
                .insert((group, resource), consistent_reads);
        }
        ensure!(
            names.insert(name.clone()),
            "line {line}: {name} has two entries"
        );
    }
    for (name, cache) in preset {
        policy.mode_by_type.entry(name).or_insert(cache);
    }
    hold(&mut policy, scopes)?;
    for (line, name, key) in parted {
        let named = policy.scopes.contains_key(&key);
        ensure!(
            named,
            "line {line}: {name} has cache: always and selectorScopes: name its parts under scopes"
        );
    }
    Ok(policy)
}

/// Adds the parts of types to the policy. None may contain another.
fn hold(policy: &mut CachingPolicy, parts: Vec<Spanned<Part>>) -> anyhow::Result<()> {
    let mut scopes: HashMap<_, Vec<(u64, Arc<Selection>)>> = HashMap::new();
    for part in parts {
        let line = part.referenced.line();
        let Part {
            group,
            resource,
            namespaces,
            label_selector,
            field_selector,
        } = part.value;
        let name = if group.is_empty() {
            resource.clone()
        } else {
            format!("{resource}.{group}")
        };
        ensure!(
            policy.may_cache(&group, &resource),
            "line {line}: a scope of {name}, which is not cached: add it with cache: onDemand to resources"
        );
        let namespaces = if namespaces.is_empty() {
            vec![None]
        } else {
            namespaces.into_iter().map(Some).collect()
        };
        let known: &mut Vec<_> = scopes.entry(type_name(&group, &resource)).or_default();
        for namespace in namespaces {
            let (labels, fields) = (label_selector.clone(), field_selector.clone());
            let selection = Selection {
                namespace,
                labels,
                fields,
            };
            for (other, scope) in &*known {
                ensure!(
                    !scope.covers(&selection) && !selection.covers(scope),
                    "line {line}: this scope of {name} contains the one in line {other}, or is a part of it"
                );
            }
            known.push((line, Arc::new(selection)));
        }
    }
    for (name, selections) in scopes {
        policy.scopes.insert(
            name,
            selections
                .into_iter()
                .map(|(_, selection)| selection)
                .collect(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> anyhow::Result<CachingPolicy> {
        parse(text, CachingPolicy::default())
    }

    #[test]
    fn consistent_reads_are_set_for_all_types_and_for_single_ones() {
        let policy = parsed(
            "consistentReads: forward\nresources:\n- resource: pods\n  consistentReads: linearizable\n\
             - group: apps\n  resource: deployments\n  consistentReads: stale\n",
        )
        .unwrap();
        assert_eq!(policy.consistent_reads, ConsistentReads::Upstream);
        let key = |group: &str, resource: &str| (group.to_owned(), resource.to_owned());
        assert_eq!(
            policy.consistent_reads_by_type[&key("", "pods")],
            ConsistentReads::ProvenFresh
        );
        assert_eq!(
            policy.consistent_reads_by_type[&key("apps", "deployments")],
            ConsistentReads::PossiblyStale
        );
        for nothing in ["", "# nothing yet\n", "{}"] {
            assert_eq!(
                parsed(nothing).unwrap(),
                CachingPolicy::default(),
                "{nothing:?}"
            );
        }
    }

    #[test]
    fn a_file_that_is_not_understood_is_refused() {
        for text in [
            "consistentRead: fence\n",
            "consistentReads: always\n",
            "resources:\n- consistentReads: linearizable\n",
            "resources:\n- resource: pods\n  consistentReads: linearizable\n- resource: pods\n  consistentReads: stale\n",
            "resources:\n- resource: \"\"\n  consistentReads: linearizable\n",
            "resources:\n- resource: pods\n",
            "resources:\n- resource: pods\n  cache: false\n- resource: pods\n  consistentReads: linearizable\n",
            "resources:\n- resource: events\n  cache: false\n- resource: events\n  group: events.k8s.io\n  cache: true\n",
            "[]",
            "text",
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn old_spellings_are_refused_with_the_new_one_or_still_accepted() {
        for (old, new) in [
            ("narrow: true\n", "selectorScopes"),
            (
                "resources:\n- resource: pods\n  narrow: true\n",
                "selectorScopes",
            ),
            ("cache: demand\n", "onDemand"),
        ] {
            let error = parsed(old).unwrap_err().to_string();
            assert!(
                error.contains(new) && error.contains("line"),
                "{old}: {error}"
            );
        }
        for (old, new) in [("fence", "linearizable"), ("cache", "stale")] {
            let of = |value: &str| parsed(&format!("consistentReads: {value}\n")).unwrap();
            assert_eq!(of(old), of(new));
        }
    }

    #[test]
    fn a_cache_mode_is_set_for_all_types_and_for_single_ones() {
        let kept = |text: &str| {
            let kept = parsed(text).unwrap().exceptions().into_iter();
            kept.map(|kept| (kept.name(), kept.mode))
                .collect::<Vec<_>>()
        };
        let of = |name: &str, cache| (name.to_owned(), cache);
        // Who keeps all that is not named has not named the secrets.
        for text in [
            "",
            "cache: true\n",
            "resources:\n- resource: secrets\n  consistentReads: linearizable\n",
        ] {
            assert_eq!(kept(text), [of("secrets", CacheMode::Nothing)], "{text}");
        }
        for (choice, cache) in [
            ("true", CacheMode::Objects),
            ("onDemand", CacheMode::Objects),
            ("metadata", CacheMode::Metadata),
            ("false", CacheMode::Nothing),
            ("never", CacheMode::Nothing),
        ] {
            let text = format!("resources:\n- resource: secrets\n  cache: {choice}\n");
            assert_eq!(kept(&text), [of("secrets", cache)]);
            let text = format!("cache: {choice}\n");
            assert_eq!(parsed(&text).unwrap().mode, cache);
        }
        let text = "cache: metadata\nresources:\n- resource: deployments\n  group: apps\n  cache: true\n  consistentReads: forward\n\
             - resource: events\n  cache: false\n- group: events.k8s.io\n  resource: events\n  cache: false\n";
        assert_eq!(
            kept(text),
            [
                of("*", CacheMode::Metadata),
                of("deployments.apps", CacheMode::Objects),
                of("events", CacheMode::Nothing),
                of("secrets", CacheMode::Nothing),
            ]
        );
        let key = ("apps".to_owned(), "deployments".to_owned());
        assert_eq!(
            parsed(text).unwrap().consistent_reads_by_type[&key],
            ConsistentReads::Upstream
        );
    }

    #[test]
    fn a_wrong_value_is_refused_with_its_line() {
        for wrong in [
            "cache: none",
            "cache: \"true\"",
            "cache: 1",
            "cache:",
            "cache: Metadata",
            "caches: true",
        ] {
            let error = parsed(&format!("consistentReads: linearizable\n{wrong}\n"))
                .unwrap_err()
                .to_string();
            assert!(error.contains("line 2"), "{wrong}: {error}");
            let text = format!("resources:\n- resource: pods\n  {wrong}\n");
            let error = parsed(&text).unwrap_err().to_string();
            assert!(error.contains("line 3"), "{wrong}: {error}");
        }
        for wrong in [
            "resource: Secrets",
            "resource: pods/log",
            "resource: \"*\"",
            "group: Apps",
        ] {
            let text = format!("resources:\n- cache: false\n  {wrong}\n");
            let error = parsed(&text).unwrap_err().to_string();
            assert!(error.contains("line 3"), "{wrong}: {error}");
        }
    }

    #[test]
    fn scope_settings_are_set_for_all_types_and_for_single_ones() {
        let policy = parsed(
            "selectorScopes: true\nidleSeconds: 30\nresources:\n- resource: pods\n  cache: always\n  selectorScopes: false\n  windowSeconds: 7\n\
             \x20 windowMib: 2\n- resource: configmaps\n  maxUpstreamWatches: 3\n  merge: false\n  idleSeconds: 0\n",
        )
        .unwrap();
        assert_eq!(
            (
                policy.scope_policy.selector_scopes,
                policy.scope_policy.idle
            ),
            (Some(true), Some(Duration::from_secs(30)))
        );
        let pods = policy.scope_policy("", "pods");
        assert!(
            pods.always_open
                && pods.selector_scopes == Some(false)
                && pods.window_bytes == Some(2 << 20)
        );
        assert_eq!(pods.window_age, Some(Duration::from_secs(7)));
        let maps = policy.scope_policy("", "configmaps");
        assert_eq!(
            (maps.selector_scopes, maps.max_scopes, maps.merge, maps.idle),
            (Some(true), Some(3), Some(false), Some(Duration::ZERO))
        );
        assert_eq!(policy.scope_policy("", "services"), policy.scope_policy);
    }

    #[test]
    fn contradictory_scope_settings_are_refused_with_their_line() {
        let before = "resources:\n- resource: nodes\n  cache: always\n";
        for (rest, says) in [
            ("- resource: pods\n  selectorScopes: yes please\n", "line 5"),
            ("- resource: pods\n  maxUpstreamWatches: 3\n", "line 4"),
            ("- resource: pods\n  merge: true\n", "selectorScopes: true"),
            (
                "- resource: pods\n  selectorScopes: true\n  maxUpstreamWatches: 0\n",
                "line 4",
            ),
            (
                "- resource: pods\n  cache: never\n  idleSeconds: 5\n",
                "line 4",
            ),
            (
                "- resource: pods\n  cache: always\n  idleSeconds: 5\n",
                "line 4",
            ),
            (
                "- resource: pods\n  cache: always\n  selectorScopes: true\n",
                "line 4: pods has cache: always",
            ),
            ("- resource: pods\n  idleSeconds: -1\n", "line 5"),
            ("- resource: nodes\n  selectorScopes: true\n", "line 4"),
            (
                "cache: always\n",
                "line 4: cache: always is only for single types",
            ),
        ] {
            let error = format!("{:#}", parsed(&format!("{before}{rest}")).unwrap_err());
            assert!(error.contains(says), "{rest}: {error}");
        }
        parsed(&format!("{before}- resource: pods\n  cache: always\n  selectorScopes: true\nscopes:\n- resource: pods\n  namespaces: [a]\n")).unwrap();
    }

    fn scopes(policy: &CachingPolicy, group: &str, resource: &str) -> Vec<String> {
        let scopes = &policy.scopes[&(group.to_owned(), resource.to_owned())];
        scopes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn parts_of_types_are_read() {
        let text = "scopes:\n- resource: pods\n  fieldSelector: spec.nodeName=n1\n- resource: pods\n  namespaces: [a, b]\n\
                    \x20 labelSelector: app in (x,y)\n- group: apps\n  resource: deployments\n  namespaces: [a]\n";
        let policy = parsed(text).unwrap();
        assert_eq!(
            scopes(&policy, "", "pods"),
            [
                "fieldSelector=spec.nodeName=n1",
                "namespace=a; labelSelector=app in (x,y)",
                "namespace=b; labelSelector=app in (x,y)",
            ]
        );
        assert_eq!(scopes(&policy, "apps", "deployments"), ["namespace=a"]);
    }

    #[test]
    fn a_useless_scope_is_refused_with_its_line() {
        let before = "scopes:\n- resource: pods\n  namespaces: [a]\n- resource: pods\n";
        for (rest, line) in [
            ("  namespaces: [b, b]\n", "line 4"),
            ("  namespaces: [a]\n", "line 4"),
            ("  namespaces: [a]\n  labelSelector: app=x\n", "line 4"),
            ("  namespaces: []\n", "line 4"),
            ("  labelSelector: \"app in (\"\n", "line 5"),
            ("  fieldSelector: spec.nodeName\n", "line 5"),
            ("  namespace: a\n", "line 5"),
            ("  namespaces: [b]\n- resource: secrets\n", "line 6"),
            (
                "  namespaces: [b]\n- resource: nodes\nresources:\n- resource: nodes\n  cache: false\n",
                "line 6",
            ),
        ] {
            let error = format!("{:#}", parsed(&format!("{before}{rest}")).unwrap_err());
            assert!(error.contains(line), "{rest}: {error}");
        }
        parsed(&format!(
            "{before}  namespaces: [b]\n  labelSelector: app=x\n"
        ))
        .unwrap();
    }

    #[test]
    fn a_file_adds_to_the_preset_of_a_node() {
        let preset = || CachingPolicy::of_node("n1");
        assert_eq!(parse("", preset()).unwrap(), preset());
        let text = "resources:\n- resource: services\n  cache: true\n- resource: nodes\n  cache: metadata\nscopes:\n\
                    - resource: pods\n  namespaces: [a]\n";
        let policy = parse(text, preset()).unwrap();
        assert_eq!(policy.mode, CacheMode::Nothing);
        let kept = policy
            .exceptions()
            .into_iter()
            .map(|kept| (kept.name(), kept.mode.as_str()))
            .collect::<Vec<_>>();
        let expected = [
            ("*", "never"),
            ("leases.coordination.k8s.io", "onDemand"),
            ("nodes", "metadata"),
            ("pods", "onDemand"),
            ("secrets", "never"),
            ("services", "onDemand"),
        ];
        assert_eq!(kept, expected.map(|(name, cache)| (name.to_owned(), cache)));
        assert_eq!(scopes(&policy, "", "pods"), ["namespace=a"]);
        assert_eq!(
            scopes(&policy, "coordination.k8s.io", "leases"),
            ["namespace=kube-node-lease; fieldSelector=metadata.name=n1"]
        );
    }
}
