//! One check of one scope. A difference counts if it is found twice.
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::difference::ObjectDifference;
use super::look::{Inconclusive, Look};
use super::paged::PagedCheck;
use super::selected::SelectedCheck;
use crate::scope::cached::Scope;
use crate::scope::phase::{ReadyScope, ScopePhase};
use crate::upstream::{StateList, UpstreamClient};

/// Pages of one check. There is one, unless upstream's count of the objects behind it tells that
/// there is a difference.
const MAX_PAGES: usize = 20;
/// Time between two looks. Deletions that share a version arrive one by one, within moments.
const SECOND_LOOK: Duration = Duration::from_secs(2);

/// A check of one scope.
pub(super) struct Examination<'a> {
    scope: &'a Scope,
    client: UpstreamClient,
    list: StateList,
    /// Silence of the watch after which the scope's own version tells nothing.
    silent_after: Duration,
}

impl<'a> Examination<'a> {
    pub(super) fn new(client: &UpstreamClient, scope: &'a Scope, silent_after: Duration) -> Self {
        let key = &scope.key;
        let client = scope.beside(client);
        let namespaced = scope.fields.namespaced();
        Self {
            list: StateList::new(client.clone(), &key.gvr, &key.selection, namespaced),
            client,
            scope,
            silent_after,
        }
    }

    /// Compares the part of the scope behind `after`, or all of it if it has selectors.
    pub(super) async fn run(&self, mut after: Option<String>) -> Result<Look, Inconclusive> {
        let selection = &self.scope.key.selection;
        if !selection.labels.is_everything() || !selection.fields.is_everything() {
            let check = SelectedCheck::new(self.scope, &self.list, self.client.clone());
            return self.look_twice(&PartCheck::Selected(check)).await;
        }
        let mut pages = 1;
        loop {
            let check = PartCheck::Paged(PagedCheck::new(self.scope, &self.list, after));
            let look = match (self.look_twice(&check).await, check) {
                (Err(Inconclusive::Expired), PartCheck::Paged(check)) => {
                    check.look_at_newest().await?
                }
                (Ok(look), PartCheck::Paged(check))
                    if look.differences.is_empty()
                        && self.scope.upstream.silence() >= self.silent_after =>
                {
                    let newest = check.look_at_newest().await?;
                    Look {
                        counts_differ: look.counts_differ || newest.counts_differ,
                        ..look
                    }
                }
                (look, _) => look?,
            };
            let is_done = !look.differences.is_empty() || !look.counts_differ;
            if is_done || pages == MAX_PAGES {
                return Ok(look);
            }
            after = look.next;
            pages += 1;
        }
    }

    /// Looks once, and a second time at what differs. Returns the differences of both looks.
    async fn look_twice(&self, check: &PartCheck<'_>) -> Result<Look, Inconclusive> {
        let ready = self.ready().ok_or(Inconclusive::NotFollowed)?;
        let first = check.look(&ready).await?;
        if first.differences.is_empty() {
            return Ok(first);
        }
        sleep(SECOND_LOOK).await;
        let mut second = check.look(&ready).await?;
        // A list meanwhile has set right what there was to set right.
        let listed = self.ready().filter(|now| Arc::ptr_eq(now, &ready));
        listed.ok_or(Inconclusive::NotFollowed)?;
        retain_common(&mut second.differences, &first.differences);
        Ok(second)
    }

    /// Returns the scope's properties, if it is ready and follows upstream.
    fn ready(&self) -> Option<Arc<ReadyScope>> {
        match self.scope.phase() {
            ScopePhase::Ready(ready)
                if self.scope.upstream.is_following() && self.scope.is_printed_by_its_server() =>
            {
                Some(ready)
            }
            _ => None,
        }
    }
}

/// Keeps the differences of objects that differed before. Others come from events that arrive one
/// by one.
fn retain_common(differences: &mut Vec<ObjectDifference>, before: &[ObjectDifference]) {
    differences.retain(|it| before.iter().any(|before| before.key == it.key));
}

/// A comparison of one part of a scope.
enum PartCheck<'a> {
    Paged(PagedCheck<'a>),
    Selected(SelectedCheck<'a>),
}

impl PartCheck<'_> {
    async fn look(&self, ready: &ReadyScope) -> Result<Look, Inconclusive> {
        let look = match self {
            Self::Paged(check) => check.look(ready).await,
            Self::Selected(check) => check.look(ready).await,
        };
        match look {
            // Memory's was learned from an empty list, as that of an aggregated type, or upstream's changed.
            Err(Inconclusive::OtherFormat) => Ok(Look::at_other_format()),
            look => look,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::difference::DifferenceKind;
    use super::*;

    #[test]
    fn an_object_counts_if_it_differs_in_both_looks() {
        let of = |keys: &[&str], kind| -> Vec<_> {
            let keys = keys.iter().map(|key| (*key).to_owned());
            keys.map(|key| ObjectDifference { key, kind }).collect()
        };
        let first = of(&["gone", "lasting"], DifferenceKind::Surplus);
        let mut second = of(&["lasting", "new"], DifferenceKind::Missing);
        retain_common(&mut second, &first);
        assert_eq!(second, of(&["lasting"], DifferenceKind::Missing));
        retain_common(&mut second, &[]);
        assert_eq!(second, []);
    }
}
