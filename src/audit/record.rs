//! The record of one request: its attributes, and the events that it logs.
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio_util::task::task_tracker::TaskTrackerToken;
use watershed_protocol::{RequestInfo, Status, Verb};

use super::event::{AuditStage, EventAttributes, EventOutcome, EventTemplate, MAX_USER_AGENT};
use super::log::AuditLog;
use super::policy::{OmittedStages, PolicyAttributes};
use super::source_ips::source_ips;
use crate::access::{Decision, Identity};
use crate::body::{self, Body, TunnelEnd};

/// Bytes of the longest address in an event.
const ADDRESS_BYTES: usize = 42;
/// Bytes of a usual request in its record, which are a part of what counts for each watch.
const USUAL_BYTES: usize = 1 << 10;

/// Records the user that the credentials of a request name.
pub fn record_caller<B>(request: &Request<B>, identity: &Arc<Identity>) {
    if let Some(facts) = request.extensions().get::<SharedFacts>() {
        facts.0.lock().user = Some(Arc::clone(identity));
    }
}

/// Records the user that a request impersonates, and the verb of the permission if it is one of
/// constrained impersonation.
pub fn record_impersonated<B>(
    request: &Request<B>,
    identity: &Arc<Identity>,
    constraint: Option<&'static str>,
) {
    if let Some(facts) = request.extensions().get::<SharedFacts>() {
        let mut facts = facts.0.lock();
        facts.impersonated = Some(Arc::clone(identity));
        facts.constraint = constraint;
    }
}

/// Records the authorizer's decision about a request.
pub fn record_decision<B>(request: &Request<B>, decision: &Decision) {
    if let Some(facts) = request.extensions().get::<SharedFacts>() {
        facts.0.lock().decision = Some(decision.clone());
    }
}

/// Returns the memory that the record of a request takes until the answer has ended, beyond that of a usual
/// record. It is zero without an audit log.
pub fn kept_bytes<B>(request: &Request<B>) -> usize {
    let Some(facts) = request.extensions().get::<SharedFacts>() else {
        return 0;
    };
    let facts = facts.0.lock();
    let users = [&facts.user, &facts.impersonated].into_iter().flatten();
    let users: usize = users.map(|user| text_bytes(user)).sum();
    (facts.request_bytes + users).saturating_sub(USUAL_BYTES)
}

/// Returns the bytes of the texts of an identity.
fn text_bytes(identity: &Identity) -> usize {
    let extra = identity
        .extra
        .iter()
        .map(|(key, values)| key.len() + values.iter().map(String::len).sum::<usize>());
    let groups: usize = identity.groups.iter().map(String::len).sum();
    identity.user.len() + groups + extra.sum::<usize>()
}

/// The record of a request that is being answered. Dropping it logs that the client has gone away.
pub struct AuditRecord {
    log: Arc<AuditLog>,
    facts: SharedFacts,
    /// `None` once the request has been logged.
    request: Option<Box<LoggedRequest>>,
    /// Upstream answers the request, and logs it.
    is_forwarded: bool,
}

impl AuditRecord {
    pub(super) fn begin<B>(
        log: Arc<AuditLog>,
        request: &mut Request<B>,
        peer: IpAddr,
        id: &HeaderValue,
    ) -> Self {
        let recorded = LoggedRequest {
            received: Timestamp::now(),
            id: id.clone(),
            method: request.method().clone(),
            uri: request.uri().clone(),
            user_agent: request.headers().get(header::USER_AGENT).cloned(),
            source_ips: source_ips(request.headers(), peer),
            open: log.open.token(),
        };
        let facts = SharedFacts(Arc::new(Mutex::new(CallerFacts {
            request_bytes: recorded.kept_bytes(),
            ..CallerFacts::default()
        })));
        request.extensions_mut().insert(facts.clone());
        Self {
            log,
            facts,
            request: Some(Box::new(recorded)),
            is_forwarded: false,
        }
    }

