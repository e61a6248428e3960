//! Plans the answer to a request: from memory, or forwarded and why. Waits for nothing, and opens
//! nothing.
mod checkpoint;
pub(super) mod client_features;
mod context;
pub(super) mod document_request;
mod get;
mod list;
pub(super) mod optional_parameters;
mod parameters;
mod read;
pub(super) mod refusal_form;
pub(super) mod request_deadline;
pub(super) mod request_key;
mod selected;
mod table;
mod watch;

use std::sync::Arc;

use http::{HeaderMap, Request, header};
use watershed_protocol::{
    AcceptClause, Encoding, GroupVersionResource, Representation, RequestInfo, ResourceRequest,
    Verb, WatchStart, acceptable_ignoring, wants_pretty,
};

use super::policy::{CacheMode, CachingPolicy};
use super::source::ForwardReason;
use crate::access::{AccessAttributes, ReviewType, VerdictAge, wanted_verdict};
use crate::catalog::{Catalog, ResourceType};
use crate::scope::wanted_checkpoint;
use crate::upstream::ConnectionClass;
pub(super) use checkpoint::CheckpointPlan;
use context::ReadContext;
use document_request::DocumentRequest;
pub(super) use list::ListPlan;
use optional_parameters::{OptionalParameters, ParameterUse};
use parameters::ReadParameters;
pub(super) use read::{ReadKind, ReadPlan, SelectedSize};
use refusal_form::RefusalForm;
pub(super) use table::TablePlan;
use watch::WatchPath;
pub(super) use watch::WatchPlan;

/// The plan for a request, and what is known of the request either way.
pub(super) struct RequestPlan {
    pub(super) action: PlannedAction,
    pub(super) verb: Verb,
    /// The type, if it is one of the catalog's: a label of bounded cardinality.
    pub(super) resource: Option<Arc<ResourceType>>,
    /// The request may stay open as long as its client likes.
    pub(super) may_stay_open: bool,
    /// Upstream treats the request as long-running.
    pub(super) is_long_running: bool,
    /// The client of the watch can go on by version from its first event on. Others may begin with
    /// events that show the state, which are not in the order of versions.
    pub(super) begins_after_version: bool,
    /// The requests that it shares upstream connections with, if it is forwarded.
    pub(super) forward_class: ConnectionClass,
    /// Form of refusals.
    pub(super) refusals: RefusalForm,
}

/// The way in which a request is answered.
pub(super) enum PlannedAction {
    Forward(ForwardReason),
    Read(Box<ReadPlan>),
    Document(Box<DocumentRequest>),
    Checkpoint(Box<CheckpointPlan>),
    /// Another proxy asks for a verdict about one of its callers.
    Verdict(ReviewType, VerdictAge),
}

impl RequestPlan {
    pub(super) fn new<B>(
        catalog: &Catalog,
        policy: &CachingPolicy,
        request: &Request<B>,
        parameters: OptionalParameters,
    ) -> Self {
        let uri = request.uri();
        let info = RequestInfo::parse(request.method(), uri.path(), uri.query());
        let resource = info
            .resource
            .as_ref()
            .and_then(|asked| catalog.get(&asked.gvr));
        let accepted = AcceptedForms::of(request, info.verb, parameters);
        let may_stay_open = info.may_stay_open(uri.query());
        let action = if let Some(representation) = wanted_checkpoint(request.headers()) {
            plan_checkpoint(&info, resource.as_ref(), policy, request, representation)
                .map_or_else(PlannedAction::Forward, |checkpoint| {
                    PlannedAction::Checkpoint(Box::new(checkpoint))
                })
        } else if let Some((review, age)) = verdict_for_proxy(&info, policy, request) {
            PlannedAction::Verdict(review, age)
        } else {
            let sharding = parameters.shard_selector;
            let resource = resource.as_ref();
            let read = plan_read(&info, resource, policy, request, &accepted, sharding);
            planned(read, catalog, request)
        };
        Self {
            begins_after_version: begins_after_version(&action, &info, uri.query()),
            action,
            verb: info.verb,
            resource,
            may_stay_open,
            is_long_running: info.is_long_running(uri.path()),
            forward_class: if info.is_relayed(uri.path()) {
                ConnectionClass::Relayed
            } else if may_stay_open || is_upgrade(request.headers()) {
                ConnectionClass::LongForward
            } else {
                ConnectionClass::Short
            },
            refusals: accepted.refusals,
        }
    }

    /// Returns `true` if the answer is known to end by itself. Servers of aggregated APIs may stream
    /// what they like.
    pub(super) fn is_finite(&self) -> bool {
        let is_known = self.resource.is_some() || !matches!(self.action, PlannedAction::Forward(_));
        is_known && !self.may_stay_open
    }

