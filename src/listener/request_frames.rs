//! Spoils HTTP/2 requests whose path has a `#`.
//!
//! The crates below drop the `#` and what follows it, as [`super::request_lines`] says of HTTP/1.
//! They refuse a `>` and reset the stream, as for any path that is none. In a header block `>` is as
//! long as `#`, plain and in Huffman's code, where both differ in one bit. So one takes the place of
//! the other, and nothing else changes.
//!
//! A mistake about where a path begins would let a request pass, or spoil a part of the connection
//! that holds a `#`. Only a field that names itself `:path`, or has its number in the static table,
//! is looked at, and all other frames are passed over by their length.
//!
//! Sources: RFC 9113, sections 3.4, 4.1 and 6; RFC 7541, sections 5 and 6, and appendices A and B.
use super::header_table::HeaderTable;
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

/// The numbers of the pseudo-header fields whose texts h2 does not copy in the static table:
/// `:authority`, `:path` and `:scheme`.
const SLICED_INDEXES: [u8; 5] = [1, 4, 5, 6, 7];
/// The first number of the dynamic table. What it names is not followed here.
const FIRST_DYNAMIC: u8 = 62;
/// The first byte of a pseudo-header field's name.
const PSEUDO: u8 = b':';
/// The same in Huffman's code, in the first seven bits.
const PSEUDO_CODE: u8 = 0x5c;
/// The numbers of `:path` in the static table.
const PATH_INDEXES: [u8; 2] = [4, 5];
/// The name of the field, plain and in Huffman's code.
const PATH_NAMES: [&[u8]; 2] = [b":path", &[0xb9, 0x58, 0xd3, 0x3f]];

/// Longest code of Huffman's.
const LONGEST_CODE: usize = 30;
/// The number of codes of each length. The codes of a length are consecutive numbers, behind those of
/// the shorter ones. The code of the end, which no string has, is left out.
const CODES: [u32; LONGEST_CODE + 1] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19,
    29, 0, 3,
];
/// The codes of `#`, and of `>`, which is one more.
const NUMBER_SIGN: (u32, usize) = (0xffa, 12);

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
    /// `true` if the value that is read may be one that h2 does not copy.
    is_sliced: bool,
    /// Bytes of the text that is read.
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
    /// In the further bytes of a number that does not matter. A value may follow.
    Number { has_value: bool },
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

/// The meaning of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    Name,
    Path,
    OtherValue,
}

/// Follows a text in Huffman's code.
#[derive(Clone, Copy, Debug, Default)]
struct HuffmanReader {
    code: u32,
    length: usize,
    /// The first code of this length.
    first: u32,
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

    /// Returns the bytes that HPACK's table keeps of what was read.
    pub(super) fn kept_by_table(&self) -> usize {
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
            BlockPlace::Number { has_value } if byte < 0x80 => {
                self.place = if has_value {
                    BlockPlace::Length(Text::OtherValue)
                } else {
                    BlockPlace::Field
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
                } else if shift < 21 {
                    self.place = BlockPlace::LongLength {
                        text,
                        is_coded,
                        so_far,
                        shift: shift + 7,
                    };
                } else {
                    // h2 takes no longer numbers.
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
            BlockPlace::Number { .. } | BlockPlace::Unknown => {}
        }
        1
    }

    fn begin_field(&mut self, byte: u8) {
        // The bits of a number in the first byte. If all are set, more bytes follow.
        let (mask, is_literal) = match byte {
            0x80.. => (0x7f, false),
            0x40.. => (0x3f, true),
            0x20.. => (0x1f, false),
            _ => (0x0f, true),
        };
        let number = byte & mask;
        self.is_indexed = is_literal && byte >= 0x40;
        self.is_sliced = SLICED_INDEXES.contains(&number) || number >= FIRST_DYNAMIC;
        self.place = match (is_literal, number) {
            (has_value, number) if number == mask => BlockPlace::Number { has_value },
            (false, _) => BlockPlace::Field,
            (true, 0) => BlockPlace::Length(Text::Name),
            (true, number) if PATH_INDEXES.contains(&number) => BlockPlace::Length(Text::Path),
            (true, _) => BlockPlace::Length(Text::OtherValue),
        };
    }

    fn begin_text(&mut self, text: Text, is_coded: bool, length: u32) {
        self.name.clear();
        self.huffman = HuffmanReader::default();
        self.text_bytes = length;
        self.continue_text(text, is_coded, length);
    }

    /// Notes the text that was read.
    fn end_text(&mut self, text: Text, is_coded: bool) {
        let bytes = self.text_bytes as usize;
        if is_coded {
            self.table.note_coded(bytes);
        }
        match text {
            Text::Name => {
                self.is_sliced = self.name.first().is_some_and(|first| {
                    if is_coded {
                        first >> 1 == PSEUDO_CODE
                    } else {
                        *first == PSEUDO
                    }
                });
            }
            Text::Path | Text::OtherValue if self.is_indexed && self.is_sliced => {
                self.table.insert(is_coded, bytes, self.head);
            }
            Text::Path | Text::OtherValue => {}
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
            (0, Text::Name) if self.name == PATH_NAMES[usize::from(is_coded)] => {
                BlockPlace::Length(Text::Path)
            }
            (0, Text::Name) => BlockPlace::Length(Text::OtherValue),
            (0, Text::Path | Text::OtherValue) => BlockPlace::Field,
        };
    }

    fn text(&mut self, text: Text, is_coded: bool, bytes: &mut [u8]) {
        match text {
            Text::Name => {
                // One byte more than the longest, so that no longer name is taken for it.
                let room = PATH_NAMES[0].len() + 1 - self.name.len();
                let looked_at = bytes.len().min(room);
                self.name.extend_from_slice(&bytes[..looked_at]);
            }
            Text::Path if is_coded => self.huffman.spoil(bytes),
            Text::Path => {
                for byte in bytes.iter_mut().filter(|byte| **byte == b'#') {
                    *byte = b'>';
                }
            }
            Text::OtherValue => {}
        }
    }
}

impl HuffmanReader {
    /// Makes each `#` a `>`.
    fn spoil(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            for bit in (0..u8::BITS).rev() {
                self.code = (self.code << 1) | u32::from(*byte >> bit & 1);
                self.first = (self.first + CODES[self.length]) << 1;
                self.length += 1;
                if self.code.wrapping_sub(self.first) < CODES[self.length] {
                    if (self.code, self.length) == NUMBER_SIGN {
                        *byte |= 1 << bit;
                    }
                    *self = Self::default();
                } else if self.length == LONGEST_CODE {
                    // The end, which is an error within a text.
                    *self = Self::default();
                }
            }
        }
    }
}

/// Returns how many of the bytes belong to what is left.
fn part(left: u32, bytes: &[u8]) -> usize {
    bytes.len().min(left as usize)
}

#[cfg(test)]
mod tests;
