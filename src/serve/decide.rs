//! What can be answered from memory, and what is forwarded and why. Looks at the request alone.
use std::sync::Arc;

use http::{HeaderMap, Request, header};

use super::documents;
use super::list;
use super::policy::{CacheMode, CachingPolicy, ConsistentReads};
use super::scope_choice::ScopeChoice;
use super::source::ForwardReason;
use crate::access::{AccessAttributes, ReviewSelectors};
use crate::catalog::{Catalog, ResourceType};
use crate::store::Snapshot;
use crate::watcher::ViewFilter;
use watershed_protocol::{
    AcceptClause, ContinueToken, Encoding, FieldSelector, GetRead, GroupVersionResource,
    LabelSelector, ListOptions, ListRead, Representation, RequestInfo, ResourceRequest,
    ResourceVersion, Selection, Verb, WatchStart, acceptable, get_read, wants_pretty,
};

/// A list of so many objects costs upstream about as much as any request.
const FEW_OBJECTS: usize = 100;

/// What is to be done with a request, and what is known of it either way.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) verb: Verb,
    /// The type, when it is one of the catalog's: a label of bounded cardinality.
    pub(super) resource: Option<Arc<ResourceType>>,
    /// The request may stay open: it does not share connections with short ones.
    pub(super) long_running: bool,
    /// Nor do changes of protocol, whatever they are for.
    pub(super) own_connection: bool,
    /// How the client wants refusals.
    pub(super) errors: Encoding,
}

pub(super) enum Plan {
    Forward(ForwardReason),
    Read(Box<Read>),
    Document(Box<documents::Asked>),
}

/// A read that memory can answer.
pub(super) struct Read {
    pub(super) resource: Arc<ResourceType>,
    /// What the client takes, best first; never empty.
    pub(super) representations: Vec<Representation>,
    /// What may be held of the type.
    pub(super) cache: CacheMode,
    /// Which scope is looked at.
    pub(super) held_in: ScopeChoice,
    pub(super) namespace: Option<String>,
    pub(super) kind: ReadKind,
    /// Refusals are to be indented.
    pretty: bool,
    attributes: AccessAttributes,
    pub(super) age: Age,
}

/// How old the state may be that a read is answered from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Age {
    Any,
    /// This version, or a later one.
    NotOlderThan(ResourceVersion),
    /// Not older than the request: `resourceVersion` is unset.
    Latest,
    /// The same, but the operator prefers any answer from memory.
    Weakened,
}

impl Age {
    /// Of a read with `resourceVersion` unset.
    fn latest(choice: ConsistentReads) -> Result<Self, ForwardReason> {
        match choice {
            ConsistentReads::PossiblyStale => Ok(Self::Weakened),
            ConsistentReads::ProvenFresh => Ok(Self::Latest),
            ConsistentReads::Upstream => Err(ForwardReason::Consistent),
        }
    }
}

pub(super) enum ReadKind {
    Get { name: String },
    List(List),
    Watch(Watch),
}

/// The parameters of a list.
pub(super) struct List {
    pub(super) filter: ViewFilter,
    /// The version to answer at, if not the newest.
    pub(super) exact: Option<ResourceVersion>,
    /// The most objects of a page.
    pub(super) limit: Option<usize>,
    /// Where the page begins, from a continue token.
    pub(super) after: Option<String>,
}

/// The parameters of a watch.
pub(super) struct Watch {
    pub(super) filter: ViewFilter,
    pub(super) begin: Begin,
    pub(super) bookmarks: bool,
    pub(super) timeout_seconds: Option<u64>,
}

/// Where a watch begins.
#[derive(Clone, Copy)]
pub(super) enum Begin {
    /// With the present state.
    State { end_mark: bool, asked_for: bool },
    /// With the events after a version.
    After(ResourceVersion),
    /// With the next event.
    Now,
}

impl Read {
    /// How the client wants refusals: in the encoding it likes best, even of types that have none
    /// such.
    pub(super) fn errors(&self) -> Encoding {
        self.representations[0].encoding
    }

