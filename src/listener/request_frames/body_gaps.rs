//! The bytes between the pieces of request bodies.
//!
//! A piece that nobody has read yet keeps the buffer that it was read into, with all that came beside it.
//! So a client that sends a body in small pieces, far from each other, has h2 keep much for little. All that
//! came since the piece before may be in the buffer of a piece; for the first one of a body, since that of any
//! body, besides its own head.
//!
//! A large piece keeps little besides itself, and windows limit how much of it waits. So the largest ones do not
//! count, however many bodies come at once.
use std::collections::BTreeMap;

use super::header_table::READ_BUFFER;

/// Bytes that h2 takes for a piece, besides its buffer.
const PIECE: u64 = 256;
/// Bytes beside a piece that do not count, for each of its own. A whole buffer of pieces as long as usual
/// clients send them has three others for each.
const UNCOUNTED_BESIDE: u64 = 3;
/// Most bytes of padding, with its length.
const MAX_PADDING: u64 = 256;
/// Bytes that h2 takes for a field of trailers that is coded in one byte.
const FIELD: u64 = 128;
/// Most bytes that it takes for the fields of trailers.
const MAX_FIELDS: u64 = 512 << 10;
/// Bodies whose last pieces are remembered. Usual clients have fewer at a time. A piece of a body that is
/// forgotten counts with a whole buffer.
const MAX_BODIES: usize = 1_000;

/// The bytes that all pieces of bodies of a connection so far may have kept, if none of them was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::listener) struct KeptBytes {
    /// Bytes of the connection that were read so far.
    pub(in crate::listener) received: u64,
    /// Bytes of buffers, as far as they hold other things than pieces. Some may count more than once.
    pub(in crate::listener) in_buffers: u64,
    /// Bytes outside of buffers.
    pub(in crate::listener) beside: u64,
}

impl KeptBytes {
    /// Returns the bytes that the pieces after `earlier` may have kept.
    pub(in crate::listener) fn since(self, earlier: Self) -> usize {
        let received = self.received - earlier.received + READ_BUFFER as u64;
        let in_buffers = (self.in_buffers - earlier.in_buffers).min(received);
        let bytes = in_buffers + self.beside - earlier.beside;
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

/// Follows the pieces of the bodies of a connection.
#[derive(Debug, Default)]
pub(super) struct BodyGaps {
    /// The last frame of each body that is not complete, by the number of its stream.
    last: BTreeMap<u32, LastFrame>,
    /// The end of the last piece of any body.
    last_piece: u64,
    /// The highest stream that had a head.
    last_stream: u32,
    /// `true` after fields that were not the first ones of their stream.
    in_trailers: bool,
    kept: KeptBytes,
}

/// The last frame of a request, and the place at which it ended.
#[derive(Clone, Copy, Debug)]
struct LastFrame {
    end: u64,
    /// The bytes of the head, if no piece came yet.
    head: Option<u64>,
}

/// A frame of a request, and its place among the bytes of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestFrame {
    pub(super) kind: RequestFrameKind,
    pub(super) stream: u32,
    pub(super) start: u64,
    pub(super) end: u64,
    /// `true` if none follows.
    pub(super) is_last: bool,
}

/// The part that a frame has in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestFrameKind {
    /// HEADERS, of the request or of its trailers.
    Fields,
    /// CONTINUATION.
    MoreFields,
    /// DATA.
    Piece {
        is_padded: bool,
    },
    Reset,
    /// A frame that has no part in one.
    Other,
}

impl BodyGaps {
    /// Returns the bytes that all pieces so far may have kept, if none of them was read.
    pub(super) fn kept(&self) -> KeptBytes {
        self.kept
    }

