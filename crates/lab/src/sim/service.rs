//! One request from its head to its answer: authentication, authorization and dispatch.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use serde::Deserialize;

use super::attributes::SimulatedAccess;
use super::body::ResponseBody;
use super::faults::{ActiveFaults, BadAnswer};
use super::kinds::{KINDS, ResourceKind};
use super::request::{AnswerShape, QueryParameters, RequestTarget};
use super::simulation::Simulation;
use super::status::Failure;
use super::watch::StreamForm;
use super::{discovery, kinds, list, watch, write};
use crate::body::full_body;
use watershed_protocol::accepts_gzip;

/// The head of a request, as it came in.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub target: String,
    /// All header fields.
    pub headers: HeaderMap,
}

/// Heads kept of a recording.
const MAX_RECORDED: usize = 10_000;

/// Answers the requests of all connections.
#[derive(Debug)]
pub(crate) struct SimulatorService {
    simulation: Arc<Simulation>,
    /// Heads of requests, while a recording runs.
    recorded: Mutex<Option<Vec<RecordedRequest>>>,
    /// Number of the next Audit-Id.
    answers: AtomicU64,
}

/// Body of `POST /sim/faults`: switches and one-time faults, all optional.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the wire form of independent acts"
)]
struct FaultCommand {
    /// Replaces all switches.
    active: Option<ActiveFaults>,
    cut_watches: bool,
    end_watches: bool,
    stall_watches: bool,
    cut_connections: bool,
    /// Acts as a restart of the API server does.
    forget_history: bool,
    /// Serves the custom type, or takes it away.
    serve_widgets: Option<bool>,
}

impl SimulatorService {
    pub(crate) fn new(simulation: Arc<Simulation>) -> Self {
        Self {
            simulation,
            recorded: Mutex::default(),
            answers: AtomicU64::new(0),
        }
    }

    /// Starts a recording, and returns the heads of the one before.
    pub(crate) fn take_recorded(&self) -> Vec<RecordedRequest> {
        self.recorded.lock().replace(Vec::new()).unwrap_or_default()
    }

    fn record(&self, head: &http::request::Parts) {
        if let Some(recorded) = self
            .recorded
            .lock()
            .as_mut()
            .filter(|heads| heads.len() < MAX_RECORDED)
        {
            recorded.push(RecordedRequest {
                method: head.method.clone(),
                target: head
                    .uri
                    .path_and_query()
                    .map_or_else(String::new, ToString::to_string),
                headers: head.headers.clone(),
            });
        }
    }

    /// Answers a request.
    pub(crate) async fn answer<B>(&self, request: Request<B>) -> Response<ResponseBody>
    where
        B: hyper::body::Body,
    {
        let (head, body) = request.into_parts();
        self.record(&head);
        let path = head.uri.path();
        let text = head.uri.query().unwrap_or_default();
        let query = QueryParameters::read(text);
        let lenient = query
            .clone()
            .unwrap_or_else(|_| QueryParameters::read_watch(text));
        let target = RequestTarget::read(&head.method, path, &lenient);
        let (verb, resource) = (target.metric_verb(), target.resource());
        let is_state = verb == "LIST" || (verb == "WATCH" && lenient.initial_events == Some(true));
        let outcome = self
            .decide(&head.method, path, &head.headers, &target, query, body)
            .await;
        let mut response = outcome.unwrap_or_else(|failure| failure.response());
        if !resource.is_empty() {
            self.warn(&mut response);
        }
        self.simulation
            .stats
            .request(verb, &resource, response.status().as_u16());
        if is_state && response.status().is_success() {
            self.simulation.stats.state(&resource);
        }
        if let Some(size) = hyper::body::Body::size_hint(response.body()).exact() {
            self.simulation.stats.sent(verb, &resource, size);
        }
        let accept = head.headers.get(header::ACCEPT);
        let list_accept = accept
            .and_then(|accept| accept.to_str().ok())
            .filter(|_| verb == "LIST");
        self.simulation.faults.released(path, list_accept).await;
        self.add_headers(&head.headers, head.version, &mut response);
        if head.method == Method::HEAD {
            without_body(&mut response);
        }
        response
    }

