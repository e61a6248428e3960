//! Refusals of unauthorized callers, in upstream's words.
use watershed::app::AppConfig;
use watershed_lab::sim::AccessRule;

use crate::support::client::{BOTH, Endpoint, Protocol};
use crate::support::{Fixture, eventually, small, unless_stalled, with_secrets};

/// Requests that are answered from memory, and requests that are forwarded.
const READS: &[&str] = &[
    "/api/v1/secrets?resourceVersion=0",
    "/api/v1/secrets",
    "/api/v1/namespaces/team-00/secrets?resourceVersion=0",
    "/api/v1/namespaces/team-00/secrets/a?resourceVersion=0",
    "/api/v1/namespaces/team-00/secrets/a",
    "/api/v1/secrets?resourceVersion=0&fieldSelector=metadata.name%3Da",
    "/api/v1/secrets?watch=1&resourceVersion=0",
    "/api/v1/secrets?watch=1",
    "/apis/apps/v1/replicasets?resourceVersion=0",
    "/apis/apps/v1/namespaces/team-00/replicasets/a?resourceVersion=0",
    "/apis/coordination.k8s.io/v1/leases?watch=1&resourceVersion=0",
];

async fn refused(direct: &Endpoint, proxied: &Endpoint, status: u16, reason: &str) {
    for (n, path) in READS.iter().enumerate() {
        let protocol = BOTH[n % 2];
        let (wanted, got) = (
            direct.get(protocol, path).await,
            proxied.get(protocol, path).await,
        );
        assert_eq!(wanted.status, status, "{path}");
        assert_eq!(wanted.json()["reason"], reason);
        assert_eq!(got.essence(), wanted.essence(), "{path} by {protocol:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthorized_callers_get_upstreams_refusal() {
    let fixture = Fixture::configured(small(), with_secrets).await;
    // Authorized reads have filled the cache before.
    for path in READS {
        if !path.contains("watch") {
            fixture.proxied.get(Protocol::Http2, path).await;
        }
    }
    let as_user = |token| {
        (
            fixture.direct.as_user(token),
            fixture.proxied.as_user(token),
        )
    };
    let (direct, proxied) = as_user("nobodys-token");
    refused(&direct, &proxied, 401, "Unauthorized").await;
    let (direct, proxied) = as_user("");
    refused(&direct, &proxied, 403, "Forbidden").await;
    let (direct, proxied) = as_user(fixture.upstream.viewer_token());
    refused(&direct, &proxied, 403, "Forbidden").await;
    let pods = "/api/v1/pods?resourceVersion=0";
    let (wanted, got) = (
        direct.get(Protocol::Http2, pods).await,
        proxied.get(Protocol::Http2, pods).await,
    );
    assert_eq!(got.status, 200, "what is allowed is served");
    assert_eq!(wanted.json()["items"], got.json()["items"]);
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_denied_reads_cost_upstream_no_more_than_directly() {
    unless_stalled("denied reads", async || {
        let fixture = Fixture::configured(small(), with_secrets).await;
        let viewer = fixture.proxied.as_user(fixture.upstream.viewer_token());
        let path = |number: usize| {
            format!("/api/v1/namespaces/team-{number:02}/secrets?resourceVersion=0")
        };
        // The first one fills the cache, and its token is reviewed.
        fixture.proxied.get(Protocol::Http2, &path(0)).await;
        viewer.get(Protocol::Http2, "/version").await;
        fixture.upstream.take_recorded();
        let mut answers = Vec::new();
        for number in 0..20 {
            answers.push(viewer.get(Protocol::Http2, &path(number)).await);
        }
        let recorded = fixture.upstream.take_recorded();
        let of = |part: &str| {
            recorded
                .iter()
                .filter(|it| it.target.contains(part))
                .count()
        };
        let counts = (of("subjectaccessreviews"), of("/secrets"));
        if counts != (2, 18) {
            return Err(format!("{counts:?} reviews and lists"));
        }
        let direct = fixture.direct.as_user(fixture.upstream.viewer_token());
        for (number, answer) in answers.iter().enumerate() {
            let wanted = direct.get(Protocol::Http2, &path(number)).await;
            assert_eq!(wanted.status, 403);
            assert_eq!(answer.essence(), wanted.essence(), "{number}");
        }
        // Whoever comes again is reviewed, and the verdict lasts.
        for _ in 0..3 {
            let again = viewer.get(Protocol::Http2, &path(15)).await;
            assert_eq!(again.header("x-watershed-source"), "access");
        }
        fixture.stop().await;
        Ok(())
    })
    .await;
}

/// A verdict whose end RBAC cannot show stands for ten seconds at most. Nothing here takes longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_and_granted_rights_take_effect_soon() {
    // The simulator's rules are no RBAC objects, so no event ends a remembered denial.
    let configure = |config: &mut AppConfig| {
        config.access.authorization.denied_ttl = config.access.authorization.unwatched_denied_ttl;
    };
    let fixture = Fixture::configured(small(), configure).await;
    let access = fixture.upstream.access();
    let (direct, path) = (&fixture.direct, "/api/v1/pods?resourceVersion=0");
    for name in ["loser", "leaver", "joiner"] {
        access.add_user(&format!("{name}-token"), name, &[]);
    }
    access.allow(AccessRule::read("loser", &["pods"]));
    access.allow(AccessRule::read("leaver", &["pods"]));
    for (token, status) in [
        ("loser-token", 200),
        ("leaver-token", 200),
        ("joiner-token", 403),
    ] {
        assert_eq!(
            fixture
                .proxied
                .as_user(token)
                .get(Protocol::Http2, path)
                .await
                .status,
            status
        );
    }
    access.deny_all("loser");
    access.revoke("leaver-token");
    access.allow(AccessRule::read("joiner", &["pods"]));
    for (token, status) in [
        ("loser-token", 403),
        ("leaver-token", 401),
        ("joiner-token", 200),
    ] {
        let proxied = fixture.proxied.as_user(token);
        eventually(token, async || {
            match proxied.get(Protocol::Http2, path).await.status {
                now if now == status => Ok(()),
                other => Err(format!("{other}, not {status}")),
            }
        })
        .await;
        let wanted = direct.as_user(token).get(Protocol::Http2, path).await;
        assert_eq!(
            proxied.get(Protocol::Http2, path).await.essence(),
            wanted.essence()
        );
    }
    fixture.stop().await;
}
