//! The target of a request: its path and query.
use http::Uri;
use http::uri::PathAndQuery;

/// Returns a target with another query; `None` if that cannot be in one.
pub(super) fn with_query(target: &Uri, query: &str) -> Option<Uri> {
    let path = format!("{}?{query}", target.path());
    let mut parts = target.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path).ok()?);
    Uri::from_parts(parts).ok()
}
