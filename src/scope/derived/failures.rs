//! The reasons for which JSON is not derived, and the types of which that is known.
use std::collections::HashSet;

use parking_lot::Mutex;
use watershed_protocol::{GroupVersionResource, Malformed};
use watershed_transcode::Unexplained;

/// The reason for which a scope is followed in JSON, and not derived.
#[derive(Debug, thiserror::Error)]
pub(in crate::scope) enum FallbackReason {
    /// The scope in protobuf cannot be used.
    #[error("it cannot be derived from protobuf: {0}")]
    Source(&'static str),
    /// Upstream does not stream initial events, so its form of bookmarks is not known.
    #[error("upstream shows no bookmark of it in JSON")]
    NotStreamed,
    /// Upstream's JSON could not be compared.
    #[error("upstream's JSON could not be compared: {0}")]
    Unchecked(String),
    /// Upstream prints lists or bookmarks in a form that is not understood.
    #[error("upstream's JSON is not understood: {0}")]
    Form(#[from] Malformed),
    /// Upstream prints an object differently.
    #[error("upstream prints {key} differently, from offset {offset} on")]
    Difference {
        /// The object.
        key: String,
        /// The first byte that differs.
        offset: usize,
    },
    /// The self-check found an object that upstream prints differently.
    #[error("upstream prints an object differently than memory has it")]
    SelfCheck,
    /// An object in protobuf has something that the tables do not explain.
    #[error("its protobuf is not explained: {0}")]
    Unexplained(#[from] Unexplained),
}

impl FallbackReason {
    /// Returns the metric label.
    pub(in crate::scope) fn label(&self) -> &'static str {
        match self {
            Self::Source(_) => "source",
            Self::NotStreamed => "not-streamed",
            Self::Unchecked(_) => "unchecked",
            Self::Form(_) => "form",
            Self::Difference { .. } | Self::SelfCheck => "difference",
            Self::Unexplained(_) => "unexplained",
        }
    }

    /// Returns true if the next attempt would end in the same way, at the same release of upstream.
    pub(in crate::scope) fn is_lasting(&self) -> bool {
        !matches!(self, Self::Source(_) | Self::Unchecked(_))
    }
}

/// The types that upstream's release prints in another way than the tables know.
///
/// Each is one that the tables name, so they are few.
#[derive(Debug, Default)]
pub(in crate::scope) struct DerivationFailures(Mutex<HashSet<(GroupVersionResource, bool)>>);

impl DerivationFailures {
    /// Returns true if the type's objects, or their metadata, are not to be derived.
    pub(in crate::scope) fn contains(
        &self,
        gvr: &GroupVersionResource,
        metadata_only: bool,
    ) -> bool {
        let failed = self.0.lock();
        !failed.is_empty() && failed.contains(&(gvr.clone(), metadata_only))
    }

    /// Records that the type's objects, or their metadata, are not to be derived.
    pub(in crate::scope) fn add(&self, gvr: &GroupVersionResource, metadata_only: bool) {
        self.0.lock().insert((gvr.clone(), metadata_only));
    }

    /// Forgets all, as upstream is of another release now.
    pub(in crate::scope) fn forget(&self) {
        self.0.lock().clear();
    }
}
