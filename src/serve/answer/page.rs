//! One page of a list.
use std::sync::Arc;

use watershed_protocol::{ContinueToken, FieldTable, ListMetadata, ListParts, Selection};

use super::items::{Items, MetadataItems};
use super::selected_objects::SelectedObjects;
use super::table_items::TableItems;
use crate::serve::limits::list_memory::ListMemory;
use crate::serve::plan::ListPlan;
use crate::serve::reads::open::{AnswerForm, OpenedScope};
use crate::serve::source::ForwardReason;
use crate::serve::unanswered::Unanswered;
use crate::store::{Interest, MAX_UNDONE, ObjectRun, StateAt, StoredObject};
use crate::work::WorkBudget;

/// The work of an object in a piece of an older state: changes are taken back. The object may have
/// to be printed for it, as the frame that it came in was released.
const RESTORED_OBJECT: usize = 32;

/// The objects of one answer, as references. The body holds no bytes of its own but those it sends.
pub(super) struct Page {
    pub(super) items: Items,
    /// The rest of the list, if there is any.
    pub(super) next: Option<NextPage>,
}

/// The part of a list that follows a page.
pub(super) struct NextPage {
    /// The continue token.
    token: String,
    /// Number of objects that follow, if it is known without looking at them.
    remaining: Option<i64>,
}

impl Page {
    /// Returns what comes before and after the items.
    pub(super) fn parts(&self, state: &StateAt, list: &ListPlan) -> ListParts {
        let next = self.next.as_ref();
        let metadata = ListMetadata {
            version: state.version(),
            continue_token: next.map(|next| next.token.as_str()),
            remaining: next.and_then(|next| next.remaining),
            shard: list.filter.shard(),
        };
        self.items.list_parts(&metadata)
    }

    /// Cuts the page of a list out of a state.
    ///
    /// Source: `apiserver/pkg/storage/continue.go` (PrepareContinueToken) and
    /// `apiserver/pkg/storage/cacher/cacher.go` (GetList).
    pub(super) async fn cut(
        state: &StateAt,
        opened: &OpenedScope,
        namespace: Option<&str>,
        list: &ListPlan,
        memory: &mut ListMemory,
    ) -> Result<Self, Unanswered> {
        let mut scan = Scan {
            state,
            namespace,
            list,
            fields: &opened.scope.fields,
            memory,
            budget: WorkBudget::default(),
        };
        let taken = scan.take(opened).await?;
        scan.expect_certain(&taken, opened)?;
        let next = scan.next_page(&taken).await;
        Ok(Self {
            items: taken.items,
            next,
        })
    }
}

/// A walk over the objects that a page can have.
struct Scan<'a> {
    state: &'a StateAt,
    namespace: Option<&'a str>,
    list: &'a ListPlan,
    fields: &'a FieldTable,
    memory: &'a mut ListMemory,
    budget: WorkBudget,
}

/// The objects of a page, and what is behind them.
struct TakenObjects {
    items: Items,
    last: Option<Arc<StoredObject>>,
    /// Objects follow, matching or not.
    has_more: bool,
}

