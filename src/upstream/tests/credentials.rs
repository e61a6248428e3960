//! Credentials as upstream sees them: tokens, client certificates, reloads.

use http::Request;

use watershed_connect::ConnectOptions;

use crate::body;
use crate::test_support::{
    Api, HTTP1, HTTP2, OWN_TOKEN, Pki, kubeconfig, kubeconfig_text, read, soon, text,
};
use crate::upstream::{ConnectionClass, SendOptions, Upstream, UpstreamClient};

async fn who(client: &UpstreamClient) -> String {
    let request = Request::get("/who").body(body::empty()).unwrap();
    let response = soon(client.send(ConnectionClass::Short, request, SendOptions::default()))
        .await
        .unwrap();
    read(response.into_body()).await.unwrap()
}

/// An API server that answers with what it was shown.
async fn mirror(pki: &Pki, http2: bool) -> Api {
    Api::start(
        pki,
        if http2 { HTTP2 } else { HTTP1 },
        |request, conn| async move {
            let header = |name: &str| {
                request
                    .headers()
                    .get(name)
                    .map_or("-", |value| value.to_str().unwrap())
                    .to_owned()
            };
            text(format!(
                "certificate={} authorization={} user-agent={} as={}",
                conn.client_cert,
                header("authorization"),
                header("user-agent"),
                header("impersonate-user"),
            ))
        },
    )
    .await
}

#[tokio::test]
async fn own_requests_carry_the_proxys_credentials() {
    let pki = Pki::new();
    for http2 in [true, false] {
        let api = mirror(&pki, http2).await;
        let (_dir, mut options) = kubeconfig(&pki, &api.url());
        options.user_agent = "watershed-test".to_owned();
        let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
        assert_eq!(
            who(&client).await,
            format!(
                "certificate=true authorization=Bearer {OWN_TOKEN} user-agent=watershed-test as=-"
            )
        );
    }
}

#[tokio::test]
async fn a_user_that_impersonates_another_does_so_upstream() {
    let pki = Pki::new();
    let api = mirror(&pki, true).await;
    let (dir, options) = kubeconfig(&pki, &api.url());
    let path = dir.path().join("config");
    std::fs::write(&path, kubeconfig_text(&api.url(), "{token: t, as: jane}")).unwrap();
    let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
    let seen = who(&client).await;
    assert!(
        seen.contains("certificate=false authorization=Bearer t"),
        "{seen}"
    );
    assert!(seen.ends_with("as=jane"), "{seen}");
}

#[cfg(unix)]
#[tokio::test]
async fn exec_plugins_give_tokens_and_certificates() {
    use std::os::unix::fs::PermissionsExt;
    let pki = Pki::new();
    let api = mirror(&pki, true).await;
    let (dir, options) = kubeconfig(&pki, &api.url());
    let (cert, key) = pki.issue("from-plugin", &[]);
    let json = |status: serde_json::Value| {
        serde_json::json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": status
        })
    };
    let cases = [
        (
            json(serde_json::json!({"token": "from-plugin"})),
            "certificate=false authorization=Bearer from-plugin",
        ),
        (
            json(serde_json::json!({"clientCertificateData": cert, "clientKeyData": key})),
            "certificate=true authorization=-",
        ),
    ];
    let plugin = dir.path().join("plugin");
    for (answer, wanted) in cases {
        std::fs::write(dir.path().join("answer.json"), answer.to_string()).unwrap();
        let script = format!(
            "#!/bin/sh\nexec cat '{}'\n",
            dir.path().join("answer.json").display()
        );
        std::fs::write(&plugin, script).unwrap();
        std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
        let user = format!(
            "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: '{}', \
             interactiveMode: Never}}}}",
            plugin.display()
        );
        std::fs::write(
            dir.path().join("config"),
            kubeconfig_text(&api.url(), &user),
        )
        .unwrap();
        let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
        let seen = who(&client).await;
        assert!(seen.starts_with(wanted), "{seen}");
    }
    std::fs::write(&plugin, "#!/bin/sh\necho no luck >&2\nexit 3\n").unwrap();
    let error = Upstream::load(&options).await.unwrap_err().to_string();
    assert!(error.contains("cannot log in"), "{error}");
    assert!(error.contains("failed with exit status: 3"), "{error}");
}

