//! Spoils HTTP/2 requests whose path has a `#`.
//!
//! The crates below drop the `#` and what follows it, as [`super::request_lines`] says of HTTP/1.
//! They refuse a `>` and reset the stream, as for any path that is none. In a header block `>` is as
//! long as `#`, plain and in Huffman's code, where both differ in one bit. So one takes the place of
//! the other.
//!
//! A mistake about where a path begins would let a request pass, or spoil a part of the connection
//! that holds a `#`. So a reader follows the table of HPACK, by which a field may name itself `:path`, and
//! all other frames are passed over by their length. The table also tells what h2 keeps for it.
//!
//! h2 must see the same fields, or the tables would differ from then on. In three cases it would not: it
//! also reads those of a PUSH_PROMISE, and leaves out those of a head that depends on its own stream, and a
//! field without a name. No usual client sends any of them. They are changed to what both read alike.
//!
//! Sources: RFC 9113, sections 3.4, 4.1 and 6; RFC 7541, sections 5 and 6, and appendix A.
mod body_gaps;
mod header_block;
mod header_table;
mod huffman;

pub(super) use body_gaps::KeptBytes;
use body_gaps::{BodyGaps, RequestFrame, RequestFrameKind};
use header_block::{BlockReader, part};

use super::inspect::Inspect;

/// Bytes of the connection preface.
const PREFACE: u32 = 24;
/// Bytes of the head of a frame.
const HEAD: usize = 9;
/// The places of the type and of the stream in it.
const TYPE: usize = 3;
const STREAM: usize = 5;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY_FRAME: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
/// The last type of frame that HTTP/2 defines.
const LAST_KNOWN: u8 = CONTINUATION;
/// The flag of SETTINGS and PING that only confirm the other side's.
const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Bytes of a priority.
const PRIORITY_BYTES: u32 = 5;

/// Follows the header blocks in what a client sends.
#[derive(Debug)]
pub(crate) struct FrameReader {
    place: FramePlace,
    /// The head of the frame, as far as it was read.
    head: Vec<u8>,
    block: BlockReader,
    frame: FrameKind,
    /// Bytes of the frames with the header block that is not complete.
    unfinished: usize,
    /// The stream of the frame.
    stream: [u8; 4],
    /// The place of the next byte of the stream that the frame depends on, while it may be the same.
    dependency: Option<usize>,
    /// The frame, as a part of a request.
    request_frame: Option<RequestFrame>,
    bodies: BodyGaps,
    /// The place of the next frame among the bytes of the connection.
    next_frame: u64,
    counts: FrameCounts,
}

/// The numbers of what was read so far. They wrap around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FrameCounts {
    /// Complete header blocks: requests, and trailers.
    pub(super) blocks: u32,
    /// SETTINGS frames, without confirmations.
    pub(super) settings: u32,
    /// PING frames, without confirmations, and PRIORITY frames.
    pub(super) pings: u32,
    /// Frames of types that HTTP/2 does not define, which h2 passes over.
    pub(super) unknown: u32,
}

/// The part that a frame has in a header block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameKind {
    /// None, or its head is not read yet.
    Other,
    /// Another frame continues the block.
    Block,
    LastOfBlock,
}

/// The place of the next byte among the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramePlace {
    Head,
    /// At the length of the padding of a frame of headers; what is left of the frame, and of what
    /// lies before the block.
    PadLength {
        left: u32,
        before: u32,
    },
    /// Within a frame: the bytes that are left before a header block, of it, and behind it. In a
    /// frame without one, all are passed over as those before.
    Within {
        before: u32,
        block: u32,
        padding: u32,
    },
}

impl Default for FrameReader {
    fn default() -> Self {
        Self {
            place: FramePlace::Within {
                before: PREFACE,
                block: 0,
                padding: 0,
            },
            head: Vec::with_capacity(HEAD),
            block: BlockReader::default(),
            frame: FrameKind::Other,
            unfinished: 0,
            stream: [0; 4],
            dependency: None,
            request_frame: None,
            bodies: BodyGaps::default(),
            next_frame: u64::from(PREFACE),
            counts: FrameCounts::default(),
        }
    }
}

impl Inspect for FrameReader {
    fn inspect(&mut self, mut bytes: &mut [u8]) {
        self.block.table.note_read(bytes.len());
        while !bytes.is_empty() {
            let read = self.step(bytes);
            self.count(read);
            bytes = &mut bytes[read..];
        }
    }
}

impl FrameReader {
    /// Returns the bytes of a header block that is not complete.
    pub(super) fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Returns the bytes that HPACK's decoder keeps of what was read.
    pub(super) fn kept_for_hpack(&self) -> usize {
        self.block.table.kept()
    }

    /// Returns the bytes that all pieces of bodies so far may have kept, if none of them was read.
    pub(super) fn kept_for_bodies(&self) -> KeptBytes {
        self.bodies.kept()
    }

    /// Returns the numbers of what was read so far.
    pub(super) fn counts(&self) -> FrameCounts {
        self.counts
    }

    /// Returns the bytes that are left of the frame that is being read, without its head.
    pub(super) fn left(&self) -> usize {
        let left = match self.place {
            FramePlace::Head => 0,
            FramePlace::PadLength { left, .. } => left,
            FramePlace::Within {
                before,
                block,
                padding,
            } => before + block + padding,
        };
        left as usize
    }

