//! The files that credentials are made of, and their digest.

use std::path::{Path, PathBuf};

use kube_client::config::Kubeconfig;

use crate::options::ConnectOptions;

/// Returns `true` if the service account is used: in a pod, unless a kubeconfig is named.
pub(super) fn in_cluster(options: &ConnectOptions) -> bool {
    let named = options.kubeconfig.is_some()
        || std::env::var_os("KUBECONFIG").is_some_and(|value| !value.is_empty());
    !named && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

/// Returns the paths of the kubeconfigs, which are merged in this order.
pub(super) fn kubeconfig_paths(options: &ConnectOptions) -> Vec<PathBuf> {
    if let Some(path) = &options.kubeconfig {
        return vec![path.clone()];
    }
    match std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty()) {
        Some(value) => std::env::split_paths(&value)
            .filter(|path| !path.as_os_str().is_empty())
            .collect(),
        None => vec![
            std::env::home_dir()
                .unwrap_or_default()
                .join(".kube")
                .join("config"),
        ],
    }
}

/// Returns the files that credentials are made of. In a cluster, kube-client re-reads them.
pub(super) fn files(options: &ConnectOptions) -> Vec<PathBuf> {
    if in_cluster(options) {
        return Vec::new();
    }
    let mut files = kubeconfig_paths(options);
    for path in files.clone() {
        // Unreadable: loading the credentials reports the error.
        let Ok(kubeconfig) = Kubeconfig::read_from(&path) else {
            continue;
        };
        for cluster in kubeconfig
            .clusters
            .iter()
            .filter_map(|named| named.cluster.as_ref())
        {
            files.extend(cluster.certificate_authority.iter().map(PathBuf::from));
        }
        for user in kubeconfig
            .auth_infos
            .iter()
            .filter_map(|named| named.auth_info.as_ref())
        {
            files.extend(user.client_certificate.iter().map(PathBuf::from));
            files.extend(user.client_key.iter().map(PathBuf::from));
        }
    }
    files
}

/// Digests the contents of the files.
///
/// Modification times would not do: a volume of a pod changes by symbolic links.
pub(super) fn fingerprint<P: AsRef<Path>>(files: &[P]) -> blake3::Hash {
    let mut digest = blake3::Hasher::new();
    for path in files {
        let content = std::fs::read(path).unwrap_or_default();
        digest.update(&content.len().to_le_bytes()).update(&content);
    }
    digest.finalize()
}
