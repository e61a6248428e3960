//! Opens the scope that answers a read.
use std::any::Any;
use std::sync::Arc;

use watershed_protocol::{PartialFormat, Representation, ResourceVersion, TableForm, TableRequest};

use crate::catalog::Catalog;
use crate::fairness::Share;
use crate::scope::{
    NotAcquired, NotReady, ReadyScope, Scope, ScopeHandle, ScopeKey, ScopePhase, Scopes,
};
use crate::serve::plan::{ReadKind, ReadPlan, TablePlan};
use crate::serve::policy::CachingPolicy;
use crate::serve::policy::scope_choice::{Condition, OpenScope, ScopeChoice};
use crate::serve::source::ForwardReason;
use crate::upstream::Stopped;

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

/// The form that objects have in an answer.
pub(in crate::serve) enum AnswerForm {
    /// The objects as the scope holds them.
    Whole,
    /// Their metadata, where the scope holds whole objects.
    Metadata(PartialFormat),
    Table(OpenedTable),
}

/// A Table, and how upstream prints it.
pub(in crate::serve) struct OpenedTable {
    pub(in crate::serve) form: Arc<TableForm>,
    pub(in crate::serve) request: TableRequest,
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
            Ok(Self::Metadata(PartialFormat::of(&ready.format, encoding)))
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

/// Opens the scope in the first representation that the client accepts and the type has. `share`
/// returns the caller's share of the on-demand scopes, if one is opened.
pub(in crate::serve) async fn open(
    catalog: &Catalog,
    policy: &CachingPolicy,
    scopes: &Scopes,
    read: &ReadPlan,
    share: impl Fn() -> Option<Share>,
) -> Result<OpenedScope, ForwardReason> {
    // While the caller was reviewed, the type may have got other selectable fields. The request's
    // selectors were resolved against the old ones, and a scope must not be opened with those.
    let resource = &read.resource;
    if catalog
        .get(&resource.gvr)
        .is_none_or(|now| now.fields != resource.fields)
    {
        return Err(ForwardReason::UnknownType);
    }
    for &representation in &read.representations {
        for held in read.made_from(representation) {
            let (scope, is_complete) =
                acquire(policy, scopes, read, held, &share).map_err(|why| match why {
                    NotAcquired::NotChosen => ForwardReason::NotCovered,
                    NotAcquired::NoMemory => ForwardReason::Budget,
                })?;
            if scope.fields != resource.fields {
                return Err(ForwardReason::UnknownType);
            }
            match scope.wait_until_ready(scopes.config().sync_wait).await {
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
                Err(NotReady::Syncing) => return Err(ForwardReason::Syncing),
                Err(NotReady::Stale) => return Err(ForwardReason::Stale),
                Err(NotReady::Quarantined) => return Err(ForwardReason::Quarantined),
                Err(NotReady::SchemaChanged) => return Err(ForwardReason::SchemaChanged),
                // The next representation may be acceptable.
                Err(NotReady::Stopped(Stopped::NotAcceptable)) => {}
                Err(NotReady::Stopped(Stopped::Forbidden(_) | Stopped::Unauthorized(_))) => {
                    return Err(ForwardReason::NotPermitted);
                }
                Err(NotReady::Stopped(Stopped::DoesNotFit(_))) => {
                    return Err(ForwardReason::Budget);
                }
                Err(NotReady::Stopped(_)) => return Err(ForwardReason::NotCached),
            }
        }
    }
    Err(ForwardReason::Representation)
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

impl Continuation<'_> {
    /// Returns `true` if memory can continue the watch: the scope follows upstream, and its window
    /// has every later event.
    pub(in crate::serve) fn is_possible(
        &self,
        catalog: &Catalog,
        policy: &CachingPolicy,
        scopes: &Scopes,
    ) -> bool {
        let resource = &self.read.resource;
        if catalog
            .get(&resource.gvr)
            .is_none_or(|now| now.fields != resource.fields)
        {
            return false;
        }
        let representations = self.read.representations.iter();
        for held in representations.flat_map(|wanted| self.read.made_from(*wanted)) {
            if !self.opens_scope && !is_open(scopes, self.read, held) {
                return false;
            }
            // It was the caller's when its watch began, if it was opened for that.
            let Ok((scope, _)) = acquire(policy, scopes, self.read, held, || Some(())) else {
                return false;
            };
            match scope.phase() {
                ScopePhase::Ready(_) => {
                    let reader = &scope.reader;
                    return scope.fields == resource.fields
                        && scope.upstream.is_delivering()
                        && (reader.oldest_version()..=reader.version()).contains(&self.version);
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
}

/// Returns a scope that can answer the read, if one is open and ready.
pub(in crate::serve) fn ready_now(scopes: &Scopes, read: &ReadPlan) -> Option<Arc<Scope>> {
    let representations = read.representations.iter();
    let held = representations.flat_map(|wanted| read.made_from(*wanted));
    let mut open = held.filter_map(|held| open_now(scopes, read, held));
    open.find(|scope| matches!(scope.phase(), ScopePhase::Ready(_)))
}

/// Returns `true` if a scope for what the read asks for is open.
fn is_open(scopes: &Scopes, read: &ReadPlan, held: Representation) -> bool {
    open_now(scopes, read, held).is_some()
}

/// Returns the scope for what the read asks for, if it is open.
fn open_now(scopes: &Scopes, read: &ReadPlan, held: Representation) -> Option<Arc<Scope>> {
    let selection = match &read.scope {
        ScopeChoice::Configured(chosen) => &chosen.selection,
        ScopeChoice::OnDemand { asked, .. } => asked,
    };
    let key = ScopeKey {
        gvr: read.resource.gvr.clone(),
        selection: Arc::clone(selection),
        representation: held,
    };
    scopes.get(&key)
}

/// Returns a handle to the scope that answers the read, and whether it has all that the read asks
/// for. Opens the scope if it is not open.
fn acquire<S: Send + Sync + 'static>(
    policy: &CachingPolicy,
    scopes: &Scopes,
    read: &ReadPlan,
    held: Representation,
    share: impl Fn() -> Option<S>,
) -> Result<(ScopeHandle, bool), NotAcquired> {
    let gvr = &read.resource.gvr;
    let mut is_complete = true;
    let scope = scopes.acquire(
        (gvr, held),
        &read.resource.kind,
        &read.resource.fields,
        |open| {
            let mut owner: Option<Arc<dyn Any + Send + Sync>> = None;
            let (chosen, on_demand) = match &read.scope {
                ScopeChoice::Configured(chosen) => (chosen.clone(), false),
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
                    if !here.iter().any(|open| open.selection == chosen.selection) {
                        owner = Some(Arc::new(share()?));
                    }
                    (chosen, true)
                }
            };
            is_complete = chosen.is_complete;
            let mut retention = policy.retention(gvr, on_demand, scopes.config().window);
            retention.owner = owner;
            Some((chosen.selection, retention))
        },
    )?;
    Ok((scope, is_complete))
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
