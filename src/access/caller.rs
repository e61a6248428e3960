//! Whose request it is, and with whose credentials it goes on to upstream.
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use moka::future::Cache;
use rustls::pki_types::CertificateDer;

use super::certificate::Subject;
use super::front_proxy::Unreadable;
use super::impersonate::{self, Wanted, with_everybodys_group};
use super::own::OwnRights;
use super::review::ReviewError;
use super::{Access, Authenticated, Decision, Identity};
use crate::listener::Peer;
use crate::upstream::{ForwardIdentity, UpstreamClient};
use watershed_protocol::Status;

/// The attribute that says which credential somebody came with.
/// Source: `apiserver/pkg/authentication/user/user.go` (CredentialIDKey).
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// How long the proxy's own identity is not asked for again.
const OWN_IDENTITY: Duration = Duration::from_mins(1);

/// Whose request it is.
#[derive(Clone, Debug)]
pub enum Caller {
    /// Whose the credentials in the request are: upstream takes them as they stand. Who that is,
    /// the authenticator finds out if it matters here.
    Own,
    /// Somebody of whom upstream knows only through this proxy.
    Vouched(Vouched),
    /// Nobody that upstream would listen to.
    Refused(Refusal),
}

/// Somebody of whom upstream knows only through this proxy.
#[derive(Clone, Debug)]
pub struct Vouched {
    /// Who they are; `None` if that is not known here, and upstream has to answer.
    pub identity: Option<Arc<Identity>>,
    /// How their requests are sent on.
    pub authority: ForwardIdentity,
}

/// Why a caller is not listened to.
#[derive(Clone, Debug)]
pub enum Refusal {
    /// With this answer.
    Status(Box<Status>),
    /// Upstream could not be asked what they may.
    Unknown(Arc<ReviewError>),
}

impl Caller {
    /// With whose credentials their requests are sent on.
    pub fn authority(&self) -> ForwardIdentity {
        match self {
            Self::Vouched(vouched) => vouched.authority.clone(),
            Self::Own | Self::Refused(_) => ForwardIdentity::Caller,
        }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl Access {
    /// Whose request it is that came with these headers over a connection of `peer`.
    ///
    /// As in an API server, a front proxy's word comes first, then the certificate, then the token;
    /// and a certificate that is not good is an error only where there is no token.
    pub async fn caller(&self, headers: &HeaderMap, peer: &Peer) -> Caller {
        if let Some(own) = &self.own {
            let asks_to_be_another = impersonate::is_asked_for(headers);
            let identity = if asks_to_be_another {
                None
            } else {
                own.identity().await
            };
            return Caller::Vouched(Vouched {
                identity,
                authority: ForwardIdentity::Own,
            });
        }
        let Some(chain) = peer
            .tls
            .as_ref()
            .map(|tls| &*tls.certificates)
            .filter(|chain| !chain.is_empty())
        else {
            return Caller::Own;
        };
        let shown = match self.shown(chain, headers) {
            Ok(shown) => shown,
            Err(unreadable) => {
                return Caller::Refused(Status::bad_request(unreadable.to_string()).into());
            }
        };
        let Some(identity) = shown else {
            let has_token = headers.contains_key(http::header::AUTHORIZATION);
            return if has_token {
                Caller::Own
            } else {
                Caller::Refused(Status::unauthorized().into())
            };
        };
        let identity = Arc::new(identity);
        let acting = if impersonate::is_asked_for(headers) {
            self.impersonated(&identity, headers).await
        } else {
            Ok(identity)
        };
        match acting.and_then(vouched) {
            Ok(vouched) => Caller::Vouched(vouched),
            Err(refusal) => Caller::Refused(refusal),
        }
    }

    /// Who the caller of a request with these headers is.
    pub async fn identify(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
    ) -> Result<Authenticated, Arc<ReviewError>> {
        match caller {
            Caller::Own => self.authenticator.authenticate(headers).await,
            Caller::Vouched(vouched) => Ok(vouched
                .identity
                .clone()
                .map_or(Authenticated::Unknown, Authenticated::As)),
            Caller::Refused(_) => Ok(Authenticated::Refused),
        }
    }

    /// Who the caller of a request with these headers is, as far as that is known without asking
    /// anybody. For counting.
    pub async fn remembered(&self, caller: &Caller, headers: &HeaderMap) -> Option<Arc<Identity>> {
        match caller {
            Caller::Own => self.authenticator.remembered(headers).await,
            Caller::Vouched(vouched) => vouched.identity.clone(),
            Caller::Refused(_) => None,
        }
    }

    /// Whom a certificate or a front proxy says the caller to be.
    fn shown(
        &self,
        chain: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> Result<Option<Identity>, Unreadable> {
        let said = match &self.front_proxies {
            Some(proxies) => proxies.identify(chain, headers)?,
            None => None,
        };
        let identity = said.or_else(|| {
            let subject = self.certificates.as_ref()?.verify(chain)?;
            of_subject(&subject)
        });
        Ok(identity.map(with_everybodys_group))
    }

    async fn impersonated(
        &self,
        identity: &Arc<Identity>,
        headers: &HeaderMap,
    ) -> Result<Arc<Identity>, Refusal> {
        let wanted = Wanted::of(headers).map_err(Status::bad_request)?;
        if wanted.is_nobody() {
            return Ok(Arc::clone(identity));
        }
        for ask in wanted.asks() {
            let judged = self
                .authorizer
                .authorize_impersonation(identity, &ask)
                .await;
            if let Decision::Denied(reason) = judged.map_err(Refusal::Unknown)?.decision() {
                let status = Status::forbidden_impersonation(&identity.user, &ask, reason);
                return Err(status.into());
            }
        }
        Ok(Arc::new(wanted.identity()))
    }
}

fn vouched(identity: Arc<Identity>) -> Result<Vouched, Refusal> {
    let headers =
        impersonate::headers(&identity).map_err(|error| Status::bad_request(error.to_string()))?;
    Ok(Vouched {
        identity: Some(identity),
        authority: ForwardIdentity::Impersonated(Arc::new(headers)),
    })
}

/// Source: `apiserver/pkg/authentication/request/x509/x509.go` (CommonNameUserConversion).
fn of_subject(subject: &Subject) -> Option<Identity> {
    let Subject {
        common_name,
        organizations,
        uid,
        fingerprint,
    } = subject;
    (!common_name.is_empty()).then(|| Identity {
        user: common_name.clone(),
        uid: uid.clone(),
        groups: organizations.clone(),
        extra: vec![(
            CREDENTIAL_ID.to_owned(),
            vec![format!("X509SHA256={fingerprint}")],
        )],
    })
}

/// Who the proxy itself is to upstream.
pub(super) struct Own {
    client: UpstreamClient,
    identity: Cache<(), Arc<Identity>>,
}

impl Own {
    pub(super) fn new(client: UpstreamClient) -> Self {
        Self {
            client,
            identity: Cache::builder()
                .max_capacity(1)
                .time_to_live(OWN_IDENTITY)
                .build(),
        }
    }

    /// `None` if upstream does not say.
    async fn identity(&self) -> Option<Arc<Identity>> {
        if let Some(known) = self.identity.get(&()).await {
            return Some(known);
        }
        let asked = Box::pin(self.identity.try_get_with((), Box::pin(self.ask()))).await;
        asked
            .inspect_err(|error| tracing::warn!(%error, "upstream does not say who the proxy is"))
            .ok()
    }

    async fn ask(&self) -> Result<Arc<Identity>, ReviewError> {
        OwnRights::new(self.client.clone())
            .identity()
            .await
            .map(Arc::new)
    }
}
