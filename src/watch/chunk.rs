//! What goes out in one piece, in the coding of the watch.
use bytes::{Bytes, BytesMut};

use crate::kube::gzip_member;
use crate::store::Event;

/// The content coding of a watch's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coding {
    /// Frames as they are.
    #[default]
    Identity,
    /// Members of gzip, each of them whole frames: what has arrived can be read. What all watches share is
    /// compressed once for all, and an idle watch holds no compressor.
    Gzip,
}

/// Frames that go out in one piece.
#[derive(Debug)]
pub(super) struct Chunk {
    coding: Coding,
    /// How many frames were put in.
    frames: usize,
    /// Their bytes before they are compressed: what a chunk is limited by.
    bytes: usize,
    /// What is ready to be sent.
    pieces: Vec<Bytes>,
    /// What comes behind it and is to be compressed yet: frames that were made for this watch.
    plain: Vec<Bytes>,
}

impl Chunk {
    pub(super) fn new(coding: Coding) -> Self {
        Self { coding, frames: 0, bytes: 0, pieces: Vec::new(), plain: Vec::new() }
    }

    pub(super) fn frames(&self) -> usize {
        self.frames
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a frame that was made for this watch.
    pub(super) fn push(&mut self, frame: Bytes) {
        self.count(&frame);
        match self.coding {
            Coding::Identity => self.pieces.push(frame),
            Coding::Gzip => self.plain.push(frame),
        }
    }

    /// Adds an event in upstream's own frame.
    pub(super) fn push_whole(&mut self, event: &Event) {
        self.count(&event.frame);
        self.compress();
        self.pieces.push(match self.coding {
            Coding::Identity => event.frame.clone(),
            Coding::Gzip => event.compressed(),
        });
    }

    /// All of it, in one piece.
    pub(super) fn join(mut self) -> Bytes {
        self.compress();
        join(&mut self.pieces)
    }

    fn count(&mut self, frame: &Bytes) {
        self.frames += 1;
        self.bytes += frame.len();
    }

    /// Frames in a row become one member.
    fn compress(&mut self) {
        if !self.plain.is_empty() {
            self.pieces.push(gzip_member(&join(&mut self.plain)));
        }
    }
}

/// A piece alone is passed on without a copy.
fn join(pieces: &mut Vec<Bytes>) -> Bytes {
    if pieces.len() == 1 {
        return pieces.remove(0);
    }
    let mut joined = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.drain(..).for_each(|piece| joined.extend_from_slice(&piece));
    joined.freeze()
}
