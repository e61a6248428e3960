//! The lifetime of watches.
use crate::upstream::UpstreamClient;

/// Shortest time of a long watch, in seconds. The longest is twice that, so that watches that begin
/// together do not end together.
const LONG: u64 = 3600;

/// The lifetime of watches that upstream is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchLifetime {
    /// Upstream's default, half to one hour unless its operator has set another one
    /// (`--min-request-timeout`).
    #[default]
    Default,
    /// One to two hours at an API server. Proxies on thousands of nodes would open watches again all
    /// the time, and ask about the server behind each. Another proxy spreads its clients by its own
    /// default, except for the first watch: it is not known to be a proxy before it has answered.
    Long,
}

impl WatchLifetime {
    /// Returns the parameter of a watch that begins now, which may be empty.
    pub(super) fn parameter(self, client: &UpstreamClient) -> String {
        if self == Self::Long && !client.upstream().chain().is_behind_proxy() {
            let seconds = LONG + fastrand::u64(..LONG);
            return format!("&timeoutSeconds={seconds}");
        }
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use super::*;
    use crate::headers::VIA;
    use crate::test_support::{Api, HTTP2, Pki, text, upstream_of};

    #[tokio::test]
    async fn long_watches_are_asked_for_unless_upstream_is_a_proxy() {
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, |_, _| async { text("") }).await;
        let client = UpstreamClient::new(&upstream_of(&pki, &api).await);
        let chain = client.upstream().chain();
        assert_eq!(WatchLifetime::Default.parameter(&client), "");
        for is_known in [false, true] {
            let parameter = WatchLifetime::Long.parameter(&client);
            let seconds = parameter.strip_prefix("&timeoutSeconds=").unwrap();
            let seconds: u64 = seconds.parse().unwrap();
            assert!((LONG..2 * LONG).contains(&seconds), "{seconds} {is_known}");
            chain.note(StatusCode::OK, &HeaderMap::new());
        }

        let via = HeaderMap::from_iter([(VIA, "0123456789abcdef".parse().unwrap())]);
        chain.note(StatusCode::OK, &via);
        assert!(chain.is_behind_proxy());
        assert_eq!(WatchLifetime::Long.parameter(&client), "");
    }
}