    async fn decide<B: hyper::body::Body>(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        target: &RequestTarget,
        query: Result<QueryParameters, Failure>,
        body: B,
    ) -> Result<Response<ResponseBody>, Failure> {
        let user = self.simulation.access.authenticate(headers)?;
        if path != "/sim/faults"
            && let Some(failure) = self
                .simulation
                .faults
                .refusal(target.metric_verb(), &target.resource())
        {
            return Err(failure);
        }
        if path != "/sim/faults"
            && let Some(answer) = self
                .simulation
                .faults
                .bad_answer(target.metric_verb(), &target.resource())
        {
            return bad_answer(answer).await;
        }
        if !self.simulation.access.allowed(&user, &target.attributes) {
            return Err(target.attributes.forbidden(&user));
        }
        if target.attributes.resource.is_empty() {
            return self.plain_path(method, path, headers, body).await;
        }
        let content_type = headers
            .get(header::CONTENT_TYPE)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default();
        let written = |(code, bytes)| json(code, bytes);
        if target.attributes.verb == "create" {
            let bytes = read(body).await?;
            if let Some(review) = write::review(&self.simulation.access, &user, target, &bytes) {
                return review.map(written);
            }
            let index = self.kind_of(target)?;
            return write::create(&self.simulation, index, target, &bytes).map(written);
        }
        let index = self.kind_of(target)?;
        match target.attributes.verb.as_str() {
            _ if *method == Method::HEAD => Err(Failure::method_not_allowed()),
            "get" => self.get(headers, target, index, query).await,
            "list" => self.list(headers, target, index, query).await,
            "watch" => self.watch(headers, target, index, query).await,
            "update" => {
                write::update(&self.simulation, index, target, &read(body).await?).map(written)
            }
            "patch" => write::patch(
                &self.simulation,
                index,
                target,
                content_type,
                &read(body).await?,
            )
            .map(written),
            "delete" => write::delete(&self.simulation, index, target).map(written),
            _ => Err(Failure::method_not_allowed()),
        }
    }

    async fn get(
        &self,
        headers: &HeaderMap,
        target: &RequestTarget,
        index: usize,
        query: Result<QueryParameters, Failure>,
    ) -> Result<Response<ResponseBody>, Failure> {
        let shape = self.shape(headers, target, "")?;
        let query = query?;
        let SimulatedAccess {
            namespace, name, ..
        } = &target.attributes;
        let body = list::get(&self.simulation, index, namespace, name, &query, shape).await?;
        Ok(text(shape.media_type(), body))
    }

    async fn list(
        &self,
        headers: &HeaderMap,
        target: &RequestTarget,
        index: usize,
        query: Result<QueryParameters, Failure>,
    ) -> Result<Response<ResponseBody>, Failure> {
        let shape = self.shape(headers, target, "List")?;
        let query = query?;
        let filter = query.filter(&KINDS[index], &target.attributes.namespace)?;
        let body = list::list(&self.simulation, index, &filter, &query, shape).await?;
        Ok(text(shape.media_type(), body))
    }

    async fn watch(
        &self,
        headers: &HeaderMap,
        target: &RequestTarget,
        index: usize,
        query: Result<QueryParameters, Failure>,
    ) -> Result<Response<ResponseBody>, Failure> {
        let simulation = &self.simulation;
        let shape = self.shape(headers, target, "")?;
        let query = query?;
        let filter = query
            .filter(&KINDS[index], &target.attributes.namespace)?
            .of_name(&target.attributes.name)?;
        let active = simulation.faults.active();
        let is_gzip = simulation.options.compressed_watches
            && !active.plain_watches
            && watch::is_watch_list(&query, active.watch_list)
            && accepts_gzip(headers);
        let form = StreamForm { shape, is_gzip };
        let body = watch::watch(Arc::clone(simulation), index, filter, &query, form).await?;
        let mut response = Response::new(body);
        let own = response.headers_mut();
        own.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(shape.watch_media_type()),
        );
        if is_gzip {
            own.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            own.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        Ok(response)
    }

