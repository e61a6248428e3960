//! What can be answered from memory, and what is forwarded and why. Looks at the request alone.
use std::sync::Arc;

use http::{HeaderMap, Request, header};

use super::source::Reason;
use crate::access::{Attributes, Selectors};
use crate::catalog::{Catalog, Resource};
use crate::kube::{
    Encoding, FieldSelector, GetRead, LabelSelector, ListOptions, ListRead, RequestInfo, ResourceVersion, Verb, Wanted, WatchStart, acceptable, get_read, wants_pretty,
};
use crate::watch::Filter;

/// What is to be done with a request, and what is known of it either way.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) verb: Verb,
    /// The type, when it is one of the catalog's: a label of bounded cardinality.
    pub(super) resource: Option<Arc<Resource>>,
    /// The request may stay open: it does not share connections with short ones.
    pub(super) long_running: bool,
    /// How the client wants refusals.
    pub(super) errors: Encoding,
}

pub(super) enum Plan {
    Forward(Reason),
    Read(Read),
}

/// A read that memory can answer.
pub(super) struct Read {
    pub(super) resource: Arc<Resource>,
    /// What the client takes, best first; never empty.
    pub(super) encodings: Vec<Encoding>,
    pub(super) namespace: Option<String>,
    pub(super) kind: ReadKind,
    /// Refusals are to be indented.
    pub(super) pretty: bool,
    attributes: Attributes,
    at_least: Option<ResourceVersion>,
}

pub(super) enum ReadKind {
    Get { name: String },
    List(Filter),
    Watch(Watch),
}

/// The parameters of a watch.
pub(super) struct Watch {
    pub(super) filter: Filter,
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
    /// What authorization is asked about.
    pub(super)
