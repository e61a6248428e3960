//! Header fields by which front proxies name users.

/// Beginning of the fields that kube-apiserver sends as a front proxy of aggregated API servers.
const USUAL: &str = "x-remote-";

/// The fields by which front proxies name users to this proxy, besides `X-Remote-…`.
///
/// Upstream may trust the same fields of whoever shows a certificate like the proxy's, so none of a
/// caller's goes out on the proxy's own connections. kube-apiserver removes both, too.
/// Source: `apiserver/pkg/endpoints/filters/authentication.go` (ClearAuthenticationHeaders).
#[derive(Clone, Debug, Default)]
pub struct UserHeaders {
    names: Vec<String>,
    prefixes: Vec<String>,
}

impl UserHeaders {
    /// Creates the set of fields with these names, and of those whose names begin so.
    pub fn new(
        names: impl IntoIterator<Item = String>,
        prefixes: impl IntoIterator<Item = String>,
    ) -> Self {
        let lower = |text: String| text.to_ascii_lowercase();
        Self {
            names: names.into_iter().map(lower).collect(),
            prefixes: prefixes.into_iter().map(lower).collect(),
        }
    }

    /// Returns `true` if a field of this name, in small letters, names a user.
    pub(super) fn contains(&self, name: &str) -> bool {
        name.starts_with(USUAL)
            || self.names.iter().any(|it| it == name)
            || self.prefixes.iter().any(|it| name.starts_with(it))
    }
}
