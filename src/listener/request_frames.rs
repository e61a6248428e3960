//! Spoils HTTP/2 requests whose path has a `#`.
//!
//! The crates below drop the `#` and what follows it, as [`super::request_lines`] says of HTTP/1.
//! They refuse a `>` and reset the stream, as for any path that is none. In a header block `>` is as
//! long as `#`, plain and in Huffman's code, where both differ in one bit. So one takes the place of
//! the other, and nothing else changes.
//!
//! A mistake about where a path begins would let a request pass, or spoil a part of the connection
//! that holds a `#`. So a reader follows the table of HPACK, by which a field may name itself `:path`, and
//! all other frames are passed over by their length. The table also tells what h2 keeps for it.
//!
//! Sources: RFC 9113, sections 3.4, 4.1 and 6; RFC 7541, sections 5 and 6, and appendix A.
mod huffman;

use huffman::HuffmanReader;

use super::header_table::{EntryValue, FieldName, HeaderTable, NameKind};
use super::inspect::Inspect;

/// Bytes of the connection preface.
const PREFACE: u32 = 24;
/// Bytes of the head of a frame.
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const PRIORITY_FRAME: u8 = 2;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
/// The last type of frame that HTTP/2 defines.
const LAST_KNOWN: u8 = CONTINUATION;
/// The flag of SETTINGS and PING that only confirm the other side's.
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Bytes of a priority.
const PRIORITY_BYTES: u32 = 5;

/// The first byte of a pseudo-header field's name.
const PSEUDO: u8 = b':';
/// The same in Huffman's code, in the first seven bits.
const PSEUDO_CODE: u8 = 0x5c;
/// The name of the field, plain and in Huffman's code.
const PATH_NAMES: [&[u8]; 2] = [b":path", &[0xb9, 0x58, 0xd3, 0x3f]];

/// Bits of a number before its last byte. h2 takes no longer ones.
const LAST_SHIFT: u32 = 21;

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

/// Follows the fields of a header block.
#[derive(Debug, Default)]
struct BlockReader {
    place: BlockPlace,
    /// The name that is read, as far as it can be `:path`.
    name: Vec<u8>,
    huffman: HuffmanReader,
    /// `true` if HPACK's table takes the field that is read.
    is_indexed: bool,
    field: FieldName,
    /// Bytes of the text that is read, as it was sent.
    text_bytes: u32,
    /// Bytes of the head so far, without those in the frame that is read.
    head: usize,
    table: HeaderTable,
}

/// The place of the next byte in a header block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BlockPlace {
    #[default]
    Field,
    /// In the further bytes of a number.
    Number {
        meaning: Number,
        so_far: u32,
        shift: u32,
    },
    /// At the length of a text.
    Length(Text),
    /// In the further bytes of the length.
    LongLength {
        text: Text,
        is_coded: bool,
        so_far: u32,
        shift: u32,
    },
    Text {
        text: Text,
        is_coded: bool,
        left: u32,
    },
    /// In what is no header block.
    Unknown,
}

/// The meaning of a number that begins a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    /// The whole field is one of the table.
    Field,
    /// The name is one of the table, and the value follows.
    Name,
    /// The largest size of the table.
    TableSize,
}

/// The meaning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    Name,
    Path,
    OtherValue,
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
    pub(super) fn kept_for_table(&self) -> usize {
        self.block.table.kept()
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
                let read = (HEAD - self.head.len()).min(bytes.len());
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
                self.block.head = self.unfinished;
                self.block.read(&mut bytes[..read]);
                self.go_on(0, block - read as u32, padding);
                read
            }
            FramePlace::Within {
                before,
                block,
                padding,
            } => {
                let read = part(before, bytes);
                self.go_on(before - read as u32, block, padding);
                read
            }
        }
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
            (0, 0, 0) => FramePlace::Head,
            _ => FramePlace::Within {
                before,
                block,
                padding,
            },
        };
    }

    fn begin_frame(&mut self) {
        let length = u32::from_be_bytes([0, self.head[0], self.head[1], self.head[2]]);
        let (kind, flags) = (self.head[3], self.head[4]);
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
                self.block.place = BlockPlace::Field;
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
            CONTINUATION => self.begin_block(length, 0, 0),
            _ => self.go_on(length, 0, 0),
        }
    }

    /// Begins what is left of a frame with a header block.
    fn begin_block(&mut self, left: u32, before: u32, padding: u32) {
        match left.checked_sub(before + padding) {
            Some(block) => self.go_on(before, block, padding),
            // h2 may reset the stream of such a frame only.
            None => self.go_on(left, 0, 0),
        }
    }
}

impl BlockReader {
    fn read(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() && self.place != BlockPlace::Unknown {
            let read = self.step(bytes);
            bytes = &mut bytes[read..];
        }
    }

