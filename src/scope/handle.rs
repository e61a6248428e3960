//! Scopes that are lent to requests, and closed once nobody has wanted them for a while.
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::sleep;

use super::{Scope, Scopes};
use crate::store::WindowLimits;

/// How often it is looked for scopes that nobody uses.
const LOOK: Duration = Duration::from_secs(1);

/// How long a scope is held, and how much of its history.
#[derive(Clone, Copy, Debug, Default)]
pub struct Retention {
    /// It covers what a client asked for, and is not one that the configuration names.
    pub on_demand: bool,
    /// It is closed once nobody has read or watched it for so long; `None` for never.
    pub idle: Option<Duration>,
    /// Its history, if not that of all scopes.
    pub window: Option<WindowLimits>,
}

/// Who uses a scope, and who did last.
#[derive(Debug)]
pub(super) struct IdleTracker {
    idle: Option<Duration>,
    /// The proxy follows it for itself.
    pinned: AtomicBool,
    lent: AtomicUsize,
    last: Mutex<Instant>,
}

/// A scope that is not closed while this is held. What goes on longer, as a watch does, is its
/// subscription's affair.
#[derive(Debug)]
pub struct ScopeHandle(Arc<Scope>);

// === impl IdleTracker ===

impl IdleTracker {
    pub(super) fn new(idle: Option<Duration>) -> Self {
        Self {
            idle,
            pinned: AtomicBool::new(false),
            lent: AtomicUsize::new(0),
            last: Mutex::new(Instant::now()),
        }
    }

    pub(super) fn pin(&self) {
        self.pinned.store(true, Ordering::SeqCst);
    }

    /// Whether nobody has used it for as long as it is held for nobody.
    fn is_over(&self, watchers: usize, now: Instant) -> bool {
        let Some(idle) = self.idle else { return false };
        if self.pinned.load(Ordering::SeqCst) {
            return false;
        }
        let mut last = self.last.lock();
        if watchers > 0 || self.lent.load(Ordering::SeqCst) > 0 {
            *last = now;
        }
        now.saturating_duration_since(*last) >= idle
    }
}

// === impl ScopeHandle ===

impl ScopeHandle {
    pub(super) fn new(scope: &Arc<Scope>) -> Self {
        scope.usage.lent.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(scope))
    }
}

impl Deref for ScopeHandle {
    type Target = Arc<Scope>;

    fn deref(&self) -> &Arc<Scope> {
        &self.0
    }
}

impl Drop for ScopeHandle {
    fn drop(&mut self) {
        *self.0.usage.last.lock() = Instant::now();
        self.0.usage.lent.fetch_sub(1, Ordering::SeqCst);
    }
}

// === impl Scopes ===

impl Scopes {
    /// Closes scopes that nobody has used for as long as they are held for nobody. Never ends.
    pub async fn close_idle(self) {
        loop {
            sleep(LOOK).await;
            self.close_idle_at(Instant::now());
        }
    }

    /// Scopes are lent under the lock that is held here: none is closed that somebody has just got.
    pub(super) fn close_idle_at(&self, now: Instant) {
        let mut closed = Vec::new();
        let mut open = self.open.lock();
        for family in open.values_mut() {
            let over = family
                .extract_if(|_, scope| scope.usage.is_over(scope.reader.stats().watchers, now));
            closed.extend(over.map(|(_, scope)| scope));
        }
        open.retain(|_, family| !family.is_empty());
        drop(open);
        for scope in closed {
            tracing::info!(resource = %scope.key.gvr, selection = %scope.key.selection, "closed, as nobody used it");
            scope.stop.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::{ScopeConfig, ScopeKey};
    use crate::store::{Interest, SubscriptionStart};
    use crate::test_support::{Api, HTTP2, Pki, text, upstream_of};
    use crate::upstream::UpstreamClient;
    use watershed_protocol::{Encoding, FieldTable, GroupVersionResource, Representation};

    #[tokio::test]
    async fn only_what_nobody_uses_is_closed() {
        let pki = Pki::new();
        let api = Api::start(&pki, HTTP2, |_, _| async { text("no list") }).await;
        let scopes = Scopes::new(
            UpstreamClient::new(&upstream_of(&pki, &api).await),
            ScopeConfig::default(),
        );
        let fields = Arc::new(FieldTable::metadata_only(true));
        let representation = Representation::whole(Encoding::Json);
        let gvr = |resource: &str| GroupVersionResource::new("", "v1", resource);
        let lend = |resource: &str, idle: Option<u64>| {
            let keep = Retention {
                idle: idle.map(Duration::from_secs),
                ..Retention::default()
            };
            let of = (&gvr(resource), representation);
            scopes
                .acquire(of, &"Kind".into(), &fields, |_| {
                    Some((Arc::default(), keep))
                })
                .unwrap()
        };
        let lent = lend("lent", Some(5));
        let watched = lend("watched", Some(5));
        let (subscription, _) = watched
            .reader
            .subscribe(SubscriptionStart::Now, Interest::All);
        drop(watched);
        drop(lend("pinned", Some(5)));
        scopes.open(
            &ScopeKey::everything(gvr("pinned"), representation),
            &"Kind".into(),
            &fields,
        );
        drop(lend("whole", None));
        drop(lend("idle", Some(5)));
        let open = || {
            let mut names: Vec<_> = scopes
                .all()
                .iter()
                .map(|scope| scope.key.gvr.resource.to_string())
                .collect();
            names.sort();
            names.join(" ")
        };
        let now = Instant::now();
        scopes.close_idle_at(now + Duration::from_secs(4));
        assert_eq!(open(), "idle lent pinned watched whole");
        scopes.close_idle_at(now + Duration::from_secs(6));
        assert_eq!(open(), "lent pinned watched whole");
        drop((lent, subscription));
        // The time begins when the last one leaves.
        scopes.close_idle_at(now + Duration::from_secs(8));
        assert_eq!(open(), "pinned watched whole");
        scopes.close_idle_at(now + Duration::from_secs(12));
        assert_eq!(open(), "pinned whole");
    }
}
