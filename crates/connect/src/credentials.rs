//! Addresses, trust and credentials of an API server, as of one moment.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Request, Response};
use jiff::Timestamp;
use kube_client::Config;
use kube_client::client::ConfigExt;
use kube_client::client::middleware::{AuthLayer, ExtraHeadersLayer};
use kube_client::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};

use super::address::{Address, AddressError};
use super::blocking::blocking;
use super::error::{ConnectError, one_line};
use super::kubeconfig::{KubeconfigReadError, kubeconfig_paths, listing, read_kubeconfig};
use super::options::ConnectOptions;
use super::protocol::OfferedProtocols;
use super::validity::Validity;
use crate::install_crypto;
use exec::PluginCredential;

pub use files::Fingerprint;

mod authorities;
mod exec;
mod files;
mod token;

/// Remaining lifetime at which an exec plugin is asked for a new credential.
///
/// It may return the same one until its last minute, so it is asked at most once in [`RENEW_PAUSE`],
/// or in half of the remaining lifetime if that is shorter.
const RENEW_BEFORE: Duration = Duration::from_mins(5);
const RENEW_PAUSE: Duration = Duration::from_mins(1);
/// Least age of a plugin's credential that is made anew because upstream refuses it.
const REFUSED_PAUSE: Duration = Duration::from_secs(5);

/// Reason why credentials cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig {from}: {reason} (see --kubeconfig and --context)")]
    Kubeconfig {
        /// The path of the kubeconfig.
        from: String,
        /// The reason.
        reason: String,
    },
    /// The files of the service account cannot be used.
    #[error(
        "cannot use the service account of this pod: {reason} \
         (is automountServiceAccountToken off? else give --kubeconfig)"
    )]
    InCluster {
        /// The reason.
        reason: String,
    },
    /// There is no flag, no cluster and no file.
    #[error(
        "no API server: this does not run in a cluster, \
         and there is no kubeconfig at {tried} (give --kubeconfig)"
    )]
    Nowhere {
        /// The paths that were tried.
        tried: String,
    },
    /// The CA or the client certificate cannot be used.
    #[error("cannot use the certificates of {from}: {reason} (see --kubeconfig and --context)")]
    Certificates {
        /// The source of the configuration.
        from: String,
        /// The reason.
        reason: String,
    },
    /// The user's token, or the plugin that makes it, cannot be used.
    #[error("cannot log in with the user of {from}: {reason} (see --kubeconfig and --context)")]
    Login {
        /// The source of the configuration.
        from: String,
        /// The reason.
        reason: String,
    },
    /// An address cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Somebody on the way could read along.
    #[error(
        "{what}: anyone on the way there can read the proxy's credentials and answer in the API \
         server's place; use https and certificate-authority, or give --allow-insecure-upstream"
    )]
    Insecure {
        /// The address, and what it lacks.
        what: String,
    },
    /// A setting that is not supported.
    #[error(
        "the kubeconfig {from} wants proxy-url {url}, which is not supported: \
         remove it, or give a direct address"
    )]
    ProxyUrl {
        /// The source of the configuration.
        from: String,
        /// The proxy.
        url: String,
    },
}

/// The TLS identity of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsIdentity {
    /// The proxy's client certificate, if it has one.
    ProxyCertificate,
    /// No client certificate, for callers' requests.
    NoCertificate,
}

/// Everything that is needed to talk to an API server, as of one moment.
pub struct Credentials {
    /// Counts rebuilds. Connections of an older generation get no new requests.
    pub generation: u64,
    /// Addresses of the API. Never empty.
    pub addresses: Vec<Address>,
    server_name: Option<ServerName<'static>>,
    with_certificate: Tls,
    without_certificate: Tls,
    authorization: Authorization,
    headers: ExtraHeadersLayer,
    insecurities: Vec<String>,
    /// Digest of the files.
    fingerprint: Fingerprint,
    /// Moment at which they are made anew, before a certificate or a plugin's credential ends.
    renew_at: Option<Timestamp>,
    /// By a clock that is never set.
    made: Instant,
    /// Digest of what a plugin made for TLS; `None` without a plugin.
    plugin: Option<blake3::Hash>,
    /// Upstream has refused the token or the certificate.
    is_refused: AtomicBool,
    from: String,
}

/// The origin of the header `Authorization` of own requests.
enum Authorization {
    /// It is known: the token of a file or of a plugin.
    Known(HeaderValue),
    /// kube-client makes it, if there is one.
    KubeClient(Option<AuthLayer>),
}

