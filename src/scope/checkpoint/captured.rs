//! The state of a scope at one moment, as a checkpoint needs it.

use std::sync::Arc;
use std::time::SystemTime;

use http::HeaderValue;
use watershed_protocol::ResourceVersion;

use super::file::CheckpointHeader;
use crate::scope::cached::Scope;
use crate::scope::key::ScopeKey;
use crate::scope::phase::{ReadyScope, ScopePhase};
use crate::store::{Snapshot, StoreReader};
use crate::upstream::Release;

/// Attempts to read a state and its last event between two changes.
const ATTEMPTS: usize = 10;

/// A state of upstream's, and what it takes to show it again.
pub(super) struct CapturedScope {
    pub(super) snapshot: Snapshot,
    /// The version of the last event before it, if it is known.
    pub(super) last_event: Option<ResourceVersion>,
    pub(super) ready: Arc<ReadyScope>,
    pub(super) warnings: Vec<String>,
    /// A bookmark of the type; empty if its form is not known.
    pub(super) bookmark: Vec<u8>,
    /// The release that printed all objects.
    pub(super) release: Release,
}

impl CapturedScope {
    /// Returns the state of a scope; `None` if it cannot be shown again exactly.
    pub(super) fn of(scope: &Scope) -> Option<Self> {
        let ScopePhase::Ready(ready) = scope.phase() else {
            return None;
        };
        // A definition may change while nobody looks, and its objects with it.
        if !scope.upstream.is_following() || ready.format.is_custom() {
            return None;
        }
        let release = scope.print.release()?;
        let warnings = ready.warnings.iter().map(HeaderValue::to_str);
        let warnings: Result<Vec<_>, _> = warnings.map(|text| text.map(str::to_owned)).collect();
        let (snapshot, last_event) = settled(&scope.reader)?;
        let bookmarks = scope.forms.bookmarks.load();
        let bookmark = bookmarks.as_ref().map(|format| format.example());
        // What was read before is of the present timeline and release, if these still are.
        let is_same = scope.is_current() && scope.print.is_of(Some(&release));
        is_same.then_some(Self {
            snapshot,
            last_event,
            ready,
            warnings: warnings.ok()?,
            bookmark: bookmark.unwrap_or_default(),
            release,
        })
    }

    /// Returns the header of its checkpoint.
    pub(super) fn header(
        &self,
        key: &ScopeKey,
        cluster: String,
        upstream: Vec<String>,
    ) -> CheckpointHeader {
        CheckpointHeader {
            scope: name(key),
            resource: (key.gvr.group.to_string(), key.gvr.resource.to_string()),
            cluster,
            upstream,
            saved: seconds(SystemTime::now()),
            version: self.snapshot.version().0,
            last_event: self.last_event.map(|version| version.0),
            format: self.ready.format.record(),
            streams_initial_events: self.ready.streams_initial_events,
            warnings: self.warnings.clone(),
            release: self.release.clone(),
            objects: self.snapshot.len() as u64,
            metadata_only: key.representation.metadata_only,
        }
    }
}

/// Returns the name of a scope. It tells everything that the scope depends on.
pub(super) fn name(key: &ScopeKey) -> String {
    format!("{key:?}")
}

/// Returns the seconds since the epoch.
pub(super) fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// Returns a state that upstream had, and the version of its last event.
fn settled(reader: &StoreReader) -> Option<(Snapshot, Option<ResourceVersion>)> {
    for _ in 0..ATTEMPTS {
        let snapshot = reader.followed();
        let last_event = reader.last_shown_event();
        let is_last = last_event.is_none_or(|event| event <= snapshot.version());
        if is_last && reader.unfinished().is_none() && snapshot.is_listed() {
            return Some((snapshot, last_event));
        }
    }
    None
}