impl Scan<'_> {
    /// Takes the objects of the page, in the form of the answer.
    async fn take(&mut self, opened: &OpenedScope) -> Result<TakenObjects, Unanswered> {
        let format = Arc::clone(&opened.ready.format);
        if self.list.filter.is_plain() && !opened.form.is_converted() {
            let (runs, has_more) = self.first_runs().await?;
            return Ok(TakenObjects {
                last: runs.last().and_then(|run| run.objects().last()).cloned(),
                items: Items::Runs(format, runs),
                has_more,
            });
        }
        let (objects, has_more) = self.selected().await?;
        let last = objects.last().cloned();
        let (budget, memory) = (&mut self.budget, &mut *self.memory);
        let items = match &opened.form {
            AnswerForm::Whole => Ok(Items::Objects(format, objects)),
            AnswerForm::Metadata(partial) => {
                let items = MetadataItems::new(partial.clone(), objects, budget, memory);
                items.await.map(Items::Metadata)
            }
            AnswerForm::Table(table) => {
                let items = TableItems::new(table, objects, budget, memory);
                items.await.map(Items::Table)
            }
        };
        let items = items.map_err(|irreducible| {
            opened.note_irreducible(&irreducible);
            opened.form.reason()
        })?;
        Ok(TakenObjects {
            items,
            last,
            has_more,
        })
    }

    /// Returns an error if objects that follow may be unknown here, or be passed over by upstream.
    fn expect_certain(
        &self,
        taken: &TakenObjects,
        opened: &OpenedScope,
    ) -> Result<(), ForwardReason> {
        let Selection { labels, fields, .. } = &*opened.scope.key.selection;
        let is_part = !(labels.is_everything() && fields.is_everything());
        let is_uncertain = if taken.has_more {
            self.list.is_first_of_present && self.is_last_by_index(taken.last.as_deref())
        } else {
            is_part && self.list.limit == Some(taken.items.count())
        };
        if is_uncertain {
            return Err(ForwardReason::Paging);
        }
        Ok(())
    }

    /// Returns the page that follows, if there is one. The objects on it may not match: the last
    /// page of a selection may be empty.
    async fn next_page(&mut self, taken: &TakenObjects) -> Option<NextPage> {
        let last = taken.last.as_ref().filter(|_| taken.has_more)?;
        let after = self.relative(last.key());
        let remaining = if self.list.filter.is_plain() {
            Some(self.count_behind(after, taken.items.count()).await)
        } else {
            None
        };
        let token = ContinueToken {
            version: self.state.version(),
            after: after.to_owned(),
        };
        Some(NextPage {
            token: if self.list.is_from_etcd {
                token.encode_as_etcd()
            } else {
                token.encode()
            },
            remaining,
        })
    }

    /// Returns the first objects, and whether others follow.
    async fn first_runs(&mut self) -> Result<(Vec<ObjectRun>, bool), Unanswered> {
        let (mut runs, mut left) = (Vec::new(), self.limit());
        let after = self.list.after.as_deref();
        for mut run in self.state.runs_after(self.namespace, after) {
            if run.len() > left {
                run.truncate(left);
                runs.extend(Some(run).filter(|run| !run.is_empty()));
                return Ok((runs, true));
            }
            left -= run.len();
            self.memory
                .refer(runs.capacity() * size_of::<ObjectRun>())?;
            self.visited(&run, 1).await?;
            runs.extend(Some(run).filter(|run| !run.is_empty()));
        }
        Ok((runs, false))
    }

    /// Returns the first objects that match, and whether others follow, matching or not.
    async fn selected(&mut self) -> Result<(SelectedObjects, bool), Unanswered> {
        let (filter, limit) = (&self.list.filter, self.limit());
        let whole = self.list.limit.is_none() && self.list.after.is_none();
        let runs = if whole {
            let interest = filter.interest(self.fields);
            self.state.runs_of(&interest)
        } else {
            let after = self.list.after.as_deref();
            self.state.runs_after(self.namespace, after)
        };
        let is_restored = self.is_restored();
        let mut objects = SelectedObjects::default();
        for run in runs {
            let matches = |object: &StoredObject| filter.matches(&object.attributes);
            if objects.add(&run, limit, is_restored, matches) {
                return Ok((objects, true));
            }
            self.memory.refer(objects.own_bytes())?;
            self.visited(&run, run.len() * filter.work()).await?;
        }
        Ok((objects, false))
    }

    /// Returns `true` if no object follows that upstream would find by an index. It gives no token
    /// then, but for releases that read such a page from etcd.
    /// Source: `apiserver/pkg/storage/cacher/watch_cache.go` (waitAndGetLatestSnapshot).
    fn is_last_by_index(&self, last: Option<&StoredObject>) -> bool {
        let interest = self.list.filter.interest(self.fields);
        let (Interest::Field(field, value), Some(last)) = (&interest, last) else {
            return false;
        };
        let follows = |object: &Arc<StoredObject>| {
            let attributes = &object.attributes;
            object.key() > last.key()
                && attributes.field(*field) == &**value
                && self.namespace.is_none_or(|it| attributes.namespace() == it)
        };
        let mut runs = self.state.runs_of(&interest);
        !runs.any(|run| run.objects().iter().any(follows))
    }

    /// Returns the number of objects behind a page of `taken` objects that ends with the key
    /// `last`.
    async fn count_behind(&mut self, last: &str, taken: usize) -> i64 {
        if self.namespace.is_none() && self.list.after.is_none() {
            let rest = self.state.len().saturating_sub(taken);
            return i64::try_from(rest).unwrap_or(i64::MAX);
        }
        let mut rest = 0;
        for count in self.state.counts_after(self.namespace, Some(last)) {
            rest += count as i64;
            self.budget.work(1).await;
        }
        rest
    }

    /// Accounts for a piece that was looked at. An older state may take more memory than it is
    /// worth: then the list is forwarded.
    async fn visited(&mut self, run: &ObjectRun, work: usize) -> Result<(), ForwardReason> {
        if !self.state.is_affordable() {
            return Err(ForwardReason::Exact);
        }
        let restoring = match (self.is_restored(), run.is_empty()) {
            (false, _) => 0,
            // Only creations are taken back.
            (true, true) => MAX_UNDONE,
            (true, false) => RESTORED_OBJECT * run.len(),
        };
        self.budget.work(work + restoring).await;
        Ok(())
    }

    fn is_restored(&self) -> bool {
        self.state.as_snapshot().is_none()
    }

    fn limit(&self) -> usize {
        self.list.limit.unwrap_or(usize::MAX)
    }

    /// Returns a key as it is in a continue token.
    fn relative<'k>(&self, key: &'k str) -> &'k str {
        self.namespace
            .map_or(key, |namespace| &key[namespace.len() + 1..])
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use bytes::Bytes;
    use watershed_protocol::{
        Encoding, GroupVersionResource, LabelSelector, PartialFormat, ResourceVersion, Selectors,
        WireFormat, scan,
    };

    use super::*;
    use crate::budget::MemoryBudget;
    use crate::fairness::CallerKey;
    use crate::serve::limits::exceeded::LimitExceeded;
    use crate::serve::limits::list_memory::MAX_KEPT;
    use crate::serve::limits::memory::RequestMemory;
    use crate::serve::unanswered::Refusal;
    use crate::store::{Layout, Snapshot};
    use crate::watcher::ViewFilter;
    use crate::work::{OBJECTS_PER_TURN, REDUCED_OBJECT};

    const OBJECTS: usize = 5 * OBJECTS_PER_TURN;
    const LIST: &str = concat!(
        r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"#,
        r#""items":[]}"#,
        "\n"
    );

    fn fields() -> FieldTable {
        let configmaps = GroupVersionResource::new("", "v1", "configmaps");
        FieldTable::builtin(&configmaps, true).unwrap()
    }

    fn state() -> (Arc<WireFormat>, StateAt) {
        state_of(OBJECTS, 0)
    }

    /// Returns a state of so many objects, each with so many bytes of data.
    fn state_of(objects: usize, bytes: usize) -> (Arc<WireFormat>, StateAt) {
        let (count, data) = (objects, "x".repeat(bytes));
        let list = Bytes::from_static(LIST.as_bytes());
        let (format, _) = WireFormat::learn(Encoding::Json, "ConfigMap", &list).unwrap();
        let format = Arc::new(format);
        let objects = (0..count).map(|number| {
            let text = format!(
                concat!(
                    r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"c-{:06}","#,
                    r#""namespace":"ns","resourceVersion":"5"}},"data":{{"a":"{}"}}}}"#
                ),
                number, data
            );
            let scanned = scan(Encoding::Json, text.as_bytes(), &fields()).unwrap();
            StoredObject {
                bytes: format.item_bytes(&text.into()).into(),
                version: scanned.version,
                attributes: scanned.attributes,
            }
        });
        let layout = Layout {
            format: Arc::clone(&format),
            indexed: None,
        };
        let snapshot = Snapshot::new(ResourceVersion(9), layout, objects);
        (format, snapshot.into())
    }

    /// Returns the result, and the number of turns before the last.
    fn turns<T>(work: impl Future<Output = T>) -> (T, usize) {
        let mut work = pin!(work);
        let mut context = Context::from_waker(Waker::noop());
        for turns in 0.. {
            if let Poll::Ready(result) = work.as_mut().poll(&mut context) {
                return (result, turns);
            }
        }
        unreachable!("it ends")
    }

    fn plan(labels: &str, limit: Option<usize>) -> ListPlan {
        let selectors = Selectors {
            labels: LabelSelector::parse(labels).unwrap(),
            ..Selectors::default()
        };
        ListPlan {
            filter: ViewFilter::new(None, &selectors, &fields()).unwrap(),
            limit,
            after: None,
            is_from_etcd: false,
            is_first_of_present: true,
        }
    }

    fn memory() -> ListMemory {
        RequestMemory::within(&MemoryBudget::default()).list_of(CallerKey::user("ann"))
    }

    async fn selected(
        state: &StateAt,
        list: &ListPlan,
        memory: &mut ListMemory,
    ) -> Result<(SelectedObjects, bool), Unanswered> {
        let mut scan = Scan {
            state,
            namespace: None,
            list,
            fields: &fields(),
            memory,
            budget: WorkBudget::default(),
        };
        scan.selected().await
    }

    #[test]
    fn a_list_of_few_of_many_objects_ends_its_turn_in_between() {
        let (_, state) = state();
        for limit in [None, Some(10)] {
            let list = plan("app=none", limit);
            let (found, turns) = turns(selected(&state, &list, &mut memory()));
            let (objects, has_more) = found.unwrap();
            assert_eq!((objects.len(), has_more), (0, false));
            assert!(turns >= OBJECTS / OBJECTS_PER_TURN, "{turns}");
        }
    }

    #[test]
    fn a_selection_that_is_larger_than_a_users_share_is_refused() {
        let (_, state) = state();
        let budget = MemoryBudget::new(Some(OBJECTS * 8 * 4));
        let memory = || RequestMemory::within(&budget).list_of(CallerKey::user("ann"));
        let (found, _) = turns(selected(&state, &plan("app=none", None), &mut memory()));
        assert!(found.is_ok());
        let (found, _) = turns(selected(&state, &plan("", None), &mut memory()));
        assert!(matches!(
            found,
            Err(Unanswered::Refuse(Refusal::Limit(LimitExceeded::Memory)))
        ));
    }

    #[test]
    fn each_large_object_is_the_work_of_a_turn() {
        const LARGE: usize = 20;
        let (format, state) = state_of(LARGE, 256 << 10);
        let mut memory = memory();
        let (found, _) = turns(selected(&state, &plan("", None), &mut memory));
        let partial = PartialFormat::of(&format, Encoding::Json).unwrap();
        let mut budget = WorkBudget::default();
        let items = MetadataItems::new(partial, found.unwrap().0, &mut budget, &mut memory);
        let (items, turns) = turns(items);
        assert!(items.is_ok() && turns >= LARGE, "{turns}");
    }

    #[test]
    fn metadata_is_measured_in_turns_and_little_of_it_kept() {
        let (format, state) = state();
        let list = plan("", None);
        let mut memory = memory();
        let (found, _) = turns(selected(&state, &list, &mut memory));
        let partial = PartialFormat::of(&format, Encoding::Json).unwrap();
        let mut budget = WorkBudget::default();
        let items = MetadataItems::new(partial, found.unwrap().0, &mut budget, &mut memory);
        let (items, turns) = turns(items);
        let items = items.unwrap();
        let least = OBJECTS * REDUCED_OBJECT / OBJECTS_PER_TURN;
        assert!(turns >= least, "{turns}");
        assert!(items.kept_bytes() <= MAX_KEPT + 1000);
    }
}
