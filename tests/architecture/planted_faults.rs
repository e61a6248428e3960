//! Checks that the patches in `tests/mutants` name tests that exist.
use std::fs;
use std::path::{Path, PathBuf};

use crate::source::top;

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The folders with the crates whose tests the patches name.
const CRATES: &[&str] = &[
    "",
    "crates/interleavings",
    "crates/protocol",
    "crates/transcode",
];

/// Returns true if the arguments of `cargo test --workspace` name a target and the whole path of a
/// test in it.
fn names_a_test(arguments: &str) -> bool {
    let words: Vec<&str> = arguments.split_whitespace().collect();
    let (targets, path) = match words[..] {
        ["--lib", path] => (vec!["src/lib.rs".to_owned()], path),
        ["--test", target, path] => {
            let targets = [
                format!("tests/{target}.rs"),
                format!("tests/{target}/main.rs"),
            ];
            (targets.to_vec(), path)
        }
        _ => return false,
    };
    let mut roots = CRATES.iter().flat_map(|folder| {
        let folder = top().join(folder);
        targets.iter().map(move |target| folder.join(target))
    });
    roots.any(|root| root.exists() && has_test(&root, path))
}

/// Returns true if the crate with this root file has the test.
fn has_test(root: &Path, path: &str) -> bool {
    let mut text = read(root);
    let mut folder = root.parent().unwrap().to_owned();
    let (modules, test) = path.rsplit_once("::").unwrap_or(("", path));
    for module in modules.split("::").filter(|module| !module.is_empty()) {
        if text.contains(&format!("mod {module};")) {
            text = read(&folder.join(module).with_extension("rs"));
        } else if let Some((_, inside)) = text.split_once(&format!("mod {module} {{")) {
            text = inside.to_owned();
        } else {
            return false;
        }
        folder.push(module);
    }
    text.contains(&format!("fn {test}("))
}

fn patches() -> Vec<PathBuf> {
    let entries = fs::read_dir(top().join("tests/mutants")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|it| it == "patch"))
        .collect()
}

/// `tests/mutants/run.sh` looks for the failure of the test by its whole path.
#[test]
fn every_planted_fault_names_a_test_that_exists() {
    let patches = patches();
    assert!(patches.len() > 80, "{}", patches.len());
    let wrong = patches.iter().filter(|patch| {
        let text = read(patch);
        let mut tests = text
            .lines()
            .filter_map(|line| line.strip_prefix("Caught by: "));
        !tests.next().is_some_and(names_a_test)
    });
    let wrong: Vec<_> = wrong.map(|patch| patch.display()).collect();
    assert!(wrong.is_empty(), "no such test: {wrong:?}");
    for (arguments, is_known) in [
        (
            "--test architecture planted_faults::every_planted_fault_names_a_test_that_exists",
            true,
        ),
        ("--test proxy support::follower::never", false),
        ("--test proxy never::restarts", false),
        ("--test never restarts", false),
    ] {
        assert_eq!(names_a_test(arguments), is_known, "{arguments}");
    }
}