    /// Returns `true` if the headers of the answer may take long although all is well: those of a followed
    /// log come with its first line.
    pub(super) fn may_be_silent(&self) -> bool {
        self.may_stay_open && self.verb != Verb::Watch
    }
}

/// Returns `true` if a request is a watch that certainly begins after a version.
fn begins_after_version(action: &PlannedAction, info: &RequestInfo, query: Option<&str>) -> bool {
    let planned = match action {
        PlannedAction::Read(read) => Some(&read.kind),
        _ => None,
    };
    match planned {
        Some(ReadKind::Watch(watch)) => matches!(watch.start, WatchStart::After(_)),
        None if info.verb == Verb::Watch => watch::begins_after_version(query, info.legacy_watch),
        _ => false,
    }
}

/// The forms of an answer that a request accepts.
struct AcceptedForms {
    /// The clauses of its `Accept` headers, in the client's order.
    clauses: Vec<AcceptClause>,
    refusals: RefusalForm,
}

impl AcceptedForms {
    fn of<B>(request: &Request<B>, verb: Verb, parameters: OptionalParameters) -> Self {
        let ignored: &[&str] = match parameters.drop {
            ParameterUse::Ignored => &["drop"],
            ParameterUse::Unknown | ParameterUse::Heeded => &[],
        };
        let clauses = acceptable_ignoring(request.headers(), verb, ignored);
        let encoding = match clauses.first() {
            Some(AcceptClause::Supported(representation)) => representation.encoding,
            _ => Encoding::Json,
        };
        let indented = wants_pretty(request.uri().query(), request.headers());
        Self {
            clauses,
            refusals: RefusalForm { encoding, indented },
        }
    }
}

fn planned<B>(
    read: Result<ReadPlan, ForwardReason>,
    catalog: &Catalog,
    request: &Request<B>,
) -> PlannedAction {
    match read {
        Ok(read) => PlannedAction::Read(Box::new(read)),
        Err(reason @ ForwardReason::NotAResource) => match DocumentRequest::new(catalog, request) {
            Some(document) => PlannedAction::Document(Box::new(document)),
            None => PlannedAction::Forward(reason),
        },
        Err(reason) => PlannedAction::Forward(reason),
    }
}

/// Plans the checkpoint that another replica asks for. What may not be stored does not leave the
/// process in this form, either.
fn plan_checkpoint<B>(
    info: &RequestInfo,
    resource: Option<&Arc<ResourceType>>,
    policy: &CachingPolicy,
    request: &Request<B>,
    representation: Representation,
) -> Result<CheckpointPlan, ForwardReason> {
    let (asked, resource) = asked_type(info, resource, policy, request.headers())?;
    if info.verb != Verb::List {
        return Err(ForwardReason::Representation);
    }
    let gvr = &resource.gvr;
    let may_store = if representation.metadata_only {
        policy.may_store_metadata(&gvr.group, &gvr.resource)
    } else {
        policy.may_store_objects(&gvr.group, &gvr.resource)
    };
    if !may_store {
        return Err(ForwardReason::Policy);
    }
    let namespace = namespace(asked, resource, false)?;
    checkpoint::plan(asked, gvr, namespace, request.uri().query(), representation)
}

/// Returns the review for which another proxy asks for a verdict, and the verdict's age, if it does. In shadow
/// mode, upstream gets its question.
fn verdict_for_proxy<B>(
    info: &RequestInfo,
    policy: &CachingPolicy,
    request: &Request<B>,
) -> Option<(ReviewType, VerdictAge)> {
    if info.verb != Verb::Create {
        return None;
    }
    let asked = info.resource.as_ref()?;
    let review = ReviewType::of(&asked.gvr)?;
    let content_type = request.headers().get(header::CONTENT_TYPE);
    let is_plain = content_type.is_some_and(|kind| kind.as_bytes() == b"application/json")
        && request.uri().query().is_none()
        && asked.namespace.is_none()
        && asked.subresource.is_none()
        && !policy.verification.shadow;
    let age = is_plain.then(|| wanted_verdict(request.headers()));
    Some((review, age.flatten()?))
}

