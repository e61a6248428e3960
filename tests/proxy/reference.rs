//! Output generated from the program's definition: completions, manual pages, the schema and the
//! document of the metrics.
use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use tokio::process::Command;
use watershed::app;
use watershed::cli;
use watershed_lab::sim::SimulatedServer;

use crate::support::client::{Protocol, within};
use crate::support::program::Program;
use crate::support::small;

fn watershed(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_watershed"));
    command
        .args(line.split_whitespace())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

async fn printed(line: &str) -> String {
    let output = within(line, watershed(line).output()).await.unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{line}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn shells_complete_commands_and_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let script = printed(&format!("completion {shell}")).await;
        assert!(
            script.contains("admin-listen") && script.contains("simulate"),
            "{shell}"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("watershed.bash");
    std::fs::write(&script, printed("completion bash").await).unwrap();
    let bash = async |arguments: &[&str]| {
        let output = Command::new("bash")
            .args(arguments)
            .arg(&script)
            .kill_on_drop(true)
            .output();
        within("bash", output).await.unwrap()
    };
    assert!(bash(&["-n"]).await.status.success());
    let ask = "source \"$0\"; COMP_WORDS=(watershed serve --admin-); COMP_CWORD=2; \
               _watershed watershed --admin- serve; echo ${COMPREPLY[@]}";
    let output = bash(&["--norc", "-c", ask]).await;
    let completed = String::from_utf8(output.stdout).unwrap();
    let completed: BTreeSet<_> = completed.split_whitespace().collect();
    let flags = BTreeSet::from([
        "--admin-listen",
        "--admin-tls-cert",
        "--admin-tls-key",
        "--admin-token-file",
    ]);
    assert!(
        completed.is_superset(&flags),
        "{completed:?} {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test]
async fn there_is_a_manual_page_for_each_command() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("pages");
    assert_eq!(printed(&format!("man {}", pages.display())).await, "");
    for (page, words) in [
        ("watershed.1", vec!["completion", "serve"]),
        (
            "watershed-serve.1",
            vec![r"\-\-authorization\-webhook\-cache\-authorized\-ttl"],
        ),
        ("watershed-check.1", vec![r"\-\-output"]),
        ("watershed-config-schema.1", vec![]),
    ] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".TH "), "{page}: {text}");
        for word in words {
            assert!(text.contains(word), "{page}: {word}");
        }
    }
    let beside = folder.path().join("file");
    std::fs::write(&beside, "").unwrap();
    let output = within(
        "man",
        watershed(&format!("man {}", beside.display())).output(),
    )
    .await
    .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && told.contains("DIR") && told.lines().count() == 1,
        "{told}"
    );
}

#[tokio::test]
async fn the_schema_of_the_configuration_is_printed() {
    assert_eq!(printed("config-schema").await, cli::config_schema());
}

#[tokio::test]
async fn help_has_examples_and_headings() {
    let help = printed("--help").await;
    for word in [
        "Examples:",
        "watershed check",
        "Commands:",
        "docs/configuration.md",
    ] {
        assert!(help.contains(word), "{word}: {help}");
    }
    let help = printed("serve -h").await;
    let headings = [
        "Cache:",
        "API server:",
        "Client listener:",
        "Callers:",
        "Limits:",
        "Admin listener:",
        "Logs:",
    ];
    for heading in headings {
        assert!(
            help.contains(&format!("\n{heading}\n")),
            "{heading}: {help}"
        );
    }
}

/// Returns name and labels of each series of an exposition.
fn series(exposition: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in exposition
        .lines()
        .filter(|line| line.starts_with("watershed_") || line.starts_with("process_"))
    {
        let name = line.split(['{', ' ']).next().unwrap();
        let parts = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|part| name.strip_suffix(part));
        let labels = line
            .split_once('{')
            .map_or("", |(_, rest)| rest.rsplit_once('}').unwrap().0);
        // No label's value contains this separator here.
        let names = labels
            .split("\",")
            .filter_map(|label| Some(label.split_once("=\"")?.0.to_owned()));
        let names = names.filter(|label| label != "le" && label != "quantile");
        let histogram = parts.filter(|name| name.ends_with("_seconds"));
        found
            .entry(histogram.unwrap_or(name).to_owned())
            .or_default()
            .extend(names);
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_have_the_documented_labels() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let program = Program::start(&upstream).await;
    for path in [
        "/api/v1/pods?resourceVersion=0",
        "/api/v1/pods",
        "/api/v1/pods?watch=1&resourceVersion=0&timeoutSeconds=1",
        "/api/v1/pods/nobody",
        "/nowhere",
    ] {
        program.proxied.get(Protocol::Http2, path).await;
    }
    let shown = series(&program.admin("GET", "/metrics").await);
    let described: BTreeMap<_, _> = app::metrics()
        .into_iter()
        .map(|metric| (metric.name.to_owned(), metric))
        .collect();
    assert!(shown.len() > 25, "{shown:?}");
    for (name, labels) in &shown {
        let metric = described
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not described"));
        let said: BTreeSet<_> = metric
            .labels
            .iter()
            .map(|&label| label.to_owned())
            .collect();
        assert_eq!(*labels, said, "{name}");
    }
    for name in [
        "watershed_requests_total",
        "watershed_scope_objects",
        "watershed_consistent_reads_total",
        "watershed_watch_events_total",
        "watershed_access_reviews_total",
    ] {
        assert!(
            shown.contains_key(name),
            "{name} was not shown: {:?}",
            shown.keys()
        );
    }
    program.terminate().await;
    upstream.shutdown().await;
}
