//! The fields of header blocks.
//!
//! Sources: RFC 7541, sections 5 and 6.
use super::header_table::{EntryValue, FieldName, HeaderTable, NameKind};
use super::huffman::HuffmanReader;

/// The first byte of a pseudo-header field's name.
const PSEUDO: u8 = b':';
/// The same in Huffman's code, in the first seven bits.
const PSEUDO_CODE: u8 = 0x5c;
/// The name of the field, plain and in Huffman's code.
pub(super) const PATH_NAMES: [&[u8]; 2] = [b":path", &[0xb9, 0x58, 0xd3, 0x3f]];

/// Bits of a number before its last byte. h2 takes no longer ones.
const LAST_SHIFT: u32 = 21;

/// Follows the fields of a header block.
#[derive(Debug, Default)]
pub(super) struct BlockReader {
    place: BlockPlace,
    /// The name that is read, as far as it can be `:path`.
    name: Vec<u8>,
    huffman: HuffmanReader,
    /// `true` if HPACK's table takes the field that is read.
    is_indexed: bool,
    field: FieldName,
    /// Bytes of its name, as they were sent, if they are in Huffman's code.
    coded_name: usize,
    /// Bytes of the text that is read, as it was sent.
    text_bytes: u32,
    /// Bytes that were read of the head before the part that is read.
    head: usize,
    pub(super) table: HeaderTable,
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

impl BlockReader {
    /// Begins another header block.
    pub(super) fn begin(&mut self) {
        self.place = BlockPlace::Field;
    }

    /// Goes on in another frame. If the field is not complete, h2 reads it from its beginning again, and
    /// decodes its name once more.
    pub(super) fn begin_next_frame(&mut self) {
        let is_behind_name = match self.place {
            BlockPlace::Length(text)
            | BlockPlace::LongLength { text, .. }
            | BlockPlace::Text { text, .. } => text != Text::Name,
            BlockPlace::Field | BlockPlace::Number { .. } | BlockPlace::Unknown => false,
        };
        if is_behind_name && self.coded_name > 0 {
            self.table.note_coded(self.coded_name);
        }
    }

    /// Reads a part of the block. `head` is the number of bytes that were read of the head before.
    pub(super) fn read(&mut self, mut bytes: &mut [u8], head: usize) {
        self.head = head;
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
                if text == Text::Name && matches!(byte, 0x00 | 0x80) {
                    // The name is the next byte.
                    bytes[0] = 1;
                }
                let byte = bytes[0];
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
        self.coded_name = 0;
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
        self.continue_text(text, is_coded, length);
    }

    /// Notes the text that was read.
    fn end_text(&mut self, text: Text, is_coded: bool) {
        let sent = self.text_bytes as usize;
        let bytes = if is_coded { self.huffman.symbols } else { sent };
        if is_coded {
            self.table.note_coded(sent);
        }
        if text == Text::Name {
            let kind = self.name_kind(is_coded);
            self.field = FieldName { bytes, kind };
            self.coded_name = if is_coded { sent } else { 0 };
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
pub(super) fn part(left: u32, bytes: &[u8]) -> usize {
    bytes.len().min(left as usize)
}
