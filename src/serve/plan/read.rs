//! The plan of a read from memory.
use std::sync::Arc;

use watershed_protocol::{Encoding, Freshness, Representation};

use super::list::ListPlan;
use super::watch::WatchPlan;
use crate::access::AccessAttributes;
use crate::catalog::ResourceType;
use crate::serve::policy::CacheMode;
use crate::serve::refusal_form::RefusalForm;
use crate::serve::scope_choice::ScopeChoice;
use crate::serve::source::ForwardReason;
use crate::store::Snapshot;

/// A list of this many objects costs upstream about as much as any request.
const FEW_OBJECTS: usize = 100;

/// A read that memory can answer.
pub(in crate::serve) struct ReadPlan {
    pub(in crate::serve) resource: Arc<ResourceType>,
    /// Representations that the client accepts, best first; never empty.
    pub(in crate::serve) representations: Vec<Representation>,
    pub(super) mode: CacheMode,
    /// The scope to look into.
    pub(in crate::serve) scope: ScopeChoice,
    pub(in crate::serve) namespace: Option<String>,
    pub(in crate::serve) kind: ReadKind,
    /// The form of refusals: the encoding that the client likes best, even if the type's objects
    /// have no such encoding.
    pub(in crate::serve) refusals: RefusalForm,
    /// The question to authorization.
    pub(in crate::serve) attributes: AccessAttributes,
    pub(in crate::serve) freshness: Freshness,
    /// The operator prefers any state from memory over the most recent one.
    pub(in crate::serve) may_be_stale: bool,
}

pub(in crate::serve) enum ReadKind {
    Get { name: String },
    List(ListPlan),
    Watch(WatchPlan),
}

impl ReadPlan {
    /// Returns `true` if the client gets objects in this encoding indented.
    pub(in crate::serve) fn is_indented(&self, encoding: Encoding) -> bool {
        self.refusals.indented && encoding == Encoding::Json
    }

    /// Returns a reason if upstream should refuse in its own words. It prints refusals in other
    /// ways where the client asks for a conversion.
    pub(in crate::serve) fn refused_by_upstream(&self) -> Option<ForwardReason> {
        let is_converted = self.representations[0].metadata_only;
        is_converted.then_some(ForwardReason::Representation)
    }

    /// Returns `true` if the answer must be no older than the request.
    pub(in crate::serve) fn needs_proof(&self) -> bool {
        self.freshness == Freshness::MostRecent && !self.may_be_stale
    }

    /// Returns `true` if the answer costs upstream little. A watch would stay with upstream.
    pub(in crate::serve) fn is_cheap_upstream(&self, snapshot: &Snapshot) -> bool {
        match &self.kind {
            ReadKind::Get { .. } => true,
            ReadKind::List(list) => {
                list.is_within(snapshot, self.namespace.as_deref(), FEW_OBJECTS)
            }
            ReadKind::Watch(_) => false,
        }
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
            // Metadata exists in every encoding, whatever the objects have.
            Representation {
                encoding: Encoding::Protobuf,
                metadata_only: true,
            } => vec![whole(Encoding::Protobuf), whole(Encoding::Json)],
            Representation { encoding, .. } => vec![whole(encoding)],
        }
    }
}
