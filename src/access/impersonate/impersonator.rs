//! Judges whether a caller may act as somebody else, as upstream does for callers that it knows.
//!
//! Upstream tries its modes one after the other, and first the one in which the same user was last
//! allowed. If none allows it, the first refusal counts.
//! Source: `apiserver/pkg/endpoints/filters/impersonation/constrained_impersonation.go`.
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, Method, Uri};
use moka::sync::Cache;
use watershed_protocol::{
    FieldSelector, LabelSelector, Query, RequestInfo, ResourceRequest, Status, Verb,
};

use super::ImpersonationRequest;
use super::filter::{ImpersonationRules, RulesProbe};
use super::mode::{ImpersonationMode, ModeCheck};
use crate::access::authorize::Authorizer;
use crate::access::caller::Rejection;
use crate::access::error::ReviewError;
use crate::access::identity::Identity;
use crate::access::request::{AccessTarget, ReviewSelectors, VerbTarget};
use crate::access::reviews::queues::ReviewQueues;
use crate::access::verdict::Decision;
use crate::fairness::Share;
use crate::upstream::UpstreamClient;

/// Users whose last mode is remembered. Source: `cache.go` (`newModeIndexCache`).
const MAX_USERS: u64 = 10_000;

/// Judges impersonation.
pub(in crate::access) struct Impersonator {
    authorizer: Arc<Authorizer>,
    rules: RulesProbe,
    queues: ReviewQueues,
    /// The mode in which each user was last allowed to act as another user.
    last_modes: Cache<String, ImpersonationMode>,
}

/// The identity that a caller gets.
pub(in crate::access) struct ImpersonatedIdentity {
    pub(in crate::access) identity: Identity,
    /// The mode's verb, unless it is the legacy one. Upstream audits it.
    pub(in crate::access) constraint: Option<&'static str>,
}

/// The head of a request, and the address that it came from.
#[derive(Clone, Copy)]
pub(in crate::access) struct RequestHead<'a> {
    pub(in crate::access) address: IpAddr,
    pub(in crate::access) method: &'a Method,
    pub(in crate::access) uri: &'a Uri,
    pub(in crate::access) headers: &'a HeaderMap,
}

impl Impersonator {
    pub(in crate::access) fn new(
        client: UpstreamClient,
        authorizer: Arc<Authorizer>,
        queues: ReviewQueues,
    ) -> Self {
        Self {
            authorizer,
            rules: RulesProbe::new(client),
            queues,
            last_modes: Cache::new(MAX_USERS),
        }
    }

    /// Returns the share of a request that is about to be judged. It is held until that has ended.
    fn begin(
        &self,
        caller: &Identity,
        head: RequestHead<'_>,
        access: Option<&AccessTarget>,
    ) -> Result<Share, Rejection> {
        let access = access.map_or(0, |access| access.on.size());
        let share =
            self.queues
                .begin_impersonation(caller, head.address, head.uri, head.headers, access);
        share.ok_or_else(|| Rejection::ReviewFailed(ReviewError::TooManyImpersonations.into()))
    }

    /// Returns the identity that `caller` may have for this request.
    pub(in crate::access) async fn judge(
        &self,
        caller: &Arc<Identity>,
        head: RequestHead<'_>,
        wanted: &ImpersonationRequest,
    ) -> Result<ImpersonatedIdentity, Rejection> {
        let access = requested_access(head.method, head.uri);
        let access = access.as_ref();
        let _waiting = self.begin(caller, head, access)?;
        let rules = self.rules.rules().await;
        let rules = rules.map_err(Rejection::ReviewFailed)?;
        if wanted.user.is_empty() {
            return Err(Status::bad_request(refusal_without_user(wanted, rules)).into());
        }
        if rules == ImpersonationRules::LegacyOnly {
            let checks = ImpersonationMode::checks_before_modes(wanted);
            self.require_all(ImpersonationMode::Legacy, caller, head.address, checks)
                .await?;
            return Ok(allowed(ImpersonationMode::Legacy, wanted));
        }
        let last = self.last_modes.get(&caller.user);
        let others = ImpersonationMode::ALL
            .into_iter()
            .filter(|mode| Some(*mode) != last);
        let mut first_refusal = None;
        for mode in last.into_iter().chain(others) {
            if !mode.is_for(wanted, caller) {
                continue;
            }
            match self.allow(mode, caller, head.address, wanted, access).await {
                Ok(true) => {
                    self.last_modes.insert(caller.user.clone(), mode);
                    return Ok(allowed(mode, wanted));
                }
                Ok(false) => {}
                Err(failed @ Rejection::ReviewFailed(_)) => return Err(failed),
                Err(refusal) => first_refusal = first_refusal.or(Some(refusal)),
            }
        }
        // The legacy mode is for everybody, so there is a refusal.
        Err(first_refusal.unwrap_or_else(|| Status::internal("no impersonation mode").into()))
    }

