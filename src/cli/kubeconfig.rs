//! `watershed kubeconfig`: keeps users and contexts, replaces the server's address and CA.
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
    /// Kubeconfig whose users and contexts are kept. Default: $KUBECONFIG, then ~/.kube/config.
    #[arg(id = "kubeconfig", long = "kubeconfig", value_name = "FILE")]
    from: Option<PathBuf>,
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
        if document.clusters.is_empty() {
            bail!("the kubeconfig contains no cluster (--kubeconfig)");
        }
        for cluster in document
            .clusters
            .iter_mut()
            .filter_map(|named| named.cluster.as_mut())
        {
            cluster.server = Some(self.server.clone());
            cluster.certificate_authority = None;
            cluster.certificate_authority_data = Some(base64::prelude::BASE64_STANDARD.encode(&ca));
            cluster.insecure_skip_tls_verify = None;
            cluster.tls_server_name = None;
        }
        let yaml = serde_saphyr::to_string(&document).context("cannot write YAML")?;
        std::io::stdout().write_all(yaml.as_bytes())?;
        for user in users_with_certificates(&document) {
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

/// Returns the names of the users that identify themselves by certificates.
fn users_with_certificates(document: &Document) -> impl Iterator<Item = &str> {
    let users = document.auth_infos.iter();
    users.filter_map(|named| {
        let user = named.auth_info.as_ref()?;
        let has_one = user.client_certificate.is_some() || user.client_certificate_data.is_some();
        has_one.then_some(named.name.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_with_certificates_are_named() {
        let document = Document::from_yaml(
            "users:\n\
             - {name: token, user: {token: t}}\n\
             - {name: file, user: {client-certificate: a.crt, client-key: a.key}}\n\
             - {name: data, user: {client-certificate-data: YQ==, client-key-data: YQ==}}\n",
        );
        let document = document.expect("a kubeconfig");
        let users: Vec<_> = users_with_certificates(&document).collect();
        assert_eq!(users, ["file", "data"]);
    }
}
