//! The frames of a connection, whose activity shows the request head that is not complete.
use std::sync::Arc;

use super::activity::Activity;
use super::inspected::Inspect;
use super::request_frames::FrameReader;

/// Reads the frames of a connection, and reports heads that are not complete.
pub(super) struct WatchedFrames {
    frames: FrameReader,
    activity: Arc<Activity>,
}

impl WatchedFrames {
    pub(super) fn new(activity: &Arc<Activity>) -> Self {
        Self {
            frames: FrameReader::default(),
            activity: Arc::clone(activity),
        }
    }
}

impl Inspect for WatchedFrames {
    fn inspect(&mut self, bytes: &mut [u8]) {
        self.frames.inspect(bytes);
        self.activity.note_head(self.frames.unfinished());
    }
}
