//! The last list of a scope as a proof that memory is fresh.
use std::time::Instant;

use parking_lot::Mutex;
use watershed_protocol::ResourceVersion;

/// The last list, and the time before its request.
///
/// Lists of scopes leave `resourceVersion` unset. So what they show is no older than their request,
/// and reads that came before it need no other proof. A first list that may show any state is not
/// noted here.
#[derive(Debug, Default)]
pub(super) struct ConsistentList(Mutex<Option<(Instant, ResourceVersion)>>);

impl ConsistentList {
    /// Notes a list that upstream was asked for after this moment. What is held must be the list
    /// already.
    pub(super) fn store(&self, asked: Instant, version: ResourceVersion) {
        *self.0.lock() = Some((asked, version));
    }

    /// Returns the version of the list, if upstream was asked for it at `moment` or later.
    pub(super) fn since(&self, moment: Instant) -> Option<ResourceVersion> {
        let last = *self.0.lock();
        last.filter(|(asked, _)| *asked >= moment)
            .map(|(_, version)| version)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_list_proves_only_what_came_before_its_request() {
        let list = ConsistentList::default();
        let asked = Instant::now();
        assert_eq!(list.since(asked), None);
        list.store(asked, ResourceVersion(7));
        let before = asked.checked_sub(Duration::from_millis(1)).unwrap();
        for moment in [before, asked] {
            assert_eq!(list.since(moment), Some(ResourceVersion(7)));
        }
        assert_eq!(list.since(asked + Duration::from_nanos(1)), None);
    }
}
