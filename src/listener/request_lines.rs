//! Finds HTTP/1 requests whose target has a `#`, and heads that are not complete.
//!
//! hyper drops the `#` and what follows it, as a fragment that no client should send (RFC 9112,
//! section 3.2). Go's server takes it for a part of the path. Without it, a DELETE of one object can
//! be one of all: `DELETE /api/v1/namespaces/a/configmaps/#x`. So such requests are refused.
//!
//! All bytes are passed on as they are. So a mistake about where a request begins can refuse a
//! request, let one pass, or cut a connection that takes long for what is no head.
//!
//! Where the reader cannot tell the next request from a body, that request is refused as well.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memchr::{memchr, memchr2, memchr3};

use super::inspect::Inspect;

/// Bytes of a line that are looked at. A line that tells a body's length and has more is not
/// understood.
const MAX_LINE: usize = 256;

/// The bytes of an empty line, which clients may send behind a body.
const END_OF_LINE: usize = 2;

/// The first of a connection's requests that are refused. The connection ends with it.
#[derive(Debug)]
pub(crate) struct RefusedRequests {
    /// The number of the first request whose target has a `#`.
    with_fragment: AtomicU64,
    /// The number of the first request that may be a part of another.
    unclear: AtomicU64,
}

/// Reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestFault {
    /// Its target had a `#`, which it has no more.
    Fragment,
    /// It may be a part of the request before.
    Unclear,
}

/// Follows the requests in what a client sends, and finds those that are refused.
pub(crate) struct LineReader {
    refused: Arc<RefusedRequests>,
    place: LinePlace,
    /// The number of the request that is read.
    number: u64,
    /// The start of the line that is read, where it matters.
    line: Vec<u8>,
    body: BodyLength,
    /// Bytes of the head that is read.
    head: usize,
}

/// The place of the next byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinePlace {
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

/// The length of a request's body, as far as its headers tell it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BodyLength {
    #[default]
    None,
    Known(u64),
    Chunked,
    Unclear,
}

impl Default for RefusedRequests {
    fn default() -> Self {
        Self {
            with_fragment: AtomicU64::new(u64::MAX),
            unclear: AtomicU64::new(u64::MAX),
        }
    }
}

impl RefusedRequests {
    /// Returns why the request of this number is refused, if it is.
    pub(crate) fn fault(&self, number: u64) -> Option<RequestFault> {
        if number >= self.with_fragment.load(Ordering::Acquire) {
            return Some(RequestFault::Fragment);
        }
        (number >= self.unclear.load(Ordering::Acquire)).then_some(RequestFault::Unclear)
    }
}

impl Inspect for LineReader {
    fn inspect(&mut self, bytes: &mut [u8]) {
        let mut bytes = &*bytes;
        while !bytes.is_empty() && self.place != LinePlace::Unknown {
            let (number, was_in_head) = (self.number, self.is_in_head());
            let read = self.step(bytes);
            self.head = if self.number == number && was_in_head && self.is_in_head() {
                self.head + read
            } else {
                0
            };
            bytes = &bytes[read..];
        }
        if self.place == LinePlace::Unknown {
            self.refused
                .unclear
                .fetch_min(self.number, Ordering::Release);
        }
    }
}

impl LineReader {
    pub(crate) fn new(refused: Arc<RefusedRequests>) -> Self {
        Self {
            refused,
            place: LinePlace::default(),
            number: 0,
            line: Vec::new(),
            body: BodyLength::default(),
            head: 0,
        }
    }

    /// Returns the bytes of the head that is not complete, with empty lines before it; zero if there is none.
    pub(super) fn unfinished(&self) -> usize {
        let has_begun = self.place != LinePlace::Method || !self.line.trim_ascii().is_empty();
        if has_begun || self.head > END_OF_LINE {
            self.head
        } else {
            0
        }
    }

    /// Returns `true` if what follows cannot be told from a request.
    pub(super) fn is_lost(&self) -> bool {
        self.place == LinePlace::Unknown
    }

    /// Returns `true` between two requests, and up to the end of a head.
    fn is_in_head(&self) -> bool {
        match self.place {
            LinePlace::Method | LinePlace::Target | LinePlace::Version | LinePlace::Header => true,
            LinePlace::Body(_)
            | LinePlace::ChunkSize
            | LinePlace::Chunk(_)
            | LinePlace::ChunkEnd
            | LinePlace::Trailer
            | LinePlace::Unknown => false,
        }
    }

