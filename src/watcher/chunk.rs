//! Frames that go out at once, in the content coding of the watch.
use bytes::{BufMut, Bytes, BytesMut};

use crate::store::{ObjectRun, WindowEvent};
use watershed_protocol::{EventKind, ItemBytes, WireFormat, gzip_member};

/// Minimum size of a piece that is sent without a copy. One write to the network takes 16 KiB in at
/// most 16 pieces (HTTP/2, TLS), so smaller pieces would make more writes.
pub const MIN_SHARED_BYTES: usize = 2 * 1024;
/// Initial capacity for the bytes between shared pieces.
const SMALL_CAPACITY: usize = 1024;

/// The content coding of a watch's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentCoding {
    /// Frames as they are.
    #[default]
    Identity,
    /// Members of gzip, each of whole frames: a client can read whatever has arrived. Frames that
    /// all watches share are compressed once, and an idle watch holds no compressor.
    Gzip,
}

/// Frames that go out at once.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    coding: ContentCoding,
    /// Number of frames.
    frames: usize,
    /// Cost of the frames in bytes, which limits a chunk.
    bytes: usize,
    /// Pieces ready to be sent.
    pieces: Vec<Bytes>,
    /// Small pieces behind them, copied together.
    small: BytesMut,
    /// Frames behind those that were made for this watch and are not compressed yet.
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
                    // `BytesMut` allocates as much again for what comes later.
                    self.small = BytesMut::with_capacity(SMALL_CAPACITY);
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
        self.count(1, event.frame_len());
        self.push_ready(match self.coding {
            ContentCoding::Identity => event.frame(),
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

    /// Returns all pieces. None is empty.
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
        // A single piece is passed on without a copy, whatever its size.
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

    /// Compresses the frames that were made in a row as one member.
    fn finish_made(&mut self) {
        if !self.made.is_empty() {
            let made = std::mem::take(&mut self.made);
            self.push_ready(gzip_member(&made));
        }
    }
}
