//! The reasons for which JSON is not derived, and the types of which that is known.
use std::collections::HashSet;

use parking_lot::Mutex;
use watershed_protocol::{GroupVersionResource, Malformed};
use watershed_transcode::Unexplained;

use crate::upstream::Release;

/// The reason for which a scope is followed in JSON, and not derived.
#[derive(Debug, thiserror::Error)]
pub(in crate::scope) enum FallbackReason {
    /// The scope in protobuf cannot be used.
    #[error("it cannot be derived from protobuf: {0}")]
    Source(&'static str),
    /// The tables do not know what upstream's release prints.
    #[error("the tables of this version do not have Kubernetes {0}")]
    UnknownRelease(Release),
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
            Self::UnknownRelease(_) => "unknown-release",
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
pub(in crate::scope) struct DerivationFailures {
    types: Mutex<HashSet<(GroupVersionResource, bool)>>,
    /// Upstream's release, if it is not in the tables. That is so for all types.
    unknown_release: Mutex<Option<Release>>,
}

impl DerivationFailures {
    /// Returns true if the type's objects, or their metadata, are not to be derived.
    pub(in crate::scope) fn contains(
        &self,
        gvr: &GroupVersionResource,
        metadata_only: bool,
    ) -> bool {
        if self.unknown_release.lock().is_some() {
            return true;
        }
        let failed = self.types.lock();
        !failed.is_empty() && failed.contains(&(gvr.clone(), metadata_only))
    }

    /// Records why the type's objects, or their metadata, are not to be derived, unless that may
    /// pass.
    pub(in crate::scope) fn add(
        &self,
        reason: &FallbackReason,
        gvr: &GroupVersionResource,
        metadata_only: bool,
    ) {
        if let FallbackReason::UnknownRelease(release) = reason {
            *self.unknown_release.lock() = Some(release.clone());
        } else if reason.is_lasting() {
            self.types.lock().insert((gvr.clone(), metadata_only));
        }
    }

    /// Forgets what was known of other releases, as upstream is of this one now.
    pub(in crate::scope) fn begin_release(&self, release: Option<&Release>) {
        self.types.lock().clear();
        self.unknown_release
            .lock()
            .take_if(|unknown| Some(&*unknown) != release);
    }
}
