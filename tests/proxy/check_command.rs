//! `watershed check` finds each error, and finds none in a valid configuration.
use serde_json::Value;
use watershed_lab::sim::{AccessRule, PlannedRefusal, SimulatedServer};

use crate::mistakes::Bench;
use crate::support::small;

const CHECK: &str =
    "check --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --kubeconfig good.kubeconfig";

/// Returns the findings of a level as lines of `level subject message`.
fn lines_of<'a>(out: &'a str, level: &str) -> Vec<&'a str> {
    out.lines()
        .filter(|line| line.split_whitespace().next() == Some(level))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_valid_configuration_has_no_errors() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let bench = Bench::new(&upstream);
    let flags = "--tls-cert good.crt --tls-key good.key --client-ca-file good.crt \
                 --audit-log-path audit.log";
    bench.write(
        "no-pods.yaml",
        "resources:\n- resource: pods\n  cache: never\n",
    );
    let before = std::fs::read_dir(bench.path()).unwrap().count();
    let (code, out, told) = bench.run(&format!("{CHECK} {flags}")).await;
    assert_eq!((code, told.as_str()), (0, ""), "{out}");
    assert_eq!(lines_of(&out, "ok").len(), out.lines().count(), "{out}");
    for word in [
        "--listen",
        "--tls-cert",
        "for localhost",
        "--client-ca-file",
        "answers: v1.",
        "as admin",
        "everything",
        "audit",
    ] {
        assert!(out.contains(word), "{word:?} is not in {out}");
    }
    let both = "--client-ca-file good.crt --requestheader-client-ca-file good.crt";
    let (_, out, _) = bench.run(&format!("{CHECK} {both}")).await;
    let warnings = lines_of(&out, "warning");
    assert!(
        warnings[0].contains("--requestheader-allowed-names"),
        "{out}"
    );
    let named = format!("{both} --requestheader-allowed-names front");
    let (_, out, _) = bench.run(&format!("{CHECK} {named}")).await;
    assert!(lines_of(&out, "warning").is_empty(), "{out}");
    let (code, out, _) = bench.run(&format!("{CHECK} --memory-limit 20Mi")).await;
    let warned = lines_of(&out, "warning").join("\n");
    assert!(code == 0 && warned.contains("--memory-limit"), "{out}");
    let (code, out, _) = bench.run(&format!("{CHECK} --memory-limit 512")).await;
    let errors = lines_of(&out, "error").join("\n");
    assert!(code != 0 && errors.contains("512Mi"), "{out}");
    let follow = "--node-grants follow-pods --config no-pods.yaml";
    let (code, out, _) = bench.run(&format!("{CHECK} {named} {follow}")).await;
    let warned = lines_of(&out, "warning").join("\n");
    assert!(code == 0 && warned.contains("follow-pods"), "{out}");
    // The check created no file.
    assert_eq!(std::fs::read_dir(bench.path()).unwrap().count(), before);
    let (code, out, _) = bench.run(CHECK).await;
    assert!(
        code == 0 && out.contains("will be made in watershed-certs"),
        "{out}"
    );
    assert_eq!(std::fs::read_dir(bench.path()).unwrap().count(), before);
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_configuration_error_is_one_line_that_names_its_setting() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let bench = Bench::new(&upstream);
    let cases = [
        (
            "--tls-cert good.crt --tls-key expired.key --client-ca-file garbage.pem",
            1,
            vec![
                (
                    "error",
                    "certificate",
                    "--tls-key: the private key in expired.key is not that of the \
                     certificate in good.crt",
                ),
                (
                    "error",
                    "callers",
                    "--client-ca-file: garbage.pem holds no usable PEM certificate",
                ),
            ],
        ),
        (
            "--tls-cert expired.crt --tls-key expired.key",
            1,
            vec![(
                "error",
                "certificate",
                "expired.crt (--tls-cert), for localhost: it expired at 2001-01-01",
            )],
        ),
        (
            "--client-ca-file expired.crt",
            1,
            vec![("error", "callers", "(--client-ca-file): it expired")],
        ),
        (
            "--requestheader-client-ca-file good.crt --requestheader-extra-headers-prefix=",
            1,
            vec![(
                "error",
                "configuration",
                "--requestheader-extra-headers-prefix has an empty value",
            )],
        ),
        (
            "--server http://192.0.2.1:8080",
            1,
            vec![("error", "credentials", "give --allow-insecure-upstream")],
        ),
        (
            "--strict-transport-security-directives always",
            1,
            vec![("error", "configuration", "\"always\" is no directive")],
        ),
        (
            "--cert-dir good.crt/x",
            1,
            vec![("error", "certificate", "--cert-dir")],
        ),
        (
            "--checkpoint-dir good.crt/x",
            1,
            vec![("error", "checkpoints", "--checkpoint-dir")],
        ),
        (
            "--admin-tls-cert good.crt --admin-tls-key expired.key --admin-token-file nowhere",
            1,
            vec![
                ("error", "admin", "--admin-tls-key: the private key"),
                ("error", "admin", "--admin-token-file: cannot read nowhere"),
            ],
        ),
        (
            "--audit-log-path - --audit-policy-file garbage.pem",
            1,
            vec![("error", "audit", "--audit-policy-file")],
        ),
        (
            "--config misspelt.yaml",
            1,
            vec![("error", "configuration", "unknown field `consistentRead`")],
        ),
        (
            "--config uncached.yaml",
            0,
            vec![(
                "warning",
                "configuration",
                "secrets has settings, but is not cached",
            )],
        ),
        (
            "--context other",
            1,
            vec![("error", "credentials", "--context")],
        ),
        (
            "--server https://127.0.0.1:1",
            1,
            vec![(
                "error",
                "upstream",
                "no answer from https://127.0.0.1:1 (--server)",
            )],
        ),
        (
            "--server ftp://a",
            1,
            vec![("error", "upstream", "--server")],
        ),
        (
            "--config odd.yaml",
            0,
            vec![(
                "warning",
                "types",
                "upstream has no pod in the core group (resources and scopes in --config)",
            )],
        ),
    ];
    bench.write("odd.yaml", "resources:\n- resource: pod\n  cache: false\n");
    for (flags, exit, wrong) in cases {
        let (code, out, told) = bench.run(&format!("{CHECK} {flags}")).await;
        assert_eq!((code, told.as_str()), (exit, ""), "{flags}: {out}");
        let found: Vec<_> = out
            .lines()
            .filter(|line| !line.starts_with("ok "))
            .collect();
        assert_eq!(found.len(), wrong.len(), "{flags}: {out}");
        for (line, (level, subject, words)) in found.iter().zip(wrong) {
            let mut columns = line.split_whitespace();
            assert_eq!(
                (columns.next(), columns.next()),
                (Some(level), Some(subject)),
                "{line}"
            );
            assert!(line.contains(words), "{words:?} is not in {line}");
        }
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let (code, out, _) = bench.run(&CHECK.replace("127.0.0.1:0", &address)).await;
    let wrong = lines_of(&out, "error").join("\n");
    assert!(
        code == 1 && wrong.contains("give one of them another port"),
        "{out}"
    );
    // Errors on the command line are reported as by `watershed serve`.
    let (code, out, told) = bench.run("check --tls-crt a").await;
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(
        told.contains("--tls-cert") && told.lines().count() == 1,
        "{told}"
    );
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_rights_are_listed_with_their_consequences() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let bench = Bench::new(&upstream);
    let access = upstream.access();
    access.add_user("proxy", "proxy", &[]);
    bench.write(
        "good.kubeconfig",
        &upstream
            .kubeconfig_yaml()
            .replace(upstream.admin_token(), "proxy"),
    );
    let run = async |flags: &str| {
        let (code, out, told) = bench.run(&format!("{CHECK} {flags}")).await;
        assert_eq!(told, "", "{out}");
        (code, out)
    };
    let (code, out) = run("").await;
    assert_eq!(code, 1, "{out}");
    let errors = lines_of(&out, "error").join("\n");
    for words in [
        "tokenreviews",
        "subjectaccessreviews",
        "system:auth-delegator",
        "may list and watch nothing",
    ] {
        assert!(errors.contains(words), "{words:?} is not in {errors}");
    }
    // The rights to review and to read two types suffice for a start.
    access.allow(AccessRule::new(
        "proxy",
        &["create"],
        &[
            "tokenreviews.authentication.k8s.io",
            "subjectaccessreviews.authorization.k8s.io",
        ],
    ));
    access.allow(AccessRule::read("proxy", &["pods", "nodes"]));
    access.allow(AccessRule::new("proxy", &["list"], &["services"]));
    let (code, out) = run("").await;
    assert_eq!((code, lines_of(&out, "error").len()), (0, 0), "{out}");
    let warnings = lines_of(&out, "warning").join("\n");
    for words in [
        "services",
        "clusterroles.rbac.authorization.k8s.io",
        "customresourcedefinitions",
        "apiservices",
        "cache: false in --config",
    ] {
        assert!(warnings.contains(words), "{words:?} is not in {warnings}");
    }
    let lacks = lines_of(&out, "warning")
        .into_iter()
        .find(|line| line.contains("reads are forwarded"))
        .unwrap();
    assert!(
        !lacks.contains("pods") && !lacks.contains("nodes") && !lacks.contains("secrets"),
        "{lacks}"
    );
    // The proxy of one node needs fewer rights.
    access.allow(
        AccessRule::read("proxy", &["leases.coordination.k8s.io"]).in_namespace("kube-node-lease"),
    );
    let (_, out) = run("--node-name node-1").await;
    assert!(
        out.contains("may list and watch what may be held (3 types and parts of them)"),
        "{out}"
    );
    // A proxy that trusts every caller needs no right to review.
    access.deny_all("proxy");
    access.allow(AccessRule::new(
        "proxy",
        &["create"],
        &["subjectaccessreviews.authorization.k8s.io"],
    ));
    access.allow(AccessRule::read("proxy", &["*"]));
    assert!(run("").await.1.contains("tokenreviews"));
    let (code, out) = run("--single-identity").await;
    assert_eq!(
        (code, lines_of(&out, "ok").len()),
        (0, out.lines().count()),
        "{out}"
    );
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_may_not_even_read_the_types_are_an_error() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let bench = Bench::new(&upstream);
    // As an API server answers anonymous requests.
    upstream.faults().set(|active| {
        active.refuse = Some(PlannedRefusal {
            count: u32::MAX,
            code: 403,
            retry_after: None,
            resource: None,
            verb: None,
        });
    });
    let (code, out, told) = bench.run(CHECK).await;
    assert_eq!((code, told.as_str()), (1, ""), "{out}");
    let errors = lines_of(&out, "error").join("\n");
    assert!(errors.contains("cannot read upstream's discovery"), "{out}");
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn findings_are_also_printed_as_json() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let bench = Bench::new(&upstream);
    for (flags, good) in [("", true), ("--server https://127.0.0.1:1", false)] {
        let (code, out, _) = bench.run(&format!("{CHECK} {flags} -o json")).await;
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (code == 0, &report["ok"]),
            (good, &Value::Bool(good)),
            "{out}"
        );
        let findings = report["findings"].as_array().unwrap();
        assert!(
            findings.len() >= 4
                && findings
                    .iter()
                    .all(|finding| finding["message"].is_string()),
            "{out}"
        );
        let errors = findings
            .iter()
            .filter(|finding| finding["level"] == "error")
            .count();
        assert_eq!(errors == 0, good, "{out}");
    }
    upstream.shutdown().await;
}
