//! The memory that HPACK's decoder keeps for a connection.
//!
//! h2 copies the names and values of usual fields. The text of a pseudo-header field, such as
//! `:authority`, is a slice of the buffer that it was read into, or that it was decoded into if it was in
//! Huffman's code. In the table, an entry of a few bytes keeps all of that buffer. So a client that sends
//! large fields between such entries would have the table keep a megabyte and more.
//!
//! The entries and their sizes are those of h2's table. What an entry keeps besides its text is an
//! estimate: it is what came since the one before it, up to the size of a buffer.
//!
//! Sources: RFC 7541, sections 2.3, 4 and 6, and appendix A; h2, `hpack/decoder.rs`,
//! `hpack/huffman/decode.rs` and `codec/framed_read.rs`.
use std::collections::VecDeque;

/// The largest size of the table, as RFC 7541 counts it.
const MAX_SIZE: usize = 4096;
/// What an entry adds to that, besides its texts.
const ENTRY_SIZE: usize = 32;
/// The lengths of the names in the static table.
const STATIC_NAMES: [usize; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14,
    16, 13, 12, 6, 4, 4, 6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10,
    25, 17, 10, 4, 3, 16,
];
/// The largest buffer that frames are read into, without those of a head of several frames. h2 doubles
/// it until it has room for the largest frame, of 16 KiB, at any place.
pub(super) const READ_BUFFER: usize = 64 << 10;
/// The buffer that texts are decoded into, which h2 doubles until it has room for the longest one.
const DECODE_BUFFER: usize = 4 << 10;
/// The bytes of the buffer for a byte of text in Huffman's code. The shortest codes have five bits, and a
/// text that does not fit leaves a part of the buffer before it empty.
const DECODED: usize = 2;

/// Follows the table of a connection, and estimates what is kept for it.
#[derive(Debug)]
pub(super) struct HeaderTable {
    /// The last one is the first.
    entries: VecDeque<TableEntry>,
    /// The sum of their sizes, and the largest that the client allows.
    size: usize,
    max_size: usize,
    /// The sum of what they keep.
    kept: usize,
    /// Bytes that were read since the last sliced entry of plain text.
    read: usize,
    /// Bytes of texts in Huffman's code since the last sliced entry of such text.
    coded: usize,
    /// Bytes of the longest text in Huffman's code. The buffer for it stays.
    longest_coded: usize,
}

/// The name of a field.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FieldName {
    pub(super) bytes: usize,
    pub(super) kind: NameKind,
}

/// What a field is for, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NameKind {
    /// A field whose value is copied.
    #[default]
    Copied,
    /// A pseudo-header field whose value is a slice of what was read, or may be one: those that are copied
    /// are known by their numbers only.
    Sliced,
    /// `:path`, which is also such a field.
    Path,
}

/// The value of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryValue {
    /// `true` if it was sent in Huffman's code.
    pub(super) is_coded: bool,
    /// Bytes as they were sent.
    pub(super) sent: usize,
    /// Bytes of the text.
    pub(super) bytes: usize,
}

#[derive(Debug)]
struct TableEntry {
    name: FieldName,
    size: usize,
    /// Bytes that it keeps besides its text.
    kept: usize,
}

impl Default for HeaderTable {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            size: 0,
            max_size: MAX_SIZE,
            kept: 0,
            read: 0,
            coded: 0,
            longest_coded: 0,
        }
    }
}

impl HeaderTable {
    /// Returns the bytes that are kept.
    pub(super) fn kept(&self) -> usize {
        self.kept + DECODED * self.longest_coded
    }

    #[cfg(test)]
    pub(super) fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Returns the name with a number. h2 ends the connection if there is none.
    pub(super) fn name(&self, number: usize) -> FieldName {
        if let Some(dynamic) = number.checked_sub(STATIC_NAMES.len() + 1) {
            let entry = self.entries.get(dynamic);
            return entry.map_or_else(FieldName::default, |entry| entry.name);
        }
        let bytes = number.checked_sub(1).map_or(0, |at| STATIC_NAMES[at]);
        let kind = match number {
            // `:authority` and `:scheme`.
            1 | 6 | 7 => NameKind::Sliced,
            4 | 5 => NameKind::Path,
            _ => NameKind::Copied,
        };
        FieldName { bytes, kind }
    }

    /// Notes that so many bytes were read.
    pub(super) fn note_read(&mut self, bytes: usize) {
        self.read = self.read.saturating_add(bytes);
    }

