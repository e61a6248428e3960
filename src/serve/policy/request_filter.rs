//! Refuses requests that nobody should send with the proxy's own identity.
//!
//! The rules are those of `kubectl proxy`.
//! Source: `kubectl/pkg/proxy/proxy_server.go` (`FilterServer`).
use http::header::HOST;
use http::{HeaderMap, Method, Uri};
use percent_encoding::percent_decode_str;
use regex::Regex;

/// Patterns of requests that are accepted or refused.
#[derive(Clone, Debug, Default)]
pub struct RequestFilter {
    /// Paths that are accepted; all if there are none.
    pub accept_paths: Vec<Regex>,
    /// Paths that are refused, even if they are accepted.
    pub reject_paths: Vec<Regex>,
    /// Methods that are refused.
    pub reject_methods: Vec<Regex>,
    /// Hosts that requests may be for; all if there are none.
    pub accept_hosts: Vec<Regex>,
}

impl RequestFilter {
    /// Returns the flag by which a request is refused, if one refuses it.
    pub(in crate::serve) fn refusal(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Option<&'static str> {
        let Self {
            accept_paths,
            reject_paths,
            reject_methods,
            accept_hosts,
        } = self;
        let any = |patterns: &[Regex], text: &str| patterns.iter().any(|one| one.is_match(text));
        // As upstream reads it, so that an escape hides nothing.
        let path = percent_decode_str(uri.path()).decode_utf8_lossy();
        let is_plain = !path.split('/').any(|segment| matches!(segment, "." | ".."));
        if !any(accept_hosts, requested_host(uri, headers)) && !accept_hosts.is_empty() {
            return Some("--accept-hosts");
        }
        if any(reject_methods, method.as_str()) {
            return Some("--reject-methods");
        }
        if any(reject_paths, &path) || (!is_plain && !reject_paths.is_empty()) {
            return Some("--reject-paths");
        }
        let is_accepted = accept_paths.is_empty() || (is_plain && any(accept_paths, &path));
        (!is_accepted).then_some("--accept-paths")
    }
}

/// Returns the host that a request is for, without its port.
fn requested_host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> &'a str {
    if let Some(host) = uri.host() {
        return host;
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.unwrap_or_default();
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Regex> {
        texts.iter().map(|text| Regex::new(text).unwrap()).collect()
    }

    fn refusal(filter: &RequestFilter, method: &str, uri: &str, host: &str) -> &'static str {
        let mut headers = HeaderMap::new();
        if !host.is_empty() {
            headers.insert(HOST, host.parse().unwrap());
        }
        let (method, uri) = (method.parse().unwrap(), uri.parse().unwrap());
        filter.refusal(&method, &uri, &headers).unwrap_or("-")
    }

    #[test]
    fn patterns_decide_as_in_kubectl_proxy() {
        let filter = RequestFilter {
            accept_paths: patterns(&["^/api/", "^/version$"]),
            reject_paths: patterns(&["^/api/.*/pods/.*/exec", "^/api/.*/pods/.*/attach"]),
            reject_methods: patterns(&["^DELETE$", "^P"]),
            accept_hosts: patterns(&["^localhost$", r"^127\.0\.0\.1$", r"^\[::1\]$"]),
        };
        for (method, uri, host, wanted) in [
            ("GET", "/api/v1/pods", "localhost:6443", "-"),
            ("GET", "/version", "[::1]:6443", "-"),
            ("GET", "/version", "[::1]", "-"),
            ("GET", "https://127.0.0.1:1/api/v1/pods", "", "-"),
            ("GET", "/api/v1/pods", "evil.example.com", "--accept-hosts"),
            (
                "GET",
                "/api/v1/pods",
                "localhost.evil.com:80",
                "--accept-hosts",
            ),
            ("GET", "/api/v1/pods", "", "--accept-hosts"),
            (
                "GET",
                "/apis/apps/v1/deployments",
                "localhost",
                "--accept-paths",
            ),
            ("DELETE", "/api/v1/pods", "localhost", "--reject-methods"),
            ("PATCH", "/api/v1/pods", "localhost", "--reject-methods"),
            (
                "GET",
                "/api/v1/namespaces/n/pods/p/exec",
                "localhost",
                "--reject-paths",
            ),
            (
                "GET",
                "/api/v1/namespaces/n/pods/p/%65xec",
                "localhost",
                "--reject-paths",
            ),
            (
                "GET",
                "/api/v1/../../version",
                "localhost",
                "--reject-paths",
            ),
            ("GET", "/api/v1/%2e%2e/x", "localhost", "--reject-paths"),
        ] {
            assert_eq!(
                refusal(&filter, method, uri, host),
                wanted,
                "{method} {uri} {host}"
            );
        }
        let nothing = RequestFilter::default();
        assert_eq!(refusal(&nothing, "DELETE", "/x/../y", "evil"), "-");
    }
}
