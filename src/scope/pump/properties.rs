//! The properties of a scope's type, and what has yet to be proven of an earlier state that has them.
use std::sync::Arc;

use super::earlier_states::StateOrigin;
use crate::scope::phase::ReadyScope;

/// The properties of a scope's type, by where they come from.
pub(super) enum TypeProperties {
    /// Nothing was listed yet.
    Unknown,
    /// An earlier state has them. It is shown once upstream has proven it.
    Restored(RestoredState),
    /// The last list showed them, or an earlier state that was proven or given up.
    Known(Arc<ReadyScope>),
}

/// A state that was not listed by this process, and its proofs so far.
pub(super) struct RestoredState {
    ready: Arc<ReadyScope>,
    origin: StateOrigin,
    /// Upstream has the history that leads to the state.
    is_followed: bool,
    /// The followed server prints the objects as they are held.
    is_printed: bool,
}

/// A proof of an earlier state.
#[derive(Clone, Copy, Debug)]
pub(super) enum StateProof {
    /// Upstream has the history that leads to the state.
    Followed,
    /// The followed server prints the objects as they are held.
    Printed,
}

impl TypeProperties {
    /// Returns the properties, if there are any.
    pub(super) fn get(&self) -> Option<&Arc<ReadyScope>> {
        match self {
            Self::Unknown => None,
            Self::Restored(RestoredState { ready, .. }) | Self::Known(ready) => Some(ready),
        }
    }

    /// Returns `true` if no properties are known.
    pub(super) fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }

    /// Returns `true` if they are of an earlier state that is not proven yet.
    pub(super) fn is_restored(&self) -> bool {
        matches!(self, Self::Restored(_))
    }

    /// Takes the properties of an earlier state, of which nothing is proven.
    pub(super) fn restore(&mut self, ready: Arc<ReadyScope>, origin: StateOrigin) {
        *self = Self::Restored(RestoredState {
            ready,
            origin,
            is_followed: false,
            is_printed: false,
        });
    }

    /// Takes other properties of the same state.
    pub(super) fn renew(&mut self, ready: Arc<ReadyScope>) {
        match self {
            Self::Restored(restored) => restored.ready = ready,
            Self::Unknown | Self::Known(_) => *self = Self::Known(ready),
        }
    }

    /// Notes a proof of an earlier state. Returns the origin and the properties of that state once
    /// there are all proofs.
    pub(super) fn prove(&mut self, proof: StateProof) -> Option<(StateOrigin, Arc<ReadyScope>)> {
        let Self::Restored(restored) = self else {
            return None;
        };
        match proof {
            StateProof::Followed => restored.is_followed = true,
            StateProof::Printed => restored.is_printed = true,
        }
        if !(restored.is_followed && restored.is_printed) {
            return None;
        }
        let (origin, ready) = (restored.origin, Arc::clone(&restored.ready));
        *self = Self::Known(Arc::clone(&ready));
        Some((origin, ready))
    }

    /// Notes that an earlier state is not to be proven any more. Returns its origin, if there was one.
    pub(super) fn abandon(&mut self) -> Option<StateOrigin> {
        let Self::Restored(restored) = self else {
            return None;
        };
        let origin = restored.origin;
        *self = Self::Known(Arc::clone(&restored.ready));
        Some(origin)
    }
}