    /// Notes a text of so many bytes in Huffman's code. h2 decodes it when it is complete.
    pub(super) fn note_coded(&mut self, bytes: usize) {
        self.coded = self.coded.saturating_add(bytes);
        self.longest_coded = self.longest_coded.max(bytes);
    }

    /// Notes the size that the client allows.
    pub(super) fn set_max_size(&mut self, size: usize) {
        // h2 ends the connection if it is more than the largest.
        self.max_size = size.min(MAX_SIZE);
        self.make_room(0);
    }

    /// Adds an entry. `head` is the number of bytes that were read of the head that it is in.
    pub(super) fn insert(&mut self, name: FieldName, value: EntryValue, head: usize) {
        let size = ENTRY_SIZE + name.bytes + value.bytes;
        self.make_room(size);
        if size > self.max_size {
            return;
        }
        let kept = if name.kind == NameKind::Copied {
            0
        } else if value.is_coded {
            let others = std::mem::take(&mut self.coded).saturating_sub(value.sent);
            (DECODED * others).min(DECODE_BUFFER + 2 * DECODED * self.longest_coded)
        } else {
            let others = std::mem::take(&mut self.read).saturating_sub(value.sent);
            others.min(READ_BUFFER + head)
        };
        self.size += size;
        self.kept += kept;
        self.entries.push_front(TableEntry { name, size, kept });
    }

    /// Removes old entries until there is room for one of this size, or none is left.
    fn make_room(&mut self, size: usize) {
        while self.size + size > self.max_size
            && let Some(oldest) = self.entries.pop_back()
        {
            self.size -= oldest.size;
            self.kept -= oldest.kept;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTHORITY: usize = 1;

    fn plain(bytes: usize) -> EntryValue {
        EntryValue {
            is_coded: false,
            sent: bytes,
            bytes,
        }
    }

    fn coded(sent: usize, bytes: usize) -> EntryValue {
        EntryValue {
            is_coded: true,
            sent,
            bytes,
        }
    }

    #[test]
    fn an_entry_keeps_what_was_read_before_it() {
        let mut table = HeaderTable::default();
        let name = table.name(AUTHORITY);
        table.note_read(20_000);
        table.insert(name, plain(100), 0);
        assert_eq!(table.kept(), 19_900);
        table.insert(name, plain(100), 0);
        assert_eq!(table.kept(), 19_900, "both are in one buffer");
        table.note_read(10 << 20);
        table.insert(name, plain(100), 5);
        assert_eq!(table.kept(), 19_900 + READ_BUFFER + 5);
    }

    #[test]
    fn an_entry_in_huffmans_code_keeps_what_was_decoded_before_it() {
        let mut table = HeaderTable::default();
        let name = table.name(AUTHORITY);
        table.note_read(20_000);
        table.note_coded(100);
        table.insert(name, coded(100, 150), 0);
        assert_eq!(table.kept(), 200, "the buffer that stays");
        table.note_coded(5_000);
        table.note_coded(100);
        table.insert(name, coded(100, 150), 0);
        assert_eq!(table.kept(), 10_000 + 10_000);
        for _ in 0..1_000 {
            table.note_coded(5_000);
        }
        table.insert(name, coded(100, 150), 0);
        let buffer = DECODE_BUFFER + 20_000;
        assert_eq!(table.kept(), 10_000 + 10_000 + buffer);
    }

    #[test]
    fn entries_leave_the_table_as_others_need_their_room() {
        let mut table = HeaderTable::default();
        let (sliced, copied) = (table.name(AUTHORITY), table.name(16));
        let size = ENTRY_SIZE + 10 + 100;
        for _ in 0..1_000 {
            table.note_read(1_100);
            table.insert(sliced, plain(100), 0);
        }
        let entries = MAX_SIZE / size;
        assert_eq!(table.kept(), entries * 1_000);
        table.insert(copied, plain(size - ENTRY_SIZE - 15), 0);
        assert_eq!(table.kept(), (entries - 1) * 1_000);
        let (newest, before) = (table.name(62), table.name(63));
        assert_eq!((newest.kind, newest.bytes), (NameKind::Copied, 15));
        assert_eq!((before.kind, before.bytes), (NameKind::Sliced, 10));
        table.set_max_size(3 * size);
        assert_eq!(table.kept(), 2_000);
        table.set_max_size(MAX_SIZE);
        table.insert(copied, plain(MAX_SIZE), 0);
        assert_eq!(table.kept(), 0, "an entry without room leaves none");
        assert!(table.entries.is_empty());
    }
}
