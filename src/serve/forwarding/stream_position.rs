//! Finds the ends of events in the bytes of a forwarded watch.
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use crate::watcher::ContentCoding;
use watershed_protocol::{Encoding, GzipReader};

/// A stream that cannot be read, without data for this long, is between two events.
const QUIET: Duration = Duration::from_millis(500);

/// Position of the last byte in the stream of events.
#[derive(Debug)]
pub(super) enum StreamPosition {
    /// JSON: the last three bytes, which tell the end of an event.
    Json { last: [u8; 3], head: EventHead },
    /// Four bytes of length, then as many bytes: the known part of the length, and what is missing.
    Lengths {
        prefix: Vec<u8>,
        missing: usize,
        head: EventHead,
    },
    /// Compressed with gzip. Upstream ends a member with each event or batch of events.
    Gzip {
        members: GzipReader,
        unpacked: Box<StreamPosition>,
    },
    /// Compressed in another way. A quiet stream is between two events. It counts as quiet once the
    /// timer has run out.
    Unseen { quiet: Option<Pin<Box<Sleep>>> },
}

/// The first bytes of an event, which tell if it is a bookmark.
#[derive(Debug, Default)]
pub(super) struct EventHead {
    bytes: [u8; 24],
    length: usize,
}

impl EventHead {
    /// The beginnings of a bookmark: in JSON, in indented JSON, and in protobuf.
    const OF_BOOKMARKS: [&[u8]; 3] = [
        br#"{"type":"BOOKMARK""#,
        b"{\n  \"type\": \"BOOKMARK\"",
        b"\x0a\x08BOOKMARK",
    ];

    /// Takes the next bytes of the event. Returns `true` if it is a bookmark.
    fn push(&mut self, data: &[u8]) -> bool {
        let free = &mut self.bytes[self.length..];
        let taken = free.len().min(data.len());
        free[..taken].copy_from_slice(&data[..taken]);
        self.length += taken;
        let head = &self.bytes[..self.length];
        Self::OF_BOOKMARKS
            .iter()
            .any(|bookmark| head.starts_with(bookmark))
    }
}

impl StreamPosition {
    /// Returns the position before the first event. A stream whose coding is unknown is unseen.
    pub(super) fn new(encoding: Encoding, coding: Option<ContentCoding>) -> Self {
        match (coding, encoding) {
            (Some(ContentCoding::Identity), Encoding::Json) => Self::Json {
                last: *b"}}\n",
                head: EventHead::default(),
            },
            (Some(ContentCoding::Identity), Encoding::Protobuf) => Self::Lengths {
                prefix: Vec::new(),
                missing: 0,
                head: EventHead::default(),
            },
            (Some(ContentCoding::Gzip), _) => Self::Gzip {
                members: GzipReader::default(),
                unpacked: Box::new(Self::new(encoding, Some(ContentCoding::Identity))),
            },
            (None, _) => Self::Unseen { quiet: None },
        }
    }

    /// Returns `true` between two events, as far as that shows in the bytes.
    pub(super) fn is_between(&self) -> bool {
        match self {
            // Compact events are lines, in which the object or the type comes last. Pretty ones have
            // lines, too, but only the last line of an event is a brace without indentation.
            Self::Json { last, .. } => matches!(last, b"}}\n" | b"\"}\n" | b"\n}\n"),
            Self::Lengths {
                prefix, missing, ..
            } => prefix.is_empty() && *missing == 0,
            Self::Gzip { members, unpacked } => members.is_between() && unpacked.is_between(),
            Self::Unseen { .. } => false,
        }
    }

