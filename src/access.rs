//! Who may see what: callers are known by TokenReview and let in by SubjectAccessReview.
//!
//! Nothing here emulates upstream's rules. It is asked, and its answer is kept for a while: grants by RBAC for
//! minutes, as the objects that RBAC consists of are followed, and a change has those asked about anew whom it can
//! concern.
pub mod authenticate;
pub mod authorize;
mod changes;
mod follow;
mod guard;
pub mod metrics;
mod rbac;
mod review;

use std::sync::Arc;

use crate::scope::Scopes;
use crate::upstream::Client;

pub use authenticate::{Authenticated, Authenticator};
pub use authorize::{Attributes, Authorizer, Decision, Judged, Selectors};
pub use guard::{Guard, Standing};
pub use review::{ReviewError, Unavailable};

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
    /// Who is calling?
    pub authentication: authenticate::Config,
    /// May they?
    pub authorization: authorize::Config,
}

/// Both questions in one place.
#[derive(Clone)]
pub struct Access {
    /// Who is calling?
    pub authenticator: Arc<Authenticator>,
    /// May they?
    pub authorizer: Arc<Authorizer>,
}

impl Access {
    /// Asks through `client`, with the proxy's own identity.
    pub fn new(client: &Client, config: Config) -> Self {
        Self {
            authenticator: Arc::new(Authenticator::new(client.clone(), config.authentication)),
            authorizer: Arc::new(Authorizer::new(client.clone(), config.authorization)),
        }
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
