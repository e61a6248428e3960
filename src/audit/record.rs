//! One request: what is found out about it on its way, and the events it makes.
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Audit;
use super::event::{Answered, Form, Stage, Subject};
use super::policy::{Attributes, Omitted};
use super::source_ips::source_ips;
use crate::access::{Decision, Identity};
use crate::body::{self, Body};
use watershed_protocol::{RequestInfo, Status, Verb};

/// What is found out about the caller. It travels in the request's extensions, where there is an
/// audit log.
#[derive(Clone, Default)]
struct Known(Arc<Mutex<Caller>>);

#[derive(Default)]
struct Caller {
    user: Option<Arc<Identity>>,
    decision: Option<(bool, Arc<str>)>,
}

/// Notes who sent a request.
pub fn record_caller<B>(request: &Request<B>, identity: &Arc<Identity>) {
    if let Some(known) = request.extensions().get::<Known>() {
        known.0.lock().user = Some(Arc::clone(identity));
    }
}

/// Notes what the authorizer said of a request.
pub fn record_decision<B>(request: &Request<B>, decision: &Decision) {
    if let Some(known) = request.extensions().get::<Known>() {
        known.0.lock().decision = Some(match decision {
            Decision::Allowed(reason) => (true, Arc::clone(reason)),
            Decision::Denied(reason) => (false, Arc::clone(reason)),
        });
    }
}

/// A request that is being answered. Dropping it says that its client went away before.
pub struct AuditRecord {
    audit: Audit,
    known: Known,
    asked: Option<Box<Asked>>,
    /// The answer is upstream's, and so is the event.
    forwarded: bool,
}

/// The request itself.
struct Asked {
    received: Timestamp,
    id: HeaderValue,
    method: Method,
    uri: Uri,
    user_agent: Option<HeaderValue>,
    source_ips: Vec<IpAddr>,
    open: TaskTrackerToken,
}

impl AuditRecord {
    pub(super) fn begin<B>(
        audit: Audit,
        request: &mut Request<B>,
        peer: IpAddr,
        id: &HeaderValue,
    ) -> Self {
        let known = Known::default();
        request.extensions_mut().insert(known.clone());
        let asked = Asked {
            received: Timestamp::now(),
            id: id.clone(),
            method: request.method().clone(),
            uri: request.uri().clone(),
            user_agent: request.headers().get(header::USER_AGENT).cloned(),
            source_ips: source_ips(request.headers(), peer),
            open: audit.0.open.token(),
        };
        Self {
            audit,
            known,
            asked: Some(Box::new(asked)),
            forwarded: false,
        }
    }

    /// Upstream is asked, and logs the request.
    pub fn forwarded(&mut self) {
        self.forwarded = true;
    }

    /// The request is answered here: with the response that comes back, whose end is logged.
    pub fn answered(mut self, response: Response<Body>) -> Response<Body> {
        let Some(asked) = self.asked.take() else {
            return response;
        };
        let status = response.extensions().get::<Status>().cloned();
        let code = response.status();
        let warning = response.headers().get(header::WARNING).cloned();
        let Some(mut complete) = self.log(*asked, code, status, false) else {
            return response;
        };
        if let Some(warning) = warning {
            complete
                .form
                .deprecated(&String::from_utf8_lossy(warning.as_bytes()));
        }
        response.map(|body| body::holding(body, complete))
    }

    /// Logs everything but the end, which the value that comes back logs.
    fn log(
        &self,
        asked: Asked,
        code: StatusCode,
        status: Option<Status>,
        closed: bool,
    ) -> Option<Complete> {
        let Asked {
            received,
            id,
            method,
            uri,
            user_agent,
            source_ips,
            open,
        } = asked;
        let info = RequestInfo::parse(&method, uri.path(), uri.query());
        let verb = verb(&info, &method);
        let (user, decision) = {
            let caller = self.known.0.lock();
            (caller.user.clone(), caller.decision.clone())
        };
        let (user, resource) = (user.as_deref(), info.resource.as_ref());
        let omitted = self.audit.0.policy.evaluate(&Attributes {
            user,
            verb: &verb,
            path: uri.path(),
            resource,
        })?;
        let subject = Subject {
            id: id.as_bytes(),
            uri: uri.path_and_query().map_or("/", |path| path.as_str()),
            verb: &verb,
            user,
            source_ips: &source_ips,
            user_agent: user_agent.as_ref().map_or(b"", HeaderValue::as_bytes),
            resource,
        };
        let mut form = Form::new(received, &subject);
        // Upstream's own words for it came with somebody else's answer.
        let status = status.or_else(|| match (code, resource) {
            (StatusCode::NOT_FOUND, Some(asked)) if info.verb == Verb::Get => {
                Some(Status::not_found(&asked.gvr, asked.name.as_deref()?))
            }
            _ => None,
        });
        form.answered(&match &status {
            _ if closed => Answered::Closed,
            Some(status) => Answered::Status(status),
            None => Answered::Code(code.as_u16()),
        });
        if let Some((allowed, reason)) = decision {
            form.decided(allowed, &reason);
        }
        let log = Complete {
            audit: self.audit.clone(),
            form,
            omitted,
            _open: open,
            silent: false,
        };
        // Of who is not known, upstream logs this alone. Source:
        // `apiserver/pkg/endpoints/filters/authn_audit.go`.
        if code == StatusCode::UNAUTHORIZED && user.is_none() {
            log.emit(Stage::ResponseStarted);
            log.silently();
            return None;
        }
        log.emit(Stage::RequestReceived);
        if is_long_running(&info) {
            log.emit(Stage::ResponseStarted);
        }
        Some(log)
    }
}

impl Drop for AuditRecord {
    fn drop(&mut self) {
        let known = self.known.0.lock().user.is_some();
        if let Some(asked) = self.asked.take().filter(|_| !self.forwarded && known) {
            drop(self.log(*asked, StatusCode::OK, None, true));
        }
    }
}

/// Logs the end of an answer when it is dropped.
pub(super) struct Complete {
    audit: Audit,
    form: Form,
    omitted: Omitted,
    _open: TaskTrackerToken,
    silent: bool,
}

impl Complete {
    fn emit(&self, stage: Stage) {
        if !self.omitted.contains(stage) {
            self.audit.emit(&self.form.line(stage, Timestamp::now()));
        }
    }

    fn silently(mut self) {
        self.silent = true;
    }
}

impl Drop for Complete {
    fn drop(&mut self) {
        if !self.silent {
            self.emit(Stage::ResponseComplete);
        }
    }
}

/// Source: `apiserver/pkg/endpoints/request/requestinfo.go`.
fn verb(info: &RequestInfo, method: &Method) -> Cow<'static, str> {
    match (&info.resource, info.verb) {
        (None, _) if *method == Method::GET => "get".into(),
        (Some(asked), Verb::Other) if *method == Method::HEAD => {
            if asked.name.is_some() { "get" } else { "list" }.into()
        }
        (None, _) | (Some(_), Verb::Other) => method.as_str().to_ascii_lowercase().into(),
        (Some(_), verb) => verb.as_str().into(),
    }
}

/// Source: kube-apiserver's own check (controlplane/apiserver/config.go).
fn is_long_running(info: &RequestInfo) -> bool {
    let subresource = info
        .resource
        .as_ref()
        .and_then(|asked| asked.subresource.as_deref());
    let streams = ["attach", "exec", "proxy", "log", "portforward"];
    info.resource.is_some() && info.verb == Verb::Watch
        || subresource.is_some_and(|part| streams.contains(&part))
}

#[cfg(test)]
mod tests;
