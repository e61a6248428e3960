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
