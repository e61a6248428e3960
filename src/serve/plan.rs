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
    AcceptClause, AnswerEnd, Encoding, GroupVersionResource, Query, Representation, RequestInfo,
    ResourceRequest, Verb, WatchStart, acceptable_ignoring, wants_pretty,
};

use super::policy::{CacheMode, CachingPolicy};
use super::source::ForwardReason;
use crate::access::{AccessAttributes, ReviewType, VerdictAge, wanted_verdict};
use crate::catalog::{Catalog, ResourceType};
use crate::scope::wanted_checkpoint;
use crate::upstream::ConnectionClass;
pub(super) use checkpoint::CheckpointPlan;
use client_features::ClientFeatures;
use context::ReadContext;
use document_request::DocumentRequest;
pub(super) use list::ListPlan;
use optional_parameters::{OptionalParameters, ParameterUse};
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
    answer_end: AnswerEnd,
    /// Upstream treats the request as long-running.
    pub(super) is_long_running: bool,
    /// The client of the watch can go on by version from its first event on. Others may begin with
    /// events that show the state, which are not in the order of versions.
    pub(super) begins_after_version: bool,
    /// The requests that it shares upstream connections with, if it is forwarded.
    pub(super) forward_class: ConnectionClass,
    /// Form of refusals.
    pub(super) refusals: RefusalForm,
    /// The features that it may use.
    pub(super) features: ClientFeatures,
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
        let parsed = ParsedRequest::new(catalog, request);
        let path = request.uri().path();
        let accepted = AcceptedForms::of(&parsed, parameters);
        let info = &parsed.info;
        let answer_end = info.answer_end(&parsed.query);
        let action = if let Some(representation) = wanted_checkpoint(parsed.headers) {
            plan_checkpoint(&parsed, policy, representation)
                .map_or_else(PlannedAction::Forward, |checkpoint| {
                    PlannedAction::Checkpoint(Box::new(checkpoint))
                })
        } else if let Some((review, age)) = verdict_for_proxy(&parsed, policy) {
            PlannedAction::Verdict(review, age)
        } else {
            match plan_read(&parsed, policy, &accepted, parameters.shard_selector) {
                Ok(read) => PlannedAction::Read(Box::new(read)),
                Err(ForwardReason::NotAResource) => {
                    plan_path(catalog, request, accepted.refusals.indented)
                }
                Err(reason) => PlannedAction::Forward(reason),
            }
        };
        Self {
            begins_after_version: begins_after_version(&action, &parsed),
            action,
            verb: info.verb,
            answer_end,
            is_long_running: info.is_long_running(path),
            forward_class: if info.is_relayed(path) {
                ConnectionClass::Relayed
            } else if answer_end != AnswerEnd::ByItself || is_upgrade(parsed.headers) {
                ConnectionClass::LongForward
            } else {
                ConnectionClass::Short
            },
            refusals: accepted.refusals,
            features: ClientFeatures::of(&policy.client_rules, info, parsed.headers),
            resource: parsed.resource,
        }
    }

    /// Returns `true` if the answer is known to go on for as long as the client likes.
    pub(super) fn stays_open(&self) -> bool {
        self.answer_end == AnswerEnd::ByClient
    }

    /// Returns `true` if the answer is known to end by itself. Servers of aggregated APIs may stream
    /// what they like.
    pub(super) fn is_finite(&self) -> bool {
        let is_known = self.resource.is_some() || !matches!(self.action, PlannedAction::Forward(_));
        is_known && self.answer_end == AnswerEnd::ByItself
    }

    /// Returns `true` if the headers of the answer may take long although all is well: those of a followed
    /// log come with its first line.
    pub(super) fn may_be_silent(&self) -> bool {
        self.answer_end != AnswerEnd::ByItself && self.verb != Verb::Watch
    }
}

/// A request, with its parameters and its type.
struct ParsedRequest<'a> {
    headers: &'a HeaderMap,
    query: Query<'a>,
    info: RequestInfo,
    /// The type, if it is one of the catalog's.
    resource: Option<Arc<ResourceType>>,
}

impl<'a> ParsedRequest<'a> {
    fn new<B>(catalog: &Catalog, request: &'a Request<B>) -> Self {
        let uri = request.uri();
        let query = Query::parse(uri.query());
        let info = RequestInfo::of(request.method(), uri.path(), &query);
        let asked = info.resource.as_ref();
        Self {
            headers: request.headers(),
            resource: asked.and_then(|asked| catalog.get(&asked.gvr)),
            query,
            info,
        }
    }

    /// Returns the request for a resource, and its type, if it is a read of a known type.
    fn asked_type(
        &self,
        policy: &CachingPolicy,
    ) -> Result<(&ResourceRequest, &Arc<ResourceType>), ForwardReason> {
        let info = &self.info;
        if is_upgrade(self.headers) {
            return Err(ForwardReason::Upgrade);
        }
        if !matches!(info.verb, Verb::Get | Verb::List | Verb::Watch) {
            return Err(ForwardReason::NotARead);
        }
        if self.headers.contains_key(header::ORIGIN) {
            return Err(ForwardReason::CrossOrigin);
        }
        let asked = info.resource.as_ref().ok_or(ForwardReason::NotAResource)?;
        if asked.subresource.is_some() {
            return Err(ForwardReason::Subresource);
        }
        match &self.resource {
            Some(resource) => Ok((asked, resource)),
            // Its type need not be known.
            None if policy.mode(&asked.gvr) == CacheMode::Nothing => Err(ForwardReason::Policy),
            None => Err(ForwardReason::UnknownType),
        }
    }
}