/// Plans a get, list or watch. The order of the checks decides which reason a client sees.
fn plan_read<B>(
    info: &RequestInfo,
    resource: Option<&Arc<ResourceType>>,
    policy: &CachingPolicy,
    request: &Request<B>,
    accepted: &AcceptedForms,
    sharding: ParameterUse,
) -> Result<ReadPlan, ForwardReason> {
    let (asked, resource) = asked_type(info, resource, policy, request.headers())?;
    let mode = policy.mode(&resource.gvr);
    if mode == CacheMode::Nothing {
        return Err(ForwardReason::Policy);
    }
    let legacy_name = asked.name.as_deref().filter(|_| info.legacy_watch);
    let is_named = info.verb == Verb::Get || legacy_name.is_some();
    let namespace = namespace(asked, resource, is_named)?;
    let table = TablePlan::new(&accepted.clauses, request.uri().query(), resource, mode)?;
    let representations = match &table {
        Some(_) => vec![Representation::whole(Encoding::Json)],
        None => representations(&accepted.clauses, &resource.gvr, mode)?,
    };
    let context = ReadContext {
        resource,
        policy,
        mode,
        namespace: namespace.as_deref(),
        query: request.uri().query(),
        consistent_reads: policy.consistent_reads(&resource.gvr),
        sharding,
    };
    let ReadParameters {
        kind,
        freshness,
        selectors,
        scope,
    } = match info.verb {
        Verb::Get => get::plan(&context, asked)?.map(|name| ReadKind::Get { name }),
        Verb::Watch => {
            let path = if info.legacy_watch {
                WatchPath::Legacy(legacy_name)
            } else {
                WatchPath::Present
            };
            watch::plan(&context, path)?.map(ReadKind::Watch)
        }
        _ => list::plan(&context)?.map(ReadKind::List),
    };
    Ok(ReadPlan {
        resource: Arc::clone(resource),
        representations,
        table,
        mode,
        scope,
        kind,
        refusals: accepted.refusals,
        attributes: AccessAttributes {
            verb: info.verb,
            resource: asked.clone(),
            selectors,
        },
        freshness,
        may_be_stale: context.may_be_stale(),
        namespace,
    })
}

/// Returns the request for a resource, and its type, if it is a read of a known type.
fn asked_type<'a>(
    info: &'a RequestInfo,
    resource: Option<&'a Arc<ResourceType>>,
    policy: &CachingPolicy,
    headers: &HeaderMap,
) -> Result<(&'a ResourceRequest, &'a Arc<ResourceType>), ForwardReason> {
    if is_upgrade(headers) {
        return Err(ForwardReason::Upgrade);
    }
    if !matches!(info.verb, Verb::Get | Verb::List | Verb::Watch) {
        return Err(ForwardReason::NotARead);
    }
    if headers.contains_key(header::ORIGIN) {
        return Err(ForwardReason::CrossOrigin);
    }
    let asked = info.resource.as_ref().ok_or(ForwardReason::NotAResource)?;
    if asked.subresource.is_some() {
        return Err(ForwardReason::Subresource);
    }
    match resource {
        Some(resource) => Ok((asked, resource)),
        // Its type need not be known.
        None if policy.mode(&asked.gvr) == CacheMode::Nothing => Err(ForwardReason::Policy),
        None => Err(ForwardReason::UnknownType),
    }
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(header::UPGRADE)
}

/// Returns the namespace of the read, if the URL fits the type. Upstream has no other paths, and
/// authorization would be asked about something else than what is read.
fn namespace(
    asked: &ResourceRequest,
    resource: &ResourceType,
    named: bool,
) -> Result<Option<String>, ForwardReason> {
    if *resource.gvr.resource == *"namespaces" {
        // Upstream sees a namespace object as being in itself.
        let fits = if named {
            asked.namespace == asked.name
        } else {
            asked.namespace.is_none()
        };
        let core = resource.gvr.group.is_empty() && !resource.namespaced;
        return if core && fits {
            Ok(None)
        } else {
            Err(ForwardReason::UnknownType)
        };
    }
    let fits = if resource.namespaced {
        asked.namespace.is_some() || !named
    } else {
        asked.namespace.is_none()
    };
    if fits {
        Ok(asked.namespace.clone())
    } else {
        Err(ForwardReason::UnknownType)
    }
}

/// Returns the representations to try, as long as the client's order names ones that are cached.
fn representations(
    wanted: &[AcceptClause],
    gvr: &GroupVersionResource,
    mode: CacheMode,
) -> Result<Vec<Representation>, ForwardReason> {
    let mut known = wanted
        .iter()
        .map_while(|wanted| match wanted {
            AcceptClause::Supported(representation) => Some(*representation),
            AcceptClause::Table(_) | AcceptClause::Other => None,
        })
        .peekable();
    if known.peek().is_none() {
        return Err(ForwardReason::Representation);
    }
    let is_cached = |representation: &Representation| match mode {
        CacheMode::Nothing => false,
        CacheMode::Metadata => representation.metadata_only,
        // Upstream's metadata of such objects cannot be derived from them.
        CacheMode::Objects => !(representation.metadata_only && gvr.keeps_data_in_annotations()),
    };
    let cached: Vec<_> = known.take_while(is_cached).collect();
    match mode {
        _ if !cached.is_empty() => Ok(cached),
        CacheMode::Objects => Err(ForwardReason::Representation),
        CacheMode::Nothing | CacheMode::Metadata => Err(ForwardReason::Policy),
    }
}
