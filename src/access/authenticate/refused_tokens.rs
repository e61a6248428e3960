//! Counts the tokens that upstream refused, by the address of their bearer.
//!
//! A caller who guesses tokens has each of them reviewed. After so many refusals from an address, its
//! unknown tokens are not reviewed for a while. Tokens that were accepted lately are.
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Refusals in a row that an address may cause.
const BURST: f64 = 256.0;
/// The weight of another refusal of the same token. Whoever retries a token that has ended guesses
/// nothing, and must not use up what others behind its address need.
const REPEATED: f64 = 0.1;
/// Refusals per second that an address may cause after that.
const PER_SECOND: f64 = 1.0;
/// Addresses counted at a time. When the table is full, all others share one entry.
const MAX_ADDRESSES: usize = 100_000;
/// Stands for all addresses beyond the size of the table.
const OTHERS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
/// Interval between sweeps for addresses without refusals.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The refusals that each address may still cause.
pub(in crate::access) struct RefusedTokens(Mutex<RefusalTable>);

struct RefusalTable {
    addresses: HashMap<IpAddr, RefusalBudget>,
    most: usize,
    swept: Instant,
}

struct RefusalBudget {
    left: f64,
    at: Instant,
}

/// A refusal that was counted in advance. Dropping it leaves a tenth of it counted: the review was
/// not waited for.
pub(in crate::access) struct RefusalCharge<'a> {
    tokens: &'a RefusedTokens,
    address: IpAddr,
    /// The part that counts.
    counted: f64,
}

impl Default for RefusedTokens {
    fn default() -> Self {
        Self(Mutex::new(RefusalTable {
            addresses: HashMap::new(),
            most: MAX_ADDRESSES,
            swept: Instant::now(),
        }))
    }
}

impl RefusedTokens {
    /// Returns `true` if an address may cause another refusal.
    pub(in crate::access) fn are_left(&self, address: IpAddr) -> bool {
        self.0.lock().budget(address, Instant::now()).left >= 1.0
    }

    /// Counts the refusal of a token; `is_repeated` says that it was refused lately.
    pub(in crate::access) fn count(&self, address: IpAddr, is_repeated: bool) {
        if let Some(charge) = self.take(address) {
            charge.refused(is_repeated);
        }
    }

    /// Counts a refusal in advance. Returns `None` if the address has caused too many.
    pub(in crate::access) fn take(&self, address: IpAddr) -> Option<RefusalCharge<'_>> {
        self.take_at(address, Instant::now())
    }

    fn take_at(&self, address: IpAddr, now: Instant) -> Option<RefusalCharge<'_>> {
        let mut table = self.0.lock();
        let budget = table.budget(address, now);
        if budget.left < 1.0 {
            return None;
        }
        budget.left -= 1.0;
        Some(RefusalCharge {
            tokens: self,
            address,
            counted: REPEATED,
        })
    }
}

impl RefusalCharge<'_> {
    /// Takes the charge back: there was no refusal.
    pub(in crate::access) fn give_back(mut self) {
        self.counted = 0.0;
    }

    /// Counts a refusal; `is_repeated` says that the token was refused lately.
    pub(in crate::access) fn refused(mut self, is_repeated: bool) {
        self.counted = if is_repeated { REPEATED } else { 1.0 };
    }
}

impl Drop for RefusalCharge<'_> {
    fn drop(&mut self) {
        let mut table = self.tokens.0.lock();
        let budget = table.budget(self.address, Instant::now());
        budget.left = (budget.left + 1.0 - self.counted).min(BURST);
    }
}

impl RefusalTable {
    /// Returns the budget of an address, as of now.
    fn budget(&mut self, address: IpAddr, now: Instant) -> &mut RefusalBudget {
        let address = self.key_of(address, now);
        let budget = self.addresses.entry(address).or_insert(RefusalBudget {
            left: BURST,
            at: now,
        });
        budget.refill(now);
        budget
    }

    fn key_of(&mut self, address: IpAddr, now: Instant) -> IpAddr {
        if self.addresses.len() < self.most || self.addresses.contains_key(&address) {
            return address;
        }
        if now.saturating_duration_since(self.swept) >= SWEEP_INTERVAL {
            self.swept = now;
            self.addresses.retain(|_, budget| {
                budget.refill(now);
                budget.left < BURST
            });
        }
        if self.addresses.len() < self.most {
            address
        } else {
            OTHERS
        }
    }
}

impl RefusalBudget {
    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.left = (self.left + passed * PER_SECOND).min(BURST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_with_many_refusals_affects_no_other() {
        let refusals = RefusedTokens::default();
        let now = Instant::now();
        let take = |text: &str, at| refusals.take_at(address(text), at);
        let refuse = |text: &str, at| take(text, at).map(|charge| charge.refused(false));
        let accepted = take("10.0.0.1", now).unwrap();
        let refused = (0..1_000).filter(|_| refuse("10.0.0.1", now).is_some());
        assert_eq!(refused.count(), 255);
        assert!(take("10.0.0.1", now).is_none());
        assert!(take("10.0.0.2", now).is_some());
        accepted.give_back();
        assert!(take("10.0.0.1", now).is_some(), "an accepted token is free");
        let later = now + Duration::from_secs(10);
        let refused = (0..1_000).filter(|_| refuse("10.0.0.1", later).is_some());
        assert!((9..=11).contains(&refused.count()));
    }

    #[test]
    fn another_refusal_of_the_same_token_counts_little() {
        let refusals = RefusedTokens::default();
        let now = Instant::now();
        let take = || refusals.take_at(address("10.0.0.1"), now);
        let repeated = (0..10_000).filter(|_| take().map(|it| it.refused(true)).is_some());
        assert!((2_500..2_600).contains(&repeated.count()));
        let refusals = RefusedTokens::default();
        let take = || refusals.take_at(address("10.0.0.1"), now);
        let cancelled = (0..10_000).filter(|_| take().is_some());
        assert!((2_500..2_600).contains(&cancelled.count()));
    }

    #[test]
    fn the_table_of_addresses_is_bounded() {
        let refusals = RefusedTokens::default();
        refusals.0.lock().most = 2;
        let now = Instant::now();
        for number in 1..100_u8 {
            let address = IpAddr::from([10, 0, 0, number]);
            assert!(refusals.take_at(address, now).is_some());
        }
        assert_eq!(refusals.0.lock().addresses.len(), 3);
        let later = now + Duration::from_mins(5);
        refusals.take_at(address("10.0.1.1"), later).unwrap();
        assert!(
            refusals
                .0
                .lock()
                .addresses
                .contains_key(&address("10.0.1.1"))
        );
    }
}
