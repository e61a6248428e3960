//! Requests that have begun to answer and have not ended: watches have two events each.
use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};

/// Upper bound of requests that are remembered. Those beyond count when they end.
const MAX_OPEN: usize = 1 << 20;

/// The requests that were counted when they began.
#[derive(Default)]
pub(super) struct OpenRequests {
    open: HashSet<u64>,
    hasher: RandomState,
}

impl OpenRequests {
    /// Notes that a request has begun. Returns `true` if it counts now.
    pub(super) fn begin(&mut self, audit_id: &str) -> bool {
        self.open.len() < MAX_OPEN && self.open.insert(self.hasher.hash_one(audit_id))
    }

    /// Notes that a request has ended. Returns `true` if it was not counted before.
    pub(super) fn end(&mut self, audit_id: &str) -> bool {
        !self.open.remove(&self.hasher.hash_one(audit_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_once() {
        let mut open = OpenRequests::default();
        assert!(open.begin("watch"));
        assert!(!open.begin("watch"), "a line that is in two files");
        assert!(!open.end("watch"));
        assert!(open.end("list"));
    }
}
