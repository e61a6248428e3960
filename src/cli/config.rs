//! The configuration file.
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::serve::{ConsistentReads, Policy};

/// What stands in the file. Unknown keys are refused: a misspelt one would be a silent default.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct File {
    /// How lists and watches with `resourceVersion` unset are answered.
    consistent_reads: ConsistentReads,
    /// Types for which something else is to hold.
    resources: Vec<Override>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Override {
    /// The API group; left out for the core group.
    #[serde(default)]
    group: String,
    /// The plural name, as in URLs.
    resource: String,
    consistent_reads: ConsistentReads,
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
    let File { consistent_reads, resources } = file.unwrap_or_default();
    let mut policy = Policy { consistent_reads, ..Policy::default() };
    for Override { group, resource, consistent_reads } in resources {
        ensure!(!resource.is_empty(), "a resource has no name");
        let name = if group.is_empty() { resource.clone() } else { format!("{resource}.{group}") };
        let twice = policy.resources.insert((group, resource), consistent_reads);
        ensure!(twice.is_none(), "{name} is named twice");
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
            "[]",
            "text",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
