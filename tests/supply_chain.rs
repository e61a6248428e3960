//! Checks the bans and the sources of `deny.toml` on the tree that cargo resolves. It needs only
//! cargo; `tests/licences.rs` checks the licences.
//!
//! cargo-deny reads the same file and also knows advisories, which need its database.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the quoted texts of a list in a table of `deny.toml`, one entry a line.
fn entries(text: &str, table: &str, list: &str) -> Vec<String> {
    let (mut in_table, mut in_list) = (false, false);
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            (in_table, in_list) = (name == table, false);
        } else if in_table && line == format!("{list} = [") {
            in_list = true;
        } else if line == "]" {
            in_list = false;
        } else if in_list && !line.starts_with('#') {
            found.extend(line.split('"').nth(1).map(str::to_owned));
        }
    }
    found
}

/// Returns what a command of cargo prints.
fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .arg("--locked")
        .current_dir(top())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "cargo {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn metadata(arguments: &[&str]) -> Value {
    let all = [&["metadata", "--format-version", "1"], arguments].concat();
    serde_json::from_str(&cargo(&all)).unwrap()
}

/// Returns the names of the packages that are built for a platform, with all features and for
/// tests. `cargo metadata` lists more: optional ones that nothing switches on.
fn built(target: &str) -> BTreeSet<String> {
    let all = [
        "tree",
        "--workspace",
        "--all-features",
        "--target",
        target,
        "--prefix",
        "none",
    ];
    let lines = cargo(&all);
    let names = lines.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

/// Returns the packages that come from elsewhere than this folder and crates.io.
fn foreign(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .filter(|package| !matches!(package["source"].as_str(), None | Some(CRATES_IO)))
        .map(|package| format!("{} from {}", package["name"], package["source"]))
        .collect()
}

#[test]
fn no_banned_crate_is_built_for_any_platform() {
    let text = fs::read_to_string(top().join("deny.toml")).unwrap();
    let (targets, banned) = (
        entries(&text, "graph", "targets"),
        entries(&text, "bans", "deny"),
    );
    assert!(
        targets.len() >= 6 && banned.len() >= 5,
        "{targets:?} {banned:?}"
    );
    for target in &targets {
        let built = built(target);
        assert!(built.len() > 100, "only {} for {target}", built.len());
        let found: Vec<_> = banned.iter().filter(|name| built.contains(*name)).collect();
        assert!(
            found.is_empty(),
            "banned in deny.toml, for {target}: {found:?}"
        );
        assert!(built.contains("rustls"), "the search finds what is there");
    }
}

#[test]
fn every_crate_comes_from_crates_io() {
    let mut metadata = metadata(&[]);
    assert_eq!(foreign(&metadata), [""; 0]);
    metadata["packages"][0]["source"] = "git+https://example.com/x".into();
    assert_eq!(foreign(&metadata).len(), 1, "another source is found");
}

#[test]
fn no_dependency_accepts_any_version() {
    let metadata = metadata(&["--no-deps"]);
    for package in metadata["packages"].as_array().unwrap() {
        for dependency in package["dependencies"].as_array().unwrap() {
            let is_path = dependency["path"].is_string();
            assert!(
                is_path || dependency["req"] != "*",
                "{} of {}",
                dependency["name"],
                package["name"]
            );
        }
    }
}

#[test]
fn only_the_named_list_of_deny_toml_is_read() {
    let text = "[a]\nx = [\n  \"1\",\n]\n[b]\nx = [\n  # \"2\",\n  { crate = \"3\" },\n]\ny = [\n\"4\",\n]\n";
    assert_eq!(entries(text, "b", "x"), ["3"]);
}