    /// Reads up to the next place, or all. Returns the number of bytes read.
    fn step(&mut self, bytes: &mut [u8]) -> usize {
        match self.place {
            FramePlace::Head => {
                let at = self.head.len();
                let read = (HEAD - at).min(bytes.len());
                if let Some(kind) = TYPE.checked_sub(at).and_then(|at| bytes.get_mut(at))
                    && *kind == PUSH_PROMISE
                {
                    // Only servers send it. Without a head before it, a CONTINUATION ends the connection.
                    *kind = CONTINUATION;
                }
                self.head.extend_from_slice(&bytes[..read]);
                if self.head.len() == HEAD {
                    self.begin_frame();
                }
                read
            }
            FramePlace::PadLength { left, before } => {
                let padding = u32::from(bytes[0]);
                self.begin_block(left - 1, before, padding);
                1
            }
            FramePlace::Within {
                before: 0,
                block: 0,
                padding,
            } => {
                let read = part(padding, bytes);
                self.go_on(0, 0, padding - read as u32);
                read
            }
            FramePlace::Within {
                before: 0,
                block,
                padding,
            } => {
                let read = part(block, bytes);
                self.block.read(&mut bytes[..read], self.unfinished);
                self.go_on(0, block - read as u32, padding);
                read
            }
            FramePlace::Within {
                before,
                block,
                padding,
            } => {
                let read = part(before, bytes);
                if self.dependency.is_some() {
                    bytes[..read]
                        .iter_mut()
                        .for_each(|byte| self.read_dependency(byte));
                }
                self.go_on(before - read as u32, block, padding);
                read
            }
        }
    }

    /// Reads a byte of the stream that a head depends on. If it is its own, makes it the one beside it.
    fn read_dependency(&mut self, byte: &mut u8) {
        const LAST: usize = 3;
        let Some(at) = self.dependency else {
            return;
        };
        // The first bit has another meaning.
        let mask = if at == 0 { 0x7f } else { 0xff };
        let is_own = (*byte ^ self.stream[at]) & mask == 0;
        if is_own && at == LAST {
            *byte ^= 1;
        }
        self.dependency = (is_own && at < LAST).then_some(at + 1);
    }

    /// Counts bytes of a header block, until it is complete.
    fn count(&mut self, read: usize) {
        if self.frame == FrameKind::Other {
            return;
        }
        self.unfinished += read;
        if self.place == FramePlace::Head {
            if self.frame == FrameKind::LastOfBlock {
                self.unfinished = 0;
                self.counts.blocks = self.counts.blocks.wrapping_add(1);
            }
            self.frame = FrameKind::Other;
        }
    }

    /// Goes on in the frame, or to the next one if nothing of it is left.
    fn go_on(&mut self, before: u32, block: u32, padding: u32) {
        self.place = match (before, block, padding) {
            (0, 0, 0) => {
                // Before it is complete, nobody can have read it.
                if let Some(frame) = self.request_frame.take() {
                    self.bodies.note(frame);
                }
                FramePlace::Head
            }
            _ => FramePlace::Within {
                before,
                block,
                padding,
            },
        };
    }

    fn begin_frame(&mut self) {
        let length = u32::from_be_bytes([0, self.head[0], self.head[1], self.head[2]]);
        let (kind, flags) = (self.head[TYPE], self.head[4]);
        self.stream.copy_from_slice(&self.head[STREAM..]);
        self.set_request_frame(kind, flags, length);
        self.dependency = (kind == HEADERS && flags & PRIORITY != 0).then_some(0);
        self.head.clear();
        self.frame = match kind {
            HEADERS | CONTINUATION if flags & END_HEADERS != 0 => FrameKind::LastOfBlock,
            HEADERS | CONTINUATION => FrameKind::Block,
            _ => FrameKind::Other,
        };
        let counts = &mut self.counts;
        match kind {
            SETTINGS if flags & ACK == 0 => counts.settings = counts.settings.wrapping_add(1),
            PING if flags & ACK == 0 => counts.pings = counts.pings.wrapping_add(1),
            PRIORITY_FRAME => counts.pings = counts.pings.wrapping_add(1),
            _ if kind > LAST_KNOWN => counts.unknown = counts.unknown.wrapping_add(1),
            _ => {}
        }
        match kind {
            HEADERS => {
                self.block.begin();
                let before = if flags & PRIORITY == 0 {
                    0
                } else {
                    PRIORITY_BYTES
                };
                match flags & PADDED {
                    0 => self.begin_block(length, before, 0),
                    _ if length == 0 => self.go_on(0, 0, 0),
                    _ => {
                        self.place = FramePlace::PadLength {
                            left: length,
                            before,
                        }
                    }
                }
            }
            CONTINUATION => {
                self.block.begin_next_frame();
                self.begin_block(length, 0, 0);
            }
            _ => self.go_on(length, 0, 0),
        }
    }

    /// Notes the frame as a part of a request.
    fn set_request_frame(&mut self, kind: u8, flags: u8, length: u32) {
        let start = self.next_frame;
        self.next_frame = start + HEAD as u64 + u64::from(length);
        // The first bit has no meaning.
        let stream = u32::from_be_bytes(self.stream) & (u32::MAX >> 1);
        self.request_frame = Some(RequestFrame {
            kind: match kind {
                HEADERS => RequestFrameKind::Fields,
                CONTINUATION => RequestFrameKind::MoreFields,
                DATA => RequestFrameKind::Piece {
                    is_padded: flags & PADDED != 0,
                },
                RST_STREAM => RequestFrameKind::Reset,
                _ => RequestFrameKind::Other,
            },
            stream,
            start,
            end: self.next_frame,
            is_last: flags & END_STREAM != 0,
        });
    }

    /// Begins what is left of a frame with a header block.
    fn begin_block(&mut self, left: u32, before: u32, padding: u32) {
        match left.checked_sub(before + padding) {
            Some(block) => self.go_on(before, block, padding),
            // h2 ends the connection.
            None => self.go_on(left, 0, 0),
        }
    }
}

#[cfg(test)]
mod tests;