    /// Reads up to the next place, or all. Returns the number of bytes read.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match self.place {
            LinePlace::Method => self.method(bytes),
            LinePlace::Target => self.target(bytes),
            LinePlace::Version | LinePlace::ChunkEnd => {
                let next = match self.place {
                    LinePlace::Version => LinePlace::Header,
                    _ => LinePlace::ChunkSize,
                };
                let end = memchr(b'\n', bytes);
                if end.is_some() {
                    self.place = next;
                }
                end.map_or(bytes.len(), |end| end + 1)
            }
            LinePlace::Header | LinePlace::ChunkSize | LinePlace::Trailer => self.line(bytes),
            LinePlace::Body(left) => {
                let taken = skip(bytes, left);
                self.place = match left - taken as u64 {
                    0 => LinePlace::Method,
                    left => LinePlace::Body(left),
                };
                taken
            }
            LinePlace::Chunk(left) => {
                let taken = skip(bytes, left);
                self.place = match left - taken as u64 {
                    0 => LinePlace::ChunkEnd,
                    left => LinePlace::Chunk(left),
                };
                taken
            }
            LinePlace::Unknown => bytes.len(),
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
            b'\n' if is_empty => LinePlace::Method,
            b' ' if !is_empty => LinePlace::Target,
            _ => LinePlace::Unknown,
        };
        self.line.clear();
        end + 1
    }

    fn target(&mut self, bytes: &[u8]) -> usize {
        let Some(end) = memchr3(b' ', b'\n', b'#', bytes) else {
            return bytes.len();
        };
        match bytes[end] {
            b' ' => self.place = LinePlace::Version,
            b'#' => {
                let first = &self.refused.with_fragment;
                first.fetch_min(self.number, Ordering::Release);
            }
            _ => self.place = LinePlace::Unknown,
        }
        end + 1
    }

    fn line(&mut self, bytes: &[u8]) -> usize {
        let end = memchr(b'\n', bytes);
        self.collect(&bytes[..end.unwrap_or(bytes.len())]);
        let Some(end) = end else {
            return bytes.len();
        };
        let is_whole = self.line.len() < MAX_LINE;
        let line = self.line.trim_ascii_end();
        match self.place {
            LinePlace::Header if line.is_empty() && is_whole => self.end_head(),
            LinePlace::Header => self.body.note(line, is_whole),
            LinePlace::ChunkSize => {
                self.place = match chunk_size(line, is_whole) {
                    Some(0) => LinePlace::Trailer,
                    Some(size) => LinePlace::Chunk(size),
                    None => LinePlace::Unknown,
                };
            }
            // hyper ends the lines of trailers with both bytes only.
            _ if !is_whole || self.line.last() != Some(&b'\r') => self.place = LinePlace::Unknown,
            _ if line.is_empty() => self.place = LinePlace::Method,
            _ => {}
        }
        self.line.clear();
        end + 1
    }

    fn end_head(&mut self) {
        self.number += 1;
        self.place = match std::mem::take(&mut self.body) {
            BodyLength::None | BodyLength::Known(0) => LinePlace::Method,
            BodyLength::Known(length) => LinePlace::Body(length),
            BodyLength::Chunked => LinePlace::ChunkSize,
            BodyLength::Unclear => LinePlace::Unknown,
        };
    }

    fn collect(&mut self, bytes: &[u8]) {
        let room = MAX_LINE - self.line.len();
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

impl BodyLength {
    /// Notes a header line, or the start of one that is longer.
    fn note(&mut self, line: &[u8], is_whole: bool) {
        let Some(colon) = memchr(b':', line) else {
            return;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let is_length = name.eq_ignore_ascii_case(b"content-length");
        if !is_length && !name.eq_ignore_ascii_case(b"transfer-encoding") {
            return;
        }
        *self = match (*self, decimal(value)) {
            _ if !is_whole => Self::Unclear,
            (Self::None, Some(length)) if is_length => Self::Known(length),
            (Self::Known(known), Some(length)) if is_length && known == length => *self,
            (Self::None, None) if !is_length && value.eq_ignore_ascii_case(b"chunked") => {
                Self::Chunked
            }
            _ => Self::Unclear,
        };
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
fn chunk_size(line: &[u8], is_whole: bool) -> Option<u64> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit());
    let digits = digits.count();
    if digits == line.len() && !is_whole {
        return None;
    }
    let text = std::str::from_utf8(&line[..digits]).ok()?;
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers of the first requests with either fault, read in pieces of this size.
    fn refused(sent: &str, piece: usize) -> [Option<u64>; 2] {
        let refused = Arc::new(RefusedRequests::default());
        let mut reader = LineReader::new(Arc::clone(&refused));
        for piece in sent.as_bytes().chunks(piece) {
            reader.inspect(&mut piece.to_vec());
        }
        [&refused.with_fragment, &refused.unclear].map(|first| {
            let first = first.load(Ordering::Acquire);
            (first < u64::MAX).then_some(first)
        })
    }

    fn assert_refused(sent: &str, wanted: [Option<u64>; 2]) {
        for piece in [1, 2, 3, 7, sent.len().max(1)] {
            assert_eq!(refused(sent, piece), wanted, "{sent}, in pieces of {piece}");
        }
    }

    const GET: &str = "GET /api HTTP/1.1\r\nHost: a#b\r\n\r\n";
    const ODD: &str = "GET /api/?a=b#c#d HTTP/1.1\r\nHost: a\r\n\r\n";
    const CHUNKED: &str = "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n";

    #[test]
    fn the_first_target_with_a_number_sign_is_found_however_it_arrives() {
        let posted = "POST /a HTTP/1.1\r\nContent-Length: 18\r\nContent-length: 18\r\n\r\n\
                      GET /#b HTTP/1.1\r\n";
        let extension = "#".repeat(2 * MAX_LINE);
        let chunked = format!(
            "{CHUNKED}12;x={extension}\r\nGET /#b HTTP/1.1\r\n\r\n00\r\nTrailer: #\r\n\r\n"
        );
        let empty = "PUT / HTTP/1.1\r\nContent-Length: 0\r\n\r\n";
        let long = format!(
            "GET / HTTP/1.1\r\nX: {}\r\n\r\n",
            "#\u{e4}".repeat(MAX_LINE)
        );
        let upgrade = "GET / HTTP/1.1\r\nUpgrade: x\r\n\r\n";
        let connect = "CONNECT a:443 HTTP/1.1\r\n\r\n";
        let bare = "GET / HTTP/1.0\nHost: a\n\n";
        for (before, number) in [
            (String::new(), 0),
            ("\r\n\n".to_owned(), 0),
            (GET.to_owned(), 1),
            (format!("{posted}{posted}"), 2),
            (format!("{chunked}{GET}{chunked}"), 3),
            (format!("{empty}\r\n{long}{bare}"), 3),
            // They need not be followed by another protocol.
            (format!("{upgrade}{connect}"), 2),
        ] {
            assert_refused(&before, [None, None]);
            assert_refused(&format!("{before}{ODD}{GET}{ODD}"), [Some(number), None]);
        }
    }

    #[test]
    fn what_cannot_be_told_from_a_body_is_refused() {
        let with = |header: &str| format!("POST / HTTP/1.1\r\n{header}\r\n\r\n");
        let far = " ".repeat(MAX_LINE);
        let zeros = "0".repeat(MAX_LINE);
        for before in [
            with("Content-Length: 1\r\nContent-Length: 2"),
            with("Content-Length: -1"),
            with("Content-Length:"),
            with("Content-Length: 1\r\nTransfer-Encoding: chunked"),
            with("Transfer-Encoding: chunked\r\nContent-Length: 1"),
            with("Transfer-Encoding: gzip"),
            with(&format!("Transfer-Encoding:{far}chunked")),
            with(&format!("Content-Length:{far}5")),
            with(&format!("Content-Length:{zeros}5")),
            format!("{CHUNKED}x\r\n"),
            format!("{CHUNKED}{:x}0\r\n", u64::MAX),
            format!("{CHUNKED}{zeros}5\r\n"),
            format!("{CHUNKED}0\r\na: b\n\r\n"),
            format!("{CHUNKED}0\r\na:{far}\r\n\r\n"),
        ] {
            assert_refused(&format!("{GET}{before}{ODD}"), [None, Some(2)]);
        }
        for before in ["no request\n", " ", "GET /\n"] {
            assert_refused(&format!("{GET}{before}{ODD}"), [None, Some(1)]);
        }
    }

    #[test]
    fn requests_before_a_fault_are_not_refused() {
        let refused = RefusedRequests::default();
        assert_eq!(refused.fault(0), None);
        refused.unclear.store(3, Ordering::Release);
        refused.with_fragment.store(4, Ordering::Release);
        let faults = [2, 3, 4].map(|number| refused.fault(number));
        let wanted = [
            None,
            Some(RequestFault::Unclear),
            Some(RequestFault::Fragment),
        ];
        assert_eq!(faults, wanted);
    }
}
