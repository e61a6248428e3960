//! Opens the scope that answers a read.
use std::sync::Arc;

use watershed_protocol::{PartialFormat, Representation, ResourceVersion, TableForm, TableRequest};

use crate::catalog::Catalog;
use crate::fairness::Share;
use crate::scope::{
    NotAcquired, NotReady, ReadyScope, Scope, ScopeHandle, ScopeKey, ScopeOrigin, ScopePhase,
    ScopeShare, Scopes,
};
use crate::serve::plan::{ReadKind, ReadPlan, TablePlan};
use crate::serve::policy::CachingPolicy;
use crate::serve::policy::scope_choice::{Condition, OpenScope, ScopeChoice};
use crate::serve::source::ForwardReason;
use crate::store::StoredObject;
use crate::upstream::Stopped;

/// Opens the scopes that answer reads. Cheap to clone.
#[derive(Clone)]
pub(in crate::serve) struct ScopeOpener {
    pub(in crate::serve) catalog: Catalog,
    pub(in crate::serve) policy: Arc<CachingPolicy>,
    pub(in crate::serve) scopes: Scopes,
}

/// A scope that can answer.
pub(in crate::serve) struct OpenedScope {
    pub(in crate::serve) scope: ScopeHandle,
    /// All objects that the read asks for are in the scope, if they exist.
    pub(in crate::serve) is_complete: bool,
    pub(in crate::serve) ready: Arc<ReadyScope>,
    /// Representation of the answer.
    pub(in crate::serve) representation: Representation,
    pub(in crate::serve) form: AnswerForm,
}

impl OpenedScope {
    /// Records an object that cannot have the form of the answer.
    pub(in crate::serve) fn note_irreducible(&self, object: &StoredObject) {
        let forms = &self.scope.forms;
        match self.form {
            AnswerForm::Whole => {}
            AnswerForm::Metadata(_) => forms.irreducible.record(object),
            AnswerForm::Table(_) => forms.unprintable.record(object),
        }
    }
}

/// The form that objects have in an answer.
pub(in crate::serve) enum AnswerForm {
    /// The objects as the scope holds them.
    Whole,
    /// Their metadata, where the scope holds whole objects.
    Metadata(PartialFormat),
    /// Rows of a Table.
    Table(OpenedTable),
}

/// A Table, and how upstream prints it.
pub(in crate::serve) struct OpenedTable {
    pub(in crate::serve) form: Arc<TableForm>,
    pub(in crate::serve) request: TableRequest,
}

/// A watch that memory may continue.
pub(in crate::serve) struct Continuation<'a> {
    pub(in crate::serve) read: &'a ReadPlan,
    /// The watch goes on after this version.
    pub(in crate::serve) version: ResourceVersion,
    /// Opens the scope if it is not open. Not wanted where upstream refuses the proxy: the scope
    /// would be opened again and again.
    pub(in crate::serve) opens_scope: bool,
}

impl ScopeOpener {
    /// Opens the scope in the first representation that the client accepts and the type has.
    /// `share` returns the caller's share of the on-demand scopes, if one is opened.
    pub(in crate::serve) async fn open(
        &self,
        read: &ReadPlan,
        share: impl Fn() -> Option<Share>,
    ) -> Result<OpenedScope, ForwardReason> {
        // While the caller was reviewed, the type may have got other selectable fields. The request's
        // selectors were resolved against the old ones, and a scope must not be opened with those.
        let resource = &read.resource;
        if !self.catalog.is_current(resource) {
            return Err(ForwardReason::UnknownType);
        }
        for (representation, held) in read.candidates() {
            let (scope, is_complete) = self.acquire(read, held, &share)?;
            if scope.fields != resource.shape.fields {
                return Err(ForwardReason::UnknownType);
            }
            match scope.wait_until_ready(self.scopes.config().sync_wait).await {
                Ok(ready) => {
                    let form = AnswerForm::of(&scope, &ready, read, representation).await?;
                    return Ok(OpenedScope {
                        scope,
                        is_complete,
                        ready,
                        representation,
                        form,
                    });
                }
                // The next representation may be acceptable.
                Err(NotReady::Stopped(Stopped::NotAcceptable)) => {}
                Err(not_ready) => return Err(not_ready.into()),
            }
        }
        Err(ForwardReason::Representation)
    }

    /// Returns `true` if memory can continue a watch: the scope follows upstream, and its window has
    /// every later event.
    pub(in crate::serve) fn can_continue(&self, watch: &Continuation<'_>) -> bool {
        let read = watch.read;
        let resource = &read.resource;
        if !self.catalog.is_current(resource) {
            return false;
        }
        for (_, held) in read.candidates() {
            if !watch.opens_scope && self.open_now(read, held).is_none() {
                return false;
            }
            // It was the caller's when its watch began, if it was opened for that.
            let Ok((scope, _)) = self.acquire(read, held, || Some(())) else {
                return false;
            };
            match scope.phase() {
                ScopePhase::Ready(ready) => {
                    let reader = &scope.reader;
                    return scope.fields == resource.shape.fields
                        && (ready.streams_initial_events || !read.resumes_with_initial_events())
                        && scope.upstream.is_delivering()
                        && (reader.oldest_version()..=reader.version()).contains(&watch.version);
                }
                // The next representation may be acceptable.
                ScopePhase::Stopped(Stopped::NotAcceptable) => {}
                ScopePhase::Syncing
                | ScopePhase::Failing
                | ScopePhase::Stale(_)
                | ScopePhase::Quarantined
                | ScopePhase::SchemaChanged
                | ScopePhase::Stopped(_) => return false,
            }
        }
        false
    }