    /// Returns the form of an answer to a read.
    fn shape(
        &self,
        headers: &HeaderMap,
        target: &RequestTarget,
        suffix: &str,
    ) -> Result<AnswerShape, Failure> {
        let is_config_maps = target.resource() == "configmaps";
        let protobuf = self.simulation.options.protobuf && is_config_maps;
        let shape = AnswerShape::negotiate(headers, suffix, protobuf)?;
        if shape != AnswerShape::Partial {
            self.simulation
                .stats
                .whole(target.metric_verb(), &target.resource());
        }
        Ok(shape)
    }

    /// Returns the type that a URL names, if it is served now.
    fn kind_of(&self, target: &RequestTarget) -> Result<usize, Failure> {
        let attributes = &target.attributes;
        let found = ResourceKind::find(&attributes.group, &target.version, &attributes.resource);
        match found {
            Some((index, kind)) if self.simulation.state.served(index) => {
                let misplaced = !kind.namespaced
                    && !attributes.namespace.is_empty()
                    && kind.resource != "namespaces";
                if misplaced || !attributes.subresource.is_empty() {
                    return Err(Failure::no_such_resource());
                }
                Ok(index)
            }
            _ if discovery::is_builtin(&attributes.group, &target.version) => {
                Err(Failure::no_such_resource())
            }
            _ => Err(Failure::no_such_path()),
        }
    }

    async fn plain_path<B: hyper::body::Body>(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        body: B,
    ) -> Result<Response<ResponseBody>, Failure> {
        match (method, path) {
            (&Method::GET, "/healthz" | "/livez" | "/readyz") => {
                Ok(text("text/plain; charset=utf-8", "ok"))
            }
            (&Method::GET, "/metrics") => Ok(text(
                "text/plain; version=0.0.4; charset=utf-8",
                self.simulation.stats.counts().prometheus(),
            )),
            (&Method::GET, "/version") => Ok(text("application/json", self.version())),
            (&Method::GET, "/api" | "/apis") if AnswerShape::aggregated_discovery(headers) => {
                Ok(self.aggregated(path == "/api", headers))
            }
            (&Method::GET, "/sim/faults") => {
                let active =
                    serde_json::to_vec(&self.simulation.faults.active()).unwrap_or_default();
                Ok(json(200, active))
            }
            (&Method::POST, "/sim/faults") => {
                let command = serde_json::from_slice(&read(body).await?)
                    .map_err(|e| Failure::bad_request(e.to_string()))?;
                self.obey(command);
                Ok(json(200, "{}"))
            }
            (&Method::GET, path) => {
                if let Some(document) = self.simulation.documents.read().get(path) {
                    let mut response = json(200, document.clone());
                    let lifetime = HeaderValue::from_static("public, max-age=3600");
                    response
                        .headers_mut()
                        .insert(header::CACHE_CONTROL, lifetime);
                    return Ok(response);
                }
                let document = discovery::legacy(path, |index| self.simulation.state.served(index));
                let document = document.ok_or_else(Failure::no_such_path)?;
                Ok(json(200, format!("{document}\n")))
            }
            _ => Err(Failure::no_such_path()),
        }
    }

    fn aggregated(&self, core: bool, headers: &HeaderMap) -> Response<ResponseBody> {
        let document =
            discovery::aggregated(core, |index| self.simulation.state.served(index)).to_string();
        // Upstream uses a SHA-512, but the value is opaque to clients.
        let etag = format!(
            "\"{}\"",
            blake3::hash(document.as_bytes()).to_hex().to_uppercase()
        );
        let mut response = if headers
            .get(header::IF_NONE_MATCH)
            .is_some_and(|v| v.as_bytes() == etag.as_bytes())
        {
            let mut response = Response::new(ResponseBody::default());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            text(
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                document,
            )
        };
        let own = response.headers_mut();
        own.insert(header::VARY, HeaderValue::from_static("Accept"));
        own.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
        if let Ok(etag) = HeaderValue::from_str(&etag) {
            own.insert(header::ETAG, etag);
        }
        response
    }