/// The forms of an answer that a request accepts.
struct AcceptedForms {
    /// The clauses of its `Accept` headers, in the client's order.
    clauses: Vec<AcceptClause>,
    refusals: RefusalForm,
}

impl AcceptedForms {
    fn of(request: &ParsedRequest<'_>, parameters: OptionalParameters) -> Self {
        let ignored: &[&str] = match parameters.drop {
            ParameterUse::Ignored => &["drop"],
            ParameterUse::Unknown | ParameterUse::Heeded => &[],
        };
        let clauses = acceptable_ignoring(request.headers, request.info.verb, ignored);
        let encoding = match clauses.first() {
            Some(AcceptClause::Supported(representation)) => representation.encoding,
            _ => Encoding::Json,
        };
        let indented = wants_pretty(&request.query, request.headers);
        Self {
            clauses,
            refusals: RefusalForm { encoding, indented },
        }
    }
}

/// Returns `true` if a request is a watch that certainly begins after a version.
fn begins_after_version(action: &PlannedAction, request: &ParsedRequest<'_>) -> bool {
    let ParsedRequest { query, info, .. } = request;
    match action {
        PlannedAction::Read(read) => match &read.kind {
            ReadKind::Watch(watch) => matches!(watch.start, WatchStart::After(_)),
            ReadKind::Get { .. } | ReadKind::List(_) => false,
        },
        _ => info.verb == Verb::Watch && watch::begins_after_version(query, info.legacy_watch),
    }
}

/// Plans the answer to a request for a path that is no resource.
fn plan_path<B>(catalog: &Catalog, request: &Request<B>, indented: bool) -> PlannedAction {
    match DocumentRequest::new(catalog, request, indented) {
        Some(document) => PlannedAction::Document(Box::new(document)),
        None => PlannedAction::Forward(ForwardReason::NotAResource),
    }
}

/// Plans the checkpoint that another replica asks for. What may not be stored does not leave the
/// process in this form, either.
fn plan_checkpoint(
    request: &ParsedRequest<'_>,
    policy: &CachingPolicy,
    representation: Representation,
) -> Result<CheckpointPlan, ForwardReason> {
    let (asked, resource) = request.asked_type(policy)?;
    if request.info.verb != Verb::List {
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
    checkpoint::plan(asked, gvr, namespace, &request.query, representation)
}

/// Returns the review for which another proxy asks for a verdict, and the verdict's age, if it does. In shadow
/// mode, upstream gets its question.
fn verdict_for_proxy(
    request: &ParsedRequest<'_>,
    policy: &CachingPolicy,
) -> Option<(ReviewType, VerdictAge)> {
    if request.info.verb != Verb::Create {
        return None;
    }
    let asked = request.info.resource.as_ref()?;
    let review = ReviewType::of(&asked.gvr)?;
    let content_type = request.headers.get(header::CONTENT_TYPE);
    let is_plain = content_type.is_some_and(|kind| kind.as_bytes() == b"application/json")
        && request.query.as_str().is_empty()
        && asked.namespace.is_none()
        && asked.subresource.is_none()
        && !policy.verification.shadow;
    let age = is_plain.then(|| wanted_verdict(request.headers));
    Some((review, age.flatten()?))
}

/// Plans a get, list or watch. The order of the checks decides which reason a client sees.
fn plan_read(
    request: &ParsedRequest<'_>,
    policy: &CachingPolicy,
    accepted: &AcceptedForms,
    sharding: ParameterUse,
) -> Result<ReadPlan, ForwardReason> {
    let (asked, resource) = request.asked_type(policy)?;
    let info = &request.info;
    let mode = policy.mode(&resource.gvr);
    if mode == CacheMode::Nothing {
        return Err(ForwardReason::Policy);
    }
    let legacy_name = asked.name.as_deref().filter(|_| info.legacy_watch);
    let is_named = info.verb == Verb::Get || legacy_name.is_some();
    let namespace = namespace(asked, resource, is_named)?;
    let table = TablePlan::new(&accepted.clauses, &request.query, resource, mode)?;
    let representations = match &table {
        Some(_) => vec![Representation::whole(Encoding::Json)],
        None => representations(&accepted.clauses, &resource.gvr, mode)?,
    };
    let context = ReadContext {
        resource,
        policy,
        mode,
        namespace: namespace.as_deref(),
        query: &request.query,
        consistent_reads: policy.consistent_reads(&resource.gvr),
        sharding,
    };
    let (kind, parameters) = match info.verb {
        Verb::Get => {
            let (name, parameters) = get::plan(&context, asked)?;
            (ReadKind::Get { name }, parameters)
        }
        Verb::Watch => {
            let path = if info.legacy_watch {
                WatchPath::Legacy(legacy_name)
            } else {
                WatchPath::Present
            };
            let (watch, parameters) = watch::plan(&context, path)?;
            (ReadKind::Watch(watch), parameters)
        }
        _ => {
            let (list, parameters) = list::plan(&context)?;
            (ReadKind::List(list), parameters)
        }
    };
    Ok(ReadPlan {
        resource: Arc::clone(resource),
        representations,
        table,
        mode,
        scope: parameters.scope,
        kind,
        refusals: accepted.refusals,
        attributes: AccessAttributes {
            verb: info.verb,
            resource: asked.clone(),
            selectors: parameters.reviewed,
        },
        freshness: parameters.freshness,
        timeout: parameters.timeout,
        may_be_stale: context.may_be_stale(),
        selection: parameters.selectors.within(namespace),
        selector_bytes: parameters.selector_bytes,
    })
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
