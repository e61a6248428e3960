//! Who may see what: callers are known by TokenReview or certificate, and let in by
//! SubjectAccessReview.
//!
//! Nothing here emulates upstream's rules. It is asked, and its answer is kept for a while: grants
//! by RBAC for minutes, as the objects that RBAC consists of are followed, and a change has those
//! asked about anew whom it can concern.
pub mod authenticate;
pub mod authorize;
mod caller;
mod certificate;
mod changes;
mod follow;
pub mod front_proxy;
mod guard;
mod impersonate;
pub mod metrics;
mod own;
mod rbac;
mod review;
mod service_account;

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use crate::listener::tls::TlsError;
use crate::scope::Scopes;
use crate::upstream::UpstreamClient;

pub use authenticate::{Authenticated, Authenticator};
pub use authorize::{Attributes, Authorizer, Decision, Judged, Selectors};
pub use caller::{Caller, Refusal, Vouched};
pub use guard::Guard;
pub use own::OwnRights;
pub use review::{ReviewError, Unavailable};
pub use service_account::BoundObjects;

use caller::Own;
use certificate::Certificates;
use front_proxy::FrontProxies;
use service_account::ServiceAccounts;

/// A caller as upstream knows them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The user name.
    pub user: String,
    /// The user's unique id, if any.
    pub uid: Option<String>,
    /// The groups, as upstream gave them.
    pub groups: Vec<String>,
    /// Further attributes, sorted by key.
    pub extra: Vec<(String, Vec<String>)>,
}

/// How callers are known and let in.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Who is calling, by credentials that upstream takes as well?
    pub authentication: authenticate::Config,
    /// Authorities of callers' certificates (`--client-ca-file`). As in an API server, who has one
    /// is in the cluster whoever that is, so it must be upstream's own.
    pub client_ca: Option<PathBuf>,
    /// Front proxies that are believed.
    pub front_proxy: Option<front_proxy::Config>,
    /// Everybody is the proxy itself (`--single-identity`).
    pub single_identity: bool,
    /// May they?
    pub authorization: authorize::Config,
}

impl Config {
    /// The files of all authorities that sign certificates of use.
    pub fn authorities(&self) -> Vec<PathBuf> {
        self.client_ca
            .iter()
            .chain(self.front_proxy.as_ref().map(|proxy| &proxy.ca))
            .cloned()
            .collect()
    }
}

/// The authorities in a file, if callers' certificates can be verified by them.
pub async fn authorities(file: PathBuf) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    Certificates::load(file).await?.authorities()
}

/// Both questions in one place.
#[derive(Clone)]
pub struct Access {
    /// Who is calling?
    pub authenticator: Arc<Authenticator>,
    /// May they?
    pub authorizer: Arc<Authorizer>,
    certificates: Option<Certificates>,
    front_proxies: Option<Arc<FrontProxies>>,
    own: Option<Arc<Own>>,
}

impl Access {
    /// Asks through `client`, with the proxy's own identity. `objects` are those that tokens may be
    /// bound to.
    pub async fn new(
        client: &UpstreamClient,
        config: Config,
        objects: Arc<dyn BoundObjects>,
    ) -> Result<Self, TlsError> {
        let Config {
            authentication,
            client_ca,
            front_proxy,
            single_identity,
            authorization,
        } = config;
        let certificates = match client_ca {
            Some(file) => Some(Certificates::load(file).await?),
            None => None,
        };
        let front_proxies = match front_proxy {
            Some(config) => Some(Arc::new(FrontProxies::load(config).await?)),
            None => None,
        };
        let locally = authentication.validate_locally.then(|| {
            ServiceAccounts::new(client.clone(), authentication.audiences.clone(), objects)
        });
        Ok(Self {
            authenticator: Arc::new(Authenticator::new(client.clone(), authentication, locally)),
            authorizer: Arc::new(Authorizer::new(client.clone(), authorization)),
            certificates,
            front_proxies,
            own: single_identity.then(|| Arc::new(Own::new(client.clone()))),
        })
    }

    /// Follows the changes of RBAC, for ever. Without it verdicts are remembered for seconds only.
    pub fn follow_rbac(&self, scopes: Scopes) -> impl Future<Output = ()> + Send + use<> {
        follow::follow(scopes, Arc::clone(self.authorizer.changes()))
    }

    /// Whether a request whose review failed so is refused; else upstream judges it.
    pub fn must_refuse(&self, error: &ReviewError) -> bool {
        error.is_unavailable() && self.authorizer.config().unavailable == Unavailable::Refuse
    }
}
