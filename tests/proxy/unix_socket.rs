//! Clients of a Unix socket.
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use http::{Request, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use watershed::app::Listen;
use watershed_lab::sim::SimulatedServer;

use crate::support::client::within;
use crate::support::{small, start_configured};

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
