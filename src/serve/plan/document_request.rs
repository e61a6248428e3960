//! Requests for discovery, OpenAPI and version documents.
use http::{HeaderValue, Method, Request, header};

use super::request_key::RequestKey;
use crate::catalog::Catalog;

/// A request for a document.
#[derive(Clone, Debug)]
pub(in crate::serve) struct DocumentRequest {
    /// The path that authorization is asked about.
    pub(in crate::serve) path: String,
    pub(in crate::serve) key: RequestKey,
    /// The ETag that the client has.
    pub(in crate::serve) known: Option<HeaderValue>,
}

impl DocumentRequest {
    /// Returns the document that a request is for, if memory can answer it.
    /// `indented` is that of the request's answers.
    pub(in crate::serve) fn new<B>(
        catalog: &Catalog,
        request: &Request<B>,
        indented: bool,
    ) -> Option<Self> {
        let (uri, headers) = (request.uri(), request.headers());
        let plain = request.method() == Method::GET
            && is_document(catalog, uri.path())
            && !indented
            && !headers.contains_key(header::RANGE)
            && !headers.keys().any(|name| {
                let name = name.as_str();
                name.starts_with("if-") && name != "if-none-match"
                    || name.starts_with("impersonate-")
            });
        // Some handlers refuse a request without a body whose body they could not read.
        let is_json = |content: &HeaderValue| content == "application/json";
        let readable = headers.get_all(header::CONTENT_TYPE).iter().all(is_json);
        let known = headers.get(header::IF_NONE_MATCH).cloned();
        let once = [
            header::IF_NONE_MATCH,
            header::ACCEPT,
            header::ACCEPT_ENCODING,
        ]
        .iter()
        .all(|name| headers.get_all(name).iter().nth(1).is_none());
        let fits = plain && readable && once && known.as_ref().is_none_or(is_simple_tag);
        let target = relevant_target(uri.path(), uri.query()).filter(|_| fits)?;
        Some(Self {
            path: uri.path().to_owned(),
            key: RequestKey::of_target(target, headers),
            known,
        })
    }
}

/// Returns the path with those parameters that the document depends on. `None` if a parameter is
/// unknown: whoever makes up parameters must not fill memory with copies of one document.
///
/// Source: `kube-openapi/pkg/handler3/handler.go` (hash), `apiserver/pkg/endpoints/filters`
/// (request_deadline.go: an invalid timeout is refused).
fn relevant_target(path: &str, query: Option<&str>) -> Option<String> {
    let mut target = path.to_owned();
    let parameters = query.unwrap_or_default().split('&');
    for parameter in parameters.filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=')? {
            // Discovery clients send it with each request.
            ("timeout", time) if is_seconds(time) => {}
            ("hash", hash) if is_hash(hash) && path.starts_with("/openapi/v3/") => {
                let is_first = target.len() == path.len();
                if !is_first {
                    return None;
                }
                target.push('?');
                target.push_str(parameter);
            }
            _ => return None,
        }
    }
    Some(target)
}

/// Returns `true` for a time such as `32s`.
fn is_seconds(time: &str) -> bool {
    time.strip_suffix('s').is_some_and(|seconds| {
        (1..=4).contains(&seconds.len()) && seconds.bytes().all(|byte| byte.is_ascii_digit())
    })
}

fn is_hash(hash: &str) -> bool {
    hash.len() <= 128 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns `true` for one strong ETag. Handlers differ in how they read lists, weak tags and the
/// asterisk.
pub(in crate::serve) fn is_simple_tag(tag: &HeaderValue) -> bool {
    let tag = tag
        .to_str()
        .ok()
        .and_then(|tag| tag.strip_prefix('"')?.strip_suffix('"'));
    tag.is_some_and(|tag| !tag.contains('"'))
}

/// Returns `true` for documents that the API server makes itself. Those of an aggregated API come
/// from a server of its own, which may look at the caller; its types are not in the catalog.
///
/// Clients that are made from OpenAPI put a slash behind the paths of discovery, as it names them so.
fn is_document(catalog: &Catalog, path: &str) -> bool {
    let of_discovery = path
        .strip_suffix('/')
        .filter(|path| !path.starts_with("/openapi"));
    let segments: Vec<_> = of_discovery.unwrap_or(path).split('/').collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_upstream_does_not_look_at_make_no_documents_of_their_own() {
        for (path, query, target) in [
            ("/apis", None, Some("/apis")),
            ("/apis", Some(""), Some("/apis")),
            ("/apis", Some("timeout=32s"), Some("/apis")),
            (
                "/openapi/v2",
                Some("timeout=32s&timeout=1s"),
                Some("/openapi/v2"),
            ),
            (
                "/openapi/v3/api/v1",
                Some("timeout=32s&hash=AB12"),
                Some("/openapi/v3/api/v1?hash=AB12"),
            ),
            ("/openapi/v2", Some("hash=AB12"), None),
            ("/openapi/v2", Some("x=1"), None),
            ("/openapi/v2", Some("x"), None),
            ("/openapi/v3/api/v1", Some("hash=A&hash=B"), None),
            ("/openapi/v3/api/v1", Some("hash=..%2f"), None),
            ("/apis", Some("timeout=forever"), None),
            ("/apis", Some("timeout=s"), None),
            ("/apis", Some("timeout=-1s"), None),
        ] {
            assert_eq!(
                relevant_target(path, query).as_deref(),
                target,
                "{path} {query:?}"
            );
        }
    }
}
