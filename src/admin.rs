//! The admin listener: health, metrics and the configuration, apart from what clients use.
mod health;
pub mod metrics;
mod token;

use std::path::PathBuf;
use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::catalog::Catalog;
use crate::http::body::{Body, full};
use crate::http::listen::serve_admin;
use crate::http::tls::ServerTls;
use crate::http::{Limits, drain};
use crate::scope::Scopes;

pub use token::TokenFile;

/// What somebody sees who comes without knowing what there is.
const INDEX: &str = "watershed\n\n/metrics  Prometheus metrics\n/livez    the process answers\n/readyz   it should get requests (?verbose says why not)\n/healthz  the same, for older probes\n/debug/config  the configuration in effect, as JSON\n";

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
    /// Whether the process is shutting down.
    pub draining: drain::Watch,
    /// The metrics registry.
    pub metrics: PrometheusHandle,
    /// What is read only when somebody asks.
    pub gauges: metrics::Gauges,
    /// Without it everybody sees everything.
    pub token: Option<TokenFile>,
    /// The configuration in effect, as JSON without secrets.
    pub config: String,
}

/// Serves until the drain is over.
pub async fn serve(
    listener: TcpListener,
    tls: Option<ServerTls>,
    state: Arc<State>,
    limits: Limits,
    draining: drain::Watch,
) {
    let service = move |request: Request<Incoming>, _| {
        let state = Arc::clone(&state);
        async move { answer(&state, &request).await }
    };
    serve_admin(listener, tls, service, limits, draining).await;
}

async fn answer(state: &State, request: &Request<Incoming>) -> Response<Body> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain; charset=utf-8",
            "method not allowed\n".into(),
        );
    }
    let verbose = request.uri().query().is_some_and(|query| query.contains("verbose"));
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
        refusal.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return refusal;
    }
    match request.uri().path() {
        "/debug/config" => text(StatusCode::OK, "application/json", state.config.clone()),
        "/metrics" => {
            state.gauges.collect(&state.scopes, &state.catalog);
            text(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", state.metrics.render())
        }
        "/" => text(StatusCode::OK, "text/plain; charset=utf-8", INDEX.into()),
        _ => text(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "404 page not found\n".into()),
    }
}

fn text(status: StatusCode, content_type: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
