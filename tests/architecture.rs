//! Holds the one-way arrows between the rooms that `src/lib.rs` draws.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which rooms each room may use. `app` and `cli` may use all.
const MAY_USE: &[(&str, &[&str])] = &[
    ("kube", &[]),
    ("http", &[]),
    ("upstream", &["kube", "http"]),
    ("store", &["kube"]),
    ("watch", &["kube", "store"]),
    ("scope", &["kube", "store", "upstream", "watch"]),
    ("catalog", &["kube", "store", "upstream", "scope", "http"]),
    ("access", &["kube", "store", "upstream", "scope", "http"]),
    ("audit", &["kube", "access", "http"]),
    (
        "serve",
        &[
            "kube", "store", "watch", "scope", "catalog", "access", "audit", "upstream", "http",
        ],
    ),
    (
        "admin",
        &[
            "kube", "store", "scope", "catalog", "http", "upstream", "serve", "figures",
        ],
    ),
    (
        "telemetry",
        &[
            "http", "access", "upstream", "scope", "serve", "admin", "audit",
        ],
    ),
    ("sim", &["kube"]),
    ("figures", &[]),
    ("demo", &["sim", "figures"]),
    ("load", &["kube", "upstream", "figures"]),
];

/// Crates that a pure room must not know.
const PURE: &[(&str, &[&str])] = &[
    ("kube", &["tokio", "hyper", "parking_lot", "metrics"]),
    ("store", &["tokio", "hyper", "metrics"]),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn room(path: &Path, src: &Path) -> String {
    let first = path.strip_prefix(src).unwrap().components().next().unwrap();
    first
        .as_os_str()
        .to_str()
        .unwrap()
        .trim_end_matches(".rs")
        .to_owned()
}

/// Every `crate::X` in code, comments and doc links left out.
fn uses(text: &str, prefix: &str) -> BTreeSet<String> {
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let mut found = BTreeSet::new();
    for line in code {
        for (at, _) in line.match_indices(prefix) {
            let before = line[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let rest = &line[at + prefix.len()..];
            let name: String = rest
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            if name.chars().next().is_some_and(char::is_lowercase) {
                found.insert(name);
            }
            if let Some(list) = rest
                .strip_prefix('{')
                .and_then(|rest| rest.split('}').next())
            {
                let names = list
                    .split(',')
                    .map(|item| item.trim().split("::").next().unwrap_or(""));
                found.extend(names.filter(|name| !name.is_empty()).map(str::to_owned));
            }
        }
    }
    found
}

#[test]
fn arrows_between_rooms_go_one_way() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let allowed: BTreeMap<_, _> = MAY_USE.iter().copied().collect();
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let room = room(&file, &src);
        let Some(allowed) = allowed.get(room.as_str()) else {
            assert!(
                ["lib", "main", "app", "cli"].contains(&room.as_str()),
                "room {room} is not in the map"
            );
            continue;
        };
        let text = fs::read_to_string(&file).unwrap();
        // What tests use is not the room's dependency.
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        if file.ends_with("tests.rs") {
            continue;
        }
        for used in uses(text, "crate::") {
            if used != room && !allowed.contains(&used.as_str()) {
                wrong.push(format!("{}: {room} uses {used}", file.display()));
            }
        }
        for (_, banned) in PURE.iter().filter(|(pure, _)| *pure == room) {
            for name in banned
                .iter()
                .filter(|name| text.contains(&format!("{name}::")))
            {
                wrong.push(format!(
                    "{}: {room} is pure but uses {name}",
                    file.display()
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "arrows that the map does not have:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn the_check_sees_a_wrong_arrow() {
    let found = uses(
        "use crate::{store, watch::View};\n// crate::demo\nlet x = crate::serve::y();\n",
        "crate::",
    );
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        ["serve", "store", "watch"]
    );
}
