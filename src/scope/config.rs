//! Settings of scopes.
use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use watershed_protocol::GroupVersionResource;

use crate::store::WindowLimits;
use crate::upstream::{ListCompression, WatchLifetime};

/// Upper limits of the history of a scope that only derived scopes read. They take each event at
/// once, and keep the history for their own readers.
const SOURCE_WINDOW: WindowLimits = WindowLimits {
    age: Duration::from_secs(30),
    least: 0,
    bytes: 32 << 20,
};
/// Time after which a scope that only derived scopes read is closed once there are none.
const SOURCE_IDLE: Duration = Duration::from_secs(10);

/// Interval of a node's proxy for questions about rollbacks. Proxies on thousands of nodes would ask
/// hundreds of times a second. A client that watches upstream itself notices one when its watch
/// ends, after some minutes.
const NODE_ROLLBACK_CHECK: Duration = Duration::from_mins(5);
/// Interval of a node's proxy for comparisons with upstream. Its scopes are small.
const NODE_SELF_CHECK: Duration = Duration::from_hours(1);
/// First pause of a node's proxy before JSON is derived again. Proxies on thousands of nodes would
/// list a type in protobuf together, and each spares upstream one small watch by that.
const NODE_DERIVE_AGAIN: Duration = Duration::from_mins(10);

/// Settings of all scopes.
#[derive(Clone, Copy, Debug)]
pub struct ScopeConfig {
    /// Limits of the history that each scope keeps.
    pub window: WindowLimits,
    /// Time from a scope's opening for which requests wait for its first list. Then they are
    /// forwarded, as they are when the first attempt at it fails.
    pub sync_wait: Duration,
    /// Time for which a scope that does not follow upstream is still served; zero for no limit.
    pub max_staleness: Duration,
    /// Interval at which each type is compared with upstream; zero for never.
    pub self_check: Duration,
    /// Says when upstream may compress lists and watches of types.
    pub compression: ListCompression,
    /// Interval of the question whether upstream's versions went back.
    pub rollback_check: Duration,
    /// Time for which an open watch may lack what upstream is known to have. Then it is opened
    /// again.
    pub overdue: Duration,
    /// The lifetime of watches that is asked for.
    pub watch_lifetime: WatchLifetime,
    /// Time after which it is tried again to derive JSON that could not be derived from protobuf.
    /// It doubles up to sixty times as much while that fails.
    pub derive_again: Duration,
}

impl ScopeConfig {
    /// Returns the same for a proxy on each node, of which there may be thousands.
    #[must_use]
    pub fn on_node(self) -> Self {
        Self {
            self_check: NODE_SELF_CHECK,
            rollback_check: NODE_ROLLBACK_CHECK,
            watch_lifetime: WatchLifetime::Long,
            derive_again: NODE_DERIVE_AGAIN,
            ..self
        }
    }

    /// Returns the limits of a type's history, unless `configured` has others.
    pub(super) fn window_of(
        &self,
        gvr: &GroupVersionResource,
        configured: Option<WindowLimits>,
    ) -> WindowLimits {
        let window = configured.unwrap_or(self.window);
        if gvr.is_event() {
            // kube-apiserver watches them in etcd, which forgets everything of an age.
            WindowLimits { least: 0, ..window }
        } else {
            window
        }
    }
}

impl Default for ScopeConfig {
    fn default() -> Self {
        Self {
            // Clients that reconnect within this time go on without a new list. kube-apiserver
            // promises 75 s; rolling restarts of large clusters take minutes. Of each type, it
            // has the last hundred events however old they are. Source:
            // `apiserver/pkg/storage/cacher/watch_cache_history.go` (defaultLowerBoundCapacity).
            window: WindowLimits {
                age: Duration::from_mins(5),
                least: 100,
                bytes: 256 << 20,
            },
            sync_wait: Duration::from_secs(30),
            max_staleness: Duration::from_mins(5),
            self_check: Duration::from_mins(5),
            compression: ListCompression::default(),
            // A restore is to be noticed within 15 s, and upstream may take four to answer.
            rollback_check: Duration::from_secs(8),
            // Upstream waits three seconds for its own watch cache.
            overdue: Duration::from_secs(10),
            watch_lifetime: WatchLifetime::default(),
            derive_again: Duration::from_mins(1),
        }
    }
}

/// The origin of a scope, and how it is kept.
#[derive(Clone, Debug, Default)]
pub struct ScopeOptions {
    /// The one that wants the scope.
    pub origin: ScopeOrigin,
    /// The scope is closed once nobody has read or watched it for so long; `None` for never.
    pub idle: Option<Duration>,
    /// Limits of its history, if not those of all scopes.
    pub window: Option<WindowLimits>,
    /// The part that it has in derivations.
    pub derivation: Derivation,
    /// Its limit of staleness, if not that of all scopes; zero for no limit.
    pub max_staleness: Option<Duration>,
    /// The first list may show any state that upstream has.
    pub begins_with_any_state: bool,
}

/// The origin of a scope: the configuration, a client or the proxy itself.
#[derive(Clone, Debug, Default)]
pub enum ScopeOrigin {
    /// The configuration names it, or nothing narrows it.
    #[default]
    Configured,
    /// It covers what a client asked for. The client's share of such scopes ends with it; `None` if
    /// an open scope has the share already, and for sources.
    OnDemand(Option<ScopeShare>),
    /// The proxy cannot work without it: it is loaded however little memory is free.
    Proxy,
}

/// Somebody's share of the open scopes, which is dropped when the scope is closed.
pub type ScopeShare = Arc<dyn Any + Send + Sync>;

impl ScopeOrigin {
    /// Returns `true` for a scope that a client asked for.
    pub fn is_on_demand(&self) -> bool {
        matches!(self, Self::OnDemand(_))
    }

    /// Returns `true` for a scope that the proxy cannot work without.
    pub fn is_indispensable(&self) -> bool {
        matches!(self, Self::Proxy)
    }

    /// Returns the share that ends with the scope.
    pub fn into_share(self) -> Option<ScopeShare> {
        match self {
            Self::OnDemand(share) => share,
            Self::Configured | Self::Proxy => None,
        }
    }

    /// Returns the origin of the source of a derived scope. It has no share of its own.
    #[must_use]
    pub fn of_source(self) -> Self {
        match self {
            Self::OnDemand(_) => Self::OnDemand(None),
            other @ (Self::Configured | Self::Proxy) => other,
        }
    }
}

impl ScopeOptions {
    /// Returns the options of a scope that the proxy cannot work without.
    pub fn of_proxy() -> Self {
        Self {
            origin: ScopeOrigin::Proxy,
            ..Self::default()
        }
    }

    /// Returns the same for the source of derived scopes, which needs little history. `window`
    /// limits it where the options set nothing.
    #[must_use]
    pub fn of_source(self, window: WindowLimits) -> Self {
        let window = self.window.unwrap_or(window);
        Self {
            origin: self.origin.of_source(),
            derivation: Derivation::Source,
            window: Some(WindowLimits {
                age: window.age.min(SOURCE_WINDOW.age),
                least: SOURCE_WINDOW.least,
                bytes: window.bytes.min(SOURCE_WINDOW.bytes),
            }),
            idle: Some(SOURCE_IDLE),
            ..self
        }
    }
}

/// The part of a scope in derivations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Derivation {
    /// It has none: it is listed and watched at upstream.
    #[default]
    None,
    /// In JSON, it is derived from the type's scope in protobuf, where that is exact.
    Derived,
    /// Scopes are derived from it, or the proxy itself follows it. Until clients read it, it needs
    /// little history.
    Source,
}
