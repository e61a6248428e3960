//! The plan of a read from memory.
use std::sync::Arc;
use std::time::Duration;

use watershed_protocol::{
    Encoding, Freshness, Representation, Selection, WatchStart, is_built_in_group,
};

use super::list::ListPlan;
use super::refusal_form::RefusalForm;
use super::selected::planned_bytes;
use super::table::TablePlan;
use super::watch::WatchPlan;
use crate::access::AccessAttributes;
use crate::catalog::ResourceType;
use crate::serve::policy::CacheMode;
use crate::serve::policy::scope_choice::ScopeChoice;
use crate::serve::source::ForwardReason;
use crate::store::{ObjectRun, ObjectSample, Snapshot};
use crate::watcher::ViewFilter;

/// A read that memory can answer.
pub(in crate::serve) struct ReadPlan {
    pub(in crate::serve) resource: Arc<ResourceType>,
    /// Representations that the client accepts, best first; never empty.
    pub(in crate::serve) representations: Vec<Representation>,
    /// The Table that the client wants, if it wants one.
    pub(in crate::serve) table: Option<TablePlan>,
    pub(super) mode: CacheMode,
    /// The scope to look into.
    pub(in crate::serve) scope: ScopeChoice,
    /// The namespace and the selectors, without the name of a get and the shard of others.
    pub(in crate::serve) selection: Selection,
    /// Bytes that the selectors take while an answer is sent, as long as a watch is open.
    pub(in crate::serve) selector_bytes: u64,
    pub(in crate::serve) kind: ReadKind,
    /// The form of refusals: the encoding that the client likes best, even if the type's objects
    /// have no such encoding.
    pub(in crate::serve) refusals: RefusalForm,
    /// The question to authorization.
    pub(in crate::serve) attributes: AccessAttributes,
    pub(in crate::serve) freshness: Freshness,
    /// The time that the client gives the read: `timeoutSeconds` of a watch, `timeout` of others.
    pub(in crate::serve) timeout: Option<Duration>,
    /// The operator prefers any state from memory over the most recent one.
    pub(in crate::serve) may_be_stale: bool,
}

pub(in crate::serve) enum ReadKind {
    Get { name: String },
    List(ListPlan),
    Watch(WatchPlan),
}

/// The size of a part of a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::serve) struct SelectedSize {
    pub(in crate::serve) objects: usize,
    pub(in crate::serve) bytes: usize,
}

impl SelectedSize {
    /// Estimates the size of the objects in a sample that match.
    fn estimate(sample: &ObjectSample, filter: &ViewFilter) -> Self {
        let (mut objects, mut bytes) = (0, 0);
        let sampled = sample.runs.iter().flat_map(ObjectRun::objects);
        for object in sampled.filter(|object| filter.matches(&object.attributes)) {
            objects += 1;
            bytes += object.size();
        }
        Self {
            objects: sample.scaled(objects),
            bytes: sample.scaled(bytes),
        }
    }

    /// Returns the size of so many of the objects.
    fn limited(self, limit: usize) -> Self {
        if self.objects <= limit {
            return self;
        }
        Self {
            objects: limit,
            bytes: self.bytes / self.objects * limit,
        }
    }
}

impl ReadPlan {
    /// Returns the bytes that the selectors take in this plan.
    pub(in crate::serve) fn planned_selector_bytes(&self) -> u64 {
        planned_bytes(self.selector_bytes)
    }

    /// Returns `true` if the client gets objects in this encoding indented.
    pub(in crate::serve) fn is_indented(&self, encoding: Encoding) -> bool {
        self.refusals.indented && encoding == Encoding::Json
    }

    /// Returns a reason if upstream should refuse in its own words. It prints refusals in other
    /// ways where the client asks for a conversion.
    pub(in crate::serve) fn refused_by_upstream(&self) -> Option<ForwardReason> {
        let is_converted = match &self.table {
            Some(table) => !table.is_refused_in_json,
            None => self.representations[0].metadata_only,
        };
        is_converted.then_some(ForwardReason::Representation)
    }

    /// Returns `true` if the answer must be no older than the request.
    pub(in crate::serve) fn needs_proof(&self) -> bool {
        self.freshness == Freshness::MostRecent && !self.may_be_stale
    }

    /// Returns `true` for a watch from a version with `sendInitialEvents=false`. Its client sends the
    /// parameter again when it resumes.
    pub(in crate::serve) fn resumes_with_initial_events(&self) -> bool {
        let ReadKind::Watch(watch) = &self.kind else {
            return false;
        };
        watch.names_initial_events && matches!(watch.start, WatchStart::After(_))
    }

    /// Returns `true` if a list looks at objects one by one: it selects some, or is of an old version.
    pub(in crate::serve) fn is_scan(&self, list: &ListPlan) -> bool {
        !list.filter.is_plain() || matches!(self.freshness, Freshness::Exact(_))
    }

    /// Estimates the number and bytes of the objects that the answer has. Looks at a sample of
    /// many objects, so that it holds nobody up.
    pub(in crate::serve) fn selected_size(&self, snapshot: &Snapshot) -> SelectedSize {
        let (filter, limit) = match &self.kind {
            ReadKind::Get { .. } => return SelectedSize::default(),
            ReadKind::List(list) => (&list.filter, list.limit),
            ReadKind::Watch(watch) => (&watch.filter, None),
        };
        let size = if filter.is_plain() && self.selection.namespace.is_none() {
            SelectedSize {
                objects: snapshot.len(),
                bytes: snapshot.size(),
            }
        } else {
            let sample = snapshot.sample(&filter.interest(&self.resource.shape.fields));
            SelectedSize::estimate(&sample, filter)
        };
        size.limited(limit.unwrap_or(usize::MAX))
    }

    /// Returns the representations that the client accepts, each with one from which such an answer
    /// can be made, best first.
    pub(in crate::serve) fn candidates(
        &self,
    ) -> impl Iterator<Item = (Representation, Representation)> {
        let accepted = self.representations.iter().copied();
        accepted.flat_map(|accepted| {
            let held = self.made_from(accepted).into_iter();
            held.map(move |held| (accepted, held))
        })
    }

    /// Returns the representations from which an answer in this one can be made, best first.
    pub(in crate::serve) fn made_from(&self, wanted: Representation) -> Vec<Representation> {
        let whole = Representation::whole;
        match wanted {
            // Upstream has it in every encoding.
            Representation {
                metadata_only: true,
                ..
            } if self.mode == CacheMode::Metadata => vec![wanted],
            // Custom types have no objects in protobuf, and those of other servers have them in JSON,
            // too.
            Representation {
                encoding: Encoding::Protobuf,
                metadata_only: true,
            } if !is_built_in_group(&self.resource.gvr.group) => vec![whole(Encoding::Json)],
            // Metadata exists in every encoding, whatever the objects have.
            Representation {
                encoding: Encoding::Protobuf,
                metadata_only: true,
            } => vec![whole(Encoding::Protobuf), whole(Encoding::Json)],
            Representation { encoding, .. } => vec![whole(encoding)],
        }
    }
}
