//! Checks the documents against the repository: links lead somewhere, named tests exist, flags in
//! manifests are flags.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use watershed::cli::{self, Cli, reference};
use watershed::serve::{AnswerSource, ForwardReason};

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = top().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Collects the files below a folder with one of these endings, except built and hidden ones.
fn files(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" {
                files(&path, endings, found);
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path);
        }
    }
}

fn all(folder: &str, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(&top().join(folder), endings, &mut found);
    found
}

/// Returns the targets of `[text](target)`, without other sites' URLs.
fn links(text: &str) -> Vec<&str> {
    let targets = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://")).collect()
}

/// Returns the texts `between backticks`, outside of blocks.
fn code(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Returns the commands in blocks of code, as words, without pipes and redirections.
fn commands(text: &str) -> Vec<Vec<String>> {
    let blocks = text
        .split("```")
        .skip(1)
        .step_by(2)
        .filter_map(|block| block.split_once('\n'));
    let lines = blocks.flat_map(|(_, block)| {
        block
            .replace("\\\n", " ")
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    let mut found = Vec::new();
    for line in lines {
        let line = line.split(" #").next().unwrap_or_default();
        for command in line.split(['|', ';', '&', '>']) {
            let words = command.split_whitespace().skip_while(|word| {
                *word == "$" || *word == "do" || (word.contains('=') && !word.starts_with('-'))
            });
            let words = words.filter(|word| *word != "…").map(|word| {
                // A variable may stand for a number.
                if word.starts_with('$') {
                    "1".to_owned()
                } else {
                    word.replace(['"', '\''], "")
                }
            });
            found.push(words.collect());
        }
    }
    found
}

/// Returns the anchors that GitHub and mdBook give the headings of a document.
fn anchors(text: &str) -> Vec<String> {
    let mut in_code = false;
    let mut found: Vec<String> = Vec::new();
    for line in text.lines() {
        in_code ^= line.starts_with("```");
        let heading = line.trim_start_matches('#');
        if in_code || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().chars().filter_map(|c| match c {
            ' ' => Some('-'),
            '-' | '_' => Some(c),
            _ => c.is_alphanumeric().then(|| c.to_ascii_lowercase()),
        });
        let anchor: String = kept.collect();
        let before = found.iter().filter(|known| **known == anchor).count();
        found.push(anchor.clone());
        if before > 0 {
            found.push(format!("{anchor}-{before}"));
        }
    }
    found
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut broken = Vec::new();
    for document in all("", &[".md"]) {
        let text = fs::read_to_string(&document).unwrap();
        for target in links(&text) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() {
                document.clone()
            } else {
                document.parent().unwrap().join(path)
            };
            let known = file.exists()
                && (anchor.is_empty()
                    || anchors(&fs::read_to_string(&file).unwrap()).contains(&anchor.to_owned()));
            if !known {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Returns the names of Rust sources `between backticks` that are neither paths from the top nor
/// from `src/`.
fn absent_sources(text: &str) -> Vec<&str> {
    let is_source = |name: &&str| {
        name.contains('/') && Path::new(name).extension().is_some_and(|it| it == "rs")
    };
    let is_absent =
        |name: &&str| !top().join(name).exists() && !top().join("src").join(name).exists();
    code(text)
        .into_iter()
        .filter(is_source)
        .filter(is_absent)
        .collect()
}

#[test]
fn sources_that_the_architecture_names_exist() {
    let text = read("docs/architecture.md");
    assert_eq!(absent_sources(&text), [""; 0]);
}

/// Returns the numbers of the lines of prose that are wider than 120 columns. Rows of tables,
/// blocks of code, and lines that one long link or name fills may be wider.
fn wide_lines(text: &str) -> Vec<usize> {
    let mut in_code = false;
    let mut wide = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        in_code ^= line.trim_start().starts_with("```");
        let is_one_word = !line.trim_start_matches(['-', ' ']).trim().contains(' ');
        if line.chars().count() > 120
            && !in_code
            && !line.trim_start().starts_with('|')
            && !is_one_word
        {
            wide.push(number);
        }
    }
    wide
}

#[test]
fn prose_is_at_most_120_columns_wide() {
    let mut wide = Vec::new();
    for document in all("", &[".md"]) {
        let text = fs::read_to_string(&document).unwrap();
        wide.extend(
            wide_lines(&text)
                .iter()
                .map(|line| format!("{}:{line}", document.display())),
        );
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

/// Returns the numbers of lines with a fence or a table's rule that is no line of its own.
fn broken_blocks(text: &str) -> Vec<usize> {
    let is_broken = |line: &str| {
        let is_fence = line.starts_with("```") && !line[3..].contains([' ', '`']);
        let is_rule = line.chars().all(|character| "|-: ".contains(character));
        line.contains("```") && !is_fence || line.contains("|---|") && !is_rule
    };
    let lines = text.lines().zip(1..);
    let broken = lines.filter(|(line, _)| is_broken(line.trim_start()));
    broken.map(|(_, number)| number).collect()
}

#[test]
fn fences_and_rules_of_tables_have_lines_of_their_own() {
    let mut broken = Vec::new();
    for document in all("", &[".md"]) {
        let text = fs::read_to_string(&document).unwrap();
        let lines = broken_blocks(&text).into_iter();
        broken.extend(lines.map(|line| format!("{}:{line}", document.display())));
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    let planted = "  ```sh\n  a\n  ```\n| a |\n|---|---|\n``` a\nb ```\n| a | |---|---|\n";
    assert_eq!(broken_blocks(planted), [6, 7, 8]);
}

#[test]
fn the_readme_has_at_most_1000_words() {
    let words = read("README.md").split_whitespace().count();
    assert!(words <= 1000, "{words}");
}

/// The book has every page below docs/.
#[test]
fn the_book_lists_every_page() {
    let summary = read("docs/SUMMARY.md");
    let listed: BTreeSet<_> = links(&summary)
        .into_iter()
        .filter(|page| !page.starts_with("../"))
        .map(str::to_owned)
        .collect();
    let docs = top().join("docs");
    let pages: BTreeSet<_> = all("docs", &[".md"])
        .into_iter()
        .map(|page| page.strip_prefix(&docs).unwrap().display().to_string())
        .filter(|page| page != "SUMMARY.md")
        .collect();
    assert_eq!(listed, pages);
}

#[test]
fn every_guarantee_names_tests_that_exist() {
    let functions: BTreeSet<String> = ["src", "tests", "crates"]
        .into_iter()
        .flat_map(|folder| all(folder, &[".rs", "_test.go"]))
        .flat_map(|file| {
            let text = fs::read_to_string(file).unwrap();
            let names = text
                .split(['\n', ' '])
                .filter_map(|word| Some(word.split_once('(')?.0.to_owned()));
            names.collect::<Vec<_>>()
        })
        .collect();
    let is_name = |word: &&str| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let rust = word.contains('_') && word.chars().all(plain) && !word.starts_with("watershed_");
        let go = word.starts_with("Test")
            && word.len() > 4
            && word
                .chars()
                .all(|c| c.is_alphanumeric() || "_/".contains(c));
        rust || go
    };
    for (document, least) in [("docs/guarantee-tests.md", 40), ("docs/faults.md", 20)] {
        let text = read(document);
        let named: Vec<&str> = code(&text).into_iter().filter(is_name).collect();
        let count = named.len();
        assert!(count > least, "{document} names only {count} tests");
        let absent: Vec<_> = named
            .into_iter()
            .filter(|name| !functions.contains(name.split('/').next().unwrap()))
            .collect();
        assert!(
            absent.is_empty(),
            "{document} names tests that do not exist: {absent:?}"
        );
    }
}

/// Returns the headings of a page's sections.
fn sections(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("## "))
        .collect()
}

/// A reader of a guarantee finds its tests under the same heading.
#[test]
fn guarantees_and_their_tests_have_the_same_sections() {
    let (guarantees, tests) = (read("docs/guarantees.md"), read("docs/guarantee-tests.md"));
    assert_eq!(sections(&guarantees), sections(&tests));
}

/// Returns the cells of the rows of tables, without those of headings' lines.
fn rows(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().filter(|line| line.starts_with("| "));
    rows.map(|row| {
        let cells = row.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    })
    .collect()
}

/// Returns the tests in a table of guarantees, files and tests that the file of their row lacks.
fn absent_tests(table: &str, read: impl Fn(&str) -> String) -> Vec<String> {
    let mut absent = Vec::new();
    for row in rows(table) {
        let [_, file, tests] = &row[..] else {
            continue;
        };
        let Some(file) = code(file).first().copied() else {
            continue;
        };
        let text = read(file);
        let missing = code(tests).into_iter().filter(|test| {
            let function = test.split('/').next().unwrap();
            !text.contains(&format!("fn {function}("))
                && !text.contains(&format!("func {function}("))
        });
        absent.extend(missing.map(|test| format!("{test} in {file}")));
    }
    absent
}

/// Each row of the table names a file, and tests that are in it.
#[test]
fn every_file_in_the_table_of_guarantees_has_the_tests() {
    let table = read("docs/guarantee-tests.md");
    let checked = rows(&table)
        .iter()
        .filter(|row| row.len() == 3 && row[1].starts_with('`'))
        .count();
    assert!(checked > 100, "only {checked} rows are read");
    let absent = absent_tests(&table, |path| {
        if !top().join(path).is_dir() {
            return read(path);
        }
        all(path, &[".rs", ".go"]).iter().map(read).collect()
    });
    assert!(absent.is_empty(), "not there:\n{}", absent.join("\n"));
}

/// Each fault in the table has a test, and each test's file has it.
#[test]
fn every_fault_names_tests_that_exist() {
    let text = read("docs/faults.md");
    let (faults, tests) = text.split_once("## Shown by").unwrap();
    let tests = rows(tests);
    let mut shown = BTreeSet::new();
    for row in tests.iter().filter(|row| row[1].starts_with('`')) {
        let [name, file] = [1, 2].map(|cell| row[cell].trim_matches('`'));
        assert!(read(file).contains(&format!("{name}(")), "{name} in {file}");
        shown.extend(row[0].split(", "));
    }
    let numbers: Vec<_> = rows(faults)
        .into_iter()
        .map(|row| row[0].clone())
        .filter(|number| number.parse::<u32>().is_ok())
        .collect();
    assert!(numbers.len() > 10, "{numbers:?}");
    for number in &numbers {
        assert!(
            shown.contains(number.as_str()),
            "no test shows fault {number}"
        );
    }
}

#[test]
fn manifests_use_flags_that_exist() {
    let configuration = read("docs/configuration.md");
    for manifest in [
        "deploy/base/deployment.yaml",
        "deploy/daemonset/daemonset.yaml",
        "deploy/sidecar/sidecar.yaml",
        "helm/watershed/templates/_helpers.tpl",
    ] {
        let text = read(manifest);
        let flags = text.lines().filter_map(|line| {
            let flag = line
                .split_once("- --")
                .or_else(|| line.split_once("\"--"))?
                .1;
            flag.split(['=', '"']).next()
        });
        let flags: Vec<&str> = flags.collect();
        assert!(flags.len() >= 5, "{manifest}: {flags:?}");
        for flag in flags {
            let known = ["`", " "]
                .iter()
                .any(|rest| configuration.contains(&format!("| `--{flag}{rest}")));
            assert!(known, "{manifest}: --{flag} is not a flag");
        }
    }
}

/// Returns the versions that a changelog has sections for.
fn released(changelog: &str) -> Vec<&str> {
    let heads = changelog
        .lines()
        .filter_map(|line| line.strip_prefix("## ["));
    let versions = heads.filter_map(|rest| Some(rest.split_once(']')?.0));
    versions
        .filter(|version| *version != "Unreleased")
        .collect()
}

/// Returns `true` if a changelog has changes that no release has.
fn has_unreleased_changes(changelog: &str) -> bool {
    let behind = changelog
        .split("## [Unreleased]")
        .nth(1)
        .unwrap_or_default();
    behind
        .split("\n## ")
        .next()
        .unwrap_or_default()
        .contains("### ")
}

#[test]
fn sources_are_not_taken_for_a_release() {
    let (version, changelog) = (env!("CARGO_PKG_VERSION"), read("CHANGELOG.md"));
    let is_released = released(&changelog).contains(&version);
    assert!(
        !is_released || !has_unreleased_changes(&changelog),
        "{version} was released, and changes followed: see docs/releases.md"
    );
    let chart = read("helm/watershed/Chart.yaml");
    for field in ["version", "appVersion"] {
        let line = format!("\n{field}: {version}\n");
        assert!(chart.contains(&line), "the chart's {field} is another one");
    }
    for manifest in all("deploy", &[".yaml"]) {
        let images = read(&manifest);
        let mut images = images.split("image: watershed:").skip(1);
        assert!(
            images.all(|image| image.lines().next() == Some(version)),
            "{} has an image of another version",
            manifest.display()
        );
    }
}

/// Commands in documents parse, so that readers can copy them.
#[test]
fn commands_in_documents_are_understood() {
    let makefile = read("Makefile");
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for document in all("", &[".md"]) {
        for words in commands(&fs::read_to_string(&document).unwrap()) {
            let complaint = match words.first().map(String::as_str) {
                Some(program) if program == "watershed" || program.ends_with("/watershed") => {
                    Cli::try_parse_from(&words)
                        .err()
                        .filter(clap::Error::use_stderr)
                        .map(|e| e.to_string())
                }
                Some("make") => {
                    let targets = words[1..].iter().take_while(|word| !word.contains('='));
                    let mut unknown =
                        targets.filter(|target| !makefile.contains(&format!("\n{target}:")));
                    unknown.next().map(|target| format!("no target {target}"))
                }
                _ => continue,
            };
            checked += 1;
            if let Some(complaint) = complaint {
                wrong.push(format!(
                    "{}: {}: {complaint}",
                    document.display(),
                    words.join(" ")
                ));
            }
        }
    }
    assert!(checked > 20, "{checked}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The generated documents are up to date. `make documents` sets the variable and writes them.
#[test]
fn the_reference_is_what_the_code_makes() {
    let write = std::env::var_os("WATERSHED_WRITE_DOCUMENTS").is_some();
    for (path, made) in [
        ("docs/configuration.md", reference::configuration()),
        ("docs/config.schema.json", cli::config_schema()),
    ] {
        if write {
            fs::write(top().join(path), &made).unwrap();
        }
        assert!(
            read(path) == made,
            "{path} is out of date: run `make documents`"
        );
    }
}

/// The page about reads names every source of answers, and every reason for forwarding.
#[test]
fn every_source_and_reason_is_explained() {
    let text = read("docs/reads.md");
    let named = code(&text);
    let names = AnswerSource::NAMES.iter().chain(ForwardReason::NAMES);
    let absent: Vec<_> = names
        .filter(|name| **name != "forward" && !named.contains(name))
        .collect();
    assert!(absent.is_empty(), "docs/reads.md lacks {absent:?}");
}

/// The reference lists flags, keys and metrics.
#[test]
fn the_reference_has_everything() {
    let text = read("docs/configuration.md");
    for name in [
        "--kubeconfig FILE",
        "--client-ca-file FILE`",
        "--drain-seconds",
        "--watches N",
        "--for DURATION",
        "--nodes",
        "scopes[].fieldSelector",
        "resources[].cache",
        "WATERSHED_LOG_LEVEL",
        "watershed_requests_total",
        "process_open_fds",
    ] {
        assert!(text.contains(name), "{name}");
    }
    // Every metric that the code names.
    let mut names = BTreeSet::new();
    for file in all("src", &[".rs"]) {
        let source = fs::read_to_string(&file).unwrap();
        for (line, text) in source.lines().enumerate() {
            if let Some((_, rest)) = text.split_once("\"watershed_")
                && rest.trim_end().ends_with("\",")
            {
                let name = rest.split('"').next().unwrap();
                names.insert((
                    format!("watershed_{name}"),
                    format!("{}:{}", file.display(), line + 1),
                ));
            }
        }
    }
    assert!(names.len() > 25, "{names:?}");
    for (name, place) in names {
        assert!(
            text.contains(&format!("| `{name}` | ")),
            "{name} ({place}) is not described"
        );
    }
}

#[test]
fn the_checks_see_what_they_look_for() {
    let changelog = "# Changelog\n## [Unreleased]\n### Added\n## [0.2.0] - 2026-11-23\n### Fixed\n";
    assert_eq!(released(changelog), ["0.2.0"]);
    assert!(has_unreleased_changes(changelog));
    assert!(!has_unreleased_changes(
        &changelog.replace("### Added\n", "")
    ));
    assert_eq!(
        links("[a](b.md#c) and [d](https://e) ![f](g.svg) [h](#i)"),
        ["b.md#c", "g.svg", "#i"]
    );
    assert_eq!(
        anchors("# A `b`: c, d\n```\n# e\n```\n## f_g\n## f_g\n#h"),
        ["a-b-c-d", "f_g", "f_g", "f_g-1"]
    );
    assert_eq!(sections("# a\n## b\n### c\n## d `e`"), ["b", "d `e`"]);
    let wide = "w ".repeat(61);
    let text = format!(
        "{wide}\n| {wide} |\n```\n{wide}\n```\n{}\n{wide}",
        "x".repeat(130)
    );
    assert_eq!(wide_lines(&text), [1, 7]);
    assert_eq!(code("x `y` and `z w`."), ["y", "z w"]);
    let named = "`src/lib.rs`, `serve/plan.rs`, `x.rs`, `serve/never.rs`";
    assert_eq!(absent_sources(named), ["serve/never.rs"]);
    let table = "| a | `f` | `t`, `u` |\n|  | `g` | `Test/x` |\n";
    let absent = absent_tests(table, |file| match file {
        "f" => "fn t() {".to_owned(),
        _ => "func Testing(".to_owned(),
    });
    assert_eq!(absent, ["u in f", "Test/x in g"]);
    let text =
        "watershed a\n```sh\nA=1 watershed b \\\n  --c 'd' > e & # f\nmake g | h\n```\nmake i";
    let words = commands(text);
    assert!(
        words.contains(&["watershed", "b", "--c", "d"].map(str::to_owned).to_vec()),
        "{words:?}"
    );
    assert!(
        words.contains(&["make", "g"].map(str::to_owned).to_vec()),
        "{words:?}"
    );
    assert!(
        !words.concat().contains(&"i".to_owned()) && !words.concat().contains(&"a".to_owned()),
        "{words:?}"
    );
}
