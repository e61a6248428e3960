//! The reasons for which JSON is not derived, and the types of which that is known.
use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use watershed_protocol::{GroupVersionResource, Malformed};
use watershed_transcode::Unexplained;

use crate::upstream::Release;

/// Time for one attempt to derive a type again. A quiet type takes part of it to reach the version
/// of another list.
pub(in crate::scope) const LONGEST_ATTEMPT: Duration = Duration::from_mins(5);
/// Longest pause before a scope is looked at again that could not be compared.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The longest pause before a type is derived again, as a multiple of the first one.
const MAX_PAUSE_FACTOR: u32 = 60;
/// Types that did not fail themselves are tried within so many first pauses, which spreads their
/// lists.
const SPREAD: f64 = 5.0;
/// Failures with this many pauses between them, and with the longest pause, are not the same
/// trouble.
const APART: u32 = 4;

/// The reason for which a scope is followed in JSON, and not derived.
#[derive(Debug, thiserror::Error)]
pub(in crate::scope) enum FallbackReason {
    /// The scope in protobuf cannot be used.
    #[error("it cannot be derived from protobuf: {0}")]
    Source(&'static str),
    /// The tables do not know what upstream's release prints.
    #[error("this version of watershed does not know Kubernetes {0}")]
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
    #[error("an object's protobuf has something that this version does not know: {0}")]
    Unexplained(#[from] Unexplained),
}

impl FallbackReason {
    /// Returns the difference between an object as upstream printed it, and as it is printed here.
    pub(super) fn difference(key: &str, upstream: &[u8], printed: &[u8]) -> Self {
        let same = upstream.iter().zip(printed);
        Self::Difference {
            key: key.to_owned(),
            offset: same.take_while(|(there, here)| there == here).count(),
        }
    }

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

    /// Returns `true` if the next attempt would end in the same way, as long as upstream's release
    /// and objects are what they are.
    pub(in crate::scope) fn is_lasting(&self) -> bool {
        !matches!(self, Self::Source(_) | Self::Unchecked(_))
    }

    /// Returns `true` if that is so for one type.
    fn is_lasting_of_type(&self) -> bool {
        self.is_lasting() && !matches!(self, Self::UnknownRelease(_))
    }
}

/// The types whose JSON is not derived, and the moments at which that is tried again.
#[derive(Debug)]
pub(in crate::scope) struct DerivationFailures {
    /// First pause before a type is derived again.
    first: Duration,
    /// Each is one that the tables name, so they are few.
    types: Mutex<HashMap<FailedType, TypeFailures>>,
    /// Upstream's release, if it is not in the tables. That is so for all types.
    unknown_release: Mutex<Option<Release>>,
    /// The moment at which attempts came sooner last, as upstream was of another release.
    hastened: Mutex<Option<Instant>>,
}

/// A type, and true for its objects' metadata alone.
type FailedType = (GroupVersionResource, bool);

/// The failures of one type.
#[derive(Debug)]
struct TypeFailures {
    /// A new scope of the type would fail as well.
    lasts: bool,
    /// A server did not stream it. Where such servers and others take turns, the type is listed
    /// anew each time that it is no longer derived, which ends its watches. So it is tried as
    /// rarely as possible.
    is_unstreamed: bool,
    pause: Duration,
    /// The end of the last failure or success.
    ended: Instant,
    /// The earliest moment of the next attempt, by one of the type's scopes, if none runs then.
    next: Instant,
    /// The latest end of the attempt that runs.
    running_until: Option<Instant>,
    /// An attempt was begun since the last failure.
    is_tried: bool,
}

impl DerivationFailures {
    /// Creates a record without failures. A type is tried again `first` after its first failure.
    pub(in crate::scope) fn new(first: Duration) -> Self {
        Self {
            first,
            types: Mutex::default(),
            unknown_release: Mutex::default(),
            hastened: Mutex::default(),
        }
    }

    /// Returns `true` if the type's objects, or their metadata, are not to be derived.
    pub(in crate::scope) fn contains(
        &self,
        gvr: &GroupVersionResource,
        metadata_only: bool,
    ) -> bool {
        if self.unknown_release.lock().is_some() {
            return true;
        }
        let types = self.types.lock();
        !types.is_empty()
            && types
                .get(&(gvr.clone(), metadata_only))
                .is_some_and(|failures| failures.lasts)
    }

    /// Records why a scope of the type's objects, or of their metadata, is not derived. Returns the
    /// earliest moment at which that may be tried again.
    pub(in crate::scope) fn add(
        &self,
        reason: &FallbackReason,
        gvr: &GroupVersionResource,
        metadata_only: bool,
    ) -> Instant {
        if let FallbackReason::UnknownRelease(release) = reason {
            *self.unknown_release.lock() = Some(release.clone());
        }
        let now = Instant::now();
        let mut types = self.types.lock();
        let failures = types
            .entry((gvr.clone(), metadata_only))
            .or_insert_with(|| TypeFailures::new(now, self.first));
        failures.lasts |= reason.is_lasting_of_type();
        failures.is_unstreamed |= matches!(reason, FallbackReason::NotStreamed);
        failures.failed_again(now, self.first);
        failures.earliest()
    }

    /// Begins to derive a type again, in one of its scopes. Otherwise returns the moment at which
    /// that may be asked again: it is too early, or another scope of the type tries it.
    pub(in crate::scope) fn begin_attempt(
        &self,
        gvr: &GroupVersionResource,
        metadata_only: bool,
    ) -> Result<(), Instant> {
        let now = Instant::now();
        // It would end as before. Asking costs nothing.
        if self.unknown_release.lock().is_some() {
            return Err(now + jittered(self.first));
        }
        let mut types = self.types.lock();
        let failures = types
            .entry((gvr.clone(), metadata_only))
            .or_insert_with(|| TypeFailures::new(now, self.first));
        let earliest = failures.earliest();
        if now < earliest {
            return Err(earliest);
        }
        failures.next = now + failures.pause;
        failures.running_until = Some(failures.next + LONGEST_ATTEMPT);
        failures.is_tried = true;
        Ok(())
    }

    /// Records that the attempt at a type has ended, in whichever way, or that its scope is closed.
    pub(in crate::scope) fn end_attempt(&self, gvr: &GroupVersionResource, metadata_only: bool) {
        if let Some(failures) = self.types.lock().get_mut(&(gvr.clone(), metadata_only)) {
            failures.running_until = None;
        }
    }

    /// Returns the moment of the next look at a scope that could not be compared now.
    pub(in crate::scope) fn next_look(&self) -> Instant {
        Instant::now() + self.first.min(LOOK_AGAIN)
    }

    /// Records that a scope of the type is derived again. Others may be, too.
    pub(in crate::scope) fn succeeded(&self, gvr: &GroupVersionResource, metadata_only: bool) {
        if let Some(failures) = self.types.lock().get_mut(&(gvr.clone(), metadata_only)) {
            failures.lasts = false;
            failures.is_unstreamed = false;
            failures.ended = Instant::now();
            failures.next = failures.ended;
        }
    }

    /// Forgets what was known of types at another release of upstream's. The next attempts come
    /// soon, unless such a change made them come soon recently: a load balancer before two releases
    /// may lead each watch to the other one.
    pub(in crate::scope) fn begin_release(&self) {
        let now = Instant::now();
        let mut hastened = self.hastened.lock();
        let hastens = hastened.is_none_or(|last| now >= last + self.first * MAX_PAUSE_FACTOR);
        if hastens {
            *hastened = Some(now);
        }
        for failures in self.types.lock().values_mut() {
            failures.lasts = false;
            if hastens && !failures.is_unstreamed {
                failures.next = failures.next.min(now + spread(self.first));
            }
        }
    }

    /// Forgets an unknown release, as upstream is of this one.
    pub(in crate::scope) fn meet_release(&self, release: Option<&Release>) {
        self.unknown_release
            .lock()
            .take_if(|unknown| release.is_some_and(|release| release != unknown));
    }
}

impl TypeFailures {
    fn new(now: Instant, first: Duration) -> Self {
        Self {
            lasts: false,
            is_unstreamed: false,
            pause: first,
            ended: now,
            // At another release, all types are tried that were not at an unknown one.
            next: now + spread(first),
            running_until: None,
            is_tried: false,
        }
    }

    /// Returns the earliest moment of the next attempt.
    fn earliest(&self) -> Instant {
        self.running_until
            .map_or(self.next, |end| self.next.max(end))
    }

    /// Delays the next attempt. Scopes of a type that fail together count once.
    fn failed_again(&mut self, now: Instant, first: Duration) {
        if self.is_unstreamed {
            self.pause = first * MAX_PAUSE_FACTOR;
        } else if now > self.ended + (self.pause * APART).max(first * MAX_PAUSE_FACTOR) {
            self.pause = first;
        } else if self.is_tried {
            self.pause = (self.pause * 2).min(first * MAX_PAUSE_FACTOR);
        }
        self.is_tried = false;
        self.ended = now;
        self.next = now + jittered(self.pause);
    }
}

/// Returns a time of one to [`SPREAD`] first pauses.
fn spread(first: Duration) -> Duration {
    first.mul_f64(1.0 + fastrand::f64() * (SPREAD - 1.0))
}

/// Returns about this time. Without jitter, all types would be tried again together.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.75 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests;
