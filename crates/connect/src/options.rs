//! The operator's settings for reaching an API server.

use std::path::PathBuf;

/// Settings for reaching an API server.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The kubeconfig (`--kubeconfig`). Without one: `$KUBECONFIG`, else the service account of
    /// this pod, if there is one, else `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// The context to use; the current one of the kubeconfig when `None`.
    pub context: Option<String>,
    /// Addresses of the API. They replace the address in the kubeconfig.
    ///
    /// All must serve the same API, as resource versions are taken from one to the other.
    pub servers: Vec<String>,
    /// Plain HTTP and certificates that are not verified are accepted from other machines, too
    /// (`--allow-insecure-upstream`).
    pub allow_insecure: bool,
    /// The `User-Agent` of own requests; `watershed/VERSION` when empty.
    pub user_agent: String,
}
