//! The bytes between the pieces of request bodies.
//!
//! A piece that nobody has read yet keeps the buffer that it was read into, with all that came beside it.
//! So a client that sends a body in small pieces, far from each other, has h2 keep much for little.
//! What comes between a piece and the one before it of the same body may be in its buffer. The pieces
//! themselves do not count: windows limit them, and the limits of requests count them.
use std::collections::BTreeMap;

use super::header_table::READ_BUFFER;

/// Bytes that h2 takes for a piece, besides its buffer.
const PIECE: u64 = 256;
/// Bodies whose last pieces are remembered. Usual clients have fewer at a time, and servers allow no more.
const MAX_BODIES: usize = 1_000;

/// Follows the pieces of the bodies of a connection.
#[derive(Debug, Default)]
pub(super) struct BodyGaps {
    /// The end of the last frame of each body that is not complete, by the number of its stream.
    ends: BTreeMap<u32, u64>,
    /// Bytes that the pieces so far may have kept.
    kept: u64,
}

/// A frame of a request, and its place among the bytes of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestFrame {
    pub(super) stream: u32,
    pub(super) start: u64,
    pub(super) end: u64,
    /// `true` if none follows.
    pub(super) is_last: bool,
}

impl BodyGaps {
    /// Returns the bytes that all pieces so far may have kept, if none of them was read.
    pub(super) fn kept(&self) -> u64 {
        self.kept
    }

    /// Notes the head of a request, or the fields behind its body.
    pub(super) fn note_head(&mut self, frame: RequestFrame) {
        self.set_end(frame);
    }

    /// Notes a piece of a body. A padded one counts as a whole.
    pub(super) fn note_piece(&mut self, frame: RequestFrame, is_padded: bool) {
        let before = self.ends.get(&frame.stream).copied().unwrap_or(0);
        let gap = frame.start.saturating_sub(before).min(READ_BUFFER as u64);
        let padding = if is_padded {
            frame.end - frame.start
        } else {
            0
        };
        self.kept += gap + padding + PIECE;
        self.set_end(frame);
    }

    /// Notes that no frame of a stream follows.
    pub(super) fn note_reset(&mut self, stream: u32) {
        self.ends.remove(&stream);
    }

    fn set_end(&mut self, frame: RequestFrame) {
        if frame.is_last {
            self.ends.remove(&frame.stream);
            return;
        }
        self.ends.insert(frame.stream, frame.end);
        if self.ends.len() > MAX_BODIES {
            self.ends.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(stream: u32, start: u64, end: u64) -> RequestFrame {
        RequestFrame {
            stream,
            start,
            end,
            is_last: false,
        }
    }

    #[test]
    fn what_comes_between_the_pieces_of_a_body_counts() {
        let mut gaps = BodyGaps::default();
        gaps.note_head(frame(1, 0, 100));
        gaps.note_piece(frame(1, 100, 16_000), false);
        gaps.note_piece(frame(1, 16_000, 32_000), false);
        assert_eq!(gaps.kept(), 2 * PIECE, "nothing is between them");
        gaps.note_head(frame(3, 32_000, 40_000));
        gaps.note_piece(frame(3, 40_000, 40_100), false);
        assert_eq!(gaps.kept(), 3 * PIECE);
        gaps.note_piece(frame(1, 40_100, 40_200), false);
        assert_eq!(gaps.kept(), 4 * PIECE + 8_100, "of another body");
        gaps.note_piece(frame(1, 10 << 20, 11 << 20), false);
        let buffer = READ_BUFFER as u64;
        assert_eq!(gaps.kept(), 5 * PIECE + 8_100 + buffer);
        gaps.note_piece(frame(1, 11 << 20, (11 << 20) + 300), true);
        assert_eq!(gaps.kept(), 6 * PIECE + 8_100 + buffer + 300);
    }

    #[test]
    fn few_bodies_are_remembered() {
        let mut gaps = BodyGaps::default();
        for stream in 0..10_000 {
            gaps.note_head(frame(stream, 0, 100));
        }
        assert_eq!(gaps.ends.len(), MAX_BODIES);
        gaps.note_piece(frame(1, 5_000, 5_001), false);
        assert_eq!(gaps.kept(), 5_000 + PIECE, "all that came counts");
        gaps.note_reset(9_999);
        let last = RequestFrame {
            is_last: true,
            ..frame(9_998, 6_000, 6_009)
        };
        gaps.note_head(last);
        assert_eq!(gaps.ends.len(), MAX_BODIES - 2);
    }
}