    /// Ready once nothing has come for a while.
    pub(super) fn poll_quiet(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Unseen { quiet } => quiet
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(QUIET)))
                .as_mut()
                .poll(context),
            _ => Poll::Pending,
        }
    }

    /// Moves on. Returns `true` if a bookmark is among the events.
    pub(super) fn pass(&mut self, mut data: &[u8]) -> bool {
        let mut has_bookmark = false;
        match self {
            Self::Unseen { quiet } => *quiet = None,
            Self::Json { .. } => {
                while !data.is_empty() {
                    let line = data.iter().position(|byte| *byte == b'\n');
                    let (passed, rest) = data.split_at(line.map_or(data.len(), |end| end + 1));
                    data = rest;
                    has_bookmark |= self.pass_line(passed);
                }
            }
            Self::Lengths {
                prefix,
                missing,
                head,
            } => {
                while !data.is_empty() {
                    let wanted = if *missing > 0 {
                        *missing
                    } else {
                        4 - prefix.len()
                    };
                    let (passed, rest) = data.split_at(wanted.min(data.len()));
                    data = rest;
                    if *missing > 0 {
                        has_bookmark |= head.push(passed);
                        *missing -= passed.len();
                        continue;
                    }
                    prefix.extend_from_slice(passed);
                    if let Ok(length) = <[u8; 4]>::try_from(prefix.as_slice()) {
                        *missing = u32::from_be_bytes(length) as usize;
                        prefix.clear();
                        *head = EventHead::default();
                    }
                }
            }
            Self::Gzip { members, unpacked } => {
                let read = members.read(data, |piece| has_bookmark |= unpacked.pass(&piece));
                if read.is_err() {
                    *self = Self::Unseen { quiet: None };
                }
            }
        }
        has_bookmark
    }

    /// Moves on by a line of JSON or a part of one. Returns `true` if its event is a bookmark.
    fn pass_line(&mut self, line: &[u8]) -> bool {
        let is_first = self.is_between();
        let Self::Json { last, head } = self else {
            return false;
        };
        if is_first {
            *head = EventHead::default();
        }
        for byte in &line[line.len().saturating_sub(3)..] {
            *last = [last[1], last[2], *byte];
        }
        head.push(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(encoding: Encoding) -> StreamPosition {
        StreamPosition::new(encoding, Some(ContentCoding::Identity))
    }

    #[test]
    fn the_ends_of_events_are_found() {
        let mut lines = plain(Encoding::Json);
        for (data, between) in [
            (&b""[..], true),
            (b"{{}}\n", true),
            (b"{", false),
            (b"", false),
            (b"{}}\n{{}}\n", true),
            (b"{{}", false),
            (b"}", false),
            (b"\n", true),
            (b"{\n  \"object\": {\n", false),
            (b"    \"spec\": {}\n", false),
            (b"    \"name\": \"a\"\n", false),
            (b"  }\n", false),
            (b"}\n", true),
        ] {
            lines.pass(data);
            assert_eq!(lines.is_between(), between, "{data:?}");
        }
        let stream = [
            &[0, 0, 0, 3][..],
            b"abc",
            &[0, 0, 0, 0],
            &[0, 0, 1, 0],
            &[7; 256],
        ]
        .concat();
        let ends = [0, 7, 11, stream.len()];
        for size in 1..9 {
            let mut lengths = plain(Encoding::Protobuf);
            let mut at = 0;
            for data in stream.chunks(size) {
                at += data.len();
                lengths.pass(data);
                assert_eq!(lengths.is_between(), ends.contains(&at), "{at}");
            }
        }
    }

    #[test]
    fn bookmarks_are_found_wherever_they_begin() {
        let json =
            "{\"type\":\"ADDED\",\"object\":{\"data\":\"{\\\"type\\\":\\\"BOOKMARK\\\"\"}}\n";
        let bookmark = "{\"type\":\"BOOKMARK\",\"object\":{}}\n";
        let pretty = "{\n  \"type\": \"BOOKMARK\",\n  \"object\": {}\n}\n";
        for size in 1..40 {
            let found = |text: &str| {
                let mut place = plain(Encoding::Json);
                let mut chunks = text.as_bytes().chunks(size);
                chunks.any(|chunk| place.pass(chunk))
            };
            assert!(!found(json));
            assert!(found(&format!("{json}{bookmark}")), "by {size}");
            assert!(found(&format!("{json}{pretty}")), "by {size}");
        }
    }
}