    /// Upstream prints refusals in other ways for people's programs, and where a conversion is
    /// asked for; it may as well say them itself then.
    pub(super) fn refused_by_upstream(&self) -> Option<ForwardReason> {
        match self.representations[0] {
            _ if self.pretty => Some(ForwardReason::Pretty),
            Representation {
                metadata_only: true,
                ..
            } => Some(ForwardReason::Representation),
            _ => None,
        }
    }

    /// Whether upstream would have little to do for it. A watch would stay with upstream.
    pub(super) fn is_cheap_upstream(&self, snapshot: &Snapshot) -> bool {
        match &self.kind {
            ReadKind::Get { .. } => true,
            ReadKind::List(list) => {
                list::is_within(snapshot, self.namespace.as_deref(), list, FEW_OBJECTS)
            }
            ReadKind::Watch(_) => false,
        }
    }

    /// What an answer in this representation can be made of, best first.
    pub(super) fn held_as(&self, wanted: Representation) -> Vec<Representation> {
        let whole = Representation::whole;
        match wanted {
            // As upstream gives it, which has it in every encoding.
            Representation {
                metadata_only: true,
                ..
            } if self.cache == CacheMode::Metadata => vec![wanted],
            // Metadata can be had in every encoding, whatever the objects have.
            Representation {
                encoding: Encoding::Protobuf,
                metadata_only: true,
            } => {
                vec![whole(Encoding::Protobuf), whole(Encoding::Json)]
            }
            Representation { encoding, .. } => vec![whole(encoding)],
        }
    }

    /// What authorization is asked about.
    pub(super) fn attributes(&self) -> AccessAttributes {
        self.attributes.clone()
    }
}

pub(super) fn decide<B>(
    catalog: &Catalog,
    policy: &CachingPolicy,
    request: &Request<B>,
) -> Planned {
    let uri = request.uri();
    let info = RequestInfo::parse(request.method(), uri.path(), uri.query());
    let resource = info
        .resource
        .as_ref()
        .and_then(|asked| catalog.get(&asked.gvr));
    let wanted = acceptable(request.headers(), info.verb);
    let errors = match wanted.first() {
        Some(AcceptClause::Supported(representation)) => representation.encoding,
        _ => Encoding::Json,
    };
    let long_running = is_long_running(&info, uri.query());
    let own_connection = long_running || is_upgrade(request.headers());
    let plan = match plan(&info, resource.as_ref(), policy, request, &wanted) {
        Ok(read) => Plan::Read(Box::new(read)),
        Err(reason @ ForwardReason::NotAResource) => match documents::Asked::of(catalog, request) {
            Some(asked) => Plan::Document(Box::new(asked)),
            None => Plan::Forward(reason),
        },
        Err(reason) => Plan::Forward(reason),
    };
    Planned {
        plan,
        verb: info.verb,
        resource,
        long_running,
        own_connection,
        errors,
    }
}

/// Source: kube-apiserver's own check (controlplane/apiserver/config.go) and following logs.
fn is_long_running(info: &RequestInfo, query: Option<&str>) -> bool {
    let subresource = info
        .resource
        .as_ref()
        .and_then(|asked| asked.subresource.as_deref());
    match subresource {
        Some("exec" | "attach" | "portforward" | "proxy") => true,
        Some("log") => query.is_some_and(|query| query.contains("follow")),
        _ => info.verb == Verb::Watch || info.legacy_watch,
    }
}

fn is_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(header::UPGRADE)
}

