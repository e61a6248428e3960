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

/// What stands in the file. Unknown keys are refused: a misspelt one would be a silent default.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct File {
    /// How lists and watches with `resourceVersion` unset are answered.
    consistent_reads: ConsistentReads,
    /// What may be kept in memory of types that are not named.
    #[serde(deserialize_with = "said")]
    #[schemars(with = "Choice")]
    cache: Option<Spanned<Choice>>,
    /// Scopes for what clients ask for, instead of one of everything, of all types.
    #[serde(deserialize_with = "said")]
    #[schemars(with = "bool")]
    narrow: Option<bool>,
    /// A scope that nobody has read for so long is closed (seconds).
    #[serde(deserialize_with = "said")]
    #[schemars(with = "u64")]
    idle_seconds: Option<u64>,
    /// Types for which something else is to hold.
    #[schemars(with = "Vec<Override>")]
    resources: Vec<Spanned<Override>>,
    /// The parts of types that are held, where that is not everything.
    #[schemars(with = "Vec<Part>")]
    scopes: Vec<Spanned<Part>>,
}

/// What one list and watch at upstream covers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Part {
    /// The API group; left out for the core group.
    #[serde(default, deserialize_with = "group")]
    #[schemars(regex(pattern = "^[a-z0-9.-]*$"))]
    group: String,
    /// The plural name, as in URLs.
    #[serde(deserialize_with = "resource")]
    #[schemars(regex(pattern = "^[a-z0-9-]+$"))]
    resource: String,
    /// Each of these namespaces by itself; left out for all together.
    #[serde(default)]
    namespaces: Vec<String>,
    /// Of these, the objects with these labels, as in kubectl's `-l`.
    #[serde(default, deserialize_with = "labels")]
    #[schemars(with = "String")]
    label_selector: LabelSelector,
    /// Of these, the objects with these fields, such as `spec.nodeName=node-1`.
    #[serde(default, deserialize_with = "fields")]
    #[schemars(with = "String")]
    field_selector: FieldSelector,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Override {
    /// The API group; left out for the core group.
    #[serde(default, deserialize_with = "group")]
    #[schemars(regex(pattern = "^[a-z0-9.-]*$"))]
    group: String,
    /// The plural name, as in URLs.
    #[serde(deserialize_with = "resource")]
    #[schemars(regex(pattern = "^[a-z0-9-]+$"))]
    resource: String,
    /// How its lists and watches with `resourceVersion` unset are answered.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "ConsistentReads")]
    consistent_reads: Option<ConsistentReads>,
    /// What may be kept in memory of it.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "Choice")]
    cache: Option<Choice>,
    /// Scopes for what clients ask for, instead of one of everything.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "bool")]
    narrow: Option<bool>,
    /// Whether scopes of a namespace or of everything may take the place of many narrow ones; true,
    /// if nothing is said.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "bool")]
    merge: Option<bool>,
    /// The most narrow scopes, each a watch at upstream, in all its versions and representations;
    /// 8, if nothing is said.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "usize")]
    max_upstream_watches: Option<usize>,
    /// A scope that nobody has used for so long is closed; 0 for never. Narrow ones after 600,
    /// others never, if nothing is said.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "u64")]
    idle_seconds: Option<u64>,
    /// How long its events are kept, instead of `--window-seconds`.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "u64")]
    window_seconds: Option<u64>,
    /// Upper bound of the events kept in each of its scopes (MiB), instead of `--window-mib`.
    #[serde(default, deserialize_with = "said")]
    #[schemars(with = "usize")]
    window_mib: Option<usize>,
}

/// What may be kept of a type, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// Nothing.
    Never,
    /// Metadata, once somebody asks for it.
    Metadata,
    /// The objects, once somebody asks for them.
    Demand,
    /// The objects, from the start.
    Always,
}

impl Choice {
    fn cache(self) -> CacheMode {
        match self {
            Self::Never => CacheMode::Nothing,
            Self::Metadata => CacheMode::Metadata,
            Self::Demand | Self::Always => CacheMode::Objects,
        }
    }
}

impl<'de> Deserialize<'de> for Choice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Word;

        impl Visitor<'_> for Word {
            type Value = Choice;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("demand (or true), always, metadata or never (or false)")
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Choice, E> {
                Ok(if value { Choice::Demand } else { Choice::Never })
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Choice, E> {
                match value {
                    "demand" => Ok(Choice::Demand),
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
            "description": "demand (or true): the objects, once somebody asks for them; always: from the start; metadata: no more than PartialObjectMetadata; never (or false): nothing.",
            "enum": ["demand", "always", "metadata", "never", true, false],
        })
    }
}

impl Override {
    fn holding(&self) -> ScopePolicy {
        ScopePolicy {
            always_open: self.cache == Some(Choice::Always),
            selector_scopes: self.narrow,
            merge: self.merge,
            max_scopes: self.max_upstream_watches,
            idle: self.idle_seconds.map(Duration::from_secs),
            window_age: self.window_seconds.map(Duration::from_secs),
            window_bytes: self.window_mib.map(|mib| mib.saturating_mul(1 << 20)),
        }
    }
}

/// What may be left out, but not left empty.
fn said<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A name that no type can have would protect nothing.
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

/// What may stand in the file, as a JSON schema.
pub(super) fn schema() -> Schema {
    SchemaGenerator::default().into_root_schema_for::<File>()
}

/// Reads the file, which says what is to differ from `preset`.
pub(super) fn read(path: &Path, preset: CachingPolicy) -> anyhow::Result<CachingPolicy> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read {} (--config)", path.display()))?;
    parse(&text, preset)
        .with_context(|| format!("{} (--config) is not a configuration", path.display()))
}

