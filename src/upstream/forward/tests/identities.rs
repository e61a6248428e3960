//! The identity that a forwarded request carries.
use http::{HeaderMap, StatusCode};

use super::super::*;
use super::{BOTH, ask, proxied, upgrade};
use crate::test_support::{
    Api, HTTP2, OWN_TOKEN, Pki, Proxy, get, kubeconfig_with, read, text, upstream_of,
};

#[tokio::test]
async fn callers_requests_never_carry_the_proxys_credentials() {
    let mirror = |request: Request<Incoming>, client_cert| async move {
        let mut seen: Vec<_> = request
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        seen.sort();
        text(format!("certificate={client_cert}\n{}", seen.join("\n")))
    };
    for (http2, settings) in BOTH {
        let (_api, proxy) = proxied(settings, mirror).await;
        for path in ["/short", "/long"] {
            let seen = read(ask(&proxy, http2, get(path)).await.unwrap())
                .await
                .unwrap();
            assert!(seen.starts_with("certificate=false"), "{seen}");
            assert!(
                !seen.contains("authorization") && !seen.contains(OWN_TOKEN),
                "{seen}"
            );
            assert!(
                !seen.contains("x-forwarded") && !seen.contains("user-agent"),
                "nothing is added: {seen}"
            );

            let mut request = get(path);
            request
                .headers_mut()
                .insert("authorization", "Bearer callers".parse().unwrap());
            request
                .headers_mut()
                .insert("impersonate-user", "jane".parse().unwrap());
            let seen = read(ask(&proxy, http2, request).await.unwrap())
                .await
                .unwrap();
            assert!(seen.contains("authorization: Bearer callers"), "{seen}");
            assert!(seen.contains("impersonate-user: jane"), "{seen}");
        }
    }
}

#[tokio::test]
async fn callers_upgrades_never_carry_the_proxys_credentials() {
    let (_api, proxy) = proxied(HTTP2, |request, client_cert| async move {
        text(format!(
            "certificate={client_cert} {:?}",
            request.headers().get("authorization")
        ))
    })
    .await;
    let refused = ask(&proxy, false, upgrade("/exec")).await.unwrap();
    assert_eq!(read(refused).await.unwrap(), "certificate=false None");
}

#[tokio::test]
async fn a_request_that_strips_its_identity_is_refused() {
    let (api, proxy) = proxied(HTTP2, |_, _| async { text("reached") }).await;
    let mut request = get("/");
    request
        .headers_mut()
        .insert("connection", "close, impersonate-user".parse().unwrap());
    request
        .headers_mut()
        .insert("impersonate-user", "jane".parse().unwrap());
    let answer = ask(&proxy, false, request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    assert_eq!(api.accepted(), 0);
}

/// Returns the header fields that upstream sees of this request.
async fn seen_as(
    identity: ForwardIdentity,
    user: &str,
    http2: bool,
    request: Request<Body>,
) -> String {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |request: Request<Incoming>, conn| async move {
        let fields = request.headers().iter();
        let mut seen: Vec<_> = fields
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        seen.sort();
        text(format!(
            "certificate={}\n{}",
            conn.client_cert,
            seen.join("\n")
        ))
    })
    .await;
    let (_folder, options) = kubeconfig_with(&pki, &api.url(), user);
    let upstream = Upstream::load(&options).await.unwrap();
    let proxy = Proxy::start_as(&upstream, identity).await;
    read(ask(&proxy, http2, request).await.unwrap())
        .await
        .unwrap()
}