    /// Returns a scope that can answer the read, if one is open and ready.
    pub(in crate::serve) fn ready_now(&self, read: &ReadPlan) -> Option<Arc<Scope>> {
        let candidates = read.candidates();
        let mut open = candidates.filter_map(|(_, held)| self.open_now(read, held));
        open.find(|scope| matches!(scope.phase(), ScopePhase::Ready(_)))
    }

    /// Returns the scope for what the read asks for, if it is open.
    fn open_now(&self, read: &ReadPlan, held: Representation) -> Option<Arc<Scope>> {
        let key = ScopeKey {
            gvr: read.resource.gvr.clone(),
            selection: Arc::clone(read.scope.selection()),
            representation: held,
        };
        self.scopes.get(&key)
    }

    /// Returns a handle to the scope that answers the read, and whether it has all that the read asks
    /// for. Opens the scope if it is not open.
    fn acquire<S: Send + Sync + 'static>(
        &self,
        read: &ReadPlan,
        held: Representation,
        share: impl Fn() -> Option<S>,
    ) -> Result<(ScopeHandle, bool), NotAcquired> {
        let gvr = &read.resource.gvr;
        let mut is_complete = true;
        let scope = self
            .scopes
            .acquire(gvr, held, &read.resource.shape, |open| {
                let (chosen, origin) = match &read.scope {
                    ScopeChoice::Configured(chosen) => (chosen.clone(), ScopeOrigin::Configured),
                    ScopeChoice::OnDemand { asked, one, limits } => {
                        let (here, elsewhere): (Vec<_>, Vec<_>) = open.partition(|scope| {
                            scope.key.gvr == *gvr && scope.key.representation == held
                        });
                        let here: Vec<_> = here.into_iter().map(open_scope).collect();
                        let elsewhere = elsewhere
                            .into_iter()
                            .map(open_scope)
                            .filter(|scope| scope.condition.is_alive() && !scope.is_derived)
                            .count();
                        let chosen = limits.choose(asked, *one, &here, elsewhere)?;
                        let is_open = here.iter().any(|open| open.selection == chosen.selection);
                        let share: Option<ScopeShare> = if is_open {
                            None
                        } else {
                            Some(Arc::new(share()?))
                        };
                        (chosen, ScopeOrigin::OnDemand(share))
                    }
                };
                is_complete = chosen.is_complete;
                let window = self.scopes.config().window;
                let options = self.policy.scope_options(gvr, origin, window);
                Some((chosen.selection, options))
            })?;
        Ok((scope, is_complete))
    }
}

impl AnswerForm {
    /// Returns the form that the client wants. If that is a Table, learns how upstream prints it.
    async fn of(
        scope: &ScopeHandle,
        ready: &ReadyScope,
        read: &ReadPlan,
        representation: Representation,
    ) -> Result<Self, ForwardReason> {
        let Representation {
            encoding,
            metadata_only,
        } = representation;
        if let Some(plan) = &read.table {
            let table = OpenedTable::learn(scope, ready, plan, &read.kind).await?;
            Ok(Self::Table(table))
        } else if metadata_only && !scope.key.representation.metadata_only {
            let partial = PartialFormat::of(&ready.format, encoding);
            partial
                .map(Self::Metadata)
                .ok_or(ForwardReason::Representation)
        } else {
            Ok(Self::Whole)
        }
    }

    /// Returns `true` if each object is converted for the answer.
    pub(in crate::serve) fn is_converted(&self) -> bool {
        match self {
            Self::Whole => false,
            Self::Metadata(_) | Self::Table(_) => true,
        }
    }

    /// Returns the reason for which a read is forwarded if an object has no such form.
    pub(in crate::serve) fn reason(&self) -> ForwardReason {
        match self {
            Self::Whole | Self::Metadata(_) => ForwardReason::Representation,
            Self::Table(_) => ForwardReason::Table,
        }
    }
}

impl OpenedTable {
    /// Learns how upstream prints a Table.
    async fn learn(
        scope: &ScopeHandle,
        ready: &ReadyScope,
        table: &TablePlan,
        kind: &ReadKind,
    ) -> Result<Self, ForwardReason> {
        let has_objects = !scope.reader.snapshot().is_empty();
        let form = scope
            .forms
            .tables
            .form(&ready.format, &table.printer, has_objects);
        let form = form.await.ok_or(ForwardReason::Table)?;
        // A list or a get that comes upon the first object is forwarded. A watch would have to end.
        if matches!(kind, ReadKind::Watch(_)) && !form.prints_rows() {
            return Err(ForwardReason::Table);
        }
        Ok(Self {
            form,
            request: table.request,
        })
    }
}

/// Returns a scope as the choice sees it.
fn open_scope(scope: &Arc<Scope>) -> OpenScope {
    let condition = match scope.phase() {
        // For a moment its reads are forwarded, but it stays the scope to choose.
        ScopePhase::Ready(_)
        | ScopePhase::Stale(_)
        | ScopePhase::Quarantined
        | ScopePhase::SchemaChanged => Condition::Ready,
        ScopePhase::Syncing | ScopePhase::Failing => Condition::Syncing,
        ScopePhase::Stopped(Stopped::NotAcceptable) => Condition::Unknown,
        ScopePhase::Stopped(_) => Condition::Failed,
    };
    OpenScope {
        selection: Arc::clone(&scope.key.selection),
        condition,
        is_derived: scope.is_derived(),
    }
}
