//! The status page in a real browser, and its screenshots for the documents.
//!
//! Without Chromium, the test does nothing. With `WATERSHED_SCREENSHOTS=FOLDER` (`make
//! screenshots`), the clients run for some minutes, and the screenshots go to that folder.
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::process::Command;
use watershed_lab::sim::churn::{Churn, ChurnMix};
use watershed_lab::sim::{AccessRule, Options, Population};

use crate::status::watch_as;
use crate::support::client::{Endpoint, Lines, Protocol, nothing, within};
use crate::support::{Fixture, eventually, plain_request};

/// A Chromium of this machine.
struct Browser {
    program: PathBuf,
    folder: tempfile::TempDir,
}

/// Results of opening a page.
struct Opened {
    /// The document after some seconds.
    dom: String,
    /// Console messages, such as script errors and refused resources.
    complaints: Vec<String>,
    /// Addresses that the page requested from other servers than its own.
    outside: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Light,
    Dark,
}

impl Browser {
    /// Finds Chromium by the variable `CHROMIUM`, or in the path.
    fn find() -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let named = std::env::var_os("CHROMIUM").map(PathBuf::from);
        let usual = [
            "chromium",
            "chromium-browser",
            "google-chrome",
            "google-chrome-stable",
        ];
        let mut found =
            named.into_iter().chain(usual.iter().flat_map(|name| {
                std::env::split_paths(&path).map(move |folder| folder.join(name))
            }));
        let program = found.find(|program| program.is_file());
        if program.is_none() {
            eprintln!("skipped: no Chromium found (install it, or set CHROMIUM=/path/to/it)");
        }
        Some(Self {
            program: program?,
            folder: tempfile::tempdir().unwrap(),
        })
    }

    async fn run(&self, flags: &[&str], url: &str) -> (String, String) {
        let output = Command::new(&self.program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
            ])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ])
            .args([
                "--disable-breakpad",
                "--disable-crash-reporter",
                "--enable-logging=stderr",
            ])
            .arg(format!("--user-data-dir={}", self.folder.path().display()))
            // No other host resolves.
            .arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
            .args(flags)
            .arg(url)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = within("the browser", output).await.unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        (stdout.into_owned(), stderr.into_owned())
    }

    async fn open(&self, flags: &[&str], url: &str) -> Opened {
        let requests = self.folder.path().join("requests.json");
        let logged = format!("--log-net-log={}", requests.display());
        let (dom, log) = self
            .run(&[flags, &[&logged, "--dump-dom"]].concat(), url)
            .await;
        let complaints = log
            .lines()
            .filter(|line| line.contains(":CONSOLE"))
            .map(str::to_owned)
            .collect();
        Opened {
            dom,
            complaints,
            outside: outside(&std::fs::read_to_string(requests).unwrap(), url),
        }
    }

    async fn picture(&self, scheme: Scheme, size: (u32, u32), url: &str, file: &Path) {
        // Blink's numbers of the colour schemes.
        let scheme = match scheme {
            Scheme::Dark => 0,
            Scheme::Light => 1,
        };
        let flags = [
            format!("--blink-settings=preferredColorScheme={scheme}"),
            format!("--window-size={},{}", size.0, size.1),
            format!("--screenshot={}", file.display()),
        ];
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        self.run(&flags, url).await;
    }
}

/// Returns the addresses on other servers that a page of `url`'s server requested.
///
/// The log also contains requests that the browser makes for itself.
fn outside(log: &str, url: &str) -> Vec<String> {
    let log: serde_json::Value = serde_json::from_str(log).unwrap();
    let server = &url[..url.rfind('/').unwrap()];
    let begun = log["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|event| {
            let params = &event["params"];
            let ours = params["initiator"].as_str()?.starts_with(server);
            ours.then(|| params["url"].as_str().map(str::to_owned))
                .flatten()
        });
    begun.filter(|url| !url.starts_with(server)).collect()
}

/// Returns the mean brightness of a picture, from 0 to 255.
fn brightness(file: &Path) -> f64 {
    let mut decoder =
        png::Decoder::new(std::io::BufReader::new(std::fs::File::open(file).unwrap()));
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let size = reader.next_frame(&mut pixels).unwrap().buffer_size();
    pixels[..size]
        .iter()
        .map(|byte| f64::from(*byte))
        .sum::<f64>()
        / size as f64
}

/// Serves a page on the loopback interface and returns its address.
async fn serve_page(page: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{page}",
                page.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    url
}

