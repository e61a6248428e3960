//! Takes in the frames of an open watch.

use bytes::Bytes;
use http::StatusCode;
use watershed_protocol::{
    BookmarkFormat, EventKind, Frame, Malformed, ResourceVersion, Scanned, read_bookmark,
    read_error, scan,
};

use super::change::Change;
use super::error::ReflectorError;
use super::{Reflector, ReflectorState};
use crate::upstream::stream::{StreamBookmarks, StreamError, WatchStream};

impl Reflector {
    /// Takes in what came on the stream; `None` is its end.
    pub(super) fn watch_on<C>(
        &mut self,
        version: ResourceVersion,
        frame: Result<Option<Frame>, StreamError>,
        mut stream: Box<WatchStream>,
    ) -> Result<Option<Change<C>>, ReflectorError> {
        let frame = match frame {
            Err(StreamError::Silent(silence)) => {
                let had_bookmarks = stream.bookmarks == StreamBookmarks::Seen;
                self.bookmarks.stream_fell_silent(had_bookmarks);
                return Err(if had_bookmarks {
                    ReflectorError::Silent(silence)
                } else {
                    ReflectorError::Quiet(silence)
                });
            }
            frame => {
                self.bookmarks.nothing_is_silent();
                frame?
            }
        };
        // A clean end is a server timeout or restart: resume at once.
        let Some(frame) = frame else {
            if self.is_rebuilding() {
                self.restart();
            }
            return Ok(Some(Change::Ended));
        };
        // An ERROR event comes with status 200, but counts as a failure.
        let change = self.take_in(frame, &mut stream)?;
        // That an event comes again does not show that those behind it can be read. Nor does a first
        // bookmark that says nothing new show that the stream lasts.
        let is_known = match &change {
            Change::Event(_, event) => event.version <= version,
            Change::Progress { version: known, .. } => *known <= version && stream.is_young(),
            _ => false,
        };
        if !is_known {
            self.recovery.succeeded();
            self.last_failure = None;
        }
        let version = match &change {
            Change::Event(frame, scanned) => {
                let is_deletion = frame.kind == EventKind::Deleted;
                self.unfinished =
                    (is_deletion && self.deletes_together()).then_some(scanned.version);
                self.last_event = Some(scanned.version);
                scanned.version.max(version)
            }
            Change::Progress { version, .. } => {
                self.unfinished.take_if(|unfinished| *unfinished < *version);
                *version
            }
            _ => version,
        };
        self.state = ReflectorState::Watching { version, stream };
        Ok(Some(change))
    }

    pub(super) fn take_in<C>(
        &mut self,
        frame: Frame,
        stream: &mut WatchStream,
    ) -> Result<Change<C>, ReflectorError> {
        match frame.kind {
            EventKind::Added | EventKind::Modified | EventKind::Deleted => {
                let scanned = self.check_frame(&frame)?;
                let frame = match &self.format {
                    Some(format) => format.held_frame(frame)?,
                    None => frame,
                };
                Ok(Change::Event(frame, scanned))
            }
            EventKind::Bookmark => {
                let bookmark = read_bookmark(self.target.representation.encoding, &frame.object)?;
                // The end of the initial events is marked on streams that bring no others, too.
                if !bookmark.initial_events_end {
                    stream.bookmarks = StreamBookmarks::Seen;
                    self.bookmarks.one_came();
                }
                let version = bookmark.version;
                Ok(Change::Progress {
                    version,
                    format: self.learn_bookmark(&frame.object),
                })
            }
            EventKind::Error => {
                let status = read_error(self.target.representation.encoding, &frame.object);
                let code = u16::try_from(status.code)
                    .ok()
                    .and_then(|code| StatusCode::from_u16(code).ok());
                Err(match code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR) {
                    StatusCode::GONE => ReflectorError::Expired(status.message),
                    code @ StatusCode::TOO_MANY_REQUESTS => {
                        ReflectorError::Status(code, status.message)
                    }
                    code => ReflectorError::Watch(code, status.message),
                })
            }
        }
    }

    pub(super) fn learn_bookmark(&mut self, bookmark: &Bytes) -> Option<BookmarkFormat> {
        let is_due = self.bookmarks.is_form_due();
        let format = self.format.as_deref().filter(|_| is_due)?;
        self.bookmarks.form_learned();
        BookmarkFormat::learn(format, bookmark)
            .inspect_err(|error| {
                tracing::warn!(
                    resource = %self.target.gvr,
                    %error,
                    "bookmarks are not understood; none are sent"
                );
            })
            .ok()
    }

    pub(super) fn check_frame(&self, frame: &Frame) -> Result<Scanned, Malformed> {
        if let Some(format) = &self.format {
            format.check_frame(frame)?;
        }
        scan(
            self.target.representation.encoding,
            &frame.object,
            &self.target.fields,
        )
    }

    pub(super) fn check(&self, object: &Bytes) -> Result<Scanned, Malformed> {
        if let Some(format) = &self.format {
            format.check(object)?;
        }
        scan(
            self.target.representation.encoding,
            object,
            &self.target.fields,
        )
    }
}