    /// Notes that the request is forwarded, so that upstream logs it.
    pub fn forwarded(&mut self) {
        self.is_forwarded = true;
    }

    /// Records the user of a request that is refused by what is known of that user.
    pub fn refused(&self, identity: &Arc<Identity>) {
        // A vouched caller is recorded already, and may act as this identity.
        self.facts
            .0
            .lock()
            .user
            .get_or_insert_with(|| Arc::clone(identity));
    }

    /// Returns `true` if upstream's log lacks the request, or the user who sent it.
    ///
    /// A caller who acts as another user is forwarded as that other user, so upstream does not
    /// know the first one.
    pub fn is_only_here(&self) -> bool {
        !self.is_forwarded || self.facts.0.lock().impersonated.is_some()
    }

    /// Logs an answer of this process. The returned response logs its end.
    pub fn answered(mut self, response: Response<Body>) -> Response<Body> {
        let Some(request) = self.request.take() else {
            return response;
        };
        let answer = LoggedAnswer {
            code: response.status(),
            status: response.extensions().get::<Status>().cloned(),
            is_forwarded: self.is_forwarded,
            is_closed: false,
        };
        let Some(mut completion) = self.log(*request, answer) else {
            return response;
        };
        if let Some(warning) = response.headers().get(header::WARNING) {
            completion
                .template
                .set_deprecation(&String::from_utf8_lossy(warning.as_bytes()));
        }
        if let Some(end) = response.extensions().get::<TunnelEnd>() {
            let end = end.clone();
            tokio::spawn(async move {
                end.reached().await;
                drop(completion);
            });
            return response;
        }
        response.map(|body| body::holding(body, completion))
    }

    /// Logs all stages but the end. The returned value logs that.
    fn log(&self, request: LoggedRequest, answer: LoggedAnswer) -> Option<CompletionEvent> {
        let info = RequestInfo::parse(&request.method, request.uri.path(), request.uri.query());
        let verb = verb(&info, &request.method);
        let CallerFacts {
            user,
            impersonated,
            constraint,
            decision,
            ..
        } = self.facts.0.lock().clone();
        let (user, resource) = (user.as_deref(), info.resource.as_ref());
        let omitted = self.log.policy.evaluate(&PolicyAttributes {
            user,
            verb: &verb,
            path: request.uri.path(),
            resource,
        })?;
        let attributes = EventAttributes {
            id: request.id.as_bytes(),
            uri: request
                .uri
                .path_and_query()
                .map_or("/", |path| path.as_str()),
            verb: &verb,
            user,
            impersonated: impersonated.as_deref(),
            constraint,
            source_ips: &request.source_ips,
            user_agent: request
                .user_agent
                .as_ref()
                .map_or(b"", HeaderValue::as_bytes),
            resource,
        };
        let mut template = EventTemplate::new(request.received, &attributes);
        let code = answer.code;
        template.set_outcome(&answer.into_outcome(&info));
        if let Some(decision) = decision {
            template.set_decision(&decision);
        }
        let completion = CompletionEvent {
            log: Arc::clone(&self.log),
            template,
            omitted,
            _open: request.open,
            is_silent: false,
        };
        // If the caller is unknown, upstream logs this event only. Source:
        // `apiserver/pkg/endpoints/filters/authn_audit.go`.
        if code == StatusCode::UNAUTHORIZED && user.is_none() {
            completion.emit(AuditStage::ResponseStarted);
            completion.discard();
            return None;
        }
        completion.emit(AuditStage::RequestReceived);
        if info.is_long_running(request.uri.path()) {
            completion.emit(AuditStage::ResponseStarted);
        }
        Some(completion)
    }
}

impl Drop for AuditRecord {
    fn drop(&mut self) {
        let is_known = self.facts.0.lock().user.is_some();
        if let Some(request) = self.request.take()
            && is_known
            && self.is_only_here()
        {
            let answer = LoggedAnswer {
                code: StatusCode::OK,
                status: None,
                is_forwarded: self.is_forwarded,
                is_closed: true,
            };
            drop(self.log(*request, answer));
        }
    }
}

