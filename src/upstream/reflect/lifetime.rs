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
    /// default.
    Long,
}

impl WatchLifetime {
    /// Returns the parameter of a watch that begins now, which may be empty.
    pub(super) fn parameter(self, client: &UpstreamClient) -> String {
        if self == Self::Default || client.upstream().chain().is_behind_proxy() {
            return String::new();
        }
        let seconds = LONG + fastrand::u64(..LONG);
        format!("&timeoutSeconds={seconds}")
    }
}
