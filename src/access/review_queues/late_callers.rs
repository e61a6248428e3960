//! The callers whose reviews were late a short while ago.
use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::fairness::CallerKey;

/// Time for which a caller is late after its last late review.
const REMEMBERED: Duration = Duration::from_mins(1);
/// Time without a late review after which one in time shows that the caller's are not late any more. Some
/// reviews of a caller may hang while others are answered at once.
const CALM: Duration = Duration::from_secs(5);
/// Callers that are remembered. Of more, those that were late longest ago are forgotten.
const MAX_CALLERS: usize = 1024;

/// Remembers whose reviews were late, by the moment of the last one.
#[derive(Debug, Default)]
pub(super) struct LateCallers(Mutex<HashMap<CallerKey, Instant>>);

impl LateCallers {
    /// Returns `true` if a review of this caller is expected to be late.
    pub(super) fn contains(&self, caller: &CallerKey) -> bool {
        let last = self.0.lock().get(caller).copied();
        last.is_some_and(|last| last.elapsed() < REMEMBERED)
    }

    /// Notes that a review of this caller is late.
    pub(super) fn add(&self, caller: &CallerKey) {
        let mut callers = self.0.lock();
        if callers.len() >= MAX_CALLERS && !callers.contains_key(caller) {
            callers.retain(|_, last| last.elapsed() < REMEMBERED);
            if callers.len() >= MAX_CALLERS {
                forget_older_half(&mut callers);
            }
        }
        callers.insert(caller.clone(), Instant::now());
    }

    /// Notes that a review of this caller was in time.
    pub(super) fn in_time(&self, caller: &CallerKey) {
        let mut callers = self.0.lock();
        if callers
            .get(caller)
            .is_some_and(|last| last.elapsed() >= CALM)
        {
            callers.remove(caller);
        }
    }
}

/// Forgets those that were late longest ago. Half of them at once, so that this is rare.
fn forget_older_half(callers: &mut HashMap<CallerKey, Instant>) {
    let mut moments: Vec<_> = callers.values().copied().collect();
    let middle = moments.len() / 2;
    let (_, oldest_kept, _) = moments.select_nth_unstable(middle);
    let oldest_kept = *oldest_kept;
    callers.retain(|_, last| *last > oldest_kept);
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn caller(n: u32) -> CallerKey {
        CallerKey::Address(IpAddr::from(n.to_be_bytes()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_is_late_until_its_reviews_are_in_time_for_a_while() {
        let callers = LateCallers::default();
        callers.add(&caller(1));
        callers.in_time(&caller(1));
        assert!(callers.contains(&caller(1)), "others of it may hang");
        assert!(!callers.contains(&caller(2)));
        tokio::time::advance(CALM).await;
        callers.in_time(&caller(1));
        assert!(!callers.contains(&caller(1)));
        callers.add(&caller(1));
        tokio::time::advance(REMEMBERED).await;
        assert!(!callers.contains(&caller(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_late_callers_is_bounded() {
        let callers = LateCallers::default();
        for n in 0..10_000 {
            callers.add(&caller(n));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(callers.0.lock().len() <= MAX_CALLERS);
        assert!(callers.contains(&caller(9_999)));
    }
}