    fn version(&self) -> String {
        let active = self.simulation.faults.active();
        let release = active.release.as_ref();
        let release = release.unwrap_or(&self.simulation.options.release);
        let mut numbers = release.trim_start_matches('v').split('.');
        let (major, minor) = (numbers.next().unwrap_or("1"), numbers.next().unwrap_or("0"));
        format!(
            "{{\n  \"major\": \"{major}\",\n  \"minor\": \"{minor}\",\n  \
             \"gitVersion\": \"{release}\"\n}}"
        )
    }

    fn obey(&self, command: FaultCommand) {
        if let Some(active) = command.active {
            self.simulation.faults.set(|a| *a = active);
        }
        if command.forget_history {
            self.simulation.state.forget_history();
        }
        if let Some(served) = command.serve_widgets {
            self.simulation
                .state
                .serve_custom(&kinds::widgets(), served);
        }
        if command.cut_watches {
            self.simulation.faults.cut_watches();
        }
        if command.end_watches {
            self.simulation.faults.end_watches();
        }
        if command.stall_watches {
            self.simulation.faults.stall_watches();
        }
        if command.cut_connections {
            self.simulation.faults.cut_connections();
        }
    }

    /// Adds the warning that is switched on, as of a deprecated type.
    fn warn(&self, response: &mut Response<ResponseBody>) {
        let Some(warning) = self.simulation.faults.active().warning else {
            return;
        };
        if let Ok(value) = HeaderValue::from_str(&format!("299 - {warning:?}")) {
            response.headers_mut().insert(header::WARNING, value);
        }
    }

    /// Adds the headers that upstream puts on every answer.
    fn add_headers(
        &self,
        asked: &HeaderMap,
        version: http::Version,
        response: &mut Response<ResponseBody>,
    ) {
        let unauthorized = response.status() == StatusCode::UNAUTHORIZED;
        let headers = response.headers_mut();
        let number = self.answers.fetch_add(1, Ordering::Relaxed);
        let audit = asked.get("audit-id").cloned().or_else(|| {
            HeaderValue::from_str(&format!("00000000-0000-4000-8000-{number:012x}")).ok()
        });
        if let Some(audit) = audit {
            headers.insert("audit-id", audit);
        }
        headers
            .entry(header::CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-cache, private"));
        // Callers are identified before anything is queued.
        if !unauthorized {
            let uid = HeaderValue::from_static("00000000-0000-4000-8000-000000000000");
            headers.insert("x-kubernetes-pf-flowschema-uid", uid.clone());
            headers.insert("x-kubernetes-pf-prioritylevel-uid", uid);
        }
        // HTTP/2 has no such header; hyper would refuse it.
        if unauthorized && version < http::Version::HTTP_2 {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// Answers as no API server does.
async fn bad_answer(answer: BadAnswer) -> Result<Response<ResponseBody>, Failure> {
    const PAGE: &str = "<html><body>default backend</body></html>\n";
    match answer {
        BadAnswer::NotFound => {
            let mut response = text("text/html", PAGE);
            *response.status_mut() = StatusCode::NOT_FOUND;
            Ok(response)
        }
        BadAnswer::MethodNotAllowed => Err(Failure::method_not_allowed()),
        BadAnswer::NotAcceptable => Err(Failure::not_acceptable()),
        BadAnswer::Page => Ok(text("text/html", PAGE)),
        BadAnswer::Garbage => Ok(json(200, "{\"kind\":\"Po\x00garbage\n")),
        BadAnswer::Silence => std::future::pending().await,
    }
}

/// Removes the body of an answer to HEAD. hyper does so on HTTP/1 only.
fn without_body(response: &mut Response<ResponseBody>) {
    if let Some(size) = hyper::body::Body::size_hint(response.body())
        .exact()
        .filter(|&size| size > 0)
    {
        response
            .headers_mut()
            .insert(header::CONTENT_LENGTH, size.into());
    }
    *response.body_mut() = ResponseBody::default();
}

async fn read<B: hyper::body::Body>(body: B) -> Result<Bytes, Failure> {
    let collected = body
        .collect()
        .await
        .map_err(|_| Failure::bad_request("the body ended early"))?;
    Ok(collected.to_bytes())
}

fn json(code: u16, body: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = text("application/json", body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or_default();
    response
}

fn text(content_type: &'static str, body: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(full_body(body));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