fn full_of_claims(mut request: Request<Body>) -> Request<Body> {
    for (name, value) in [
        ("authorization", "Bearer callers"),
        ("impersonate-user", "admin"),
        ("impersonate-group", "system:masters"),
        ("impersonate-extra-a", "b"),
        ("impersonate-anything", "c"),
        ("x-remote-user", "admin"),
        ("x-remote-extra-scopes", "all"),
        ("accept", "application/json"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    request
}

fn acting(pairs: &[(&'static str, &str)]) -> ForwardIdentity {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, value.parse().unwrap());
    }
    ForwardIdentity::Impersonated(Arc::new(headers))
}

const JANE: &[(&str, &str)] = &[
    ("impersonate-user", "jane"),
    ("impersonate-group", "a"),
    ("impersonate-group", "b"),
];

#[tokio::test]
async fn an_impersonated_caller_cannot_claim_another_identity() {
    let own = format!("{{token: {OWN_TOKEN}}}");
    for (http2, request) in [
        (true, get("/short")),
        (false, get("/long")),
        (false, upgrade("/exec")),
    ] {
        let seen = seen_as(acting(JANE), &own, http2, full_of_claims(request)).await;
        assert!(
            seen.contains(&format!("authorization: Bearer {OWN_TOKEN}")),
            "{seen}"
        );
        assert!(seen.contains("accept: application/json"), "{seen}");
        let claims: Vec<_> = seen
            .lines()
            .filter(|line| line.starts_with("impersonate-") || line.starts_with("x-remote-"))
            .collect();
        assert_eq!(
            claims,
            [
                "impersonate-group: a",
                "impersonate-group: b",
                "impersonate-user: jane"
            ],
            "{seen}"
        );
        assert!(!seen.contains("callers"), "{seen}");
    }
}

#[tokio::test]
async fn a_proxy_that_impersonates_a_user_cannot_impersonate_its_callers() {
    let own = format!("{{token: {OWN_TOKEN}, as: admin, as-groups: [\"system:masters\"]}}");
    let seen = seen_as(acting(JANE), &own, true, get("/short")).await;
    assert!(
        seen.contains("cannot impersonate its callers") && !seen.contains("impersonate-"),
        "{seen}"
    );
}

#[tokio::test]
async fn impersonation_is_forwarded_with_the_proxys_own_identity() {
    let own = format!("{{token: {OWN_TOKEN}}}");
    let seen = seen_as(
        ForwardIdentity::Proxy,
        &own,
        true,
        full_of_claims(get("/short")),
    )
    .await;
    assert!(
        seen.contains(&format!("authorization: Bearer {OWN_TOKEN}")),
        "{seen}"
    );
    assert!(
        seen.contains("impersonate-user: admin") && !seen.contains("x-remote-"),
        "{seen}"
    );
}

#[tokio::test]
async fn impersonation_is_refused_if_the_proxy_impersonates_a_user() {
    let own = format!("{{token: {OWN_TOKEN}, as: bob}}");
    let seen = seen_as(ForwardIdentity::Proxy, &own, true, get("/short")).await;
    assert!(seen.contains("impersonate-user: bob"), "{seen}");
    let seen = seen_as(
        ForwardIdentity::Proxy,
        &own,
        true,
        full_of_claims(get("/short")),
    )
    .await;
    assert!(
        seen.contains("cannot impersonate its callers") && !seen.contains("impersonate-"),
        "{seen}"
    );
}

#[tokio::test]
async fn unknown_callers_share_no_connection_with_others() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |_, conn| async move {
        text(conn.number.to_string())
    })
    .await;
    let forwarder = Forwarder::new(&upstream_of(&pki, &api).await);
    let connection = async |identity, class| {
        let options = ForwardOptions {
            class,
            identity,
            share: None,
        };
        let request = get("/api/v1/pods").map(|_| body::empty());
        let answer = forwarder.forward_body(request, options).await.unwrap();
        read(answer.into_body()).await.unwrap()
    };
    for class in [ConnectionClass::Short, ConnectionClass::LongForward] {
        let known = connection(ForwardIdentity::Caller, class).await;
        let unknown = connection(ForwardIdentity::UnknownCaller, class).await;
        assert_ne!(known, unknown);
        assert_eq!(known, connection(ForwardIdentity::Caller, class).await);
        assert_eq!(
            unknown,
            connection(ForwardIdentity::UnknownCaller, class).await
        );
    }
}

#[tokio::test]
async fn fields_that_name_users_to_this_proxy_are_not_forwarded_with_its_credentials() {
    let pki = Pki::new();
    let api = Api::start(&pki, HTTP2, |request, _| async move {
        let names = request
            .headers()
            .keys()
            .map(|name| name.as_str().to_owned());
        text(names.collect::<Vec<_>>().join(" "))
    })
    .await;
    let user_headers = UserHeaders::new(["X-User".to_owned()], ["X-Extra-".to_owned()]);
    let forwarder = Forwarder::new(&upstream_of(&pki, &api).await).removing(user_headers);
    for (identity, is_removed) in [
        (acting(JANE), true),
        (ForwardIdentity::Proxy, true),
        (ForwardIdentity::Caller, false),
    ] {
        let options = ForwardOptions {
            class: ConnectionClass::Short,
            identity,
            share: None,
        };
        let mut request = get("/api/v1/pods").map(|_| body::empty());
        for name in ["x-user", "x-extra-scopes", "x-remote-user", "x-users"] {
            request.headers_mut().insert(name, "admin".parse().unwrap());
        }
        let answer = forwarder.forward_body(request, options).await.unwrap();
        let seen = read(answer.into_body()).await.unwrap();
        for (name, is_removed) in [
            ("x-user", is_removed),
            ("x-extra-scopes", is_removed),
            ("x-remote-user", is_removed),
            ("x-users", false),
        ] {
            let is_there = seen.split(' ').any(|it| it == name);
            assert_eq!(is_there, !is_removed, "{name}: {seen}");
        }
    }
}