/// TLS settings with and without HTTP/2: an upgrade needs HTTP/1.1.
struct Tls {
    any: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
}

impl Credentials {
    /// Returns when the proxy's client certificate begins and ends, if it has one.
    pub fn certificate(&self) -> Option<Validity> {
        validity(&self.with_certificate.any)
    }

    /// Returns the addresses that are not protected by TLS, each with what it lacks.
    pub(super) fn insecurities(&self) -> &[String] {
        &self.insecurities
    }

    /// Returns the name of the kubeconfig, or of the pod's service account.
    pub(super) fn source(&self) -> &str {
        &self.from
    }

    /// Returns the digest of the files these credentials were made of.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Returns `true` if the credentials have to be made anew, whether files have changed or not.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        let is_refused = self.is_refused.load(Ordering::Relaxed) && self.plugin.is_some();
        let may_ask = self.made.elapsed() >= REFUSED_PAUSE;
        self.renew_at.is_some_and(|at| at <= now) || (is_refused && may_ask)
    }

    /// Notes that upstream has refused these credentials. A plugin is asked for others.
    pub fn mark_refused(&self) {
        self.is_refused.store(true, Ordering::Relaxed);
    }

    /// Counts these credentials as of the same generation as the ones before, if connections that
    /// were opened with those may go on: TLS is the same.
    pub(super) fn follow(&mut self, old: &Self) {
        let is_same = self.fingerprint.tls == old.fingerprint.tls && self.plugin == old.plugin;
        self.generation = old.generation + u64::from(!is_same);
    }

    /// Returns the TLS settings for connections of this identity.
    pub fn tls(&self, identity: TlsIdentity, offered: OfferedProtocols) -> Arc<ClientConfig> {
        let tls = match identity {
            TlsIdentity::ProxyCertificate => &self.with_certificate,
            TlsIdentity::NoCertificate => &self.without_certificate,
        };
        Arc::clone(match offered {
            OfferedProtocols::Any => &tls.any,
            OfferedProtocols::Http1 => &tls.http1,
        })
    }

    /// Returns the name that the server's certificate must have.
    pub fn server_name(&self, address: &Address) -> Result<ServerName<'static>, BoxError> {
        match &self.server_name {
            Some(name) => Ok(name.clone()),
            None => match address.ip() {
                Some(ip) => Ok(ServerName::from(ip)),
                None => Ok(ServerName::try_from(address.host().to_owned())?),
            },
        }
    }

    /// Adds the proxy's own token and impersonation to a request's headers.
    ///
    /// Boxed and owning: kube-client's layers ask for `From<BoxError>` in a way that the compiler
    /// cannot prove to be `Send` for any lifetime but `'static`.
    pub fn attach(
        &self,
        headers: HeaderMap,
    ) -> Pin<Box<dyn Future<Output = Result<HeaderMap, ConnectError>> + Send>> {
        // kube-client cannot return its headers alone, so this service answers with them.
        let echo = service_fn(
            |request: Request<http_body_util::Empty<Bytes>>| async move {
                let (parts, _) = request.into_parts();
                Ok::<_, BoxError>(Response::new(parts.headers))
            },
        );
        let mut request = Request::new(http_body_util::Empty::new());
        *request.headers_mut() = headers;
        let stack = ServiceBuilder::new().layer(&self.headers).service(echo);
        let answer: Pin<Box<dyn Future<Output = Result<Response<HeaderMap>, BoxError>> + Send>> =
            match &self.authorization {
                Authorization::KubeClient(Some(auth)) => Box::pin(
                    ServiceBuilder::new()
                        .layer(auth)
                        .service(stack)
                        .oneshot(request),
                ),
                Authorization::KubeClient(None) => Box::pin(stack.oneshot(request)),
                Authorization::Known(header) => {
                    let headers = request.headers_mut();
                    headers.insert(AUTHORIZATION, header.clone());
                    Box::pin(stack.oneshot(request))
                }
            };
        Box::pin(async move {
            match answer.await {
                Ok(answer) => Ok(answer.into_body()),
                Err(error) => Err(ConnectError::Credentials(one_line(error.as_ref()))),
            }
        })
    }
}

// === building ===