/// Clients in the screenshots: token, user, user agent, and the paths that they watch.
const PROGRAMS: [(&str, &str, &str, &[&str]); 6] = [
    (
        "argocd",
        "system:serviceaccount:argocd:argocd-application-controller",
        "argocd-application-controller/v3.1.8",
        &[
            "/apis/apps/v1/deployments",
            "/api/v1/services",
            "/api/v1/configmaps",
            "/api/v1/pods",
        ],
    ),
    (
        "metrics",
        "system:serviceaccount:monitoring:kube-state-metrics",
        "kube-state-metrics/v2.17.0",
        &["/api/v1/pods", "/api/v1/nodes", "/apis/apps/v1/deployments"],
    ),
    (
        "cilium",
        "system:serviceaccount:kube-system:cilium",
        "cilium-agent/1.18.3",
        &["/api/v1/nodes", "/api/v1/services", "/api/v1/namespaces"],
    ),
    (
        "ingress",
        "system:serviceaccount:ingress-nginx:ingress-nginx",
        "nginx-ingress-controller/v1.13.3",
        &["/api/v1/services", "/api/v1/configmaps"],
    ),
    (
        "prometheus",
        "system:serviceaccount:monitoring:prometheus",
        "Prometheus/3.7.3",
        &["/api/v1/pods", "/api/v1/services"],
    ),
    (
        "backup",
        "system:serviceaccount:velero:velero",
        "velero-server/v1.17.0",
        &[],
    ),
];

/// Opens the watches of a typical cluster. They stay open until the returned streams are dropped.
async fn clients(fixture: &Fixture) -> Vec<Lines> {
    let access = fixture.upstream.access();
    let mut open = Vec::new();
    for (token, user, agent, reads) in PROGRAMS {
        access.add_user(token, user, &[]);
        access.allow(AccessRule::new(user, &["get", "list", "watch"], &["*"]));
        for path in reads {
            open.push(
                watch_as(
                    &fixture.proxied.as_user(token),
                    agent,
                    &format!("{path}?watch=1&resourceVersion=0"),
                )
                .await,
            );
        }
    }
    for node in 0..4 {
        let (token, user) = (
            format!("node-{node:03}"),
            format!("system:node:node-{node:03}"),
        );
        access.add_user(&token, &user, &[]);
        access.allow(AccessRule::new(&user, &["get", "list", "watch"], &["*"]));
        let path = format!(
            "/api/v1/pods?watch=1&resourceVersion=0&fieldSelector=spec.nodeName%3Dnode-{node:03}"
        );
        open.push(
            watch_as(
                &fixture.proxied.as_user(&token),
                "kubelet/v1.34.1 (linux/amd64)",
                &path,
            )
            .await,
        );
    }
    open
}

