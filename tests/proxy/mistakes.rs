//! Reports of an operator's mistakes: one line that names the cause and the flag, and an exit code.
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::TcpSocket;
use tokio::process::{Child, ChildStderr, Command};
use watershed_lab::sim::SimulatedServer;

use crate::support::client::within;
use crate::support::{loopback, small};

/// A folder with invalid files, and upstream's kubeconfig.
pub(crate) struct Bench {
    folder: TempDir,
}

impl Bench {
    pub(crate) fn new(upstream: &SimulatedServer) -> Self {
        let bench = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let good = upstream.kubeconfig_yaml();
        bench.write("good.kubeconfig", &good);
        bench.write("bad.kubeconfig", "clusters: [\n");
        bench.write(
            "unknown.kubeconfig",
            &good.replace(upstream.admin_token(), "nobody's"),
        );
        bench.write(
            "untrusted.kubeconfig",
            &without(&good, "certificate-authority-data"),
        );
        bench.write("garbage.pem", "garbage");
        bench.write(
            "misspelt.yaml",
            "cache: true\nconsistentRead: linearizable\n",
        );
        bench.write(
            "uncached.yaml",
            "resources:\n- resource: secrets\n  selectorScopes: true\n",
        );
        bench.write(
            "wrong.yaml",
            "resources:\n- resource: Pods\n  cache: false\n",
        );
        for (name, last_year) in [("good", 4000), ("expired", 2001)] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(last_year, 1, 1);
            bench.write(
                &format!("{name}.crt"),
                &params.self_signed(&key).unwrap().pem(),
            );
            bench.write(&format!("{name}.key"), &key.serialize_pem());
        }
        bench
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the program's command in that folder, without the variables that it reads.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_watershed"));
        command
            .args(line.split_whitespace())
            .current_dir(self.folder.path());
        for name in [
            "KUBECONFIG",
            "KUBERNETES_SERVICE_HOST",
            "WATERSHED_LOG_LEVEL",
            "WATERSHED_LOG_FORMAT",
            "NODE_NAME",
        ] {
            command.env_remove(name);
        }
        command
            .env("HOME", "/nonexistent")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Returns exit code, standard output and standard error.
    pub(crate) async fn run(&self, line: &str) -> (i32, String, String) {
        let output = within(line, self.command(line).output()).await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    }
}

