//! The admin listener: health, metrics, the status page and the configuration. Clients of the proxy
//! use another listener.
mod health;
mod history;
mod local;
mod response;
mod state;
mod status;
mod token;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::task::spawn_blocking;

use crate::body::Body;
use crate::drain;
use crate::listener::listen::serve_admin;
use crate::listener::tls::ServerTls;
use crate::listener::{ConnectionLimits, Peer};
use crate::metric::Declaration;
use response::{plain, text_of_type};

pub use history::History;

pub use state::AdminState;
pub use token::TokenFile;

/// All metrics of this module.
pub const METRICS: &[Declaration] = health::METRICS;

/// The list of pages, for callers that are not browsers.
const INDEX: &str = concat!(
    "watershed\n",
    "\n",
    "/status   scopes, traffic and clients; /status.json the same as JSON\n",
    "/metrics  Prometheus metrics\n",
    "/livez    liveness probe\n",
    "/readyz   readiness probe (?verbose lists the checks)\n",
    "/healthz  the same as /readyz, for older probes\n",
    "/debug/config  the configuration in effect, as JSON\n",
);

/// The answer to strangers who ask for a page with names in it.
const FOR_OPERATORS: &str = concat!(
    "403 forbidden: this page is for callers over loopback (kubectl port-forward), ",
    "or with the token of --admin-token-file\n",
);

/// Protection of the admin listener.
#[derive(Clone, Debug, Default)]
pub struct Protection {
    /// Certificate and key (PEM files). Without them the listener serves plain HTTP.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// File with the bearer token that all pages but the health probes require.
    pub token_file: Option<PathBuf>,
}

/// Serves until the drain is over.
pub async fn serve(
    listener: TcpListener,
    tls: Option<ServerTls>,
    state: Arc<AdminState>,
    limits: ConnectionLimits,
    draining: drain::DrainWatch,
) {
    let recorded = Arc::clone(&state);
    let service = move |request: Request<Incoming>, peer| {
        let state = Arc::clone(&state);
        async move { answer(&state, &request, &peer).await }
    };
    tokio::select! {
        () = serve_admin(listener, tls, service, limits, draining) => {}
        () = recorded.record_history() => {}
    }
}

async fn answer(state: &AdminState, request: &Request<Incoming>, peer: &Peer) -> Response<Body> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n");
    }
    // Probes present no token.
    match request.uri().path() {
        "/livez" => return health::livez(),
        // Older probes use /healthz; kube-apiserver keeps it too.
        "/readyz" | "/healthz" => {
            let query = request.uri().query().unwrap_or_default();
            return health::readyz(state, query.contains("verbose"));
        }
        _ => {}
    }
    if let Some(token) = &state.token
        && !token.is_presented(request.headers()).await
    {
        return unauthorized();
    }
    if is_for_operators(request.uri().path())
        && state.token.is_none()
        && !local::is_local(request, peer)
    {
        return plain(StatusCode::FORBIDDEN, FOR_OPERATORS);
    }
    match request.uri().path() {
        "/debug/config" => text_of_type(StatusCode::OK, "application/json", state.config.clone()),
        "/metrics" => metrics(state).await,
        "/status" | "/status.json" => status::answer(state, request),
        "/" if is_browser(request) => {
            let mut redirect = plain(StatusCode::SEE_OTHER, "see /status\n");
            redirect
                .headers_mut()
                .insert(header::LOCATION, HeaderValue::from_static("/status"));
            redirect
        }
        "/" => plain(StatusCode::OK, INDEX),
        _ => plain(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

/// Renders the metrics on a thread of their own: with many objects that takes milliseconds. Callers
/// that wait for a rendering to end share the next one.
async fn metrics(state: &AdminState) -> Response<Body> {
    health::publish(state);
    let render = Arc::clone(&state.metrics);
    let call = || async move { spawn_blocking(move || Bytes::from(render())).await.ok() };
    match state.rendering.join(call).await.flatten() {
        Some(text) => metrics_page(text),
        // The process ends, or it panicked, which was logged.
        None => plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            "cannot render the metrics\n",
        ),
    }
}

fn metrics_page(text: Bytes) -> Response<Body> {
    text_of_type(
        StatusCode::OK,
        "text/plain; version=0.0.4; charset=utf-8",
        text,
    )
}

/// Returns `true` if a page names users, addresses or files. Metrics do not, so Prometheus may read
/// them without a token, as it does elsewhere.
fn is_for_operators(path: &str) -> bool {
    matches!(path, "/status" | "/status.json" | "/debug/config")
}

fn unauthorized() -> Response<Body> {
    let mut refusal = plain(StatusCode::UNAUTHORIZED, "401 unauthorized\n");
    let headers = refusal.headers_mut();
    headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    // A browser prompts for a password only if Basic is offered.
    headers.append(
        header::WWW_AUTHENTICATE,
        HeaderValue::from_static("Basic realm=\"watershed\""),
    );
    refusal
}

fn is_browser(request: &Request<Incoming>) -> bool {
    let accept = request
        .headers()
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}
