//! Finds HTTP/1 requests whose target has a `#`.
//!
//! hyper drops the `#` and what follows it, as a fragment that no client should send (RFC 9112,
//! section 3.2). Go's server takes it for a part of the path. Without it, a DELETE of one object can
//! be one of all: `DELETE /api/v1/namespaces/a/configmaps/#x`. So such requests are refused.
//!
//! What is read is passed on as it is. So a mistake about where a request begins can refuse a
//! request or let one pass, and nothing else.
use std::collections::VecDeque;
use std::sync::Arc;

use super::inspected::Inspect;
use memchr::{memchr, memchr2, memchr3};
use parking_lot::Mutex;

/// Bytes of a header line that are looked at. Those that tell a body's length are shorter.
const MAX_LINE: usize = 256;
/// Requests with a `#` that a client may have sent ahead. Beyond them nothing is looked at any more.
const MAX_MARKS: usize = 1024;

/// The numbers of a connection's requests whose target has a `#`.
#[derive(Default)]
pub(super) struct FragmentMarks(Mutex<VecDeque<u64>>);

/// Follows the requests in what a client sends, and marks those whose target has a `#`.
pub(super) struct LineReader {
    marks: Arc<FragmentMarks>,
    place: Place,
    /// The number of the request that is read.
    number: u64,
    /// The start of the line that is read, where it matters.
    line: Vec<u8>,
    body: BodyLength,
}

/// The place of the next byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before the end of the method.
    #[default]
    Method,
    Target,
    /// Behind the target, in the same line.
    Version,
    Header,
    /// In a body, of which so many bytes are left.
    Body(u64),
    /// In the line before a chunk.
    ChunkSize,
    /// In a chunk, of which so many bytes are left.
    Chunk(u64),
    /// In the end of the line behind a chunk.
    ChunkEnd,
    Trailer,
    /// In what is no request, or cannot be told from one.
    Unknown,
}

/// What the headers of a request tell about its body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BodyLength {
    #[default]
    None,
    Known(u64),
    Chunked,
    Unclear,
}

impl FragmentMarks {
    fn mark(&self, number: u64) -> bool {
        let mut marks = self.0.lock();
        if marks.back() != Some(&number) {
            marks.push_back(number);
        }
        marks.len() <= MAX_MARKS
    }

    /// Returns `true` if the request of this number is marked. Requests come in their order.
    pub(super) fn take(&self, number: u64) -> bool {
        let mut marks = self.0.lock();
        while marks.front().is_some_and(|marked| *marked < number) {
            marks.pop_front();
        }
        marks.pop_front_if(|marked| *marked == number).is_some()
    }
}

impl Inspect for LineReader {
    fn inspect(&mut self, bytes: &mut [u8]) {
        let mut bytes = &*bytes;
        while !bytes.is_empty() && self.place != Place::Unknown {
            let read = self.step(bytes);
            bytes = &bytes[read..];
        }
    }
}

impl LineReader {
    pub(super) fn new(marks: Arc<FragmentMarks>) -> Self {
        Self {
            marks,
            place: Place::default(),
            number: 0,
            line: Vec::new(),
            body: BodyLength::default(),
        }
    }

    /// Reads up to the next place, or all. Returns the number of bytes read.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match self.place {
            Place::Method => self.method(bytes),
            Place::Target => self.target(bytes),
            Place::Version | Place::ChunkEnd => {
                let next = match self.place {
                    Place::Version => Place::Header,
                    _ => Place::ChunkSize,
                };
                let end = memchr(b'\n', bytes);
                if end.is_some() {
                    self.place = next;
                }
                end.map_or(bytes.len(), |end| end + 1)
            }
            Place::Header | Place::ChunkSize | Place::Trailer => self.line(bytes),
            Place::Body(left) => {
                let taken = skip(bytes, left);
                self.place = match left - taken as u64 {
                    0 => Place::Method,
                    left => Place::Body(left),
                };
                taken
            }
            Place::Chunk(left) => {
                let taken = skip(bytes, left);
                self.place = match left - taken as u64 {
                    0 => Place::ChunkEnd,
                    left => Place::Chunk(left),
                };
                taken
            }
            Place::Unknown => bytes.len(),
        }
    }

    fn method(&mut self, bytes: &[u8]) -> usize {
        let end = memchr2(b' ', b'\n', bytes);
        self.collect(&bytes[..end.unwrap_or(bytes.len())]);
        let Some(end) = end else {
            return bytes.len();
        };
        // Empty lines before a request are passed over.
        let is_empty = self.line.trim_ascii().is_empty();
        self.place = match bytes[end] {
            b'\n' if is_empty => Place::Method,
            b' ' if !is_empty && self.line != b"CONNECT" => Place::Target,
            _ => Place::Unknown,
        };
        self.line.clear();
        end + 1
    }

    fn target(&mut self, bytes: &[u8]) -> usize {
        let Some(end) = memchr3(b' ', b'\n', b'#', bytes) else {
            return bytes.len();
        };
        match bytes[end] {
            b' ' => self.place = Place::Version,
            b'#' if self.marks.mark(self.number) => {}
            _ => self.place = Place::Unknown,
        }
        end + 1
    }

    fn line(&mut self, bytes: &[u8]) -> usize {
        let end = memchr(b'\n', bytes);
        self.collect(&bytes[..end.unwrap_or(bytes.len())]);
        let Some(end) = end else {
            return bytes.len();
        };
        let line = self.line.trim_ascii_end();
        match self.place {
            Place::Header if line.is_empty() => self.end_head(),
            Place::Header => self.body.note(line),
            Place::ChunkSize => {
                self.place = match chunk_size(line) {
                    Some(0) => Place::Trailer,
                    Some(size) => Place::Chunk(size),
                    None => Place::Unknown,
                };
            }
            _ if line.is_empty() => self.place = Place::Method,
            _ => {}
        }
        self.line.clear();
        end + 1
    }

    fn end_head(&mut self) {
        self.number += 1;
        self.place = match std::mem::take(&mut self.body) {
            BodyLength::None | BodyLength::Known(0) => Place::Method,
            BodyLength::Known(length) => Place::Body(length),
            BodyLength::Chunked => Place::ChunkSize,
            BodyLength::Unclear => Place::Unknown,
        };
    }

    fn collect(&mut self, bytes: &[u8]) {
        let room = MAX_LINE - self.line.len();
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

impl BodyLength {
    /// Notes a header line.
    fn note(&mut self, line: &[u8]) {
        let Some(colon) = memchr(b':', line) else {
            return;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            *self = match (*self, decimal(value)) {
                (Self::None, Some(length)) => Self::Known(length),
                (Self::Known(known), Some(length)) if known == length => *self,
                _ => Self::Unclear,
            };
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            let is_chunked = *self == Self::None && value.eq_ignore_ascii_case(b"chunked");
            *self = if is_chunked {
                Self::Chunked
            } else {
                Self::Unclear
            };
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            // What follows may be of another protocol.
            *self = Self::Unclear;
        }
    }
}

fn skip(bytes: &[u8], left: u64) -> usize {
    usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()))
}

