//! Holds the structure that `src/lib.rs` draws: dependencies between modules, and between the files
//! of a module, point one way, and a type's name means one thing. Planted faults name existing tests.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
mod graph;
mod planted_faults;
mod source;

use std::collections::BTreeMap;
use std::fs;

use graph::cycles;
use source::{Crate, ModulePath, crate_of, top};

/// The source folders of this workspace's crates.
const CRATES: &[&str] = &[
    "src",
    "crates/connect/src",
    "crates/figures/src",
    "crates/lab/src",
    "crates/protocol/src",
    "crates/transcode/src",
];

/// Which modules each module of the proxy may use. `app` and `cli` may use all.
const MAY_USE: &[(&str, &[&str])] = &[
    ("metric", &[]),
    ("budget", &["metric"]),
    ("atomic_moment", &[]),
    ("backoff", &[]),
    ("body", &[]),
    ("drain", &[]),
    ("fairness", &["budget", "metric"]),
    ("headers", &[]),
    ("log_throttle", &[]),
    ("shared_calls", &[]),
    ("work", &[]),
    (
        "listener",
        &[
            "atomic_moment",
            "backoff",
            "body",
            "budget",
            "drain",
            "headers",
            "log_throttle",
            "metric",
            "work",
        ],
    ),
    (
        "upstream",
        &[
            "backoff",
            "body",
            "budget",
            "fairness",
            "headers",
            "log_throttle",
            "metric",
            "work",
        ],
    ),
    ("store", &[]),
    ("watcher", &["store", "work"]),
    (
        "scope",
        &[
            "store",
            "upstream",
            "watcher",
            "atomic_moment",
            "backoff",
            "budget",
            "metric",
            "work",
        ],
    ),
    (
        "catalog",
        &[
            "store",
            "upstream",
            "scope",
            "backoff",
            "body",
            "log_throttle",
            "metric",
        ],
    ),
    (
        "access",
        &[
            "store",
            "watcher",
            "upstream",
            "scope",
            "atomic_moment",
            "backoff",
            "body",
            "fairness",
            "headers",
            "listener",
            "log_throttle",
            "metric",
            "shared_calls",
            "work",
        ],
    ),
    ("audit", &["access", "body", "log_throttle", "metric"]),
    (
        "proof",
        &[
            "scope",
            "store",
            "upstream",
            "watcher",
            "backoff",
            "metric",
            "shared_calls",
            "work",
        ],
    ),
    (
        "serve",
        &[
            "proof",
            "store",
            "watcher",
            "scope",
            "catalog",
            "access",
            "audit",
            "upstream",
            "body",
            "budget",
            "drain",
            "fairness",
            "headers",
            "listener",
            "log_throttle",
            "metric",
            "shared_calls",
            "work",
        ],
    ),
    (
        "admin",
        &[
            "scope",
            "catalog",
            "body",
            "budget",
            "drain",
            "listener",
            "log_throttle",
            "metric",
            "upstream",
            "serve",
            "shared_calls",
        ],
    ),
    ("advise", &["scope", "catalog", "serve"]),
    ("telemetry", &["body", "headers", "metric"]),
];

/// Modules that put the others together, and one that shows their parsers to fuzzers.
const ON_TOP: &[&str] = &["app", "cli", "fuzzing"];

/// Crates that pure code must not use.
const IMPURE: &[&str] = &[
    "tokio",
    "hyper",
    "rustls",
    "parking_lot",
    "dashmap",
    "arc-swap",
    "metrics",
];

fn name(path: &ModulePath) -> String {
    path.join("/")
}

#[test]
fn dependencies_between_modules_point_one_way() {
    let allowed: BTreeMap<_, _> = MAY_USE.iter().copied().collect();
    let mut wrong = Vec::new();
    for (from, targets) in Crate::read("src").references() {
        if ON_TOP.contains(&from[0].as_str()) {
            continue;
        }
        let allowed = allowed
            .get(from[0].as_str())
            .unwrap_or_else(|| panic!("module {} is not in the table", from[0]));
        for to in targets {
            if !to.is_empty() && to[0] != from[0] && !allowed.contains(&to[0].as_str()) {
                wrong.push(format!("{} uses {}", name(&from), name(&to)));
            }
        }
    }
    assert!(wrong.is_empty(), "not in the table:\n{}", wrong.join("\n"));
}

#[test]
fn no_files_depend_on_each_other_in_a_circle() {
    let mut found = Vec::new();
    for source in CRATES {
        for circle in cycles(&Crate::read(source).references()) {
            let names: Vec<_> = circle.iter().map(name).collect();
            found.push(format!("{source}: {}", names.join(" -> ")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_encodings_and_the_store_are_pure() {
    for pure in ["crates/protocol", "crates/transcode"] {
        let manifest = fs::read_to_string(top().join(pure).join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("[dev-dependencies]").next().unwrap();
        for banned in IMPURE {
            let declared = dependencies.lines().any(|line| {
                line.strip_prefix(banned)
                    .is_some_and(|rest| rest.starts_with(['.', ' ']))
            });
            assert!(!declared, "{pure} depends on {banned}");
        }
    }
    let store = Crate::read("src");
    // The store has one lock and wakes tasks. It starts no task.
    for (file, text) in store.texts("store") {
        for banned in ["tokio", "hyper", "metrics"] {
            let used = text.contains(&format!("{banned}::"));
            assert!(!used, "{file}: the store is pure, but uses {banned}");
        }
    }
}

#[test]
fn a_name_means_one_thing() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in CRATES {
        for (name, file) in Crate::read(source).types() {
            places.entry(name).or_default().push(file);
        }
    }
    places.retain(|_, files| files.len() > 1);
    let shared: Vec<_> = places
        .iter()
        .map(|(name, files)| format!("{name}: {}", files.join(", ")))
        .collect();
    assert!(
        shared.is_empty(),
        "names of several types:\n{}",
        shared.join("\n")
    );
}

#[test]
fn the_checks_detect_planted_faults() {
    let references = crate_of(&[
        (
            &["serve"],
            "mod fence; pub use fence::Fence; use crate::store::Store;",
        ),
        (
            &["serve", "fence"],
            "fn f() { vec![super::list::page()]; } pub struct Fence;",
        ),
        (
            &["serve", "list"],
            "use super::Fence; #[cfg(test)] use crate::serve::gzip;",
        ),
        (&["serve", "gzip"], "fn f(x: crate::serve::Fence) {}"),
        (&["store"], "// crate::serve\npub struct Store;"),
    ])
    .references();
    let to = |from: &str| {
        let from: ModulePath = from.split('/').map(str::to_owned).collect();
        references[&from].iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(to("serve"), ["store"]);
    assert_eq!(to("serve/fence"), ["serve/list"]);
    assert_eq!(to("serve/list"), ["serve/fence"]);
    assert_eq!(to("serve/gzip"), ["serve/fence"]);
    assert!(to("store").is_empty());
    let found = cycles(&references);
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].iter().map(name).collect::<Vec<_>>(),
        ["serve/fence", "serve/list"]
    );
}