    /// Notes a frame that is complete.
    pub(super) fn note(&mut self, frame: RequestFrame) {
        self.kept.received = frame.end;
        match frame.kind {
            RequestFrameKind::Fields => {
                self.in_trailers = frame.stream <= self.last_stream;
                self.last_stream = self.last_stream.max(frame.stream);
                self.note_trailers(frame);
                let head = (!self.in_trailers).then_some(frame.end - frame.start);
                self.set_last(frame, head);
            }
            RequestFrameKind::MoreFields => self.note_trailers(frame),
            RequestFrameKind::Piece { is_padded } => {
                self.note_piece(frame, is_padded);
                self.last_piece = frame.end;
                self.set_last(frame, None);
            }
            RequestFrameKind::Reset => {
                self.last.remove(&frame.stream);
            }
            RequestFrameKind::Other => {}
        }
    }

    /// Notes the fields of a frame if they are trailers.
    fn note_trailers(&mut self, frame: RequestFrame) {
        if self.in_trailers {
            let length = frame.end - frame.start;
            self.kept.in_buffers += self.gap(frame);
            self.kept.beside += PIECE + (length * FIELD).min(MAX_FIELDS);
        }
    }

    /// Notes a piece of a body.
    fn note_piece(&mut self, frame: RequestFrame, is_padded: bool) {
        let length = frame.end - frame.start;
        let padding = if is_padded {
            length.min(MAX_PADDING)
        } else {
            0
        };
        let own = length - padding;
        let beside = self.gap(frame) + padding;
        self.kept.in_buffers += beside.saturating_sub(UNCOUNTED_BESIDE * own);
        self.kept.beside += PIECE.saturating_sub(own);
    }

    /// Returns the bytes of other frames that may be in the buffer of this one.
    fn gap(&self, frame: RequestFrame) -> u64 {
        let room = (READ_BUFFER as u64).saturating_sub(frame.end - frame.start);
        let Some(last) = self.last.get(&frame.stream) else {
            return frame.start.min(room);
        };
        let mut gap = frame.start.saturating_sub(last.end);
        if let Some(head) = last.head {
            gap = gap.max(frame.start.saturating_sub(self.last_piece + head));
        }
        gap.min(room)
    }

