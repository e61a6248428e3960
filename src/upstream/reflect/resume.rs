//! Resumes a watch so that it proves that upstream still has the history that was followed.
//!
//! etcd may be restored from a backup, and its versions begin again below. A watch from the last
//! known version would be silent until they have passed it, and then go on as if nothing had
//! happened. So it starts before the last known event. Upstream repeats that one first, or its
//! history is another. This costs no request.
//!
//! Where no event is known, or upstream does not show it any more, the name of the history is proof, too
//! ([`HistoryName`]): a proxy gives one to the watches that other proxies open.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use watershed_protocol::{EventKind, Frame, ResourceVersion, WireFormat, read_bookmark};

use super::change::{Change, Collect, ResumeProof};
use super::error::ReflectorError;
use super::{FollowedHistory, Reflector, ReflectorState};
use crate::headers::HistoryName;
use crate::upstream::stream::{StreamError, WatchStream};

/// Silence of a resumed watch after which the last event is not expected any more.
pub(super) const REPLAY_SILENCE: Duration = Duration::from_secs(3);
/// Silence of a resumed watch after which it is not expected to begin with an error. Upstream says
/// by an ERROR event that it has lost the history.
const ERROR_SILENCE: Duration = Duration::from_millis(200);

/// A state that was followed before this process began.
#[derive(Debug)]
pub struct KnownState {
    /// The wire format of the objects.
    pub format: Arc<WireFormat>,
    /// The version of the state.
    pub version: ResourceVersion,
    /// The version of the last event before it, if it is known.
    pub last_event: Option<ResourceVersion>,
    /// The Warning headers upstream sends with reads of the type.
    pub warnings: Vec<HeaderValue>,
}

impl Reflector {
    /// Goes on from a state that is known already. The next change is [`Change::Resumed`], after
    /// interruptions if there are any, or a list if upstream does not have that history. Refusals
    /// that may pass are final once they have lasted.
    pub fn resume_after(&mut self, known: KnownState) {
        let KnownState {
            format,
            version,
            last_event,
            warnings,
        } = known;
        self.format = Some(format);
        self.warnings = warnings;
        self.last_event = last_event;
        self.history = FollowedHistory::Unnamed;
        // It may be one of several deletions.
        let may_follow = |event: &ResourceVersion| *event == version && self.deletes_together();
        self.unfinished = last_event.filter(may_follow);
        self.recovery.was_granted();
        self.state = ReflectorState::Resuming { version };
    }

    /// Returns `true` if several objects can be deleted in one version, as those that expire together.
    /// etcd deletes others one by one, so that nothing of the last event's version can be missing.
    pub(super) fn deletes_together(&self) -> bool {
        self.target.gvr.is_event()
    }

    /// Returns the time to wait for the first frame of a resumed stream.
    pub(super) fn replay_silence(last_event: Option<ResourceVersion>) -> Duration {
        last_event.map_or(ERROR_SILENCE, |_| REPLAY_SILENCE)
    }

    /// Opens a watch that goes on from `version`. It begins with the last event, if that is known.
    /// Whatever comes twice by that is for the caller to ignore.
    pub(super) async fn resume<C: Collect>(
        &mut self,
        version: ResourceVersion,
    ) -> Result<Option<Change<C>>, ReflectorError> {
        let last_event = self.last_event;
        let from = last_event.map_or(version, ResourceVersion::before);
        let query = format!("watch=1&allowWatchBookmarks=true&resourceVersion={from}");
        let (headers, stream) = match self.open(&query).await {
            // The next server may still show the event.
            Err(error @ ReflectorError::Silent(_)) => return Err(error),
            Err(error) => return self.without_replay(version, error),
            Ok(opened) => opened,
        };
        self.state = ReflectorState::Replaying {
            version,
            last_event,
            history: HistoryName::in_answer(&headers),
            stream,
        };
        Ok(None)
    }

    /// Looks at the first frame of a resumed stream, and leaves it there. An error is a silence.
    pub(super) fn replay<C: Collect>(
        &mut self,
        version: ResourceVersion,
        last_event: Option<ResourceVersion>,
        history: Option<HistoryName>,
        first: Result<Result<Option<Frame>, StreamError>, ReflectorError>,
        mut stream: Box<WatchStream>,
    ) -> Result<Option<Change<C>>, ReflectorError> {
        let is_repeated = match (first, last_event) {
            (Err(silence), Some(_)) => return self.without_replay(version, silence),
            (Err(_), None) => false,
            (Ok(frame), _) => {
                let Some(frame) = frame? else {
                    return Err(ReflectorError::Brief);
                };
                if let Some(missing) = last_event
                    && self.is_bookmark_before(&frame, missing)?
                {
                    return Err(ReflectorError::Behind { event: missing });
                }
                if frame.kind == EventKind::Error {
                    let error = self.error_in(frame, &mut stream);
                    return self.without_replay(version, error);
                }
                if let Some(missing) = last_event
                    && !self.is_event_of(&frame, missing)?
                {
                    self.state = ReflectorState::Start;
                    return Ok(Some(Change::OtherHistory { missing }));
                }
                stream.again = Some(frame);
                last_event.is_some()
            }
        };
        let is_same = history.is_some_and(|name| self.history == FollowedHistory::Named(name));
        if !is_same {
            self.history = history.map_or(FollowedHistory::Unnamed, FollowedHistory::Unproven);
        }
        let proof = match (is_repeated, is_same) {
            (true, _) => ResumeProof::RepeatedEvent,
            (false, true) => ResumeProof::NamedHistory,
            (false, false) => ResumeProof::None,
        };
        self.state = ReflectorState::Watching { version, stream };
        Ok(Some(Change::Resumed { proof }))
    }

    fn is_event_of(&self, frame: &Frame, version: ResourceVersion) -> Result<bool, ReflectorError> {
        let is_event = frame.kind != EventKind::Bookmark;
        Ok(is_event && self.check_frame(frame)?.version == version)
    }

    /// Returns `true` if the stream begins with a bookmark of a version before the event, as that of a
    /// proxy does which lags behind and is about to end.
    fn is_bookmark_before(
        &self,
        frame: &Frame,
        version: ResourceVersion,
    ) -> Result<bool, ReflectorError> {
        if frame.kind != EventKind::Bookmark {
            return Ok(false);
        }
        let bookmark = read_bookmark(self.target.representation.encoding, &frame.object)?;
        Ok(bookmark.version < version)
    }

    fn error_in(&mut self, frame: Frame, stream: &mut WatchStream) -> ReflectorError {
        match self.take_in::<()>(frame, stream) {
            Err(error) => error,
            Ok(_) => ReflectorError::Broken("an ERROR event without an error".into()),
        }
    }

    /// Goes on without the proof if this server does not show the last event any more. It may know
    /// what happened since `version`.
    pub(super) fn without_replay<C>(
        &mut self,
        version: ResourceVersion,
        error: ReflectorError,
    ) -> Result<Option<Change<C>>, ReflectorError> {
        let is_gone = matches!(
            error,
            ReflectorError::Expired(_) | ReflectorError::Silent(_)
        );
        // More deletions of this version may be missing, so nothing else will do. A silence counts as
        // lost history then, which ends with a list.
        if self.unfinished == Some(version) {
            return Err(match error {
                ReflectorError::Silent(_) => {
                    ReflectorError::Expired(format!("the event at {version} does not come again"))
                }
                error => error,
            });
        }
        if !is_gone || self.last_event.is_none() {
            return Err(error);
        }
        self.last_event = None;
        Ok(None)
    }
}