    /// Returns `Ok(false)` if the mode cannot be judged for a request like this one.
    async fn allow(
        &self,
        mode: ImpersonationMode,
        caller: &Arc<Identity>,
        address: IpAddr,
        wanted: &ImpersonationRequest,
        access: Option<&AccessTarget>,
    ) -> Result<bool, Rejection> {
        if mode != ImpersonationMode::Legacy {
            let Some(access) = access else {
                return Ok(false);
            };
            if let Some(verb) = mode.request_verb(&access.verb) {
                let target = AccessTarget::new(verb, access.on.clone());
                self.require(mode, caller, address, target).await?;
            }
        }
        self.require_all(mode, caller, address, mode.checks(wanted))
            .await?;
        Ok(true)
    }

    async fn require_all(
        &self,
        mode: ImpersonationMode,
        caller: &Arc<Identity>,
        address: IpAddr,
        checks: Vec<ModeCheck>,
    ) -> Result<(), Rejection> {
        for check in checks {
            match check {
                ModeCheck::Named(named) => self.require_named(mode, caller, address, named).await?,
                ModeCheck::AllOrEach(all, each) => {
                    match self.require_named(mode, caller, address, all).await {
                        Ok(()) => continue,
                        Err(failed @ Rejection::ReviewFailed(_)) => return Err(failed),
                        Err(Rejection::Status(_)) => {}
                    }
                    for named in each {
                        self.require_named(mode, caller, address, named).await?;
                    }
                }
                ModeCheck::Refused(named, reason) => {
                    let status = Status::forbidden_to(&caller.user, mode.verb(), &named, &reason);
                    return Err(status.into());
                }
            }
        }
        Ok(())
    }

    async fn require_named(
        &self,
        mode: ImpersonationMode,
        caller: &Arc<Identity>,
        address: IpAddr,
        named: ResourceRequest,
    ) -> Result<(), Rejection> {
        let target = AccessTarget::new(mode.verb(), named);
        self.require(mode, caller, address, target).await
    }

    async fn require(
        &self,
        mode: ImpersonationMode,
        caller: &Arc<Identity>,
        address: IpAddr,
        target: AccessTarget,
    ) -> Result<(), Rejection> {
        let asking = mode.asking(caller);
        let reviewed = self.authorizer.authorize(&asking, address, target).await;
        let reviewed = reviewed.map_err(Rejection::ReviewFailed)?;
        let Decision::Denied(reason) = reviewed.decision() else {
            return Ok(());
        };
        let AccessTarget { verb, on, .. } = &reviewed.request.target;
        Err(match on {
            VerbTarget::Resource { resource, .. } => {
                Status::forbidden_to(&caller.user, verb, resource, reason)
            }
            VerbTarget::Path(path) => Status::forbidden_path(&caller.user, verb, path, reason),
        }
        .into())
    }
}

