//! The connection to the webhook, whose kubeconfig is followed.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use jiff::Timestamp;
use kube_client::config::{KubeConfigOptions, Kubeconfig};
use kube_client::{Client, Config};
use parking_lot::Mutex;
use watershed_connect::{Fingerprint, one_line};

use crate::log_throttle::LogThrottle;

static NOT_READ_AGAIN: LogThrottle = LogThrottle::new(Duration::from_secs(10));

/// Time limit of one request. Upstream tells it to the webhook, too.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const QUERY: &str = "timeout=30s";

/// The connection of a kubeconfig, which is read again when its files have changed.
pub(super) struct FollowedConnection {
    path: PathBuf,
    current: Mutex<WebhookConnection>,
    /// The files of which another connection is being made.
    opening: Mutex<Option<Fingerprint>>,
}

/// The webhook that a kubeconfig names, and the credentials to use there. Cheap to clone.
#[derive(Clone)]
pub(super) struct WebhookConnection {
    pub(super) client: Client,
    pub(super) uri: Uri,
    files: Fingerprint,
}

impl WebhookConnection {
    async fn open(path: &Path) -> Result<Self, String> {
        // Digested first: files that change meanwhile are read again.
        let files = Fingerprint::of_kubeconfig(path).await;
        let kubeconfig = Kubeconfig::read_from(path).map_err(|error| one_line(&error))?;
        if names_proxy(&kubeconfig) {
            return Err("it has a proxy-url, which is not supported".to_owned());
        }
        // kube-client builds its TLS on the process' default provider.
        watershed_connect::install_crypto();
        let mut target = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .map_err(|error| one_line(&error))?;
        let uri = request_uri(&target.cluster_url)?;
        target.cluster_url = origin(std::mem::take(&mut target.cluster_url))?;
        target.read_timeout = Some(REQUEST_TIMEOUT);
        // HTTPS_PROXY is for upstream, not for the webhook.
        target.proxy_url = None;
        // An exec plugin is run meanwhile. Nothing could end one that hangs.
        let client = tokio::task::spawn_blocking(move || Client::try_from(target))
            .await
            .map_err(|error| one_line(&error))?
            .map_err(|error| one_line(&error))?;
        Ok(Self { client, uri, files })
    }

    /// Returns `true` if it was made of other files than these, or its certificate has ended.
    fn is_outdated(&self, files: Fingerprint) -> bool {
        let has_ended = |end: Timestamp| end <= Timestamp::now();
        self.files != files || self.client.valid_until().is_some_and(has_ended)
    }
}

impl FollowedConnection {
    pub(super) async fn open(path: PathBuf) -> Result<Self, String> {
        let connection = WebhookConnection::open(&path).await?;
        Ok(Self {
            path,
            current: Mutex::new(connection),
            opening: Mutex::default(),
        })
    }

    /// Returns the connection to use.
    pub(super) fn current(&self) -> WebhookConnection {
        self.current.lock().clone()
    }

    /// Reads the kubeconfig again if it has changed, or a file that it names, or if a plugin's certificate
    /// has ended. On failure the old credentials stay in use.
    pub(super) async fn follow_files(self: Arc<Self>) {
        let files = Fingerprint::of_kubeconfig(&self.path).await;
        if !self.current.lock().is_outdated(files) {
            *self.opening.lock() = None;
            return;
        }
        if !self.begin_opening(files) {
            return;
        }
        let opened = WebhookConnection::open(&self.path).await;
        let newest = self.opening.lock().take_if(|newest| *newest == files);
        if newest.is_none() {
            // A plugin that hung has answered, and the files were changed again meanwhile.
            return;
        }
        match opened {
            Ok(connection) => {
                *self.current.lock() = connection;
                tracing::info!("the audit webhook's credentials are read again");
            }
            Err(error) => {
                if let Some(attempts) = NOT_READ_AGAIN.count(1) {
                    tracing::warn!(
                        %error,
                        attempts,
                        "cannot read the audit webhook's credentials; keeping the old ones"
                    );
                }
            }
        }
    }

    /// Returns `true` if no connection is being made of these files. A plugin that hangs is not run again
    /// beside itself, until its files are others.
    fn begin_opening(&self, files: Fingerprint) -> bool {
        self.opening.lock().replace(files) != Some(files)
    }
}

fn names_proxy(kubeconfig: &Kubeconfig) -> bool {
    kubeconfig
        .clusters
        .iter()
        .filter_map(|named| named.cluster.as_ref())
        .filter_map(|cluster| cluster.proxy_url.as_ref())
        .any(|url| !url.is_empty())
}

/// Returns the URI of requests. Like client-go, it ignores a query in the server's URL.
fn request_uri(server: &Uri) -> Result<Uri, String> {
    let path = match server.path().trim_end_matches('/') {
        "" => "/",
        path => path,
    };
    Uri::try_from(format!("{path}?{QUERY}")).map_err(|error| one_line(&error))
}

/// Returns the server's URL without path and query.
fn origin(server: Uri) -> Result<Uri, String> {
    let mut parts = server.into_parts();
    parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    Uri::from_parts(parts).map_err(|error| one_line(&error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::test_support::{eventually, soon};

    fn kubeconfig(user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: 'https://localhost:1'}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        )
    }

    #[tokio::test]
    async fn a_repaired_kubeconfig_is_read_while_a_plugin_hangs() {
        let folder = tempfile::tempdir().unwrap();
        let in_folder = |name| folder.path().join(name);
        let (path, runs, ends) = (in_folder("config"), in_folder("runs"), in_folder("ends"));
        let write = |user: &str| fs::write(&path, kubeconfig(user)).unwrap();
        write("token: first");
        let connection = Arc::new(FollowedConnection::open(path.clone()).await.unwrap());
        // It is counted, and runs until a file is there, but not for ever: the runtime waits for it.
        let script = format!(
            "echo >> {}; for i in $(seq 400); do test -e {} && break; sleep 0.05; done",
            runs.display(),
            ends.display()
        );
        write(&format!(
            "exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, \
             command: sh, args: [-c, '{script}']}}"
        ));
        let started = || fs::read_to_string(&runs).map_or(0, |text| text.lines().count());
        let hanging = tokio::spawn(Arc::clone(&connection).follow_files());
        eventually(|| started() == 1).await;
        soon(Arc::clone(&connection).follow_files()).await;
        assert_eq!(started(), 1, "not run beside itself");

        write("token: second");
        soon(Arc::clone(&connection).follow_files()).await;
        let repaired = connection.current().files;
        assert!(repaired == Fingerprint::of_kubeconfig(&path).await);
        fs::write(&ends, "").unwrap();
        soon(hanging).await.unwrap();
        assert!(
            connection.current().files == repaired,
            "what is newer stays"
        );
    }
}
