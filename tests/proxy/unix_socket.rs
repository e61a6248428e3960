//! Clients of a Unix socket.
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use http::{Request, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::process::Command;
use watershed::app::Listen;
use watershed_lab::sim::SimulatedServer;

use crate::support::client::within;
use crate::support::{eventually, small, start_configured};

/// Returns the status, `X-Watershed-Source` and the body of an answer.
async fn get(socket: &Path, token: &str, path: &str) -> (u16, String, String) {
    let stream = UnixStream::connect(socket).await.unwrap();
    let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(driver);
    let request = Request::get(path).header(header::HOST, "localhost");
    let request = request
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .body(Empty::<Bytes>::new());
    let answer = within("an answer", sender.send_request(request.unwrap()))
        .await
        .unwrap();
    let source = answer.headers()["x-watershed-source"]
        .to_str()
        .unwrap()
        .to_owned();
    let status = answer.status().as_u16();
    let body = within("its body", answer.into_body().collect())
        .await
        .unwrap()
        .to_bytes();
    (status, source, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unix_socket_clients_get_the_same_service() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("api.sock");
    let listen = Listen::Socket {
        path: path.clone(),
        mode: 0o620,
    };
    let (running, files) =
        start_configured(&upstream.kubeconfig_yaml(), |config| config.listen = listen)
            .await
            .unwrap();
    assert_eq!(
        std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o620
    );
    assert_eq!(
        (running.address, &running.ca_file),
        (None, &None),
        "there is no TLS"
    );
    let (pods, secrets) = ("/api/v1/pods?resourceVersion=0", "/api/v1/secrets");
    let (status, source, body) = get(&path, upstream.admin_token(), pods).await;
    assert_eq!((status, &*source), (200, "snapshot"));
    assert!(body.contains(r#""kind":"PodList""#));
    let (status, source, _) = get(&path, upstream.viewer_token(), secrets).await;
    assert_eq!((status, source.starts_with("forward")), (403, true));
    running.shut_down().await;
    assert!(!path.exists(), "the file is gone");
    upstream.shutdown().await;
    drop(files);
}

/// As when a disk is full, or the reader of a pipe is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_be_written_ends_nothing() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [socket, kubeconfig] = ["api.sock", "kubeconfig"].map(|name| folder.path().join(name));
    std::fs::write(&kubeconfig, upstream.kubeconfig_yaml()).unwrap();
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_watershed"))
        .args(["serve", "--derive-json=false", "--admin-listen=127.0.0.1:0"])
        .arg(format!("--listen=unix:{}", socket.display()))
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .stdout(Stdio::null())
        .stderr(full)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    eventually("its socket", async || {
        UnixStream::connect(&socket)
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    })
    .await;
    // Each type that is opened is logged.
    for path in ["/api/v1/pods", "/api/v1/nodes"] {
        let path = format!("{path}?resourceVersion=0");
        let (status, source, _) = get(&socket, upstream.admin_token(), &path).await;
        assert_eq!((status, &*source), (200, "snapshot"), "{path}");
    }
    let pid = child.id().unwrap().to_string();
    let sent = Command::new("kill").args(["-TERM", &pid]).status().await;
    assert!(sent.unwrap().success());
    let ended = within("its end", child.wait()).await.unwrap();
    assert!(ended.success(), "{ended}");
    upstream.shutdown().await;
}