/// Sends reads several times a second, and never returns.
async fn read_on(proxied: Endpoint) {
    let get = async |token: &str, agent: &str, path: &str| {
        let connection = proxied
            .as_user(token)
            .connect(Protocol::Http2)
            .await
            .unwrap();
        let request = http::Request::get(path)
            .header("user-agent", agent)
            .body(nothing())
            .unwrap();
        let _ = connection.read(request).await;
    };
    loop {
        get(
            "backup",
            "velero-server/v1.17.0",
            "/api/v1/namespaces/team-01/pods?resourceVersion=0",
        )
        .await;
        get(
            "metrics",
            "kube-state-metrics/v2.17.0",
            "/apis/apps/v1/deployments?resourceVersion=0",
        )
        .await;
        for n in 0..=fastrand::usize(..6) {
            get(
                "node-001",
                "kubelet/v1.34.1 (linux/amd64)",
                &format!("/api/v1/namespaces/team-0{n}?resourceVersion=0"),
            )
            .await;
        }
        get(
            "admin-token",
            "kubectl/v1.34.1 (linux/amd64)",
            "/api/v1/namespaces/team-02/pods",
        )
        .await;
        get("backup", "velero-server/v1.17.0", "/api/v1/secrets").await;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

fn cluster(pods: usize, nodes: usize) -> Options {
    Options {
        population: Population {
            pods,
            nodes,
            namespaces: 8,
            configmaps: 150,
            services: 80,
            secrets: 40,
            deployments: 90,
            ..Population::default()
        },
        ..Options::default()
    }
}

/// Opens a copy of the page without its script.
async fn assert_complete_without_script(browser: &Browser, page: &str) {
    let (_, html) = page.split_once("\r\n\r\n").unwrap();
    let (before, script) = html.split_once("<script>").unwrap();
    let (_, after) = script.split_once("</script>").unwrap();
    let plain = browser
        .open(&[], &serve_page(format!("{before}{after}")).await)
        .await;
    assert_eq!((plain.complaints, plain.outside), (vec![], vec![]));
    for part in [
        "<table id=\"scopes\">",
        "<table id=\"clients\">",
        "<table id=\"sources\">",
        "kubelet/v1.34.1",
        "system:node:node-001",
        "pods",
        "<svg",
        "http-equiv=\"refresh\"",
    ] {
        assert!(plain.dom.contains(part), "{part} in {}", plain.dom);
    }
}

/// Opens pages with planted violations, to prove that the checks of the real page can fail.
async fn assert_violations_are_detected(browser: &Browser) {
    for planted in [
        "<script>console.error('x')</script>",
        "<img src=http://elsewhere.example.com/x.png>",
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'\">\
         <style>p{}</style>",
    ] {
        let seen = browser
            .open(
                &["--virtual-time-budget=2000"],
                &serve_page(planted.to_owned()).await,
            )
            .await;
        assert!(
            !seen.complaints.is_empty() || !seen.outside.is_empty(),
            "{planted}"
        );
    }
}

async fn take_screenshots(browser: &Browser, url: &str, folder: &Path) {
    let size = (1280, 1500);
    let (light, dark) = (
        folder.join("status-light.png"),
        folder.join("status-dark.png"),
    );
    browser.picture(Scheme::Light, size, url, &light).await;
    browser.picture(Scheme::Dark, size, url, &dark).await;
    let brightnesses = (brightness(&light), brightness(&dark));
    assert!(
        brightnesses.0 > 200.0 && brightnesses.1 < 80.0,
        "light and dark: {brightnesses:?}"
    );
    for file in [light, dark] {
        let bytes = std::fs::metadata(&file).unwrap().len();
        assert!(bytes < 300_000, "{}: {bytes} bytes", file.display());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_page_works_in_a_browser() {
    let Some(browser) = Browser::find() else {
        return;
    };
    let pictures = std::env::var_os("WATERSHED_SCREENSHOTS").map(PathBuf::from);
    let (pods, nodes, minutes) = if pictures.is_some() {
        (2_000, 50, 4)
    } else {
        (100, 4, 0)
    };
    let fixture = Fixture::start(cluster(pods, nodes)).await;
    let churn = Churn::start(
        fixture.upstream.state().clone(),
        40.0,
        1,
        ChurnMix::default(),
    );
    let mut open = clients(&fixture).await;
    let hostile =
        "<script>console.error('hostile')</script><img src=http://elsewhere.example.com/x>";
    if pictures.is_none() {
        open.push(
            watch_as(
                &fixture.proxied,
                hostile,
                "/api/v1/pods?watch=1&resourceVersion=0",
            )
            .await,
        );
    }
    // Unread watches would stall.
    let readers: Vec<_> = open
        .into_iter()
        .map(|mut lines| {
            tokio::spawn(async move {
                while let crate::support::client::Next::Line(_) = lines.next().await {}
            })
        })
        .collect();
    let reader = tokio::spawn(read_on(fixture.proxied.clone()));
    tokio::time::sleep(Duration::from_mins(minutes)).await;
    let host = fixture.admin.to_string();
    eventually("charts", async || {
        let page = plain_request(fixture.admin, "GET", "/status", &[("Host", &host)]).await;
        if page.matches("class=\"line0\"").count() == 4 {
            Ok(())
        } else {
            Err(page)
        }
    })
    .await;
    let url = format!("http://{}/status", fixture.admin);

    let page = plain_request(fixture.admin, "GET", "/status", &[("Host", &host)]).await;
    assert_complete_without_script(&browser, &page).await;
    // With its script, the page updates itself. The browser refuses nothing, and the page loads
    // nothing from other servers.
    let lively = browser.open(&["--virtual-time-budget=12000"], &url).await;
    assert_eq!((lively.complaints, lively.outside), (vec![], vec![]));
    assert!(
        lively.dom.contains("Brought up to date") && lively.dom.contains("<table id=\"clients\">"),
        "{}",
        lively.dom
    );
    if pictures.is_none() {
        assert!(
            lively
                .dom
                .contains("&lt;script&gt;console.error('hostile')"),
            "{}",
            lively.dom
        );
    }
    assert_violations_are_detected(&browser).await;

    let folder = pictures.as_deref().unwrap_or(browser.folder.path());
    take_screenshots(&browser, &url, folder).await;
    for task in readers.into_iter().chain([reader]) {
        task.abort();
    }
    churn.stop().await;
    fixture.stop().await;
}