fn plan<B>(
    info: &RequestInfo,
    resource: Option<&Arc<ResourceType>>,
    policy: &CachingPolicy,
    request: &Request<B>,
    wanted: &[AcceptClause],
) -> Result<Read, ForwardReason> {
    if is_upgrade(request.headers()) {
        return Err(ForwardReason::Upgrade);
    }
    if !matches!(info.verb, Verb::Get | Verb::List | Verb::Watch) {
        return Err(ForwardReason::NotARead);
    }
    let asked = info.resource.as_ref().ok_or(ForwardReason::NotAResource)?;
    if asked.subresource.is_some() {
        return Err(ForwardReason::Subresource);
    }
    let resource = resource.ok_or(ForwardReason::UnknownType)?;
    if info.legacy_watch {
        return Err(ForwardReason::LegacyWatch);
    }
    let cache = policy.mode(&resource.gvr);
    if cache == CacheMode::Nothing {
        return Err(ForwardReason::Policy);
    }
    let named = info.verb == Verb::Get;
    let namespace = namespace(asked, resource, named)?;
    let representations = representations(wanted, &resource.gvr, cache)?;
    let latest = Age::latest(policy.consistent_reads(&resource.gvr));
    let query = request.uri().query();
    let pretty = wants_pretty(query, request.headers());
    let read = |kind, selectors, age, held_in| Read {
        resource: Arc::clone(resource),
        representations: representations.clone(),
        cache,
        held_in,
        namespace: namespace.clone(),
        kind,
        pretty,
        attributes: AccessAttributes {
            verb: info.verb,
            resource: asked.clone(),
            selectors,
        },
        age,
    };
    if named {
        let age = match get_read(query).map_err(|_| ForwardReason::Parameters)? {
            GetRead::Consistent => latest?,
            GetRead::Any => Age::Any,
            GetRead::NotOlderThan(version) => Age::NotOlderThan(version),
        };
        if pretty {
            return Err(ForwardReason::Pretty);
        }
        let name = asked.name.clone().ok_or(ForwardReason::NotAResource)?;
        let asked = || Selection::named(namespace.as_deref(), &name);
        let held_in = policy
            .scope_for(&resource.gvr, true, asked)
            .ok_or(ForwardReason::NotCovered)?;
        return Ok(read(
            ReadKind::Get { name },
            ReviewSelectors::default(),
            age,
            held_in,
        ));
    }

    let options = ListOptions::parse(query).map_err(|_| ForwardReason::Parameters)?;
    let labels = options
        .label_selector
        .as_deref()
        .map(LabelSelector::parse)
        .transpose();
    let labels = labels.map_err(|_| ForwardReason::Selector)?;
    let fields = options
        .field_selector
        .as_deref()
        .map(FieldSelector::parse)
        .transpose();
    let fields = fields.map_err(|_| ForwardReason::Selector)?;
    let selectors = ReviewSelectors::new(labels.as_ref(), fields.as_ref());
    let asked = || Selection {
        namespace: namespace.clone(),
        labels: labels.clone().unwrap_or_default(),
        fields: fields.clone().unwrap_or_default(),
    };
    let held_in = policy
        .scope_for(&resource.gvr, false, asked)
        .ok_or(ForwardReason::NotCovered)?;
    let filter = ViewFilter::new(namespace.clone(), labels, fields.as_ref(), &resource.fields)
        .map_err(|_| ForwardReason::Selector)?;
    let beyond_metadata = |fields: &FieldSelector| {
        fields
            .requirements()
            .iter()
            .any(|field| !resource.fields.is_of_metadata(&field.field))
    };
    if cache == CacheMode::Metadata && fields.as_ref().is_some_and(beyond_metadata) {
        return Err(ForwardReason::Policy);
    }
    if info.verb == Verb::Watch {
        let (watch, age) = watch(&options, filter, latest)?;
        return Ok(read(ReadKind::Watch(watch), selectors, age, held_in));
    }
    if pretty {
        return Err(ForwardReason::Pretty);
    }
    let (list, age) = list(&options, filter, fields.as_ref(), resource, latest)?;
    Ok(read(ReadKind::List(list), selectors, age, held_in))
}