/// Reads the files and makes credentials of them.
pub(super) async fn build(options: ConnectOptions) -> Result<Credentials, CredentialsError> {
    install_crypto();
    // Files are read.
    blocking(move || {
        let runtime = tokio::runtime::Handle::current();
        let fingerprint = Fingerprint::of(&options);
        let (mut config, from) = runtime.block_on(read(&options))?;
        // The proxy takes care of tokens that change. kube-client would run plugins side by side
        // for as long as one hangs, and would show what they were given in errors.
        let user = &mut config.auth_info;
        let (token_file, exec) = (user.token_file.take(), user.exec.take());
        let is_inline = user.token.is_some() || user.username.is_some();
        let login = |reason: String| CredentialsError::Login {
            from: from.clone(),
            reason,
        };
        let own = if let Some(path) = token_file {
            let read = token::read(path.as_ref());
            let token = read.map_err(|error| login(format!("token file {path}: {error}")))?;
            OwnCredential::Token(token)
        } else if let Some(exec) = exec.filter(|_| !is_inline && user.auth_provider.is_none()) {
            let made = runtime.block_on(exec::run(&exec));
            OwnCredential::Plugin(made.map_err(|error| login(error.to_string()))?)
        } else {
            OwnCredential::None
        };
        authorities::keep_usable(&mut config, &from).map_err(|reason| {
            CredentialsError::Certificates {
                from: from.clone(),
                reason,
            }
        })?;
        material(&options, &config, own, from, fingerprint)
    })
    .await
}

/// A credential that the proxy reads or asks for itself, in place of kube-client.
enum OwnCredential {
    None,
    /// The header `Authorization`.
    Token(HeaderValue),
    Plugin(PluginCredential),
}

/// Digests the files that credentials with these options are made of.
pub(super) async fn fingerprint(options: ConnectOptions) -> Fingerprint {
    blocking(move || Fingerprint::of(&options)).await
}

impl Fingerprint {
    /// Digests a kubeconfig and the files that it names.
    pub async fn of_kubeconfig(path: &Path) -> Self {
        fingerprint(ConnectOptions {
            kubeconfig: Some(path.to_owned()),
            ..ConnectOptions::default()
        })
        .await
    }
}

/// Reads the configuration. Returns it with the name of its source.
async fn read(options: &ConnectOptions) -> Result<(Config, String), CredentialsError> {
    if files::in_cluster(options) {
        let config = Config::incluster().map_err(|error| CredentialsError::InCluster {
            reason: one_line(&error),
        })?;
        return Ok((config, "the service account of this pod".to_owned()));
    }
    let path = options.kubeconfig.as_deref();
    let from = listing(&kubeconfig_paths(path));
    let wrong = |error: &(dyn std::error::Error + 'static)| CredentialsError::Kubeconfig {
        from: from.clone(),
        reason: one_line(error),
    };
    let kubeconfig = read_kubeconfig(path).map_err(|error| match error {
        KubeconfigReadError::Missing { tried } => CredentialsError::Nowhere { tried },
        KubeconfigReadError::Unusable { path: from, reason } => {
            CredentialsError::Kubeconfig { from, reason }
        }
    })?;
    let chosen = KubeConfigOptions {
        context: options.context.clone(),
        ..KubeConfigOptions::default()
    };
    let proxied = proxy_url(&kubeconfig, options.context.as_deref());
    if let Some(url) = proxied {
        return Err(CredentialsError::ProxyUrl { from, url });
    }
    let config = Config::from_custom_kubeconfig(kubeconfig, &chosen)
        .await
        .map_err(|error| wrong(&error))?;
    Ok((config, from))
}

/// Returns the proxy of the chosen cluster.
///
/// kube-client would mix it with `HTTPS_PROXY`, which is not meant for the API server of the own
/// cluster and is ignored here.
fn proxy_url(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let name = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig
        .contexts
        .iter()
        .find(|known| known.name == name)?
        .context
        .as_ref()?;
    let cluster = kubeconfig
        .clusters
        .iter()
        .find(|known| known.name == context.cluster)?;
    cluster
        .cluster
        .as_ref()?
        .proxy_url
        .clone()
        .filter(|url| !url.is_empty())
}