    fn set_last(&mut self, frame: RequestFrame, head: Option<u64>) {
        if frame.is_last {
            self.last.remove(&frame.stream);
            return;
        }
        let end = frame.end;
        self.last.insert(frame.stream, LastFrame { end, head });
        if self.last.len() > MAX_BODIES {
            self.last.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUFFER: u64 = READ_BUFFER as u64;

    fn frame(kind: RequestFrameKind, stream: u32, start: u64, end: u64) -> RequestFrame {
        RequestFrame {
            kind,
            stream,
            start,
            end,
            is_last: false,
        }
    }

    fn head(stream: u32, start: u64, end: u64) -> RequestFrame {
        frame(RequestFrameKind::Fields, stream, start, end)
    }

    fn piece(stream: u32, start: u64, end: u64) -> RequestFrame {
        let kind = RequestFrameKind::Piece { is_padded: false };
        frame(kind, stream, start, end)
    }

    #[test]
    fn what_comes_between_the_pieces_of_a_body_counts() {
        let mut gaps = BodyGaps::default();
        let kept = |gaps: &BodyGaps| (gaps.kept().in_buffers, gaps.kept().beside);
        gaps.note(head(1, 0, 100));
        gaps.note(piece(1, 100, 16_000));
        gaps.note(piece(1, 16_000, 16_010));
        assert_eq!(kept(&gaps), (0, PIECE - 10), "nothing is between them");
        gaps.note(head(3, 16_010, 24_010));
        gaps.note(piece(3, 24_010, 24_110));
        assert_eq!(kept(&gaps), (0, 2 * PIECE - 110));
        gaps.note(piece(1, 24_110, 24_210));
        let beside = 3 * PIECE - 210;
        assert_eq!(kept(&gaps), (8_100 - 300, beside), "of another body");
        gaps.note(piece(1, 10 << 20, (10 << 20) + 300));
        assert_eq!(kept(&gaps), (7_800 + BUFFER - 1_200, beside));
        let padded = RequestFrameKind::Piece { is_padded: true };
        gaps.note(frame(padded, 1, (10 << 20) + 300, (10 << 20) + 600));
        let padding = MAX_PADDING - 3 * (300 - MAX_PADDING);
        let in_buffers = 6_600 + BUFFER + padding;
        assert_eq!(kept(&gaps), (in_buffers, beside + PIECE - 44));
        assert_eq!(gaps.kept().received, (10 << 20) + 600);
    }

    #[test]
    fn what_comes_before_the_heads_of_bodies_counts() {
        let mut gaps = BodyGaps::default();
        for number in 0..100 {
            let start = u64::from(number) * 50_000;
            gaps.note(frame(RequestFrameKind::Other, 0, start, start + 49_890));
            gaps.note(head(2 * number + 1, start + 49_890, start + 49_990));
            gaps.note(piece(2 * number + 1, start + 49_990, start + 50_000));
        }
        assert_eq!(gaps.kept().in_buffers, 100 * (49_890 - 3 * 10));
        let before = gaps.kept().in_buffers;
        for number in 100..200 {
            let start = u64::from(number) * 50_000;
            gaps.note(head(2 * number + 1, start, start + 49_990));
            gaps.note(piece(2 * number + 1, start + 49_990, start + 50_000));
        }
        assert_eq!(gaps.kept().in_buffers, before, "these are heads alone");
    }

    #[test]
    fn long_pieces_of_many_bodies_do_not_count() {
        let mut gaps = BodyGaps::default();
        (0..50).for_each(|body| gaps.note(head(2 * body + 1, 0, 1)));
        for number in 0..10_000 {
            let stream = 2 * (number % 50) + 1;
            let start = u64::from(number) * 16_393;
            gaps.note(piece(stream, start, start + 16_393));
        }
        assert_eq!((gaps.kept().in_buffers, gaps.kept().beside), (0, 0));
    }

    #[test]
    fn trailers_count_with_their_fields() {
        let mut gaps = BodyGaps::default();
        gaps.note(head(1, 0, 100));
        gaps.note(head(3, 100, 1_000));
        assert_eq!(gaps.kept().beside, 0);
        gaps.note(head(1, 1_000, 1_100));
        assert_eq!(gaps.kept().beside, PIECE + 100 * FIELD);
        assert_eq!(gaps.kept().in_buffers, 900);
        gaps.note(head(3, 1_100, 17_000));
        assert_eq!(gaps.kept().beside, 2 * PIECE + 100 * FIELD + MAX_FIELDS);
        gaps.note(frame(RequestFrameKind::MoreFields, 3, 17_000, 17_001));
        let trailers = 3 * PIECE + 101 * FIELD + MAX_FIELDS;
        assert_eq!(gaps.kept().beside, trailers);
        gaps.note(head(5, 17_001, 18_000));
        gaps.note(frame(RequestFrameKind::MoreFields, 5, 18_000, 19_000));
        assert_eq!(gaps.kept().beside, trailers, "of a head");
    }

    #[test]
    fn buffers_keep_no_more_than_was_received() {
        let earlier = KeptBytes {
            received: 1_000,
            in_buffers: 1 << 30,
            beside: 300,
        };
        let kept = KeptBytes {
            received: 3_000,
            in_buffers: 1 << 31,
            beside: 800,
        };
        assert_eq!(kept.since(earlier), READ_BUFFER + 2_500);
        assert_eq!(kept.since(kept), 0);
    }

    #[test]
    fn few_bodies_are_remembered() {
        let mut gaps = BodyGaps::default();
        for stream in 1..=10_000 {
            gaps.note(head(stream, 0, 100));
        }
        assert_eq!(gaps.last.len(), MAX_BODIES);
        gaps.note(piece(1, 5_000, 5_001));
        assert_eq!(gaps.kept().in_buffers, 5_000 - 3, "all that came counts");
        gaps.note(frame(RequestFrameKind::Reset, 10_000, 5_001, 5_014));
        let last = RequestFrame {
            is_last: true,
            ..piece(9_999, 6_000, 6_009)
        };
        gaps.note(last);
        assert_eq!(gaps.last.len(), MAX_BODIES - 2);
    }
}