fn list(
    options: &ListOptions,
    filter: ViewFilter,
    fields: Option<&FieldSelector>,
    resource: &ResourceType,
    latest: Result<Age, ForwardReason>,
) -> Result<(List, Age), ForwardReason> {
    let mut after = None;
    let (exact, age) = match options.list_read() {
        ListRead::Any => (None, Age::Any),
        ListRead::NotOlderThan(version) => (None, Age::NotOlderThan(version)),
        ListRead::Consistent => (None, latest?),
        ListRead::Exact(version) => (Some(version), Age::NotOlderThan(version)),
        ListRead::Continue => {
            let token = options
                .continue_token
                .as_deref()
                .and_then(ContinueToken::decode);
            let token = token.ok_or(ForwardReason::ContinueToken)?;
            after = Some(token.after);
            (Some(token.version), Age::NotOlderThan(token.version))
        }
        ListRead::Invalid => return Err(ForwardReason::Parameters),
    };
    let limit = options
        .page_limit()
        .map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let paged = limit.is_some() || exact.is_some();
    // Upstream reads a single key, or the keys of one namespace, for these selectors: its tokens
    // and versions then follow other rules.
    let narrows = |field| fields.is_some_and(|fields| fields.required_value(field).is_some());
    if paged && (narrows("metadata.name") || narrows("metadata.namespace")) {
        return Err(ForwardReason::Paging);
    }
    // Whether version "0" lifts the limit of a later page differs from release to release.
    if after.is_some() && limit.is_none() && options.limit > 0 {
        return Err(ForwardReason::Paging);
    }
    // Events have no watch cache upstream: version "0" does not lift the limit, and pages are
    // etcd's.
    if *resource.gvr.resource == *"events" && (paged || options.limit > 0) {
        return Err(ForwardReason::Paging);
    }
    Ok((
        List {
            filter,
            exact,
            limit,
            after,
        },
        age,
    ))
}

/// The namespace that narrows the read, if the URL fits the type: upstream has no other paths, and
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

fn watch(
    options: &ListOptions,
    filter: ViewFilter,
    latest: Result<Age, ForwardReason>,
) -> Result<(Watch, Age), ForwardReason> {
    let asked_for = options.send_initial_events == Some(true);
    let (begin, age) = match options.watch_start() {
        WatchStart::StateFromCache { at_least, end_mark } => (
            Begin::State {
                end_mark,
                asked_for,
            },
            at_least.map_or(Age::Any, Age::NotOlderThan),
        ),
        WatchStart::EventsAfter(version) => (Begin::After(version), Age::Any),
        WatchStart::EventsAfterCurrentCache => (Begin::Now, Age::Any),
        WatchStart::Consistent if options.initial_events() => (
            Begin::State {
                end_mark: options.end_mark(),
                asked_for,
            },
            latest?,
        ),
        WatchStart::Consistent => (Begin::Now, latest?),
        WatchStart::Invalid => return Err(ForwardReason::Parameters),
    };
    let timeout_seconds = match options.timeout_seconds {
        None | Some(0) => None,
        Some(seconds) => Some(u64::try_from(seconds).map_err(|_| ForwardReason::Parameters)?),
    };
    Ok((
        Watch {
            filter,
            begin,
            bookmarks: options.allow_bookmarks,
            timeout_seconds,
        },
        age,
    ))
}

/// The representations to try, as long as the client's order names ones that can be held here.
fn representations(
    wanted: &[AcceptClause],
    gvr: &GroupVersionResource,
    cache: CacheMode,
) -> Result<Vec<Representation>, ForwardReason> {
    let known = wanted.iter().map_while(|wanted| match wanted {
        AcceptClause::Supported(representation) => Some(*representation),
        AcceptClause::Other => None,
    });
    let mut known = known.peekable();
    if known.peek().is_none() {
        return Err(ForwardReason::Representation);
    }
    let is_held = |representation: &Representation| match cache {
        CacheMode::Nothing => false,
        CacheMode::Metadata => representation.metadata_only,
        // What upstream makes of such objects cannot be made of them here.
        CacheMode::Objects => !(representation.metadata_only && gvr.keeps_data_in_annotations()),
    };
    let held: Vec<_> = known.take_while(is_held).collect();
    match cache {
        _ if !held.is_empty() => Ok(held),
        CacheMode::Objects => Err(ForwardReason::Representation),
        CacheMode::Nothing | CacheMode::Metadata => Err(ForwardReason::Policy),
    }
}