fn decimal(text: &[u8]) -> Option<u64> {
    let digits = text.iter().all(u8::is_ascii_digit);
    digits
        .then_some(text)
        .and_then(|text| std::str::from_utf8(text).ok()?.parse().ok())
}

/// Returns the size in the line before a chunk, which may have extensions.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line
        .iter()
        .take_while(|byte| byte.is_ascii_hexdigit())
        .count();
    let text = std::str::from_utf8(&line[..digits]).ok()?;
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers of the requests that are marked, read in pieces of this size.
    fn marked(sent: &str, piece: usize) -> Vec<u64> {
        let marks = Arc::new(FragmentMarks::default());
        let mut reader = LineReader::new(Arc::clone(&marks));
        for piece in sent.as_bytes().chunks(piece) {
            reader.inspect(&mut piece.to_vec());
        }
        let marks = marks.0.lock();
        marks.iter().copied().collect()
    }

    #[test]
    fn only_targets_are_marked_however_they_arrive() {
        let get = "GET /api HTTP/1.1\r\nHost: a#b\r\n\r\n";
        let odd = "GET /api/#x?a=b#c HTTP/1.1\r\nHost: a\r\n\r\n";
        let posted = "POST /#a HTTP/1.1\r\nContent-Length: 18\r\nContent-length: 18\r\n\r\nGET /#b HTTP/1.1\r\n";
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n\
                       12;x=#\r\nGET /#b HTTP/1.1\r\n\r\n00\r\nTrailer: #\r\n\r\n";
        let empty = "PUT / HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
        let upgrade = "GET / HTTP/1.1\r\nUpgrade: x\r\n\r\n";
        let long = format!(
            "GET / HTTP/1.1\r\nX: {}\r\n\r\n",
            "#\u{e4}".repeat(MAX_LINE)
        );
        for (sent, wanted) in [
            (format!("{get}{odd}"), &[1][..]),
            (format!("{odd}{get}\r\n{odd}"), &[0, 2]),
            (format!("{odd}{odd}"), &[0, 1]),
            (format!("{posted}{odd}{posted}"), &[0, 1, 2]),
            (format!("{chunked}{odd}{chunked}{get}{odd}"), &[1, 4]),
            (format!("{empty}{long}{odd}"), &[2]),
            (
                "GET /#a HTTP/1.1\nHost: a\n\nGET /#b HTTP/1.0\n\n".to_owned(),
                &[0, 1],
            ),
            // Nothing that follows can be told from a request.
            (format!("{odd}{upgrade}{odd}"), &[0]),
            (format!("CONNECT a:443 HTTP/1.1\r\n\r\n{odd}"), &[]),
            (format!("no request\n{odd}"), &[]),
            (format!("\r\n\r\n{odd}"), &[0]),
            (format!(" {odd}"), &[]),
            (
                format!("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{odd}"),
                &[],
            ),
            (
                format!("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n{odd}"),
                &[],
            ),
            (
                format!("POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n{odd}"),
                &[],
            ),
            (
                format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n{odd}"),
                &[],
            ),
            (
                format!(
                    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{:x}0\r\n{odd}",
                    u64::MAX
                ),
                &[],
            ),
        ] {
            for piece in [1, 2, 3, 7, sent.len()] {
                assert_eq!(marked(&sent, piece), wanted, "{sent}, in pieces of {piece}");
            }
        }
    }

    #[test]
    fn marks_are_taken_with_their_requests() {
        let marks = FragmentMarks::default();
        for number in [1, 1, 3, 4] {
            assert!(marks.mark(number));
        }
        assert_eq!(
            [0, 1, 2, 4, 5].map(|number| marks.take(number)),
            [false, true, false, true, false]
        );
        assert!(marks.0.lock().is_empty());
    }

    #[test]
    fn marks_are_bounded() {
        let sent = "GET /#a HTTP/1.1\n\n".repeat(2 * MAX_MARKS);
        assert_eq!(marked(&sent, sent.len()).len(), MAX_MARKS + 1);
    }
}