/// Returns what authorizers are asked about a request, or `None` if that is not certain: its path may be
/// read in another way than upstream reads it.
/// Source: `apiserver/pkg/endpoints/request/requestinfo.go`,
/// `apiserver/pkg/endpoints/filters/authorization.go` (`GetAuthorizerAttributes`).
fn requested_access(method: &Method, uri: &Uri) -> Option<AccessTarget> {
    let (path, query) = (uri.path(), Query::parse(uri.query()));
    if path.contains('%') || !query.is_whole() {
        return None;
    }
    let info = RequestInfo::of(method, path, &query);
    let Some(resource) = info.resource else {
        let verb = method.as_str().to_ascii_lowercase();
        let is_other = !has_resource_form(path);
        return is_other.then(|| AccessTarget::new(verb, VerbTarget::Path(path.to_owned())));
    };
    let verb = match info.verb {
        _ if info.legacy_watch => "watch",
        Verb::Other if *method == Method::HEAD && resource.name.is_some() => "get",
        Verb::Other => return None,
        verb => verb.as_str(),
    };
    let is_selected = matches!(verb, "list" | "watch" | "deletecollection");
    let selectors = if is_selected && !info.legacy_watch {
        selectors(&query)
    } else {
        ReviewSelectors::default()
    };
    let on = VerbTarget::Resource {
        resource,
        selectors,
    };
    Some(AccessTarget::new(verb, on))
}

/// Returns the selectors in a query. Those that upstream would refuse are left out.
fn selectors(query: &Query<'_>) -> ReviewSelectors {
    let labels = query.first("labelSelector");
    let labels = labels.and_then(|text| LabelSelector::parse(text).ok());
    let fields = query.first("fieldSelector");
    let fields = fields.and_then(|text| FieldSelector::parse(text).ok());
    ReviewSelectors::new(&labels.unwrap_or_default(), &fields.unwrap_or_default())
}

/// Returns `true` if upstream takes a path for one of a resource.
fn has_resource_form(path: &str) -> bool {
    let mut segments = path.trim_matches('/').split('/');
    let least = match segments.next() {
        Some("api") => 3,
        Some("apis") => 4,
        _ => return false,
    };
    1 + segments.count() >= least
}

fn allowed(mode: ImpersonationMode, wanted: &ImpersonationRequest) -> ImpersonatedIdentity {
    ImpersonatedIdentity {
        identity: mode.identity(wanted),
        constraint: Some(mode.verb()).filter(|_| mode != ImpersonationMode::Legacy),
    }
}

