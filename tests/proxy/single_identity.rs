//! Requests in single-identity mode, where everybody who reaches the proxy has its rights.
use watershed_lab::sim::SimulatedServer;

use crate::support::client::{BOTH, Endpoint};
use crate::support::program::Program;
use crate::support::small;

const PODS: &str = "/api/v1/pods?resourceVersion=0";

async fn status(endpoint: &Endpoint, method: &str, path: &str, host: &str) -> u16 {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let answer = endpoint.raw(request.as_bytes(), |_| false).await.text;
    assert!(
        answer.contains("Strict-Transport-Security: max-age=31536000; preload\r\n"),
        "{answer}"
    );
    let status = answer[9..12].parse().unwrap();
    if status == 403 {
        assert!(
            answer.contains("the proxy does not accept such requests (--"),
            "{answer}"
        );
    }
    status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_identity_refuses_foreign_hosts_and_what_flags_name() {
    let upstream = SimulatedServer::start(small()).await.unwrap();
    let hsts = [
        "--single-identity",
        "--strict-transport-security-directives",
        "max-age=31536000,preload",
    ];
    let program = Program::with(&upstream, &hsts).await;
    let nobody = program.proxied.as_user("");
    for protocol in BOTH {
        assert_eq!(nobody.get(protocol, PODS).await.status, 200);
    }
    for (host, wanted) in [("localhost:1", 200), ("evil.example.com", 403)] {
        assert_eq!(status(&nobody, "GET", PODS, host).await, wanted);
    }
    program.terminate().await;
    program.ended().await;

    let narrow = [
        "--accept-paths=^/api/",
        "--reject-paths=^/api/.*/pods/.*/exec",
        "--reject-methods=^(POST|PUT|PATCH|DELETE)$",
    ];
    let program = Program::with(&upstream, &[&hsts[..], &narrow].concat()).await;
    let nobody = program.proxied.as_user("");
    for (method, path, wanted) in [
        ("GET", PODS, 200),
        ("GET", "/apis/apps/v1/deployments", 403),
        (
            "GET",
            "/api/v1/namespaces/team-00/pods/p/exec?command=x",
            403,
        ),
        ("GET", "/api/v1/namespaces/team-00/pods/p/%65xec", 403),
        ("DELETE", "/api/v1/namespaces/team-00/pods/p", 403),
    ] {
        assert_eq!(
            status(&nobody, method, path, "127.0.0.1").await,
            wanted,
            "{path}"
        );
    }
    program.terminate().await;
    program.ended().await;
    upstream.shutdown().await;
}
