//! The files that credentials are made of, and their digest.

use std::path::PathBuf;

use kube_client::config::Kubeconfig;

use crate::kubeconfig::kubeconfig_paths;
use crate::options::ConnectOptions;

/// The token of a pod's service account.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// The authorities of the API server, in a pod.
const POD_AUTHORITIES: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// Returns `true` if the service account is used: in a pod, unless a kubeconfig is named.
pub(super) fn in_cluster(options: &ConnectOptions) -> bool {
    let named = options.kubeconfig.is_some()
        || std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty());
    !named && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// The digests of the files that credentials are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// The digest of the files that addresses and TLS depend on.
    pub(super) tls: blake3::Hash,
    /// The digest of the files that hold tokens.
    tokens: blake3::Hash,
}

/// The files that credentials are made of.
#[derive(Default)]
struct Files {
    tls: Vec<PathBuf>,
    tokens: Vec<PathBuf>,
}

impl Fingerprint {
    /// Digests the files that credentials with these options are made of.
    pub(super) fn of(options: &ConnectOptions) -> Self {
        let files = Files::of(options);
        Self {
            tls: digest(&files.tls),
            tokens: digest(&files.tokens),
        }
    }
}

impl Files {
    fn of(options: &ConnectOptions) -> Self {
        if in_cluster(options) {
            return Self {
                tls: vec![PathBuf::from(POD_AUTHORITIES)],
                tokens: vec![PathBuf::from(POD_TOKEN)],
            };
        }
        let mut files = Self {
            tls: kubeconfig_paths(options.kubeconfig.as_deref()),
            tokens: Vec::new(),
        };
        for path in files.tls.clone() {
            // Unreadable: loading the credentials reports the error.
            if let Ok(kubeconfig) = Kubeconfig::read_from(&path) {
                files.add(&kubeconfig);
            }
        }
        files
    }

    fn add(&mut self, kubeconfig: &Kubeconfig) {
        let clusters = kubeconfig.clusters.iter();
        for cluster in clusters.filter_map(|named| named.cluster.as_ref()) {
            let authority = cluster.certificate_authority.iter();
            self.tls.extend(authority.map(PathBuf::from));
        }
        let users = kubeconfig.auth_infos.iter();
        for user in users.filter_map(|named| named.auth_info.as_ref()) {
            let pair = user.client_certificate.iter().chain(&user.client_key);
            self.tls.extend(pair.map(PathBuf::from));
            self.tokens
                .extend(user.token_file.iter().map(PathBuf::from));
        }
    }
}

/// Digests the contents of the files.
///
/// Modification times would not do: a volume of a pod changes by symbolic links.
fn digest(files: &[PathBuf]) -> blake3::Hash {
    let mut digest = blake3::Hasher::new();
    for path in files {
        let content = std::fs::read(path).unwrap_or_default();
        digest.update(&content.len().to_le_bytes()).update(&content);
    }
    digest.finalize()
}
