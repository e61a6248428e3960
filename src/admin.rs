//! The admin listener: health, metrics, the status page and the configuration, apart from what
//! clients use.
mod health;
mod history;
mod status;
mod token;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use tokio::net::TcpListener;

use crate::body::{Body, full};
use crate::catalog::Catalog;
use crate::drain;
use crate::listener::listen::serve_admin;
use crate::listener::tls::ServerTls;
use crate::listener::{ConnectionLimits, Peer};
use crate::scope::Scopes;
use crate::serve::Usage;
use crate::upstream::Upstream;

pub use history::History;
pub use token::TokenFile;

/// What somebody sees who comes without knowing what there is.
const INDEX: &str = "watershed\n\n/status   what is held, what is saved, and for whom; /status.json the same as JSON\n/metrics  Prometheus metrics\n/livez    the process answers\n/readyz   it should get requests (?verbose says why not)\n/healthz  the same, for older probes\n/debug/config  the configuration in effect, as JSON\n";

const PLAIN: &str = "text/plain; charset=utf-8";

/// Who may see what the admin listener shows.
#[derive(Clone, Debug, Default)]
pub struct Protection {
    /// Certificate and key (PEM files); without them it is plain HTTP.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// A file with a bearer token that everything but health needs.
    pub token_file: Option<PathBuf>,
}

/// What the admin listener shows; read-only handles.
pub struct State {
    /// The types known.
    pub catalog: Catalog,
    /// The scopes open.
    pub scopes: Scopes,
    /// What clients were given, and who they are.
    pub usage: Usage,
    /// The API server.
    pub upstream: Upstream,
    /// The certificate that clients see, if they connect by TLS.
    pub proxy_tls: Option<ServerTls>,
    /// The one that operators see.
    pub admin_tls: Option<ServerTls>,
    /// Whether the process is shutting down.
    pub draining: drain::DrainWatch,
    /// Renders the metrics in Prometheus' text format.
    pub metrics: Box<dyn Fn() -> String + Send + Sync>,
    /// The last minutes.
    pub history: History,
    /// When the process began to serve.
    pub started: Instant,
    /// Without it everybody sees everything, but for the names of users, which are for this machine
    /// then.
    pub token: Option<TokenFile>,
    /// The configuration in effect, as JSON without secrets.
    pub config: String,
}

/// Serves until the drain is over.
pub async fn serve(
    listener: TcpListener,
    tls: Option<ServerTls>,
    state: Arc<State>,
    limits: ConnectionLimits,
    draining: drain::DrainWatch,
) {
    let sampled = Arc::clone(&state);
    let service = move |request: Request<Incoming>, peer| {
        let state = Arc::clone(&state);
        async move { answer(&state, &request, &peer).await }
    };
    tokio::select! {
        () = serve_admin(listener, tls, service, limits, draining) => {}
        () = History::follow(&sampled) => {}
    }
}

async fn answer(state: &State, request: &Request<Incoming>, peer: &Peer) -> Response<Body> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain; charset=utf-8",
            "method not allowed\n".into(),
        );
    }
    let verbose = request
        .uri()
        .query()
        .is_some_and(|query| query.contains("verbose"));
    // Probes have no token.
    match request.uri().path() {
        "/livez" => return health::alive(),
        // /healthz is what older probes know; kube-apiserver keeps it too.
        "/readyz" | "/healthz" => return health::ready(state, verbose),
        _ => {}
    }
    if let Some(token) = &state.token
        && !token.is_shown(request.headers()).await
    {
        let mut refusal = text(StatusCode::UNAUTHORIZED, PLAIN, "401 unauthorized\n".into());
        let headers = refusal.headers_mut();
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        // For browsers, which ask for a password then.
        headers.append(
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static("Basic realm=\"watershed\""),
        );
        return refusal;
    }
    match request.uri().path() {
        "/debug/config" => text(StatusCode::OK, "application/json", state.config.clone()),
        "/metrics" => text(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            (state.metrics)(),
        ),
        "/status" | "/status.json" => status::answer(state, request, peer),
        "/" if is_browser(request) => {
            let mut answer = text(StatusCode::SEE_OTHER, PLAIN, "see /status\n".into());
            answer
                .headers_mut()
                .insert(header::LOCATION, HeaderValue::from_static("/status"));
            answer
        }
        "/" => text(StatusCode::OK, "text/plain; charset=utf-8", INDEX.into()),
        _ => text(
            StatusCode::NOT_FOUND,
            "text/plain; charset=utf-8",
            "404 page not found\n".into(),
        ),
    }
}

fn is_browser(request: &Request<Incoming>) -> bool {
    let accept = request
        .headers()
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

fn text(status: StatusCode, content_type: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