    fn step(&mut self, bytes: &mut [u8]) -> usize {
        let byte = bytes[0];
        match self.place {
            BlockPlace::Field => self.begin_field(byte),
            BlockPlace::Number {
                meaning,
                so_far,
                shift,
            } => {
                let so_far = so_far + (u32::from(byte & 0x7f) << shift);
                self.place = if byte < 0x80 {
                    self.end_number(meaning, so_far)
                } else if shift < LAST_SHIFT {
                    BlockPlace::Number {
                        meaning,
                        so_far,
                        shift: shift + 7,
                    }
                } else {
                    BlockPlace::Unknown
                };
            }
            BlockPlace::Length(text) => {
                let (is_coded, length) = (byte & 0x80 != 0, u32::from(byte & 0x7f));
                if length < 0x7f {
                    self.begin_text(text, is_coded, length);
                } else {
                    self.place = BlockPlace::LongLength {
                        text,
                        is_coded,
                        so_far: length,
                        shift: 0,
                    };
                }
            }
            BlockPlace::LongLength {
                text,
                is_coded,
                so_far,
                shift,
            } => {
                let so_far = so_far + (u32::from(byte & 0x7f) << shift);
                if byte < 0x80 {
                    self.begin_text(text, is_coded, so_far);
                } else if shift < LAST_SHIFT {
                    self.place = BlockPlace::LongLength {
                        text,
                        is_coded,
                        so_far,
                        shift: shift + 7,
                    };
                } else {
                    self.place = BlockPlace::Unknown;
                }
            }
            BlockPlace::Text {
                text,
                is_coded,
                left,
            } => {
                let read = part(left, bytes);
                self.text(text, is_coded, &mut bytes[..read]);
                self.continue_text(text, is_coded, left - read as u32);
                return read;
            }
            BlockPlace::Unknown => {}
        }
        1
    }

    fn begin_field(&mut self, byte: u8) {
        // The bits of a number in the first byte. If all are set, more bytes follow.
        let (mask, meaning) = match byte {
            0x80.. => (0x7f, Number::Field),
            0x40.. => (0x3f, Number::Name),
            0x20.. => (0x1f, Number::TableSize),
            _ => (0x0f, Number::Name),
        };
        self.is_indexed = (0x40..0x80).contains(&byte);
        let number = byte & mask;
        self.place = if number == mask {
            BlockPlace::Number {
                meaning,
                so_far: u32::from(number),
                shift: 0,
            }
        } else {
            self.end_number(meaning, u32::from(number))
        };
    }

    /// Returns the place behind a number.
    fn end_number(&mut self, meaning: Number, number: u32) -> BlockPlace {
        match meaning {
            Number::Field => BlockPlace::Field,
            Number::TableSize => {
                self.table.set_max_size(number as usize);
                BlockPlace::Field
            }
            Number::Name if number == 0 => BlockPlace::Length(Text::Name),
            Number::Name => {
                self.field = self.table.name(number as usize);
                BlockPlace::Length(self.value())
            }
        }
    }

    fn begin_text(&mut self, text: Text, is_coded: bool, length: u32) {
        self.name.clear();
        self.huffman = HuffmanReader::default();
        self.text_bytes = length;
        if is_coded {
            self.table.note_coded(length as usize);
        }
        self.continue_text(text, is_coded, length);
    }

    /// Notes the text that was read.
    fn end_text(&mut self, text: Text, is_coded: bool) {
        let sent = self.text_bytes as usize;
        let bytes = if is_coded { self.huffman.symbols } else { sent };
        if text == Text::Name {
            let kind = self.name_kind(is_coded);
            self.field = FieldName { bytes, kind };
        } else if self.is_indexed {
            let value = EntryValue {
                is_coded,
                sent,
                bytes,
            };
            self.table.insert(self.field, value, self.head);
        }
    }

    /// Returns the kind of the name that was read.
    fn name_kind(&self, is_coded: bool) -> NameKind {
        let is_pseudo = self.name.first().is_some_and(|first| {
            if is_coded {
                first >> 1 == PSEUDO_CODE
            } else {
                *first == PSEUDO
            }
        });
        if self.name == PATH_NAMES[usize::from(is_coded)] {
            NameKind::Path
        } else if is_pseudo {
            NameKind::Sliced
        } else {
            NameKind::Copied
        }
    }

    /// Returns the meaning of the value of the field.
    fn value(&self) -> Text {
        match self.field.kind {
            NameKind::Path => Text::Path,
            NameKind::Sliced | NameKind::Copied => Text::OtherValue,
        }
    }

    fn continue_text(&mut self, text: Text, is_coded: bool, left: u32) {
        if left == 0 {
            self.end_text(text, is_coded);
        }
        self.place = match (left, text) {
            (1.., _) => BlockPlace::Text {
                text,
                is_coded,
                left,
            },
            (0, Text::Name) => BlockPlace::Length(self.value()),
            (0, Text::Path | Text::OtherValue) => BlockPlace::Field,
        };
    }

    fn text(&mut self, text: Text, is_coded: bool, bytes: &mut [u8]) {
        if is_coded && (text == Text::Path || self.is_indexed) {
            self.huffman.read(bytes, text == Text::Path);
        }
        match text {
            Text::Name => {
                // One byte more than the longest, so that no longer name is taken for it.
                let room = PATH_NAMES[0].len() + 1 - self.name.len();
                let looked_at = bytes.len().min(room);
                self.name.extend_from_slice(&bytes[..looked_at]);
            }
            Text::Path if !is_coded => {
                for byte in bytes.iter_mut().filter(|byte| **byte == b'#') {
                    *byte = b'>';
                }
            }
            Text::Path | Text::OtherValue => {}
        }
    }
}

/// Returns how many of the bytes belong to what is left.
fn part(left: u32, bytes: &[u8]) -> usize {
    bytes.len().min(left as usize)
}

#[cfg(test)]
mod tests;
