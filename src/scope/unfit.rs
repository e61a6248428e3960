//! Scopes that did not fit into memory.
use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::key::ScopeKey;
use crate::backoff::PauseRange;
use crate::budget::{DoesNotFit, SizeSource};

/// Pauses before another attempt.
const PAUSES: PauseRange = PauseRange::new(Duration::from_secs(5), Duration::from_mins(5));
/// Longest pause where a scope needs no more than an eighth of the free memory. It was not this one that
/// took the memory before.
const LONGEST_WITH_PLENTY: Duration = Duration::from_secs(30);
/// Divisor of the free memory in that case.
const PLENTY_DIVISOR: usize = 8;
/// Time after which a scope is loaded in spite of its estimate: the first objects of a type may be much larger
/// than the others.
const ESTIMATE_DOUBTED: Duration = Duration::from_secs(30);
/// Factor: an estimate of more than eight times the free memory is believed.
const DOUBTFUL: usize = 8;
/// Upper bound of scopes that are remembered. Clients make selections up.
const MAX_REMEMBERED: usize = 1024;

/// Remembers which scopes did not fit, so that they are not loaded halfway again and again.
#[derive(Debug, Default)]
pub(super) struct UnfitScopes(Mutex<HashMap<ScopeKey, UnfitScope>>);

/// One that did not fit.
#[derive(Clone, Copy, Debug)]
struct UnfitScope {
    /// Bytes that it needs, as far as they are known.
    needed: usize,
    since: Instant,
    /// The moment of the first estimate, if all that is known of its size is estimates.
    estimated: Option<Instant>,
    /// Attempts in a row before this one that did not fit either.
    failures: u32,
    /// The moment at which it was loaded after all.
    loaded: Option<Instant>,
}

impl UnfitScopes {
    /// Records that a scope does not fit, or was closed for lack of memory.
    pub(super) fn add(&self, key: ScopeKey, size: DoesNotFit, now: Instant) {
        let mut known = self.0.lock();
        let before = known.get(&key).filter(|before| !before.fits_well(now));
        let failures = before.map_or(0, |before| before.failures.saturating_add(1));
        let estimated = match size.known_by {
            SizeSource::Estimate => before.map_or(Some(now), |before| before.estimated),
            SizeSource::Load => None,
        };
        if known.len() >= MAX_REMEMBERED {
            known.retain(|_, scope| now.saturating_duration_since(scope.since) < PAUSES.longest);
        }
        if known.len() < MAX_REMEMBERED || known.contains_key(&key) {
            let scope = UnfitScope {
                needed: size.needed,
                since: now,
                estimated,
                failures,
                loaded: None,
            };
            known.insert(key, scope);
        }
    }

    /// Returns `true` if it is worthwhile to load a scope with so many bytes free.
    ///
    /// After the longest pause it is tried whatever it needed: it may have become smaller. That is tried
    /// sooner if its size was only ever estimated.
    pub(super) fn may_fit(&self, key: &ScopeKey, free: usize, now: Instant) -> bool {
        let known = self.0.lock();
        let Some(scope) = known.get(key) else {
            return true;
        };
        let passed = now.saturating_duration_since(scope.since);
        let has_plenty = scope.needed <= free / PLENTY_DIVISOR;
        let pause = PAUSES.after(scope.failures);
        let pause = if has_plenty {
            pause.min(LONGEST_WITH_PLENTY)
        } else {
            pause
        };
        let fits = scope.needed <= free;
        let is_doubtful = scope.needed / DOUBTFUL <= free && scope.is_estimate_doubted(now);
        scope.loaded.is_some()
            || passed >= PAUSES.longest
            || (passed >= pause && (fits || is_doubtful))
    }

    /// Returns `true` if a scope has not fit for so long that its size is tried, not estimated.
    pub(super) fn is_to_be_tried(&self, key: &ScopeKey, now: Instant) -> bool {
        let known = self.0.lock();
        known.get(key).is_some_and(|scope| {
            let passed = now.saturating_duration_since(scope.since);
            passed >= PAUSES.longest || scope.is_estimate_doubted(now)
        })
    }

    /// Records that a scope was loaded. Its pauses are forgotten once it has fit for a while:
    /// otherwise it would be closed and loaded in turns.
    pub(super) fn loaded(&self, key: &ScopeKey, now: Instant) {
        let mut known = self.0.lock();
        if let Some(scope) = known.get_mut(key) {
            scope.loaded.get_or_insert(now);
        }
    }
}