fn parse(text: &str, preset: CachingPolicy) -> anyhow::Result<CachingPolicy> {
    // Nothing but comments is a configuration, too.
    let file: Option<File> =
        serde_saphyr::from_str(text).map_err(|error| anyhow!("{}", error.without_snippet()))?;
    let File {
        consistent_reads,
        cache,
        narrow,
        idle_seconds,
        resources,
        scopes,
    } = file.unwrap_or_default();
    if let Some(cache) = cache.as_ref().filter(|cache| cache.value == Choice::Always) {
        bail!(
            "line {}: cache: always is for types that are named under resources",
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
        selector_scopes: narrow,
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
            "line {line}: nothing is said of {name}"
        );
        if let Some(cache) = cache.map(Choice::cache) {
            let before = policy.set_mode(&group, &resource, cache);
            ensure!(
                before.is_none_or(|before| before == cache),
                "line {line}: {name} is named with another cache before, in this group or in one that has the same objects"
            );
        }
        if holding != ScopePolicy::default() {
            let narrow = holding.selector_scopes.or(narrow).unwrap_or(false);
            let unused = cache == Some(Choice::Never);
            ensure!(
                !unused,
                "line {line}: of {name} nothing is kept: it has no scopes to say anything of"
            );
            ensure!(
                narrow || (holding.merge.is_none() && holding.max_scopes.is_none()),
                "line {line}: merge and maxUpstreamWatches are about narrow scopes: say narrow: true of {name}"
            );
            ensure!(
                holding.max_scopes != Some(0),
                "line {line}: {name} with no upstream watch at all: say cache: never"
            );
            ensure!(
                !(holding.always_open && holding.idle.is_some()),
                "line {line}: {name} is always held, and has no idleSeconds"
            );
            if holding.always_open && narrow {
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
            "line {line}: {name} is named twice"
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
            "line {line}: {name} is always held, and narrow: name its parts under scopes"
        );
    }
    Ok(policy)
}

/// Takes the parts of types over, each of which must be of use.
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
            "line {line}: a scope of {name}, of which nothing may be kept: say cache: demand under resources"
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
                    "line {line}: a scope of {name} that has all of the one in line {other}, or is a part of it"
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
    fn says_what_holds_for_which_type() {
        let policy = parsed(
            "consistentReads: forward\nresources:\n- resource: pods\n  consistentReads: fence\n\
             - group: apps\n  resource: deployments\n  consistentReads: cache\n",
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
    fn refuses_what_it_does_not_understand() {
        for text in [
            "consistentRead: fence\n",
            "consistentReads: always\n",
            "resources:\n- consistentReads: fence\n",
            "resources:\n- resource: pods\n  consistentReads: fence\n- resource: pods\n  consistentReads: cache\n",
            "resources:\n- resource: \"\"\n  consistentReads: fence\n",
            "resources:\n- resource: pods\n",
            "resources:\n- resource: pods\n  cache: false\n- resource: pods\n  consistentReads: fence\n",
            "resources:\n- resource: events\n  cache: false\n- resource: events\n  group: events.k8s.io\n  cache: true\n",
            "[]",
            "text",
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn says_what_may_be_kept_of_which_type() {
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
            "resources:\n- resource: secrets\n  consistentReads: fence\n",
        ] {
            assert_eq!(kept(text), [of("secrets", CacheMode::Nothing)], "{text}");
        }
        for (choice, cache) in [
            ("true", CacheMode::Objects),
            ("demand", CacheMode::Objects),
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
            let error = parsed(&format!("consistentReads: fence\n{wrong}\n"))
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
    fn says_how_scopes_are_opened_and_held() {
        let policy = parsed(
            "narrow: true\nidleSeconds: 30\nresources:\n- resource: pods\n  cache: always\n  narrow: false\n  windowSeconds: 7\n\
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
    fn what_cannot_be_held_so_is_refused_with_its_line() {
        let before = "resources:\n- resource: nodes\n  cache: always\n";
        for (rest, says) in [
            ("- resource: pods\n  narrow: yes please\n", "line 5"),
            ("- resource: pods\n  maxUpstreamWatches: 3\n", "line 4"),
            ("- resource: pods\n  merge: true\n", "narrow: true"),
            (
                "- resource: pods\n  narrow: true\n  maxUpstreamWatches: 0\n",
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
                "- resource: pods\n  cache: always\n  narrow: true\n",
                "line 4: pods is always held",
            ),
            ("- resource: pods\n  idleSeconds: -1\n", "line 5"),
            ("- resource: nodes\n  narrow: true\n", "line 4"),
            ("cache: always\n", "line 4: cache: always is for types"),
        ] {
            let error = format!("{:#}", parsed(&format!("{before}{rest}")).unwrap_err());
            assert!(error.contains(says), "{rest}: {error}");
        }
        parsed(&format!("{before}- resource: pods\n  cache: always\n  narrow: true\nscopes:\n- resource: pods\n  namespaces: [a]\n")).unwrap();
    }

    fn scopes(policy: &CachingPolicy, group: &str, resource: &str) -> Vec<String> {
        let scopes = &policy.scopes[&(group.to_owned(), resource.to_owned())];
        scopes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn says_which_parts_are_held() {
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
    fn a_scope_that_is_of_no_use_is_refused_with_its_line() {
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
            ("leases.coordination.k8s.io", "demand"),
            ("nodes", "metadata"),
            ("pods", "demand"),
            ("secrets", "never"),
            ("services", "demand"),
        ];
        assert_eq!(kept, expected.map(|(name, cache)| (name.to_owned(), cache)));
        assert_eq!(scopes(&policy, "", "pods"), ["namespace=a"]);
        assert_eq!(
            scopes(&policy, "coordination.k8s.io", "leases"),
            ["namespace=kube-node-lease; fieldSelector=metadata.name=n1"]
        );
    }
}
