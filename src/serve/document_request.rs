//! Requests for discovery, OpenAPI and version documents.
use http::{HeaderValue, Method, Request, header};

use super::stored_response::RequestKey;
use crate::catalog::Catalog;
use watershed_protocol::wants_pretty;

/// A request for a document.
#[derive(Clone, Debug)]
pub(super) struct DocumentRequest {
    /// The path that authorization is asked about.
    pub(super) path: String,
    pub(super) key: RequestKey,
    /// The ETag that the client has.
    pub(super) known: Option<HeaderValue>,
}

impl DocumentRequest {
    /// Returns the document that a request is for, if memory can answer it.
    pub(super) fn new<B>(catalog: &Catalog, request: &Request<B>) -> Option<Self> {
        let (uri, headers) = (request.uri(), request.headers());
        let plain = request.method() == Method::GET
            && is_document(catalog, uri.path())
            && !wants_pretty(uri.query(), headers)
            && !headers.contains_key(header::RANGE)
            && !headers.keys().any(|name| {
                let name = name.as_str();
                name.starts_with("if-") && name != "if-none-match"
                    || name.starts_with("impersonate-")
            });
        let known = headers.get(header::IF_NONE_MATCH).cloned();
        let once = [
            header::IF_NONE_MATCH,
            header::ACCEPT,
            header::ACCEPT_ENCODING,
        ]
        .iter()
        .all(|name| headers.get_all(name).iter().nth(1).is_none());
        let fits = plain && once && known.as_ref().is_none_or(is_simple_tag);
        fits.then(|| Self {
            path: uri.path().to_owned(),
            key: RequestKey::new(request),
            known,
        })
    }
}

/// Returns `true` for one strong ETag. Handlers differ in how they read lists, weak tags and the
/// asterisk.
pub(super) fn is_simple_tag(tag: &HeaderValue) -> bool {
    let tag = tag
        .to_str()
        .ok()
        .and_then(|tag| tag.strip_prefix('"')?.strip_suffix('"'));
    tag.is_some_and(|tag| !tag.contains('"'))
}

/// Returns `true` for documents that the API server makes itself. Those of an aggregated API come
/// from a server of its own, which may look at the caller; its types are not in the catalog.
fn is_document(catalog: &Catalog, path: &str) -> bool {
    let segments: Vec<_> = path.split('/').collect();
    match segments[..] {
        ["", "api" | "apis" | "version"] | ["", "api", "v1"] | ["", "openapi", "v2" | "v3"] => true,
        ["", "openapi", "v3", "api", version] => catalog.has("", Some(version)),
        ["", "apis", group] => catalog.has(group, None),
        ["", "apis", group, version] | ["", "openapi", "v3", "apis", group, version] => {
            catalog.has(group, Some(version))
        }
        _ => false,
    }
}
