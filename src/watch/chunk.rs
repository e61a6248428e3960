//! What goes out in one piece, in the coding of the watch.
use bytes::{Bytes, BytesMut};

use crate::kube::gzip_member;
use crate::store::{Event, Run};

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
    /// What it took to put them in, in bytes: what a chunk is limited by.
    bytes: usize,
    /// What is ready to be sent.
    pieces: Vec<Bytes>,
    /// What comes behind it and was made for this watch; to be compressed yet.
    made: BytesMut,
}

impl Chunk {
    pub(super) fn new(coding: Coding) -> Self {
        Self { coding, frames: 0, bytes: 0, pieces: Vec::new(), made: BytesMut::new() }
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
            Coding::Identity => self.push_ready(frame),
            Coding::Gzip => self.made.extend_from_slice(&frame),
        }
    }

    /// Adds a frame that `put` appends, if it does not fail.
    pub(super) fn make<E>(&mut self, put: impl FnOnce(&mut BytesMut) -> Result<(), E>) -> Result<(), E> {
        let before = self.made.len();
        put(&mut self.made).inspect_err(|_| self.made.truncate(before))?;
        self.count(1, self.made.len() - before);
        Ok(())
    }

    /// Adds an event in upstream's own frame.
    pub(super) fn push_whole(&mut self, event: &Event) {
        self.count(1, event.frame.len());
        self.push_ready(match self.coding {
            Coding::Identity => event.frame.clone(),
            Coding::Gzip => event.compressed(),
        });
    }

    /// Adds a run of objects as ADDED events. Only for watches that are compressed.
    pub(super) fn push_run(&mut self, run: &Run) {
        let had = run.is_added_compressed();
        let member = run.added_compressed();
        self.count(run.len(), if had { member.len() } else { run.items_len() });
        self.push_ready(member);
    }

    /// All of it, in one piece.
    pub(super) fn join(mut self) -> Bytes {
        self.finish_made();
        if self.pieces.len() == 1 {
            // A piece alone is passed on without a copy.
            return self.pieces.remove(0);
        }
        self.pieces.concat().into()
    }

    fn count(&mut self, frames: usize, bytes: usize) {
        self.frames += frames;
        self.bytes += bytes;
    }

    fn push_ready(&mut self, piece: Bytes) {
        self.finish_made();
        self.pieces.push(piece);
    }

    /// What was made in a row becomes one piece.
    fn finish_made(&mut self) {
        if !self.made.is_empty() {
            let made = self.made.split().freeze();
            self.pieces.push(match self.coding {
                Coding::Identity => made,
                Coding::Gzip => gzip_member(&made),
            });
        }
    }
}
