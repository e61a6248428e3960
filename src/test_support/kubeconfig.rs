//! Kubeconfigs for the small API server.
use std::path::PathBuf;

use tempfile::TempDir;

use super::api::Api;
use super::pki::Pki;
use crate::upstream::Upstream;
use watershed_connect::ConnectOptions;

/// The token in the kubeconfigs of this module.
pub(crate) const OWN_TOKEN: &str = "proxy-secret-token";

/// Writes a kubeconfig with a client certificate and a token to a directory of its own.
pub(crate) fn kubeconfig(pki: &Pki, url: &str) -> (TempDir, ConnectOptions) {
    let user =
        format!("{{client-certificate: client.crt, client-key: client.key, token: {OWN_TOKEN}}}");
    kubeconfig_with(pki, url, &user)
}

/// Writes a kubeconfig with this user, which may name `client.crt` and `client.key`.
pub(crate) fn kubeconfig_with(pki: &Pki, url: &str, user: &str) -> (TempDir, ConnectOptions) {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = pki.issue("the-proxy", &[]);
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    file("ca.crt", &pki.ca_pem);
    file("client.crt", &cert);
    file("client.key", &key);
    let path = file("config", &kubeconfig_text(url, user));
    (dir, options(path))
}

pub(crate) fn kubeconfig_text(url: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: main\n\
         contexts: [{{name: main, context: {{cluster: main, user: main}}}}]\n\
         clusters: [{{name: main, \
         cluster: {{server: \"{url}\", certificate-authority: ca.crt}}}}]\n\
         users: [{{name: main, user: {user}}}]\n"
    )
}

fn options(path: PathBuf) -> ConnectOptions {
    ConnectOptions {
        kubeconfig: Some(path),
        ..ConnectOptions::default()
    }
}

pub(crate) async fn upstream_of(pki: &Pki, api: &Api) -> Upstream {
    let (_dir, options) = kubeconfig(pki, &api.url());
    Upstream::load(&options).await.unwrap()
}
