//! An API server whose credentials are kept fresh.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt as _;
use http::HeaderMap;
use jiff::Timestamp;

use super::address::Address;
use super::credentials::{self, Credentials, CredentialsError, TlsIdentity};
use super::dial::{Dialed, Dialer};
use super::error::ConnectError;
use super::options::ConnectOptions;
use super::protocol::OfferedProtocols;
use super::validity::Validity;

/// Interval between checks of the files.
///
/// A renewed token or certificate is written long before the old one ends. kube-client itself
/// re-reads the in-cluster CA.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// Addresses and credentials of the API, kept fresh. Cheap to clone.
#[derive(Clone)]
pub struct ApiServer {
    shared: Arc<ApiServerShared>,
}

impl ApiServer {
    /// Reads the credentials, and keeps them fresh from then on.
    pub async fn load(options: &ConnectOptions) -> Result<ApiServer, CredentialsError> {
        let material = credentials::build(options.clone()).await?;
        let shared = Arc::new(ApiServerShared {
            options: options.clone(),
            current: ArcSwap::from_pointee(material),
            rebuilding: tokio::sync::Mutex::new(()),
            reload_failures: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&shared);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(RELOAD_INTERVAL).await;
                let Some(shared) = weak.upgrade() else { return };
                let server = ApiServer { shared };
                // What a parser does with one file must not stop the reading of the next.
                if AssertUnwindSafe(server.reload())
                    .catch_unwind()
                    .await
                    .is_err()
                {
                    tracing::error!(
                        "reading changed credentials panicked; trying again in {RELOAD_INTERVAL:?}"
                    );
                }
            }
        });
        Ok(ApiServer { shared })
    }

    /// Returns the addresses in use.
    pub fn addresses(&self) -> Vec<Address> {
        self.current().addresses.clone()
    }

    /// Returns the addresses that are not protected by TLS, each with what it lacks.
    pub fn insecurities(&self) -> Vec<String> {
        self.current().insecurities().to_vec()
    }

    /// Returns the source of the credentials, for the log and the status page.
    pub fn source(&self) -> String {
        self.current().source().to_owned()
    }

    /// Takes over changed files, and asks a plugin for a new credential when the old one ends soon or
    /// is refused.
    ///
    /// On failure the old credentials stay in use.
    pub async fn reload(&self) {
        let _one = self.shared.rebuilding.lock().await;
        let old = self.current();
        let options = self.shared.options.clone();
        let now = credentials::fingerprint(options).await;
        let due = old.is_due(Timestamp::now());
        if now == old.fingerprint() && !due {
            return;
        }
        match credentials::build(self.shared.options.clone()).await {
            Ok(mut new) => {
                new.follow(&old);
                self.shared.current.store(Arc::new(new));
                tracing::info!(from = old.source(), "upstream credentials reloaded");
            }
            Err(error) => {
                self.shared.reload_failures.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, "cannot reload upstream credentials; keeping the old ones");
            }
        }
    }

    /// Returns the number of reloads that failed.
    pub fn reload_failures(&self) -> u64 {
        self.shared.reload_failures.load(Ordering::Relaxed)
    }

    /// Returns the validity of the proxy's client certificate, if it has one.
    pub fn certificate(&self) -> Option<Validity> {
        self.current().certificate()
    }

    /// Returns the `User-Agent` that the proxy gives itself.
    pub fn user_agent(&self) -> String {
        let given = &self.shared.options.user_agent;
        if given.is_empty() {
            concat!("watershed/", env!("CARGO_PKG_VERSION")).to_owned()
        } else {
            given.clone()
        }
    }

    /// Returns the current credentials.
    pub fn current(&self) -> Arc<Credentials> {
        self.shared.current.load_full()
    }

    /// Connects to the first address that accepts, with the client certificate, if there is one.
    ///
    /// The connection belongs to the caller alone: no HTTP has been spoken on it yet.
    pub async fn connect(&self, offered: OfferedProtocols) -> Result<Dialed, ConnectError> {
        let credentials = self.current();
        Dialer::default()
            .dial(&credentials, TlsIdentity::ProxyCertificate, offered, &[])
            .await
    }

    /// Returns the headers that say who asks: the token, and whom it acts as.
    ///
    /// Tokens expire, so the headers are good for minutes only.
    pub async fn authorization(&self) -> Result<HeaderMap, ConnectError> {
        self.current().attach(HeaderMap::new()).await
    }
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiServer")
            .field("from", &self.current().source())
            .finish_non_exhaustive()
    }
}

struct ApiServerShared {
    options: ConnectOptions,
    current: ArcSwap<Credentials>,
    /// One rebuild at a time.
    rebuilding: tokio::sync::Mutex<()>,
    /// The number of reloads that failed.
    reload_failures: AtomicU64,
}
