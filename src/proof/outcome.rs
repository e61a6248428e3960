//! The results of proofs.
use std::sync::Arc;
use std::time::Duration;

use crate::scope::TimelineChanged;
use crate::upstream::AnswerError;
use watershed_protocol::ResourceVersion;

/// The proof that a cache is fresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreshnessProof {
    /// The scope was listed after the read came.
    Listed,
    /// The cache was there already.
    Current,
    /// Upstream has the same objects.
    Validated,
    /// Upstream has the same of the selected objects.
    Selected,
    /// An event or bookmark of the scope's own watch.
    Followed,
    /// A bookmark of a catch-up watch.
    CaughtUp,
}

impl FreshnessProof {
    /// Returns this proof of a version.
    pub(super) fn of(self, version: ResourceVersion) -> ProvenVersion {
        ProvenVersion { by: self, version }
    }

    /// Returns the metric label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Listed => "listed",
            Self::Current => "current",
            Self::Validated => "validated",
            Self::Selected => "validated-selection",
            Self::Followed => "followed",
            Self::CaughtUp => "caught-up",
        }
    }
}

/// The reason why a cache was not proven fresh.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ProofError {
    #[error("upstream did not report its version: {0}")]
    AnswerError(Arc<AnswerError>),
    #[error("upstream did not report its version")]
    Failed,
    #[error("upstream refused to report its version a moment ago")]
    Refused,
    #[error("the cache did not reach the version in time")]
    Late,
    /// Gets wait for less than other reads, and upstream answers them as soon.
    #[error("the proof was late for gets, which wait for a moment only")]
    LateForGets,
    #[error("the answer costs upstream less than the proof")]
    Cheap,
    #[error(transparent)]
    TimelineChanged(#[from] TimelineChanged),
    #[error("the watch that the cache follows was interrupted")]
    Interrupted,
}

/// A version that the cache has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProvenVersion {
    /// The kind of its proof.
    pub(super) by: FreshnessProof,
    pub(super) version: ResourceVersion,
}

impl ProofError {
    /// Returns the metric label in place of a proof's.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Cheap => "cheaper-upstream",
            Self::LateForGets => "late-for-gets",
            Self::AnswerError(_)
            | Self::Failed
            | Self::Refused
            | Self::Late
            | Self::TimelineChanged(_)
            | Self::Interrupted => "failed",
        }
    }
}

/// The result of a comparison: upstream's version at some time after the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ComparedVersion {
    pub(super) version: ResourceVersion,
    /// The cache has the state at that version.
    pub(super) is_same: bool,
    /// Time that upstream needed.
    pub(super) took: Duration,
}

impl ComparedVersion {
    /// Returns the proof, for a cache that has reached the version.
    pub(super) fn proven(self) -> ProvenVersion {
        let by = if self.is_same {
            FreshnessProof::Validated
        } else {
            FreshnessProof::Followed
        };
        by.of(self.version)
    }
}
