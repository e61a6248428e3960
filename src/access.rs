//! Authentication and authorization of callers.
//!
//! Upstream decides: a TokenReview or a certificate identifies a caller, and a SubjectAccessReview
//! says what the caller may read. This module caches the answers and grants nothing itself. Grants
//! by RBAC are cached for hours, because the proxy follows the RBAC objects: a change drops the
//! cached answers that it can concern.
//!
//! `authenticate` identifies callers, `authorize` judges what they want, `impersonate` judges whom
//! they may act as, and `guard` watches over grants of open watches. `changes` follows RBAC, and `passed_on`
//! answers other proxies that ask about their callers.
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Request, StatusCode};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use watershed_protocol::Status;

use crate::listener::tls::TlsError;
use crate::listener::{Peer, client_network};
use crate::scope::{ScopeKey, ScopeOptions, Scopes, Timeline};
use crate::upstream::{ForwardIdentity, UpstreamClient};

mod authenticate;
mod authorize;
mod caller;
mod changes;
mod config;
mod error;
mod guard;
mod identity;
mod impersonate;
pub mod metrics;
mod moment;
mod node;
mod own;
mod passed_on;
mod request;
mod reviews;
mod scope_events;
mod token_attribute;
mod verdict;

pub(crate) use authenticate::certificate::CertificateSubject;
pub use authenticate::certificate::overlap;
pub use authenticate::service_account::BoundObjects;
pub use authenticate::{Authenticated, Authenticator, Credential};
pub use authorize::Authorizer;
pub use caller::{Caller, Impersonation, RejectedCaller, Rejection, Vouched};
pub use changes::follow::lists_rbac;
pub use config::{
    AccessConfig, AuthenticationConfig, AuthorizationConfig, FollowedRbac, FrontProxyConfig,
    ReviewFailurePolicy,
};
pub use error::ReviewError;
pub use guard::WatchGuard;
pub use identity::Identity;
pub use node::NodeGrantMode;
pub use own::rights::OwnRights;
pub use passed_on::ProxyReview;
pub use request::{AccessAttributes, AccessTarget, ReviewSelectors};
pub use reviews::verdict_form::{ReviewType, VERDICT_MEDIA_TYPE, VerdictAge, wanted_verdict};
pub use token_attribute::CREDENTIAL_ID;
pub use verdict::{Decision, ReviewedAccess};

use authenticate::certificate::Certificates;
use authenticate::front_proxy::FrontProxies;
use authenticate::known_tokens::ACCEPTED_TTL;
use authenticate::service_account::ServiceAccounts;
use authenticate::token_inspection::TokenInspection;
use authenticate::token_issuer::{IssuerQuery, TokenIssuer};
use authenticate::token_reviewer::LocalChecks;
use authenticate::websocket_token;
use impersonate::ImpersonationRequest;
use impersonate::impersonator::{ImpersonatedIdentity, Impersonator, RequestHead};
use own::identity::OwnIdentity;
use passed_on::ReviewingProxies;
use reviews::queues::ReviewQueues;

/// The header of what passed priority and fairness, which comes after authentication.
/// Source: `apiserver/pkg/server/filters/priority-and-fairness.go`.
const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");

/// Reads the authorities in a file and checks that they can verify client certificates.
pub async fn authorities(file: PathBuf) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    Ok(Certificates::load(file).await?.authorities())
}

/// Identifies callers and authorizes their requests.
#[derive(Clone)]
pub struct Access {
    /// Identifies callers by bearer token.
    pub authenticator: Arc<Authenticator>,
    /// Asks upstream what callers may do.
    pub authorizer: Arc<Authorizer>,
    impersonator: Arc<Impersonator>,
    certificates: Option<Certificates>,
    front_proxies: Option<Arc<FrontProxies>>,
    /// The group system:masters may be named without a certificate that has it.
    allow_masters: bool,
    /// The proxy's own identity, if all callers share it.
    own: Option<Arc<OwnIdentity>>,
    reviewing: Arc<ReviewingProxies>,
    /// The moment of the last review of a caller that failed.
    last_failure: Arc<Mutex<Option<Instant>>>,
}

