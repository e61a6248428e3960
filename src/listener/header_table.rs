//! The memory that HPACK's table of a connection keeps.
//!
//! h2 copies the names and values of usual fields. The text of a pseudo-header field, such as
//! `:authority`, is a slice of the buffer that it was read into, or that it was decoded into if it was in
//! Huffman's code. An entry of a few bytes keeps all of that buffer. So a client that sends large fields
//! between such entries would have the table keep a megabyte and more.
//!
//! The bytes counted here are an estimate that follows from what was sent: an entry keeps what came since
//! the entry before it, up to the size of a buffer.
//!
//! Sources: RFC 7541, sections 3.2 and 4; h2, `hpack/decoder.rs` and `codec/framed_read.rs`.
use std::collections::VecDeque;

/// The most entries that a table has: 4,096 bytes, of which the shortest name, `:path`, takes 37.
const MAX_ENTRIES: usize = 4096 / 37;
/// The largest buffer that frames are read into, without those of a head of several frames: a frame is at
/// most as long, and the next one may have begun.
const READ_BUFFER: usize = 32 << 10;
/// The bytes of the buffer for a byte of text in Huffman's code. The shortest codes have five bits, and a
/// text that does not fit leaves a part of the buffer before it empty.
const DECODED: usize = 2;

/// Estimates what the table of a connection keeps.
#[derive(Debug, Default)]
pub(super) struct HeaderTable {
    /// The bytes that each of the last entries keeps, besides its own text.
    entries: VecDeque<u32>,
    /// The sum of them.
    kept: usize,
    /// Bytes that were read since the last entry of plain text.
    read: usize,
    /// Bytes of texts in Huffman's code since the last entry of such text.
    coded: usize,
}

impl HeaderTable {
    /// Returns the bytes that the table keeps.
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    /// Notes that so many bytes were read.
    pub(super) fn note_read(&mut self, bytes: usize) {
        self.read = self.read.saturating_add(bytes);
    }

    /// Notes a text of so many bytes in Huffman's code.
    pub(super) fn note_coded(&mut self, bytes: usize) {
        self.coded = self.coded.saturating_add(bytes);
    }

    /// Notes that the text of so many bytes becomes an entry that is a slice. `head` is what was read of
    /// the head that it is in.
    pub(super) fn insert(&mut self, is_coded: bool, bytes: usize, head: usize) {
        let others = if is_coded {
            DECODED * std::mem::take(&mut self.coded).saturating_sub(bytes)
        } else {
            let others = std::mem::take(&mut self.read).saturating_sub(bytes);
            others.min(READ_BUFFER + head)
        };
        let others = u32::try_from(others).unwrap_or(u32::MAX);
        self.entries.push_back(others);
        self.kept += others as usize;
        if self.entries.len() > MAX_ENTRIES {
            let oldest = self.entries.pop_front();
            self.kept -= oldest.unwrap_or_default() as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_keeps_what_was_read_before_it() {
        let mut table = HeaderTable::default();
        table.note_read(20_000);
        table.insert(false, 100, 0);
        assert_eq!(table.kept(), 19_900);
        table.insert(false, 100, 0);
        assert_eq!(table.kept(), 19_900, "both are in one buffer");
        table.note_read(10 << 20);
        table.insert(false, 100, 5);
        assert_eq!(table.kept(), 19_900 + READ_BUFFER + 5);
    }

    #[test]
    fn an_entry_in_huffmans_code_keeps_what_was_decoded_before_it() {
        let mut table = HeaderTable::default();
        table.note_read(20_000);
        table.note_coded(100);
        table.insert(true, 100, 0);
        assert_eq!(table.kept(), 0, "only its own text was decoded");
        table.note_coded(5_000);
        table.note_coded(100);
        table.insert(true, 100, 0);
        assert_eq!(table.kept(), 10_000);
    }

    #[test]
    fn old_entries_leave_the_table() {
        let mut table = HeaderTable::default();
        for _ in 0..1_000 {
            table.note_read(1_000);
            table.insert(false, 0, 0);
        }
        assert_eq!(table.kept(), MAX_ENTRIES * 1_000);
        for _ in 0..MAX_ENTRIES {
            table.insert(true, 0, 0);
        }
        assert_eq!(table.kept(), 0);
    }
}