impl UnfitScope {
    fn is_estimate_doubted(&self, now: Instant) -> bool {
        self.estimated
            .is_some_and(|at| now.saturating_duration_since(at) >= ESTIMATE_DOUBTED)
    }

    fn fits_well(&self, now: Instant) -> bool {
        self.loaded
            .is_some_and(|at| now.saturating_duration_since(at) >= PAUSES.longest)
    }
}

#[cfg(test)]
mod tests {
    use watershed_protocol::{Encoding, GroupVersionResource, Representation};

    use super::*;

    fn loaded(needed: usize) -> DoesNotFit {
        DoesNotFit {
            needed,
            known_by: SizeSource::Load,
        }
    }

    fn estimated(needed: usize) -> DoesNotFit {
        DoesNotFit {
            needed,
            known_by: SizeSource::Estimate,
        }
    }

    fn key(resource: &str) -> ScopeKey {
        let gvr = GroupVersionResource::new("", "v1", resource);
        ScopeKey::everything(gvr, Representation::whole(Encoding::Json))
    }

    #[test]
    fn a_scope_that_did_not_fit_is_tried_again_with_growing_pauses_and_when_it_fits() {
        let unfit = UnfitScopes::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let pods = key("pods");
        assert!(unfit.may_fit(&pods, 0, start), "it is not known");
        unfit.add(pods.clone(), loaded(100), start);
        assert!(!unfit.may_fit(&pods, 1000, at(4)), "too soon");
        assert!(unfit.may_fit(&pods, 100, at(5)));
        assert!(!unfit.may_fit(&pods, 99, at(5)), "not enough is free");
        assert!(unfit.may_fit(&pods, 0, at(300)), "it may be smaller now");
        unfit.add(pods.clone(), loaded(100), at(5));
        assert!(!unfit.may_fit(&pods, 100, at(14)), "the second pause");
        assert!(unfit.may_fit(&pods, 100, at(15)));
        unfit.loaded(&pods, at(15));
        assert!(unfit.may_fit(&pods, 0, at(15)));
        unfit.add(pods.clone(), loaded(100), at(20));
        assert!(
            !unfit.may_fit(&pods, 100, at(39)),
            "it was closed soon after"
        );
        assert!(unfit.may_fit(&pods, 100, at(40)));
        unfit.loaded(&pods, at(40));
        unfit.add(pods.clone(), loaded(100), at(340));
        assert!(unfit.may_fit(&pods, 100, at(345)), "it has fit for a while");
        assert!(!unfit.is_to_be_tried(&pods, at(345)));
        assert!(unfit.is_to_be_tried(&pods, at(640)));
    }

    #[test]
    fn what_others_took_the_memory_of_is_tried_soon_once_there_is_plenty() {
        let unfit = UnfitScopes::default();
        let start = Instant::now();
        let pods = key("pods");
        for _ in 0..10 {
            unfit.add(pods.clone(), loaded(100), start);
        }
        let may_fit =
            |free, seconds| unfit.may_fit(&pods, free, start + Duration::from_secs(seconds));
        assert!(!may_fit(799, 299) && may_fit(799, 300));
        assert!(!may_fit(800, 29) && may_fit(800, 30));
    }

    #[test]
    fn a_scope_whose_estimate_may_be_wrong_is_loaded_once_after_a_while() {
        let unfit = UnfitScopes::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let pods = key("pods");
        unfit.add(pods.clone(), estimated(800), start);
        assert!(!unfit.may_fit(&pods, 100, at(29)) && !unfit.is_to_be_tried(&pods, at(29)));
        assert!(!unfit.may_fit(&pods, 99, at(30)), "it is far too large");
        assert!(unfit.may_fit(&pods, 100, at(30)) && unfit.is_to_be_tried(&pods, at(30)));
        unfit.add(pods.clone(), loaded(200), at(31));
        assert!(
            !unfit.may_fit(&pods, 100, at(330)),
            "it is known to be large"
        );
        unfit.add(pods.clone(), estimated(800), at(331));
        assert!(!unfit.may_fit(&pods, 100, at(400)), "it was tried before");
    }

    #[test]
    fn the_scopes_that_are_remembered_are_bounded() {
        let unfit = UnfitScopes::default();
        let start = Instant::now();
        for number in 0..2 * MAX_REMEMBERED {
            unfit.add(key(&format!("t{number}")), loaded(1), start);
        }
        assert_eq!(unfit.0.lock().len(), MAX_REMEMBERED);
        unfit.add(key("later"), loaded(1), start + PAUSES.longest);
        assert_eq!(unfit.0.lock().len(), 1);
    }
}