/// Creates the credentials that a configuration describes.
fn material(
    options: &ConnectOptions,
    config: &Config,
    own: OwnCredential,
    from: String,
    fingerprint: Fingerprint,
) -> Result<Credentials, CredentialsError> {
    let wrong_login = |error: &(dyn std::error::Error + 'static)| CredentialsError::Login {
        from: from.clone(),
        reason: one_line(error),
    };
    let certificates = |reason: String| CredentialsError::Certificates {
        from: from.clone(),
        reason,
    };
    let addresses = server_addresses(options, config)?;
    let insecurities = insecurities(options, config, &addresses)?;
    let server_name = config
        .tls_server_name
        .clone()
        .map(ServerName::try_from)
        .transpose()
        .map_err(|error| certificates(format!("tls-server-name: {error}")))?;
    let headers = config
        .extra_headers_layer()
        .map_err(|error| wrong_login(&error))?;
    let mut with_certificate = config
        .rustls_client_config()
        .map_err(|error| certificates(one_line(&error)))?;
    let login = match own {
        OwnCredential::None => {
            let auth = config.auth_layer().map_err(|error| wrong_login(&error))?;
            Login {
                authorization: Authorization::KubeClient(auth),
                plugin: None,
                ends: None,
            }
        }
        OwnCredential::Token(header) => Login {
            authorization: Authorization::Known(header),
            plugin: None,
            ends: None,
        },
        OwnCredential::Plugin(made) => Login::by_plugin(made, &mut with_certificate),
    };
    let without_certificate = without_user(config)
        .rustls_client_config()
        .map_err(|error| certificates(one_line(&error)))?;
    Ok(Credentials {
        generation: 0,
        addresses,
        server_name,
        with_certificate: Tls::new(with_certificate),
        without_certificate: Tls::new(without_certificate),
        authorization: login.authorization,
        headers,
        insecurities,
        fingerprint,
        renew_at: login.ends.map(|end| renewal(end, Timestamp::now())),
        made: Instant::now(),
        plugin: login.plugin,
        is_refused: AtomicBool::new(false),
        from,
    })
}

/// The identity in requests, and its end.
struct Login {
    authorization: Authorization,
    /// The digest of what a plugin made.
    plugin: Option<blake3::Hash>,
    /// The end of what nobody replaces in a file.
    ends: Option<Timestamp>,
}

impl Login {
    /// Returns the login with what a plugin has made. A certificate becomes the client's.
    fn by_plugin(made: PluginCredential, client: &mut ClientConfig) -> Self {
        let plugin = Some(made.digest());
        let mut ends = made.expires;
        if let Some(certificate) = made.certificate {
            client.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certificate));
            let end = validity(client).map(|valid| valid.not_after);
            ends = end.into_iter().chain(ends).min();
        }
        let authorization = match made.token {
            Some(header) => Authorization::Known(header),
            None => Authorization::KubeClient(None),
        };
        Self {
            authorization,
            plugin,
            ends,
        }
    }
}

/// Returns the time at which credentials that end are made anew: before their end, but not at once.
fn renewal(end: Timestamp, now: Timestamp) -> Timestamp {
    let pause = RENEW_PAUSE.min((end.duration_since(now) / 2).unsigned_abs());
    let early = end.checked_sub(RENEW_BEFORE).unwrap_or(Timestamp::MIN);
    early.max(now + pause)
}

/// Returns the given servers' addresses, or that of the configured cluster.
fn server_addresses(
    options: &ConnectOptions,
    config: &Config,
) -> Result<Vec<Address>, AddressError> {
    if options.servers.is_empty() {
        return Ok(vec![Address::parse(&config.cluster_url.to_string())?]);
    }
    options
        .servers
        .iter()
        .map(|text| Address::parse(text))
        .collect()
}

/// Returns what the addresses lack. On this machine nobody is on the way, so it is accepted.
fn insecurities(
    options: &ConnectOptions,
    config: &Config,
    addresses: &[Address],
) -> Result<Vec<String>, CredentialsError> {
    let mut found = Vec::new();
    for address in addresses {
        let what = match address.is_tls() {
            false => format!("the API server at {address} is reached by plain HTTP"),
            true if config.accept_invalid_certs => format!(
                "the certificate of the API server at {address} is not verified \
                 (insecure-skip-tls-verify)"
            ),
            true => continue,
        };
        if !address.is_local() && !options.allow_insecure {
            return Err(CredentialsError::Insecure { what });
        }
        found.push(what);
    }
    Ok(found)
}

/// Copies a configuration without its user.
///
/// Invariant: without the user there is no certificate to show and no token to send.
fn without_user(config: &Config) -> Config {
    let mut nobody = config.clone();
    nobody.auth_info = AuthInfo::default();
    nobody.headers.clear();
    nobody
}

impl Tls {
    fn new(mut config: ClientConfig) -> Tls {
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let http1 = Arc::new(config.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Tls {
            any: Arc::new(config),
            http1,
        }
    }
}

/// Returns the validity of the client certificate.
fn validity(config: &ClientConfig) -> Option<Validity> {
    let schemes = config
        .crypto_provider()
        .signature_verification_algorithms
        .supported_schemes();
    let key = config.client_auth_cert_resolver.resolve(&[], &schemes)?;
    Validity::of(key.cert.first()?)
}

#[cfg(test)]
mod tests;
