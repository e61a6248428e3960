//! The configuration file.
use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde::de::{Deserializer, Error};

use crate::serve::{Cache, ConsistentReads, Policy};

/// What stands in the file. Unknown keys are refused: a misspelt one would be a silent default.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct File {
    /// How lists and watches with `resourceVersion` unset are answered.
    consistent_reads: ConsistentReads,
    /// What may be kept in memory of types that are not named.
    cache: Cache,
    /// Types for which something else is to hold.
    resources: Vec<Override>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Override {
    /// The API group; left out for the core group.
    #[serde(default, deserialize_with = "group")]
    group: String,
    /// The plural name, as in URLs.
    #[serde(deserialize_with = "resource")]
    resource: String,
    #[serde(default, deserialize_with = "said")]
    consistent_reads: Option<ConsistentReads>,
    #[serde(default, deserialize_with = "said")]
    cache: Option<Cache>,
}

/// What may be left out, but not left empty.
fn said<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A name that no type can have would protect nothing.
fn group<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let fits = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b));
    if fits { Ok(text) } else { Err(D::Error::custom(format!("{text:?} is not the name of an API group"))) }
}

fn resource<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let plain = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    let fits = plain && !text.is_empty();
    let why = || format!("{text:?} is not the name of a resource: they are in the plural and lower case");
    if fits { Ok(text) } else { Err(D::Error::custom(why())) }
}

/// Reads the file.
pub(super) fn read(path: &Path) -> anyhow::Result<Policy> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read {} (--config)", path.display()))?;
    parse(&text).with_context(|| format!("{} (--config) is not a configuration", path.display()))
}

fn parse(text: &str) -> anyhow::Result<Policy> {
    // Nothing but comments is a configuration, too.
    let file: Option<File> = serde_saphyr::from_str(text)?;
    let File { consistent_reads, cache, resources } = file.unwrap_or_default();
    let mut policy = Policy { consistent_reads, cache, ..Policy::default() };
    let mut names = HashSet::new();
    for Override { group, resource, consistent_reads, cache } in resources {
        let name = if group.is_empty() { resource.clone() } else { format!("{resource}.{group}") };
        ensure!(consistent_reads.is_some() || cache.is_some(), "nothing is said of {name}");
        if let Some(cache) = cache {
            let before = policy.keep(&group, &resource, cache);
            ensure!(
                before.is_none_or(|before| before == cache),
                "{name} is named with another cache before, in this group or in one that has the same objects"
            );
        }
        if let Some(consistent_reads) = consistent_reads {
            policy.resources.insert((group, resource), consistent_reads);
        }
        ensure!(names.insert(name.clone()), "{name} is named twice");
    }
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_holds_for_which_type() {
        let policy = parse(
            "consistentReads: forward\nresources:\n- resource: pods\n  consistentReads: fence\n\
             - group: apps\n  resource: deployments\n  consistentReads: cache\n",
        )
        .unwrap();
        assert_eq!(policy.consistent_reads, ConsistentReads::Forward);
        let key = |group: &str, resource: &str| (group.to_owned(), resource.to_owned());
        assert_eq!(policy.resources[&key("", "pods")], ConsistentReads::Fence);
        assert_eq!(policy.resources[&key("apps", "deployments")], ConsistentReads::Cache);
        for nothing in ["", "# nothing yet\n", "{}"] {
            assert_eq!(parse(nothing).unwrap(), Policy::default(), "{nothing:?}");
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
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn says_what_may_be_kept_of_which_type() {
        let kept = |text: &str| {
            let kept = parse(text).unwrap().kept().into_iter();
            kept.map(|kept| (kept.name(), kept.cache)).collect::<Vec<_>>()
        };
        let of = |name: &str, cache| (name.to_owned(), cache);
        // Who keeps all that is not named has not named the secrets.
        for text in ["", "cache: true\n", "resources:\n- resource: secrets\n  consistentReads: fence\n"] {
            assert_eq!(kept(text), [of("secrets", Cache::Nothing)], "{text}");
        }
        for (choice, cache) in
            [("true", Cache::Objects), ("metadata", Cache::Metadata), ("false", Cache::Nothing)]
        {
            let text = format!("resources:\n- resource: secrets\n  cache: {choice}\n");
            assert_eq!(kept(&text), [of("secrets", cache)]);
            let text = format!("cache: {choice}\n");
            assert_eq!(parse(&text).unwrap().cache, cache);
        }
        let text = "cache: metadata\nresources:\n- resource: deployments\n  group: apps\n  cache: true\n  consistentReads: forward\n\
             - resource: events\n  cache: false\n- group: events.k8s.io\n  resource: events\n  cache: false\n";
        assert_eq!(
            kept(text),
            [
                of("*", Cache::Metadata),
                of("deployments.apps", Cache::Objects),
                of("events", Cache::Nothing),
                of("secrets", Cache::Nothing),
            ]
        );
        let key = ("apps".to_owned(), "deployments".to_owned());
        assert_eq!(parse(text).unwrap().resources[&key], ConsistentReads::Forward);
    }

    #[test]
    fn a_wrong_value_is_refused_with_its_line() {
        for wrong in
            ["cache: none", "cache: \"true\"", "cache: 1", "cache:", "cache: Metadata", "caches: true"]
        {
            let error = parse(&format!("consistentReads: fence\n{wrong}\n")).unwrap_err().to_string();
            assert!(error.contains("line 2"), "{wrong}: {error}");
            let text = format!("resources:\n- resource: pods\n  {wrong}\n");
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains("line 3"), "{wrong}: {error}");
        }
        for wrong in ["resource: Secrets", "resource: pods/log", "resource: \"*\"", "group: Apps"] {
            let text = format!("resources:\n- cache: false\n  {wrong}\n");
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.contains("line 3"), "{wrong}: {error}");
        }
    }
}