/// Writes a plugin that prints this token, and ends the credential after so many seconds.
fn write_plugin(path: &std::path::Path, token: &str, lasts: Option<u64>) {
    let end = lasts.map(|seconds| jiff::Timestamp::now() + std::time::Duration::from_secs(seconds));
    let answer = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": token, "expirationTimestamp": end.map(|end| end.to_string())},
    });
    std::fs::write(path, format!("echo '{answer}'\n")).unwrap();
}

#[tokio::test]
async fn a_plugin_is_asked_again_before_its_token_ends_and_after_a_refusal() {
    let pki = Pki::new();
    let api = mirror(&pki, true).await;
    let (dir, options) = kubeconfig(&pki, &api.url());
    let plugin = dir.path().join("plugin");
    let user = format!(
        "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, args: ['{}'], \
         interactiveMode: Never}}}}",
        plugin.display()
    );
    let text = kubeconfig_text(&api.url(), &user);
    std::fs::write(dir.path().join("config"), text).unwrap();
    write_plugin(&plugin, "first", Some(4));
    let upstream = Upstream::load(&options).await.unwrap();
    let client = UpstreamClient::new(&upstream);
    let pause = tokio::time::sleep(std::time::Duration::from_millis(2500));
    assert!(who(&client).await.contains("Bearer first"));
    pause.await;
    // A plugin that fails leaves the token in use that it made before.
    std::fs::write(&plugin, "exit 1\n").unwrap();
    upstream.reload().await;
    assert!(who(&client).await.contains("Bearer first"));
    write_plugin(&plugin, "second", None);
    upstream.reload().await;
    assert!(who(&client).await.contains("Bearer second"));

    write_plugin(&plugin, "third", None);
    upstream.reload().await;
    assert!(
        who(&client).await.contains("Bearer second"),
        "it has no end"
    );
    upstream.current().mark_refused();
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    upstream.reload().await;
    assert!(who(&client).await.contains("Bearer third"));
    assert_eq!(api.accepted(), 1, "another token needs no other connection");
}

#[tokio::test]
async fn token_files_are_read_as_client_go_reads_them() {
    let pki = Pki::new();
    let api = mirror(&pki, true).await;
    let (dir, options) = kubeconfig(&pki, &api.url());
    let token = dir.path().join("token");
    let text = kubeconfig_text(&api.url(), "{tokenFile: token}");
    std::fs::write(dir.path().join("config"), text).unwrap();
    std::fs::write(&token, "").unwrap();
    let error = Upstream::load(&options).await.unwrap_err().to_string();
    assert!(error.contains("token file"), "{error}");

    std::fs::write(&token, "first\n").unwrap();
    let upstream = Upstream::load(&options).await.unwrap();
    let client = UpstreamClient::new(&upstream);
    for (content, wanted) in [
        (Some(" second \n\n"), "Bearer second user"),
        (Some(""), "Bearer second user"),
        (None, "Bearer second user"),
        (Some("third"), "Bearer third user"),
    ] {
        match content {
            Some(content) => std::fs::write(&token, content).unwrap(),
            None => std::fs::remove_file(&token).unwrap(),
        }
        upstream.reload().await;
        let seen = who(&client).await;
        assert!(seen.contains(wanted), "{content:?}: {seen}");
    }
    assert_eq!(api.accepted(), 1, "another token needs no other connection");
}

#[tokio::test]
async fn a_certificate_authority_that_is_cut_is_not_taken_over() {
    let pki = Pki::new();
    let api = mirror(&pki, true).await;
    let (dir, options) = kubeconfig(&pki, &api.url());
    let upstream = Upstream::load(&options).await.unwrap();
    let authority = dir.path().join("ca.crt");
    let good = std::fs::read_to_string(&authority).unwrap();
    for bad in ["", &good[..good.len() / 2]] {
        std::fs::write(&authority, bad).unwrap();
        upstream.reload().await;
        assert_eq!(upstream.current().generation, 0, "{bad:?}");
        let error = Upstream::load(&options).await.unwrap_err().to_string();
        assert!(error.contains("certificate"), "{error}");
    }
    std::fs::write(&authority, good).unwrap();
    upstream.reload().await;
    assert_eq!(upstream.current().generation, 0, "nothing has changed");
}

