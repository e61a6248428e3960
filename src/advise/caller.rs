//! Requests as a proxy would have received them.
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, header};
use watershed_protocol::{RequestInfo, Verb};

use super::event::LoggedEvent;
use super::known_types::is_built_in;
use crate::serve::CallerStanding;

/// The key of a caller's `extra` that names the credentials, and the prefix of certificates.
/// Source: `apiserver/pkg/authentication/user/user.go`, `request/x509/x509.go`.
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";
const CERTIFICATE: &str = "X509SHA256=";
/// The API server's requests to itself.
const API_SERVER: &str = "system:apiserver";
const ANONYMOUS: &str = "system:anonymous";

/// The `Accept` headers that client programs send.
/// Source: `cli-runtime/pkg/resource/builder.go` (kubectl get), `client-go/metadata/metadata.go`,
/// `client-go/kubernetes/typed/*/*_client.go`.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,\
                     application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
const METADATA: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
     application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const METADATA_LIST: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
     application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf,application/json";
const JSON: &str = "application/json";

/// Returns `true` if the API server asked itself.
pub(super) fn is_internal(event: &LoggedEvent<'_>) -> bool {
    event.user.username == API_SERVER
}

/// Returns the standing of the event's caller.
pub(super) fn standing(event: &LoggedEvent<'_>) -> CallerStanding {
    let credentials = event.user.extra.get(CREDENTIAL).into_iter().flatten();
    let has_certificate = credentials.flatten().any(|id| id.starts_with(CERTIFICATE));
    if event.user.username == ANONYMOUS {
        return CallerStanding::Unidentified;
    }
    // Upstream judges who acts as another user with a token.
    if event.impersonated_user.is_some() && !has_certificate {
        return CallerStanding::Unidentified;
    }
    match event.code() {
        401 | 403 => CallerStanding::Refused,
        _ => CallerStanding::Allowed,
    }
}

/// Returns the request of an event; `None` if its parts cannot be those of a request.
pub(super) fn request(event: &LoggedEvent<'_>) -> Option<Request<()>> {
    let method = method(&event.verb);
    let mut request = Request::builder()
        .method(&method)
        .uri(&*event.uri)
        .body(())
        .ok()?;
    let uri = request.uri().clone();
    let info = RequestInfo::parse(&method, uri.path(), uri.query());
    let headers = request.headers_mut();
    let accept = accept(&event.user_agent, &info);
    headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
    if let Ok(agent) = HeaderValue::from_str(&event.user_agent) {
        headers.insert(header::USER_AGENT, agent);
    }
    if event.impersonated_user.is_some() {
        let name = HeaderName::from_static("impersonate-user");
        headers.insert(name, HeaderValue::from_static("someone"));
    }
    add_upgrade(headers, &info);
    Some(request)
}

/// Returns the method of a verb. Those of requests for no resource are methods.
fn method(verb: &str) -> Method {
    match verb {
        "get" | "list" | "watch" => Method::GET,
        "create" | "post" => Method::POST,
        "update" | "put" => Method::PUT,
        "patch" => Method::PATCH,
        "delete" | "deletecollection" => Method::DELETE,
        "head" => Method::HEAD,
        _ => Method::OPTIONS,
    }
}

/// Returns the representation that a program asks for.
fn accept(agent: &str, info: &RequestInfo) -> &'static str {
    let program = agent.split(['/', ' ']).next().unwrap_or_default();
    let Some(resource) = &info.resource else {
        return JSON;
    };
    if program.starts_with("kubectl") {
        return TABLE;
    }
    if agent.contains("metadata-informer") {
        return match info.verb {
            Verb::List => METADATA_LIST,
            _ => METADATA,
        };
    }
    if is_built_in(&resource.gvr.group) && is_go_client(agent) {
        PROTOBUF
    } else {
        JSON
    }
}

/// Returns `true` for programs whose typed clients are client-go's: its default name ends in
/// `kubernetes/` and a commit, or `$Format`.
fn is_go_client(agent: &str) -> bool {
    agent.contains(") kubernetes/")
}

/// Adds the header of a request that changes the protocol.
fn add_upgrade(headers: &mut HeaderMap, info: &RequestInfo) {
    let subresource = info
        .resource
        .as_ref()
        .and_then(|it| it.subresource.as_deref());
    if let Some("exec" | "attach" | "portforward") = subresource {
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
}
