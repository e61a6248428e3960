//! The addresses of clients: what upstream hears, what is audited, and what limits count.
use http::{HeaderMap, Request};
use watershed::app::AppConfig;
use watershed::audit::{AuditConfig, AuditLogConfig};
use watershed::listener::TrustedProxies;

use crate::support::client::{Protocol, nothing};
use crate::support::{Fixture, eventually, small};

const FORWARDED: &str = "/api/v1/namespaces/team-00/pods/nobody";
const MEMORY: &str = "/api/v1/pods?resourceVersion=0";

fn trust_loopback(config: &mut AppConfig) {
    config.trusted_proxies = TrustedProxies::new(["127.0.0.0/8".parse().unwrap()]);
}

async fn send(fixture: &Fixture, path: &str, headers: &[(&str, &str)]) -> u16 {
    let mut request = Request::get(path).body(nothing()).unwrap();
    for (name, value) in headers {
        let name: http::HeaderName = name.parse().unwrap();
        request.headers_mut().append(name, value.parse().unwrap());
    }
    let answer = fixture.proxied.send(Protocol::Http2, request).await;
    answer.unwrap().status.as_u16()
}

/// Returns the address headers that upstream received with a request.
async fn heard(fixture: &Fixture, headers: &[(&str, &str)]) -> String {
    fixture.upstream.take_recorded();
    send(fixture, FORWARDED, headers).await;
    let recorded = fixture.upstream.take_recorded();
    let found = recorded
        .iter()
        .find(|request| request.target == FORWARDED)
        .expect("upstream was asked");
    shown(&found.headers)
}

fn shown(headers: &HeaderMap) -> String {
    let values = ["x-forwarded-for", "x-real-ip"]
        .iter()
        .flat_map(|name| headers.get_all(*name))
        .map(|value| value.to_str().unwrap());
    values.collect::<Vec<_>>().join(" | ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_hears_the_clients_address() {
    let fixture = Fixture::start(small()).await;
    assert_eq!(heard(&fixture, &[]).await, "127.0.0.1");
    let claims = [("x-forwarded-for", "192.0.2.1"), ("x-real-ip", "1.1.1.1")];
    assert_eq!(
        heard(&fixture, &claims).await,
        "192.0.2.1, 127.0.0.1 | 1.1.1.1"
    );
    fixture.stop().await;
    // With the proxy's own identity, nobody else vouches for what clients say.
    let alone = |config: &mut AppConfig| config.access.single_identity = true;
    let fixture = Fixture::configured(small(), alone).await;
    assert_eq!(heard(&fixture, &claims).await, "127.0.0.1");
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trusted_proxies_tell_the_clients_address() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("audit.log");
    let fixture = Fixture::configured(small(), |config| {
        trust_loopback(config);
        config.audit = Some(AuditConfig {
            log: Some(AuditLogConfig::new(log.clone())),
            ..AuditConfig::default()
        });
        config.policy.users.per_second = 1;
        config.policy.users.burst = 1;
    })
    .await;
    let forged = [
        ("x-forwarded-for", "1.1.1.1, 192.0.2.1"),
        ("x-real-ip", "1.1.1.1"),
    ];
    assert_eq!(heard(&fixture, &forged).await, "192.0.2.1, 127.0.0.1");

    // Callers without a token count by address.
    let nobody = fixture.proxied.as_user("");
    let from = async |client: &str| {
        let request = Request::get(MEMORY).header("x-forwarded-for", client);
        let request = request.body(nothing()).unwrap();
        let answer = nobody.send(Protocol::Http2, request).await.unwrap();
        answer.status.as_u16()
    };
    eventually("a request beyond the limit", async || {
        match from("192.0.2.7").await {
            429 => Ok(()),
            status => Err(status.to_string()),
        }
    })
    .await;
    assert_eq!(from("192.0.2.8").await, 403);
    eventually("the event of the limited request", async || {
        let text = std::fs::read_to_string(&log).unwrap();
        let is_there = text
            .lines()
            .any(|line| line.contains(r#""sourceIPs":["192.0.2.7","127.0.0.1"]"#));
        if is_there { Ok(()) } else { Err(text) }
    })
    .await;
    fixture.stop().await;
}
