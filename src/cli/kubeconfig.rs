//! `watershed kubeconfig`: replaces the address and CA of one cluster, and keeps everything else.
use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use base64::Engine;
use clap::Args;
use kube_client::config::Kubeconfig as Document;

/// Flags of `watershed kubeconfig`.
#[derive(Args, Debug)]
pub(super) struct KubeconfigCommand {
    /// Kubeconfig to begin with. Default: $KUBECONFIG, then ~/.kube/config.
    #[arg(id = "kubeconfig", long = "kubeconfig", value_name = "FILE")]
    from: Option<PathBuf>,
    /// Context whose cluster is reached through the proxy, and which becomes the current one.
    /// Default: the current context. Other clusters stay as they are.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// URL of the proxy, as clients see it.
    #[arg(long, default_value = "https://127.0.0.1:6443", value_name = "URL")]
    server: String,
    /// CA of the proxy's serving certificate.
    #[arg(long, default_value = "watershed-certs/ca.crt", value_name = "FILE")]
    ca: PathBuf,
}

impl KubeconfigCommand {
    /// Prints the kubeconfig.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let ca = std::fs::read(&self.ca)
            .with_context(|| format!("cannot read the proxy's CA {} (--ca)", self.ca.display()))?;
        let mut document = match &self.from {
            Some(path) => Document::read_from(path)
                .with_context(|| format!("cannot read {} (--kubeconfig)", path.display()))?,
            None => Document::read().context("cannot read a kubeconfig (--kubeconfig)")?,
        };
        let name = cluster_of(&document, self.context.as_deref())?;
        lead_through_proxy(&mut document, &name, self.server, &ca)?;
        if self.context.is_some() {
            document.current_context = self.context;
        }
        let yaml = serde_saphyr::to_string(&document).context("cannot write YAML")?;
        std::io::stdout().write_all(yaml.as_bytes())?;
        for user in users_with_certificates(&document, &name) {
            // TLS ends at the proxy, so upstream never sees this certificate.
            writeln!(
                std::io::stderr(),
                "user {user} has a client certificate: without --client-ca-file the proxy takes \
                 its requests for anonymous ones"
            )?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the name of a context's cluster. Without a context it is the current one's, or else the
/// only cluster.
fn cluster_of(document: &Document, context: Option<&str>) -> anyhow::Result<String> {
    let current = document.current_context.as_deref();
    let Some(wanted) = context.or(current.filter(|name| !name.is_empty())) else {
        return match &document.clusters[..] {
            [] => bail!("the kubeconfig contains no cluster (--kubeconfig)"),
            [only] => Ok(only.name.clone()),
            _ => bail!("the kubeconfig has several clusters and no current context (--context)"),
        };
    };
    let mut contexts = document.contexts.iter();
    let found = contexts.find(|named| named.name == wanted);
    let found = found.and_then(|named| named.context.as_ref());
    let found = found.with_context(|| {
        format!("the kubeconfig has no context {wanted} (--kubeconfig, --context)")
    })?;
    Ok(found.cluster.clone())
}

/// Replaces the address of a cluster, and what a client verifies it by.
fn lead_through_proxy(
    document: &mut Document,
    name: &str,
    server: String,
    ca: &[u8],
) -> anyhow::Result<()> {
    let mut clusters = document.clusters.iter_mut();
    let found = clusters.find(|named| named.name == name);
    let cluster = found
        .and_then(|named| named.cluster.as_mut())
        .with_context(|| format!("the kubeconfig has no cluster {name} (--kubeconfig)"))?;
    cluster.server = Some(server);
    cluster.certificate_authority = None;
    cluster.certificate_authority_data = Some(base64::prelude::BASE64_STANDARD.encode(ca));
    cluster.insecure_skip_tls_verify = None;
    cluster.tls_server_name = None;
    Ok(())
}

/// Returns the names of a cluster's users that identify themselves by certificates.
fn users_with_certificates<'a>(document: &'a Document, cluster: &str) -> BTreeSet<&'a str> {
    let contexts = document.contexts.iter();
    let of_cluster: BTreeSet<_> = contexts
        .filter_map(|named| named.context.as_ref())
        .filter(|context| context.cluster == cluster)
        .filter_map(|context| context.user.as_deref())
        .collect();
    let users = document.auth_infos.iter();
    users
        .filter(|named| of_cluster.contains(named.name.as_str()))
        .filter_map(|named| {
            let user = named.auth_info.as_ref()?;
            let has_one =
                user.client_certificate.is_some() || user.client_certificate_data.is_some();
            has_one.then_some(named.name.as_str())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two contexts of one cluster, and one of another.
    const TEXT: &str = "\
current-context: east-token
clusters:
- {name: east, cluster: {server: https://east.example.com, tls-server-name: east}}
- {name: west, cluster: {server: https://west.example.com, insecure-skip-tls-verify: true}}
contexts:
- {name: east-token, context: {cluster: east, user: token}}
- {name: east-file, context: {cluster: east, user: file}}
- {name: west, context: {cluster: west, user: data}}
users:
- {name: token, user: {token: t}}
- {name: file, user: {client-certificate: a.crt, client-key: a.key}}
- {name: data, user: {client-certificate-data: YQ==, client-key-data: YQ==}}
";

    fn document(text: &str) -> Document {
        Document::from_yaml(text).expect("a kubeconfig")
    }

    fn refusal(text: &str, context: Option<&str>) -> String {
        cluster_of(&document(text), context)
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn only_the_cluster_of_one_context_leads_through_the_proxy() {
        for (context, name) in [
            (None, "east"),
            (Some("east-file"), "east"),
            (Some("west"), "west"),
        ] {
            let mut changed = document(TEXT);
            let cluster = cluster_of(&changed, context).unwrap();
            assert_eq!(cluster, name);
            lead_through_proxy(&mut changed, name, "https://proxy".to_owned(), b"a").unwrap();
            for (before, after) in document(TEXT).clusters.iter().zip(&changed.clusters) {
                let [before, after] = [before, after]
                    .map(|named| serde_json::to_value(named.cluster.as_ref().unwrap()).unwrap());
                let proxied = serde_json::json!({
                    "server": "https://proxy",
                    "certificate-authority-data": "YQ==",
                });
                let expected = if before["server"] == format!("https://{name}.example.com") {
                    proxied
                } else {
                    before
                };
                assert_eq!(after, expected);
            }
        }
    }

    #[test]
    fn a_kubeconfig_without_a_current_context_needs_no_other_cluster() {
        let one = "clusters: [{name: a, cluster: {server: s}}]";
        assert_eq!(cluster_of(&document(one), None).unwrap(), "a");
        let none = refusal("users: []", None);
        assert!(none.contains("contains no cluster"), "{none}");
        let many = refusal(&TEXT.replace("current-context: east-token", ""), None);
        assert!(many.contains("several clusters"), "{many}");
        let unknown = refusal(TEXT, Some("north"));
        assert!(unknown.contains("no context north"), "{unknown}");
        let mut dangling = document(&TEXT.replace("name: east,", "name: else,"));
        let error = lead_through_proxy(&mut dangling, "east", String::new(), b"").unwrap_err();
        assert!(error.to_string().contains("no cluster east"), "{error}");
    }

    #[test]
    fn users_with_certificates_are_named() {
        let document = document(TEXT);
        let named = |cluster| Vec::from_iter(users_with_certificates(&document, cluster));
        assert_eq!(named("east"), ["file"]);
        assert_eq!(named("west"), ["data"]);
    }
}