/// Logs the end of an answer when it is dropped.
pub(super) struct CompletionEvent {
    log: Arc<AuditLog>,
    template: EventTemplate,
    omitted: OmittedStages,
    _open: TaskTrackerToken,
    is_silent: bool,
}

impl CompletionEvent {
    fn emit(&self, stage: AuditStage) {
        if !self.omitted.contains(stage) {
            self.log.emit(&self.template.line(stage, Timestamp::now()));
        }
    }

    fn discard(mut self) {
        self.is_silent = true;
    }
}

impl Drop for CompletionEvent {
    fn drop(&mut self) {
        if !self.is_silent {
            self.emit(AuditStage::ResponseComplete);
        }
    }
}

/// The facts about a request's caller. The request's extensions share them while there is an audit
/// log.
#[derive(Clone)]
struct SharedFacts(Arc<Mutex<CallerFacts>>);

#[derive(Clone, Default)]
struct CallerFacts {
    user: Option<Arc<Identity>>,
    impersonated: Option<Arc<Identity>>,
    constraint: Option<&'static str>,
    decision: Option<Decision>,
    /// The memory that the request takes in its record.
    request_bytes: usize,
}

/// The request itself.
struct LoggedRequest {
    received: Timestamp,
    id: HeaderValue,
    method: Method,
    uri: Uri,
    user_agent: Option<HeaderValue>,
    source_ips: Vec<IpAddr>,
    open: TaskTrackerToken,
}

impl LoggedRequest {
    /// Returns the memory that the texts of the events about it take.
    fn kept_bytes(&self) -> usize {
        let addresses = self.source_ips.len() * ADDRESS_BYTES;
        let target = self.uri.path_and_query();
        let target = target.map_or(0, |target| target.as_str().len());
        let agent = self.user_agent.as_ref().map_or(0, HeaderValue::len);
        // Names are written twice, and a byte that is no text takes three.
        2 * target + 3 * (self.id.len() + agent.min(MAX_USER_AGENT)) + addresses
    }
}

/// The answer to a request.
struct LoggedAnswer {
    code: StatusCode,
    status: Option<Status>,
    is_forwarded: bool,
    /// The client went away before the answer.
    is_closed: bool,
}

impl LoggedAnswer {
    fn into_outcome(self, info: &RequestInfo) -> EventOutcome {
        if self.is_closed {
            return EventOutcome::Closed;
        }
        if let Some(status) = self.status {
            return EventOutcome::Status(status);
        }
        match &info.resource {
            // The body is upstream's answer to an equal request, so its status is made anew.
            Some(resource)
                if self.code == StatusCode::NOT_FOUND
                    && info.verb == Verb::Get
                    && !self.is_forwarded =>
            {
                resource
                    .name
                    .as_deref()
                    .map_or(EventOutcome::Code(self.code.as_u16()), |name| {
                        EventOutcome::Status(Status::not_found(&resource.gvr, name))
                    })
            }
            _ => EventOutcome::Code(self.code.as_u16()),
        }
    }
}

/// Returns the verb as kube-apiserver logs it.
/// Source: `apiserver/pkg/endpoints/request/requestinfo.go`.
fn verb(info: &RequestInfo, method: &Method) -> Cow<'static, str> {
    match (&info.resource, info.verb) {
        (None, _) if *method == Method::GET => "get".into(),
        (Some(resource), Verb::Other) if *method == Method::HEAD => if resource.name.is_some() {
            "get"
        } else {
            "list"
        }
        .into(),
        (None, _) | (Some(_), Verb::Other) => method.as_str().to_ascii_lowercase().into(),
        (Some(_), verb) => verb.as_str().into(),
    }
}

#[cfg(test)]
mod tests;
