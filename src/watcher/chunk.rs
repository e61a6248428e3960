//! What goes out at once, in the coding of the watch.
use bytes::{BufMut, Bytes, BytesMut};

use crate::store::{ObjectRun, WindowEvent};
use watershed_protocol::{EventKind, ItemBytes, WireFormat, gzip_member};

/// From this size on (bytes) a piece of an answer is sent from where it lies, without a copy. What
/// is written to the network at once is 16 KiB in at most 16 places (HTTP/2, TLS), so that smaller
/// ones would make more writes of it.
pub const MIN_SHARED_BYTES: usize = 2 * 1024;
/// Room that is made at a time for what stands between shared pieces.
const ROOM: usize = 1024;

/// The content coding of a watch's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentCoding {
    /// Frames as they are.
    #[default]
    Identity,
    /// Members of gzip, each of them whole frames: what has arrived can be read. What all watches
    /// share is compressed once for all, and an idle watch holds no compressor.
    Gzip,
}

/// Frames that go out at once.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    coding: ContentCoding,
    /// How many frames were put in.
    frames: usize,
    /// What it took to put them in, in bytes: what a chunk is limited by.
    bytes: usize,
    /// What is ready to be sent.
    pieces: Vec<Bytes>,
    /// What comes behind it: small pieces, copied.
    small: BytesMut,
    /// What comes behind that and was made for this watch; to be compressed yet.
    made: BytesMut,
}

impl Chunk {
    pub(super) fn new(coding: ContentCoding) -> Self {
        Self {
            coding,
            ..Self::default()
        }
    }

    pub(super) fn frames(&self) -> usize {
        self.frames
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a frame that was made for this watch.
    pub(super) fn push(&mut self, frame: Bytes) {
        self.count(1, frame.len());
        match self.coding {
            ContentCoding::Identity => self.push_ready(frame),
            ContentCoding::Gzip => self.made.extend_from_slice(&frame),
        }
    }

    /// Adds an object as an ADDED event.
    pub(super) fn push_object(&mut self, format: &WireFormat, object: &ItemBytes) {
        self.count(1, object.len());
        match self.coding {
            ContentCoding::Identity if object.len() >= MIN_SHARED_BYTES => {
                if self.small.capacity() == 0 {
                    // What comes later gets as much room again.
                    self.small = BytesMut::with_capacity(ROOM);
                }
                let tail = format.put_event_head(EventKind::Added, object, &mut self.small);
                self.finish_small();
                self.pieces.push(object.share());
                self.small.put_slice(tail);
            }
            ContentCoding::Identity => format.put_event(EventKind::Added, object, &mut self.small),
            ContentCoding::Gzip => format.put_event(EventKind::Added, object, &mut self.made),
        }
    }

    /// Adds an event in upstream's own frame.
    pub(super) fn push_whole(&mut self, event: &WindowEvent) {
        self.count(1, event.frame.len());
        self.push_ready(match self.coding {
            ContentCoding::Identity => event.frame.clone(),
            ContentCoding::Gzip => event.compressed(),
        });
    }

    /// Adds a run of objects as ADDED events. Only for watches that are compressed.
    pub(super) fn push_run(&mut self, run: &ObjectRun) {
        let had = run.is_added_compressed();
        let member = run.added_compressed();
        self.count(run.len(), if had { member.len() } else { run.items_len() });
        self.push_ready(member);
    }

    /// All of it. No piece is empty.
    pub(super) fn finish(mut self) -> Vec<Bytes> {
        self.finish_made();
        self.finish_small();
        self.pieces
    }

    fn count(&mut self, frames: usize, bytes: usize) {
        self.frames += frames;
        self.bytes += bytes;
    }

    fn push_ready(&mut self, piece: Bytes) {
        self.finish_made();
        // A single one is passed on without a copy, whatever its size.
        if piece.len() < MIN_SHARED_BYTES && !(self.pieces.is_empty() && self.small.is_empty()) {
            self.small.extend_from_slice(&piece);
        } else {
            self.finish_small();
            self.pieces.push(piece);
        }
    }

    fn finish_small(&mut self) {
        if !self.small.is_empty() {
            self.pieces.push(self.small.split().freeze());
        }
    }

    /// What was made in a row becomes one member.
    fn finish_made(&mut self) {
        if !self.made.is_empty() {
            let made = std::mem::take(&mut self.made);
            self.push_ready(gzip_member(&made));
        }
    }
}