fn without(yaml: &str, key: &str) -> String {
    yaml.lines()
        .filter(|line| !line.contains(key))
        .collect::<Vec<_>>()
        .join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mistake_is_reported_on_one_line_with_its_cause_and_its_flag() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let bench = Bench::new(&upstream);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    let serve = "serve --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --log-level warn";
    let good = format!("{serve} --kubeconfig good.kubeconfig");
    let cases: Vec<(String, i32, Vec<&str>)> = vec![
        (
            serve.to_owned(),
            1,
            vec!["/nonexistent/.kube/config", "--kubeconfig"],
        ),
        (
            format!("{serve} --kubeconfig nowhere"),
            1,
            vec!["nowhere", "No such file", "--kubeconfig"],
        ),
        (
            format!("{serve} --kubeconfig bad.kubeconfig"),
            1,
            vec!["bad.kubeconfig", "line 1", "--kubeconfig"],
        ),
        (
            format!("{good} --context other"),
            1,
            vec!["other", "--context"],
        ),
        (
            format!("{good} --server ftp://a"),
            1,
            vec!["ftp", "use https://host:port"],
        ),
        (
            format!(
                "serve --listen {taken} --admin-listen 127.0.0.1:0 --kubeconfig good.kubeconfig \
                 --log-level warn"
            ),
            1,
            vec!["in use", "--listen"],
        ),
        (
            format!(
                "serve --listen 127.0.0.1:0 --admin-listen {taken} --kubeconfig good.kubeconfig \
                 --log-level warn"
            ),
            1,
            vec!["in use", "--admin-listen"],
        ),
        (
            format!("{good} --tls-cert nowhere --tls-key good.key"),
            1,
            vec!["--tls-cert", "nowhere", "No such file"],
        ),
        (
            format!("{good} --tls-cert good.crt --tls-key garbage.pem"),
            1,
            vec!["--tls-key", "garbage.pem", "private key"],
        ),
        (
            format!("{good} --tls-cert good.crt --tls-key expired.key"),
            1,
            vec![
                "--tls-key",
                "expired.key is not that of the certificate in good.crt",
            ],
        ),
        (
            format!("{good} --client-ca-file garbage.pem"),
            1,
            vec!["--client-ca-file", "garbage.pem"],
        ),
        (
            format!("{good} --admin-tls-cert nowhere --admin-tls-key good.key"),
            1,
            vec!["--admin-tls-cert", "nowhere"],
        ),
        (
            format!("{good} --admin-token-file nowhere"),
            1,
            vec!["--admin-token-file", "nowhere"],
        ),
        (
            format!("{good} --cert-dir good.crt"),
            1,
            vec!["good.crt", "--cert-dir"],
        ),
        (
            format!("{good} --config nowhere"),
            2,
            vec!["nowhere", "--config"],
        ),
        (
            format!("{good} --config misspelt.yaml"),
            2,
            vec![
                "misspelt.yaml (--config)",
                "`consistentRead`",
                "consistentReads",
                "line 2",
            ],
        ),
        (
            format!("{good} --config wrong.yaml"),
            2,
            vec!["wrong.yaml (--config)", "Pods", "line 2"],
        ),
        (
            format!("{good} --tls-crt a"),
            2,
            vec!["--tls-crt", "--tls-cert", "serve --help"],
        ),
        (
            format!("{good} --tls-cert a"),
            2,
            vec!["--tls-key", "serve --help"],
        ),
        (
            format!("{good} --window-seconds long"),
            2,
            vec!["long", "--window-seconds"],
        ),
        (
            "serve --listen 0.0.0.0:0 --single-identity".to_owned(),
            2,
            vec!["--single-identity", "--listen"],
        ),
        ("serv".to_owned(), 2, vec!["'serv'", "'serve'"]),
        (
            "kubeconfig --ca nowhere".to_owned(),
            1,
            vec!["nowhere", "--ca"],
        ),
        (
            "load --kubeconfig good.kubeconfig --rounds 0".to_owned(),
            2,
            vec!["--rounds"],
        ),
        (format!("simulate --listen {taken}"), 1, vec!["in use"]),
    ];
    for (line, code, words) in cases {
        let (exit, out, told) = bench.run(&line).await;
        assert_eq!((exit, out.as_str()), (code, ""), "{line}: {told}");
        assert!(
            told.starts_with("watershed: ") && told.lines().count() == 1,
            "{line}: {told}"
        );
        for word in words {
            assert!(told.contains(word), "{line}: {word:?} is not in {told}");
        }
        // No cause is repeated.
        let causes: Vec<_> = told.trim_end().split(": ").collect();
        assert!(
            causes.windows(2).all(|pair| pair[0] != pair[1]),
            "{line}: {told}"
        );
    }
    upstream.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_keeps_the_proxy_from_becoming_ready_is_logged_with_its_cause_and_its_flag() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let bench = Bench::new(&upstream);
    // Without a listener. As it is bound, no other process gets the port.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(loopback()).unwrap();
    let closed = socket.local_addr().unwrap();
    let serve = "serve --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0";
    let cases: [(String, &[&str]); 3] = [
        (
            format!("{serve} --kubeconfig unknown.kubeconfig"),
            &[
                "401",
                "credentials",
                "the user's part of unknown.kubeconfig",
            ],
        ),
        (
            format!("{serve} --kubeconfig untrusted.kubeconfig"),
            &["UnknownIssuer", "certificate-authority", "--kubeconfig"],
        ),
        (
            format!("{serve} --kubeconfig good.kubeconfig --server https://{closed}"),
            &["Connection refused", "--server"],
        ),
    ];
    for (line, words) in cases {
        let mut serve = bench.command(&line);
        let mut child = serve.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = log_lines(&mut child);
        // It goes on asking, and says so each time.
        for _ in 0..2 {
            let told = line_with(&mut lines, "cannot read upstream's discovery").await;
            assert!(told.contains("ERROR"), "{told}");
            for word in words {
                assert!(told.contains(word), "{line}: {word:?} is not in {told}");
            }
        }
        child.kill().await.unwrap();
    }
    drop(socket);
    upstream.shutdown().await;
}

type LogLines = Lines<BufReader<ChildStderr>>;

/// Returns what a program logs.
fn log_lines(child: &mut Child) -> LogLines {
    BufReader::new(child.stderr.take().unwrap()).lines()
}

/// Returns the next line with a text.
async fn line_with(lines: &mut LogLines, text: &str) -> String {
    within(text, async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains(text) {
                return line;
            }
        }
        panic!("the log does not mention {text}");
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_serving_certificate_is_logged() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let bench = Bench::new(&upstream);
    let (cert, key) = (
        bench.path().join("expired.crt"),
        bench.path().join("expired.key"),
    );
    // The test reads the log only, as no client accepts the certificate.
    let mut serve = bench.command(
        "serve --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --kubeconfig good.kubeconfig",
    );
    serve
        .arg("--tls-cert")
        .arg(&cert)
        .arg("--tls-key")
        .arg(&key)
        .stderr(Stdio::piped());
    let mut child = serve.spawn().unwrap();
    let told = line_with(&mut log_lines(&mut child), "expired").await;
    assert!(
        told.contains("ERROR")
            && told.contains("expired at 2001-01-01")
            && told.contains("expired.crt"),
        "{told}"
    );
    child.kill().await.unwrap();
    upstream.shutdown().await;
}
