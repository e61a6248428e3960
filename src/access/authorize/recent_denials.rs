//! Callers who were lately denied several reads of a type.
//!
//! A caller who asks for one namespace or name after the other, without the right to any, would cost
//! upstream a review of each: more than the requests themselves. They are forwarded then, each of them
//! once. Whoever asks again is reviewed, and the verdict counts for a while.
use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use parking_lot::Mutex;
use watershed_protocol::Verb;

use crate::access::request::AccessRequest;

/// Denials after which further reads are forwarded.
const SEVERAL: u32 = 2;
/// Time for which a denial counts.
const LATELY: Duration = Duration::from_secs(30);
/// Limit of callers and types, of each kind of read. Others are reviewed.
const MAX_KINDS: u64 = 1024;
/// Targets of each that are remembered.
const MAX_TARGETS: usize = 256;

/// The reads that were denied lately.
#[derive(Debug)]
pub(super) struct RecentDenials {
    /// By the hash of the caller, the verb and the type.
    kinds: Cache<u64, Arc<Mutex<DeniedReads>>>,
    hasher: RandomState,
}

/// The reads of one caller, verb and type.
#[derive(Debug, Default)]
struct DeniedReads {
    denials: u32,
    /// The hashes of what was denied, or forwarded. The newest are the last.
    targets: VecDeque<u64>,
}

impl Default for RecentDenials {
    fn default() -> Self {
        Self {
            kinds: Cache::builder()
                .max_capacity(MAX_KINDS)
                .time_to_live(LATELY)
                .build(),
            hasher: RandomState::new(),
        }
    }
}

impl RecentDenials {
    /// Records that upstream denied a request of a caller at this address.
    pub(super) fn record(&self, request: &AccessRequest, address: IpAddr) {
        let Some((kind, target)) = self.hashes(request, address) else {
            return;
        };
        let denied = self.kinds.get(&kind).unwrap_or_default();
        {
            let mut denied = denied.lock();
            if denied.note(target) {
                denied.denials += 1;
            }
        }
        // Again, so that it counts from now on.
        self.kinds.insert(kind, denied);
    }

    /// Returns `true` if a request without a verdict should be forwarded instead of being reviewed. It
    /// is reviewed the next time.
    pub(super) fn sends_on(&self, request: &AccessRequest, address: IpAddr) -> bool {
        let Some((kind, target)) = self.hashes(request, address) else {
            return false;
        };
        let Some(denied) = self.kinds.get(&kind) else {
            return false;
        };
        let mut denied = denied.lock();
        denied.denials >= SEVERAL && denied.note(target)
    }

    /// Returns the hashes of a request's kind and of its target; `None` if it is no get and no list. A
    /// watch that is forwarded may last for long.
    fn hashes(&self, request: &AccessRequest, address: IpAddr) -> Option<(u64, u64)> {
        let read = request.target.exact_read()?;
        if !matches!(read.verb, Verb::Get | Verb::List) {
            return None;
        }
        let caller = request.identity.caller_key(address);
        let kind = (caller, read.verb, &read.resource.gvr);
        Some((
            self.hasher.hash_one(kind),
            self.hasher.hash_one(&request.target),
        ))
    }
}

impl DeniedReads {
    /// Remembers a target. Returns `true` if it was not remembered.
    fn note(&mut self, target: u64) -> bool {
        let is_new = !self.targets.contains(&target);
        if is_new {
            if self.targets.len() >= MAX_TARGETS {
                self.targets.pop_front();
            }
            self.targets.push_back(target);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn list(user: &str, namespace: &str) -> AccessRequest {
        AccessRequest::example(user, &[], Some(namespace))
    }

    #[test]
    fn first_reads_are_sent_on_after_several_denials() {
        let denials = RecentDenials::default();
        for namespace in ["one", "two"] {
            assert!(!denials.sends_on(&list("a", namespace), ADDRESS));
            denials.record(&list("a", namespace), ADDRESS);
        }
        assert!(
            !denials.sends_on(&list("a", "one"), ADDRESS),
            "its verdict may last"
        );
        assert!(denials.sends_on(&list("a", "three"), ADDRESS));
        assert!(
            !denials.sends_on(&list("a", "three"), ADDRESS),
            "it comes again"
        );
        assert!(
            !denials.sends_on(&list("b", "three"), ADDRESS),
            "another user"
        );
        let mut watch = list("a", "four");
        watch.target.verb = Verb::Watch.as_str().into();
        assert!(!denials.sends_on(&watch, ADDRESS));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let denials = RecentDenials::default();
        let of = |number: usize| list("a", &number.to_string());
        for number in 0..2 * MAX_TARGETS {
            denials.record(&of(number), ADDRESS);
        }
        let (kind, _) = denials.hashes(&of(0), ADDRESS).unwrap();
        let targets = denials.kinds.get(&kind).unwrap().lock().targets.len();
        assert_eq!(targets, MAX_TARGETS);
        assert!(!denials.sends_on(&of(2 * MAX_TARGETS - 1), ADDRESS));
    }
}
