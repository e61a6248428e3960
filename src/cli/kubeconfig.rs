//! `watershed kubeconfig`: replaces the address and CA of one cluster, and keeps everything else.
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use kube_client::config::Kubeconfig as Document;
use rustls::RootCertStore;
use watershed_connect::{Address, read_kubeconfig};

use super::output::{complain, print, write_private};
use crate::listener::tls;

/// Columns of base64 in PEM.
const PEM_COLUMNS: usize = 64;

/// Flags of `watershed kubeconfig`.
#[derive(Args, Debug)]
pub(super) struct KubeconfigCommand {
    /// Kubeconfig to begin with. Default: $KUBECONFIG, then ~/.kube/config. Paths in it become
    /// absolute.
    #[arg(id = "kubeconfig", long = "kubeconfig", value_name = "FILE")]
    from: Option<PathBuf>,
    /// Context whose cluster is reached through the proxy, and which becomes the current one.
    /// Default: the current context. Other clusters stay as they are.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// URL of the proxy, as clients see it. If it is on this machine, a `proxy-url` of the cluster
    /// is left out.
    #[arg(long, default_value = "https://127.0.0.1:6443", value_name = "URL")]
    server: String,
    /// CA of the proxy's serving certificate.
    #[arg(long, default_value = "watershed-certs/ca.crt", value_name = "FILE")]
    ca: PathBuf,
    /// File to write, which only its owner can read. Default: standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl KubeconfigCommand {
    /// Prints or writes the kubeconfig.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let server = proxy_address(&self.server)?;
        let ca = proxy_authorities(&self.ca)?;
        let read = read_kubeconfig(self.from.as_deref());
        let mut document = read.context("cannot read a kubeconfig (--kubeconfig)")?;
        let name = cluster_of(&document, self.context.as_deref())?;
        lead_through_proxy(&mut document, &name, &server, &ca)?;
        if self.context.is_some() {
            document.current_context = self.context;
        }
        let yaml = serde_saphyr::to_string(&document).context("cannot write YAML")?;
        match &self.out {
            Some(path) => write_private(path, yaml.as_bytes())
                .with_context(|| format!("cannot write {} (--out)", path.display()))?,
            None => print(yaml)?,
        }
        for user in users_with_certificates(&document, &name) {
            // TLS ends at the proxy, so upstream never sees this certificate.
            complain(format_args!(
                "user {user} has a client certificate: without --client-ca-file the proxy takes \
                 its requests for anonymous ones"
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Parses the proxy's URL. The proxy speaks nothing but TLS.
fn proxy_address(url: &str) -> anyhow::Result<Address> {
    let address = Address::parse(url).context("--server")?;
    ensure!(
        address.is_tls(),
        "{url} is not a URL of the proxy, which serves https (--server)"
    );
    Ok(address)
}

/// Reads the proxy's CA. Returns its certificates in PEM, and nothing else that the file contains: a
/// kubeconfig is handed on.
fn proxy_authorities(path: &Path) -> anyhow::Result<String> {
    let unusable = || format!("cannot use the proxy's CA {} (--ca)", path.display());
    let pem = std::fs::read(path)
        .with_context(|| format!("cannot read the proxy's CA {} (--ca)", path.display()))?;
    let certificates = tls::certificates(path, &pem).with_context(unusable)?;
    let mut text = String::new();
    for certificate in &certificates {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = BASE64_STANDARD.encode(certificate);
        for (n, digit) in encoded.chars().enumerate() {
            if n > 0 && n % PEM_COLUMNS == 0 {
                text.push('\n');
            }
            text.push(digit);
        }
        text.push_str("\n-----END CERTIFICATE-----\n");
    }
    tls::add_roots(&mut RootCertStore::empty(), path, certificates).with_context(unusable)?;
    Ok(text)
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
    server: &Address,
    ca: &str,
) -> anyhow::Result<()> {
    let mut clusters = document.clusters.iter_mut();
    let found = clusters.find(|named| named.name == name);
    let cluster = found
        .and_then(|named| named.cluster.as_mut())
        .with_context(|| format!("the kubeconfig has no cluster {name} (--kubeconfig)"))?;
    cluster.server = Some(server.to_string());
    cluster.certificate_authority = None;
    cluster.certificate_authority_data = Some(BASE64_STANDARD.encode(ca));
    cluster.insecure_skip_tls_verify = None;
    cluster.tls_server_name = None;
    if server.is_local() {
        cluster.proxy_url = None;
    }
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
            let proxy = Address::parse("https://proxy").unwrap();
            lead_through_proxy(&mut changed, name, &proxy, "a").unwrap();
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
        let proxy = Address::parse("https://proxy").unwrap();
        let error = lead_through_proxy(&mut dangling, "east", &proxy, "").unwrap_err();
        assert!(error.to_string().contains("no cluster east"), "{error}");
    }

    #[test]
    fn a_way_to_upstream_by_another_proxy_is_left_out_if_this_one_is_on_the_same_machine() {
        let text = TEXT.replace("tls-server-name: east", "proxy-url: socks5://jump");
        for (server, is_kept) in [
            ("https://127.0.0.1:6443", false),
            ("https://localhost", false),
            ("https://watershed.example.com", true),
        ] {
            let mut changed = document(&text);
            let proxy = proxy_address(server).unwrap();
            lead_through_proxy(&mut changed, "east", &proxy, "a").unwrap();
            let cluster = changed.clusters[0].cluster.as_ref().unwrap();
            assert_eq!(cluster.server.as_deref(), Some(server));
            assert_eq!(cluster.proxy_url.is_some(), is_kept, "{server}");
        }
        for server in ["127.0.0.1:6443", "http://127.0.0.1:6443", "https://"] {
            let error = format!("{:#}", proxy_address(server).unwrap_err());
            assert!(error.contains("--server"), "{error}");
        }
    }

    #[test]
    fn only_certificates_come_into_a_kubeconfig() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let [one, two] = [(); 2].map(|()| crate::test_support::Pki::new().ca_pem);
        let key = rcgen::KeyPair::generate().unwrap().serialize_pem();
        let of_openssh = key.replace("PRIVATE", "OPENSSH PRIVATE");
        for text in [
            format!("{one}{two}"),
            format!("password: a\n{key}{one}{of_openssh}{two}password: b\n"),
        ] {
            std::fs::write(&file, text).unwrap();
            let read = proxy_authorities(&file).unwrap();
            let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(lines(&read), lines(&format!("{one}{two}")));
        }
        let empty =
            one.lines().next().unwrap().to_owned() + "\nMA==\n" + one.lines().last().unwrap();
        for text in [key, "a log".to_owned(), empty] {
            std::fs::write(&file, text).unwrap();
            let error = format!("{:#}", proxy_authorities(&file).unwrap_err());
            assert!(error.contains("--ca"), "{error}");
        }
    }

    #[test]
    fn only_the_owner_can_read_a_written_kubeconfig() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        std::fs::write(&file, "longer than what is written").unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            write_private(path, path.as_os_str().as_encoded_bytes()).unwrap();
            let written = std::fs::read(&file).unwrap();
            assert_eq!(written, path.as_os_str().as_encoded_bytes());
            let mode = std::fs::metadata(&file).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        assert!(link.is_symlink());
    }

    #[test]
    fn users_with_certificates_are_named() {
        let document = document(TEXT);
        let named = |cluster| Vec::from_iter(users_with_certificates(&document, cluster));
        assert_eq!(named("east"), ["file"]);
        assert_eq!(named("west"), ["data"]);
    }
}