impl Access {
    /// Creates an instance that sends reviews through `client`, with the proxy's own identity.
    ///
    /// `objects` are those that service account tokens can be bound to. Nothing is remembered
    /// beyond the end of `timeline`.
    pub async fn new(
        client: &UpstreamClient,
        config: AccessConfig,
        objects: Arc<dyn BoundObjects>,
        timeline: &Timeline,
    ) -> Result<Self, TlsError> {
        let AccessConfig {
            authentication,
            client_ca,
            front_proxy,
            allow_masters,
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
        let query = if authentication.refuse_invalid {
            IssuerQuery::KeysAndName
        } else {
            IssuerQuery::Keys
        };
        let issuer = Arc::new(TokenIssuer::new(client.clone(), query));
        let inspection = authentication
            .refuse_invalid
            .then(|| TokenInspection::new(Arc::clone(&issuer)));
        let service_accounts = authentication.validate_locally.then(|| {
            let audiences = authentication.audiences.clone();
            ServiceAccounts::new(issuer, audiences, objects, ACCEPTED_TTL)
        });
        let queues = ReviewQueues::default();
        let authenticator = Authenticator::new(
            client.clone(),
            authentication,
            LocalChecks {
                inspection,
                service_accounts,
            },
            timeline.clone(),
            queues.clone(),
        );
        let authorizer = Authorizer::new(
            client.clone(),
            authorization,
            timeline.clone(),
            queues.clone(),
        );
        let own = single_identity.then(|| OwnIdentity::new(client.clone(), timeline.clone()));
        let authorizer = Arc::new(authorizer);
        let impersonator = Impersonator::new(client.clone(), Arc::clone(&authorizer), queues);
        Ok(Self {
            authenticator: Arc::new(authenticator),
            authorizer,
            impersonator: Arc::new(impersonator),
            certificates,
            front_proxies,
            allow_masters,
            own: own.map(Arc::new),
            reviewing: Arc::default(),
            last_failure: Arc::default(),
        })
    }

    /// Follows changes of RBAC forever. Without it verdicts are cached for seconds only.
    pub fn follow_rbac(
        &self,
        scopes: Scopes,
        followed: FollowedRbac,
    ) -> impl Future<Output = ()> + Send + use<> {
        changes::follow::follow(scopes, Arc::clone(self.authorizer.changes()), followed)
    }

    /// Follows the pods of a scope forever, if grants of nodes rest on them. Without it these grants
    /// are reviewed by the clock.
    pub fn follow_pods(
        &self,
        scopes: Scopes,
        key: ScopeKey,
        options: ScopeOptions,
    ) -> impl Future<Output = ()> + Send + use<> {
        let nodes = Arc::clone(self.authorizer.nodes());
        node::follow::follow(scopes, key, options, nodes)
    }

    /// Notes that the review of a caller failed.
    pub fn note_failed_review(&self) {
        *self.last_failure.lock() = Some(Instant::now());
    }

    /// Returns `true` if the review of a caller failed within this time.
    pub fn has_review_failed(&self, within: Duration) -> bool {
        let last = *self.last_failure.lock();
        last.is_some_and(|failed| failed.elapsed() < within)
    }

    /// Returns `true` if a request is refused because its review failed with `error`. Otherwise the
    /// request is forwarded, and upstream decides.
    pub fn must_refuse(&self, error: &ReviewError) -> bool {
        error.is_unavailable()
            && self.authorizer.config().review_failure_policy == ReviewFailurePolicy::Refuse
    }

    /// Returns upstream's decision about the right of a proxy at this address to ask about others, if
    /// this proxy answers its reviews of this type. `None` if they are to be forwarded.
    pub async fn may_review(
        &self,
        proxy: &Arc<Identity>,
        address: IpAddr,
        review: ReviewType,
    ) -> Result<Option<ReviewedAccess>, Arc<ReviewError>> {
        if review == ReviewType::Token && !self.authenticator.answers_proxies() {
            return Ok(None);
        }
        let reviewing = &self.reviewing;
        reviewing
            .may_review(&self.authorizer, proxy, address, review)
            .await
    }

    /// Returns the answer to the review of a proxy at this address, in the form for proxies.
    pub async fn answer_proxy(
        &self,
        review: ProxyReview,
        proxy: &Identity,
        address: IpAddr,
        age: VerdictAge,
    ) -> Result<Bytes, Arc<ReviewError>> {
        review
            .decide(&self.authenticator, &self.authorizer, proxy, address, age)
            .await
    }

    /// Returns the caller of a request over a connection from `peer`.
    ///
    /// As in an API server, a front proxy's headers come first, then the certificate, then the
    /// token. A bad certificate is an error only if there is no token.
    pub async fn caller<B>(&self, request: &Request<B>, peer: &Peer) -> Caller {
        let headers = request.headers();
        if let Some(own) = &self.own {
            // The proxy does not know as whom upstream sees an impersonating request.
            let identity = if impersonate::is_requested(headers) {
                None
            } else {
                own.identity().await
            };
            return Caller::Vouched(Vouched {
                identity,
                impersonation: None,
                forwarded_as: ForwardIdentity::Proxy,
            });
        }
        let Some(chain) = peer
            .tls
            .as_ref()
            .map(|tls| &*tls.certificates)
            .filter(|chain| !chain.is_empty())
        else {
            return Caller::WithCredentials;
        };
        match self.by_certificate(chain, headers) {
            Ok(Some(identity)) => {
                let head = RequestHead {
                    address: client_network(peer.address.ip()),
                    method: request.method(),
                    uri: request.uri(),
                    headers,
                };
                self.vouch(identity, head).await
            }
            Ok(None) if presents_token(headers) => Caller::WithCredentials,
            Ok(None) => Caller::Rejected(Status::unauthorized().into()),
            Err(rejected) => Caller::Rejected(rejected),
        }
    }

    /// Identifies the caller of a request with these headers, which came from this address.
    pub async fn identify(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        address: IpAddr,
    ) -> Result<Authenticated, Arc<ReviewError>> {
        match caller {
            Caller::WithCredentials => self.authenticator.authenticate(headers, address).await,
            Caller::Vouched(vouched) => Ok(vouched
                .identity
                .clone()
                .map_or(Authenticated::Unknown, Authenticated::Known)),
            Caller::Rejected(_) => Ok(Authenticated::Refused),
        }
    }

    /// Identifies the caller like [`Access::identify`], but by its bearer token whatever else the
    /// headers contain. This is the user who pays for the request, not the one impersonated.
    pub async fn identify_bearer(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        address: IpAddr,
    ) -> Result<Authenticated, Arc<ReviewError>> {
        match caller {
            Caller::WithCredentials => {
                self.authenticator
                    .authenticate_by_any_token(headers, address)
                    .await
            }
            Caller::Vouched(_) | Caller::Rejected(_) => {
                self.identify(caller, headers, address).await
            }
        }
    }

    /// Returns the caller's bearer token, if the caller is known by one.
    pub fn credential(&self, caller: &Caller, headers: &HeaderMap) -> Option<Credential> {
        match caller {
            Caller::WithCredentials => self.authenticator.credential(headers),
            Caller::Vouched(_) | Caller::Rejected(_) => None,
        }
    }

    /// Returns `true` if upstream has accepted the caller lately, or would because this proxy vouches for it.
    /// For limits only: nothing is granted by it.
    pub fn is_known(&self, caller: &Caller, credential: Option<&Credential>) -> bool {
        match caller {
            Caller::WithCredentials => {
                credential.is_some_and(|token| self.authenticator.was_accepted(token))
            }
            Caller::Vouched(_) => true,
            Caller::Rejected(_) => false,
        }
    }

    /// Returns `true` if a request with an unknown token from this address may be forwarded.
    pub fn may_try_token(&self, address: IpAddr) -> bool {
        self.authenticator.may_try(address)
    }

    /// Returns `true` if upstream refused a token lately, and has not accepted it since.
    pub fn was_refused(&self, credential: &Credential) -> bool {
        self.authenticator.was_refused(credential)
    }

    /// Notes upstream's answer to a forwarded request with a bearer token from this address.
    ///
    /// API servers authenticate before they do anything else. Of other answers a load balancer in
    /// front of them may be the author, and of a refusal the server behind a proxied path or an
    /// aggregated API.
    pub async fn note_answer(
        &self,
        credential: &Credential,
        address: IpAddr,
        path: &str,
        status: StatusCode,
        headers: &HeaderMap,
    ) {
        let is_api = path.starts_with("/api/") || path.starts_with("/apis/");
        let follows_authentication = status.is_success()
            || matches!(
                status,
                StatusCode::FORBIDDEN
                    | StatusCode::NOT_FOUND
                    | StatusCode::CONFLICT
                    | StatusCode::GONE
                    | StatusCode::UNPROCESSABLE_ENTITY
            );
        if status == StatusCode::UNAUTHORIZED {
            if is_of_api_server(path, headers) {
                self.authenticator.note_refused(credential, address).await;
            }
        } else if is_api && follows_authentication {
            self.authenticator.note_accepted(credential);
        }
    }

    /// Returns the identity of a caller if it is known without asking upstream. For counting only.
    pub async fn remembered(
        &self,
        caller: &Caller,
        credential: Option<&Credential>,
        headers: &HeaderMap,
    ) -> Option<Arc<Identity>> {
        match (caller, credential) {
            (Caller::WithCredentials, Some(token)) => {
                self.authenticator.reviewed_lately(token).await
            }
            (Caller::WithCredentials, None) => self.authenticator.without_credentials(headers),
            (Caller::Vouched(vouched), _) => vouched.identity.clone(),
            (Caller::Rejected(_), _) => None,
        }
    }

    /// Returns the identity that a front proxy's headers or a client certificate give the caller.
    fn by_certificate(
        &self,
        chain: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> Result<Option<Identity>, RejectedCaller> {
        let named = match &self.front_proxies {
            Some(proxies) => proxies
                .identify(chain, headers)
                .map_err(|error| Status::bad_request(error.to_string()))?,
            None => None,
        };
        if let Some(identity) = named {
            let identity = grouped(identity)?;
            return match self.refused_master(&identity, "a front proxy") {
                Some(status) => Err(RejectedCaller {
                    reason: status.into(),
                    identity: Some(Arc::new(identity)),
                }),
                None => Ok(Some(identity)),
            };
        }
        let certificates = self.certificates.as_ref();
        let subject = certificates.and_then(|certificates| certificates.verify(chain));
        let identity = subject.and_then(|subject| subject.identity());
        identity.map(grouped).transpose()
    }

    /// Returns the refusal of an identity that may do everything, if `who` may not name it.
    fn refused_master(&self, identity: &Identity, who: &str) -> Option<Status> {
        (identity.is_master() && !self.allow_masters).then(|| {
            let message = format!(
                "the proxy does not accept the group system:masters from {who} \
                 (--allow-system-masters)"
            );
            Status::new(403, "Forbidden", message)
        })
    }

    /// Vouches for an identity, or for the one that it asks to impersonate and may.
    async fn vouch(&self, identity: Identity, head: RequestHead<'_>) -> Caller {
        let identity = Arc::new(identity);
        let vouched = match self.impersonated(&identity, head).await {
            Ok(Some(ImpersonatedIdentity {
                identity: other,
                constraint,
            })) => Vouched::new(Arc::new(other)).map(|vouched| {
                vouched.impersonated_by(Impersonation {
                    impersonator: Arc::clone(&identity),
                    constraint,
                })
            }),
            Ok(None) => Vouched::new(Arc::clone(&identity)),
            Err(reason) => Err(reason),
        };
        match vouched {
            Ok(vouched) => Caller::Vouched(vouched),
            Err(reason) => Caller::Rejected(RejectedCaller {
                reason,
                identity: Some(identity),
            }),
        }
    }

    /// Returns the identity that a caller asks to impersonate and may, if it asks for one.
    async fn impersonated(
        &self,
        identity: &Arc<Identity>,
        head: RequestHead<'_>,
    ) -> Result<Option<ImpersonatedIdentity>, Rejection> {
        if !impersonate::is_requested(head.headers) {
            return Ok(None);
        }
        let requested = ImpersonationRequest::parse(head.headers)
            .map_err(|error| Status::bad_request(error.to_string()))?;
        if requested.is_empty() {
            return Ok(None);
        }
        // Boxed, because the future is large and rare.
        let judging = self.impersonator.judge(identity, head, &requested);
        let reviewed = Box::pin(judging).await?;
        match self.refused_master(&reviewed.identity, "a caller who impersonates") {
            Some(status) => Err(status.into()),
            None => Ok(Some(reviewed)),
        }
    }
}

/// Adds the group that upstream puts a named user into.
///
/// It puts `system:anonymous` into none, but adds `system:unauthenticated` when somebody acts as that
/// user. So the proxy cannot act exactly as that user without the group.
/// Source: `apiserver/pkg/authentication/group/authenticated_group_adder.go`.
fn grouped(identity: Identity) -> Result<Identity, RejectedCaller> {
    if !identity.is_anonymous_without_group() {
        return Ok(identity.with_implicit_group());
    }
    let message = "the proxy accepts system:anonymous only in the group system:unauthenticated";
    let status = Status::new(403, "Forbidden", message);
    Err(RejectedCaller {
        reason: status.into(),
        identity: Some(Arc::new(identity)),
    })
}

/// Returns `true` if a request presents a token, as a browser's WebSocket does by a header of its
/// own.
fn presents_token(headers: &HeaderMap) -> bool {
    headers.contains_key(http::header::AUTHORIZATION)
        || (websocket_token::is_websocket(headers) && websocket_token::token(headers).is_some())
}

/// Returns `true` if a 401 with these headers is the API server's own. Others are of the server behind a
/// proxied path, or of an aggregated API.
pub fn is_of_api_server(path: &str, headers: &HeaderMap) -> bool {
    let is_of_another =
        headers.contains_key(FLOW_SCHEMA) || path.split('/').any(|segment| segment == "proxy");
    !is_of_another
}