#[tokio::test]
async fn odd_certificates_in_a_bundle_of_authorities_are_left_out() {
    const ODD: &str = "-----BEGIN CERTIFICATE-----\nb2RkLCBub3QgREVS\n-----END CERTIFICATE-----\n";
    let pki = Pki::new();
    let api = mirror(&pki, true).await;
    let (dir, options) = kubeconfig(&pki, &api.url());
    let authority = dir.path().join("ca.crt");
    let good = std::fs::read_to_string(&authority).unwrap();
    std::fs::write(&authority, format!("{ODD}{good}")).unwrap();
    let upstream = Upstream::load(&options).await.unwrap();
    assert!(
        who(&UpstreamClient::new(&upstream))
            .await
            .contains(OWN_TOKEN)
    );

    std::fs::write(&authority, ODD).unwrap();
    let error = Upstream::load(&options).await.unwrap_err().to_string();
    assert!(error.contains("no certificate that can be used"), "{error}");
}

#[tokio::test]
async fn changed_files_are_taken_over_and_broken_ones_are_not() {
    let pki = Pki::new();
    let api = mirror(&pki, true).await;
    let (dir, options) = kubeconfig(&pki, &api.url());
    let upstream = Upstream::load(&options).await.unwrap();
    let client = UpstreamClient::new(&upstream);
    assert!(who(&client).await.contains(OWN_TOKEN));

    upstream.reload().await;
    assert_eq!(upstream.current().generation, 0, "nothing has changed");

    let (cert, key) = pki.issue("renewed", &[]);
    std::fs::write(dir.path().join("client.crt"), "half a file").unwrap();
    upstream.reload().await;
    assert_eq!(
        upstream.current().generation,
        0,
        "broken files are not taken"
    );
    who(&client).await;
    assert_eq!(api.accepted(), 1);

    std::fs::write(dir.path().join("client.crt"), cert).unwrap();
    std::fs::write(dir.path().join("client.key"), key).unwrap();
    upstream.reload().await;
    assert_eq!(upstream.current().generation, 1);
    who(&client).await;
    assert_eq!(
        api.accepted(),
        2,
        "the new certificate is shown on a new connection"
    );
}

#[tokio::test]
async fn tls_server_name_replaces_the_host_in_verification() {
    let pki = Pki::new();
    let api = mirror(&pki, true).await;
    let (dir, options) = kubeconfig(&pki, &api.url());
    let text = kubeconfig_text(&api.url(), "{token: t}");
    for (name, good) in [("api.test", true), ("other.test", false)] {
        let named = text.replace(
            "certificate-authority",
            &format!("tls-server-name: {name}, certificate-authority"),
        );
        std::fs::write(dir.path().join("config"), named).unwrap();
        let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
        let request = Request::get("/who").body(body::empty()).unwrap();
        let result =
            soon(client.send(ConnectionClass::Short, request, SendOptions::default())).await;
        match result {
            Ok(_) => assert!(good),
            Err(error) => {
                assert!(!good, "{error}");
                assert!(error.to_string().contains("tls-server-name"), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn an_ipv4_address_may_be_written_as_an_ipv6_one() {
    let pki = Pki::new();
    let api = mirror(&pki, true).await;
    let url = format!(
        "https://[::ffff:{}]:{}",
        api.address.ip(),
        api.address.port()
    );
    let (_dir, options) = kubeconfig(&pki, &url);
    let client = UpstreamClient::new(&Upstream::load(&options).await.unwrap());
    assert!(who(&client).await.starts_with("certificate="));
}

#[tokio::test]
async fn errors_name_the_cause_and_the_option() {
    let pki = Pki::new();
    let (dir, options) = kubeconfig(&pki, "https://127.0.0.1:1");
    let load =
        async |options: &ConnectOptions| Upstream::load(options).await.unwrap_err().to_string();

    let missing = ConnectOptions {
        kubeconfig: Some(dir.path().join("none")),
        ..options.clone()
    };
    let error = load(&missing).await;
    assert!(
        error.contains("none") && error.contains("--kubeconfig"),
        "{error}"
    );

    let context = ConnectOptions {
        context: Some("elsewhere".to_owned()),
        ..options.clone()
    };
    let error = load(&context).await;
    assert!(
        error.contains("elsewhere") && error.contains("--context"),
        "{error}"
    );

    let server = ConnectOptions {
        servers: vec!["10.0.0.1:6443".to_owned()],
        ..options.clone()
    };
    let error = load(&server).await;
    assert!(
        error.contains("10.0.0.1:6443") && error.contains("https://host:port"),
        "{error}"
    );

    let config = kubeconfig_text("https://127.0.0.1:1", "{token: t}")
        .replace("server:", "proxy-url: \"http://proxy:3128\", server:");
    std::fs::write(dir.path().join("config"), config).unwrap();
    let error = load(&options).await;
    assert!(error.contains("proxy-url http://proxy:3128"), "{error}");
}
