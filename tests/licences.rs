//! Checks that `deny.toml` allows the licence of every dependency. It needs only cargo.
//!
//! cargo-deny checks more (advisories, bans, sources) and reads the same file, but has to be
//! installed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The licence rules of `deny.toml`.
#[derive(Debug, Default)]
struct Policy {
    /// The licences that are allowed for every crate.
    everywhere: BTreeSet<String>,
    /// The licences that are allowed for one crate: its name and the licence.
    exceptions: BTreeSet<(String, String)>,
}

impl Policy {
    /// Reads the `allow` and `exceptions` lists of the `[licenses]` table. This is no full TOML
    /// parser: it expects one entry a line, as a comment in the file asks for.
    fn parse(text: &str) -> Self {
        let mut policy = Self::default();
        let (mut table, mut list) = ("", "");
        for line in text
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with('#'))
        {
            if let Some(name) = line
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
            {
                (table, list) = (name, "");
            } else if let Some((key, "[")) = line.split_once(" = ") {
                list = key;
            } else if line == "]" {
                list = "";
            } else if table == "licenses" {
                let quoted: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
                match (list, &quoted[..]) {
                    ("allow", [licence]) => {
                        policy.everywhere.insert((*licence).to_owned());
                    }
                    ("exceptions", [licence, name]) if line.contains("crate = ") => {
                        policy
                            .exceptions
                            .insert(((*name).to_owned(), (*licence).to_owned()));
                    }
                    ("", _) => {}
                    _ => panic!("not understood in deny.toml: {line}"),
                }
            }
        }
        policy
    }

    fn allows(&self, name: &str, licence: &str) -> bool {
        // "This version or a later one" is satisfied by this version.
        let licence = licence.strip_suffix('+').unwrap_or(licence);
        self.everywhere.contains(licence)
            || self
                .exceptions
                .contains(&(name.to_owned(), licence.to_owned()))
    }

    /// Returns the reason why a crate is not allowed, if there is one.
    fn objection(&self, name: &str, expression: Option<&str>) -> Option<String> {
        let Some(expression) = expression else {
            return Some(format!("{name} states no licence"));
        };
        match evaluate(expression, |licence| self.allows(name, licence)) {
            Ok(true) => None,
            Ok(false) => Some(format!("{name}: {expression}")),
            Err(why) => Some(format!("{name}: {expression:?} is not understood: {why}")),
        }
    }
}

/// Returns `true` if an SPDX expression is satisfied. OR binds less than AND, and AND less than
/// WITH. The slash in old manifests means OR.
fn evaluate(expression: &str, allowed: impl Fn(&str) -> bool) -> Result<bool, String> {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut reader = Reader {
        words: &words,
        allowed,
    };
    let satisfied = reader.any_of()?;
    match reader.words {
        [] => Ok(satisfied),
        [word, ..] => Err(format!("{word} is too much")),
    }
}

/// Parses an SPDX expression from left to right.
struct Reader<'a, F> {
    words: &'a [&'a str],
    allowed: F,
}

impl<'a, F: Fn(&str) -> bool> Reader<'a, F> {
    fn any_of(&mut self) -> Result<bool, String> {
        let mut satisfied = self.all_of()?;
        while self.takes("OR") {
            satisfied |= self.all_of()?;
        }
        Ok(satisfied)
    }

    fn all_of(&mut self) -> Result<bool, String> {
        let mut satisfied = self.one()?;
        while self.takes("AND") {
            satisfied &= self.one()?;
        }
        Ok(satisfied)
    }

    fn one(&mut self) -> Result<bool, String> {
        if self.takes("(") {
            let satisfied = self.any_of()?;
            return if self.takes(")") {
                Ok(satisfied)
            } else {
                Err("a parenthesis is open".into())
            };
        }
        let licence = self.identifier()?;
        if self.takes("WITH") {
            let exception = self.identifier()?;
            return Ok((self.allowed)(&format!("{licence} WITH {exception}")));
        }
        Ok((self.allowed)(licence))
    }

    fn identifier(&mut self) -> Result<&'a str, String> {
        match self.words {
            [word, rest @ ..] if !["(", ")", "AND", "OR", "WITH"].contains(word) => {
                self.words = rest;
                Ok(word)
            }
            [word, ..] => Err(format!("{word} in the place of a licence")),
            [] => Err("it ends too early".into()),
        }
    }

    fn takes(&mut self, wanted: &str) -> bool {
        match self.words {
            [word, rest @ ..] if *word == wanted => {
                self.words = rest;
                true
            }
            _ => false,
        }
    }
}

fn policy() -> Policy {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deny.toml");
    Policy::parse(&fs::read_to_string(file).unwrap())
}

#[test]
fn every_dependency_has_an_allowed_licence() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(
        packages.len() > 100,
        "only {} packages: is this the whole tree?",
        packages.len()
    );
    let policy = policy();
    let objections: Vec<String> = packages
        .iter()
        .filter_map(|package| {
            policy.objection(
                package["name"].as_str().unwrap(),
                package["license"].as_str(),
            )
        })
        .collect();
    assert!(
        objections.is_empty(),
        "licences that deny.toml does not allow (docs/dependencies.md says what to do):\n{}",
        objections.join("\n")
    );
}

#[test]
fn a_disallowed_licence_is_detected() {
    let policy = policy();
    for (name, expression) in [
        ("planted", Some("GPL-3.0-only")),
        ("planted", Some("MIT AND GPL-3.0-only")),
        ("planted", Some("GPL-3.0-only OR AGPL-3.0-only")),
        ("planted", Some("(MIT OR Apache-2.0) AND GPL-3.0-only")),
        ("planted", Some("GPL-3.0-only WITH Classpath-exception-2.0")),
        // An exception allows a licence for the named crate only.
        ("planted", Some("MPL-2.0+")),
        ("planted", Some("")),
        ("planted", Some("MIT OR")),
        ("planted", Some("(MIT")),
        ("planted", None),
    ] {
        assert!(
            policy.objection(name, expression).is_some(),
            "{name} {expression:?}"
        );
    }
    for (name, expression) in [
        ("good", "MIT"),
        ("good", "MIT/Apache-2.0"),
        ("good", "GPL-3.0-only OR MIT"),
        ("good", "GPL-3.0-only AND ISC OR MIT"),
        ("good", "MIT OR ISC AND GPL-3.0-only"),
        ("good", "Apache-2.0 WITH LLVM-exception"),
        ("good", "(GPL-3.0-only OR MIT) AND (Apache-2.0 OR ISC)"),
        ("imbl", "MPL-2.0+"),
    ] {
        assert_eq!(policy.objection(name, Some(expression)), None);
    }
}

#[test]
fn only_the_licence_lists_of_deny_toml_are_read() {
    let text = r#"[bans]
deny = [
    { crate = "GPL-3.0-only" },
]
[licenses]
# "GPL-3.0-only"
allow = [
    "MIT",
]
exceptions = [
    { allow = ["ISC"], crate = "a" },
]
x = 1
[sources]
"#;
    let policy = Policy::parse(text);
    assert_eq!(policy.everywhere.iter().collect::<Vec<_>>(), ["MIT"]);
    assert!(policy.allows("a", "ISC") && !policy.allows("b", "ISC"));
}