/// Returns the text about groups or attributes without a user.
fn refusal_without_user(wanted: &ImpersonationRequest, rules: ImpersonationRules) -> String {
    match rules {
        ImpersonationRules::Constrained => format!(
            "requested {} without impersonating a user name",
            wanted.as_go()
        ),
        ImpersonationRules::LegacyOnly => format!(
            "requested [{}] without impersonating a user",
            wanted.as_go_references().join(" ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use http::HeaderValue;

    use super::*;
    use crate::access::config::AuthorizationConfig;
    use crate::scope::Timeline;
    use crate::test_support::{Api, HTTP2, Pki, upstream_of};

    fn shown(method: &str, uri: &str) -> String {
        let access = requested_access(&method.parse().unwrap(), &uri.parse().unwrap());
        match access {
            None => "uncertain".to_owned(),
            Some(AccessTarget { verb, on, .. }) => match on {
                VerbTarget::Path(path) => format!("{verb} {path}"),
                VerbTarget::Resource {
                    resource,
                    selectors,
                } => {
                    let selected = selectors != ReviewSelectors::default();
                    let text = |part: Option<String>| part.unwrap_or_else(|| "-".to_owned());
                    format!(
                        "{verb} {} {} {} {}{}",
                        resource.gvr.resource,
                        text(resource.namespace),
                        text(resource.name),
                        text(resource.subresource),
                        if selected { " selected" } else { "" }
                    )
                }
            },
        }
    }

    #[test]
    fn requests_are_seen_as_upstream_sees_them() {
        for (method, uri, wanted) in [
            ("GET", "/api/v1/pods", "list pods - - -"),
            ("GET", "/api/v1/pods?watch=%ff", "uncertain"),
            (
                "GET",
                "/api/v1/pods?fieldSelector=metadata.name%3Da,b%zz",
                "uncertain",
            ),
            (
                "GET",
                "/api/v1/pods?watch=1&labelSelector=a%3Db",
                "watch pods - - - selected",
            ),
            (
                "GET",
                "/api/v1/pods?fieldSelector=metadata.name%3Dx",
                "list pods - x - selected",
            ),
            (
                "GET",
                "/api/v1/pods?labelSelector=%3D%3D",
                "list pods - - -",
            ),
            (
                "GET",
                "/api/v1/namespaces/n/pods/p?labelSelector=a",
                "get pods n p -",
            ),
            ("HEAD", "/api/v1/namespaces/n/pods/p", "get pods n p -"),
            ("HEAD", "/api/v1/pods", "uncertain"),
            (
                "POST",
                "/api/v1/namespaces/n/pods/p/exec?command=x",
                "create pods n p exec",
            ),
            ("PATCH", "/api/v1/namespaces/n/pods/p", "patch pods n p -"),
            (
                "DELETE",
                "/api/v1/namespaces/n/pods?labelSelector=a",
                "deletecollection pods n - - selected",
            ),
            (
                "GET",
                "/api/v1/watch/pods?labelSelector=a",
                "watch pods - - -",
            ),
            ("GET", "/healthz", "get /healthz"),
            ("POST", "/metrics/x", "post /metrics/x"),
            ("GET", "/api", "get /api"),
            ("GET", "/apis/apps/v1", "get /apis/apps/v1"),
            ("GET", "/api/v1/namespaces//pods", "uncertain"),
            ("GET", "/api/v1/namespaces/%6e/pods", "uncertain"),
            ("GET", "/health%7A", "uncertain"),
            ("OPTIONS", "/api/v1/pods", "uncertain"),
        ] {
            assert_eq!(shown(method, uri), wanted, "{method} {uri}");
        }
    }

    #[test]
    fn a_missing_user_is_refused_in_upstreams_words() {
        let wanted = ImpersonationRequest {
            groups: vec!["a".to_owned()],
            uid: "7".to_owned(),
            extra: [("k".to_owned(), vec!["v".to_owned()])].into(),
            ..ImpersonationRequest::default()
        };
        assert_eq!(
            refusal_without_user(&wanted, ImpersonationRules::LegacyOnly),
            "requested [{Group  a    } {UserExtra  v  authentication.k8s.io/v1  k} \
             {UID  7  authentication.k8s.io/v1  }] without impersonating a user"
        );
        let text = refusal_without_user(&wanted, ImpersonationRules::Constrained);
        assert!(
            text.ends_with(" without impersonating a user name"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_request_takes_its_share_until_it_is_judged() {
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, |_, _| std::future::pending()).await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let queues = ReviewQueues::default();
        let (config, timeline) = (AuthorizationConfig::default(), Timeline::default());
        let authorizer = Authorizer::new(client.clone(), config, timeline, queues.clone());
        let impersonator = Impersonator::new(client, Arc::new(authorizer), queues);
        let caller = Arc::new(Identity {
            user: "a".to_owned(),
            uid: None,
            groups: Vec::new(),
            extra: Vec::new(),
        });
        let mut headers = HeaderMap::new();
        headers.insert("impersonate-user", HeaderValue::from_static("b"));
        let wanted = ImpersonationRequest::parse(&headers).unwrap();
        // Upstream's authorizers do not see a path with an escape. Its length counts all the same.
        let uri: Uri = format!("/a%20b?{}", "x".repeat(60_000)).parse().unwrap();
        let head = RequestHead {
            address: [192, 0, 2, 1].into(),
            method: &Method::GET,
            uri: &uri,
            headers: &headers,
        };
        let judge = || Box::pin(impersonator.judge(&caller, head, &wanted));
        let mut judging = Vec::new();
        let refused = loop {
            let mut next = judge();
            match futures_util::poll!(&mut next) {
                Poll::Pending => judging.push(next),
                Poll::Ready(judged) => break judged.map(|_| ()).unwrap_err(),
            }
            assert!(judging.len() < 1_000, "nothing is refused");
        };
        assert!(
            matches!(&refused, Rejection::ReviewFailed(error)
                if matches!(**error, ReviewError::TooManyImpersonations)),
            "{refused:?}"
        );
        assert!((100..200).contains(&judging.len()), "{}", judging.len());
        judging.pop();
        assert!(
            futures_util::poll!(judge()).is_pending(),
            "there is room again"
        );
    }
}
