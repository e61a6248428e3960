//! Cutting a watch stream into events.
//!
//! JSON: one document a line. Protobuf: a four-byte big-endian length and a WatchEvent. Chunks of
//! the transport and frames know nothing of each other. Sources:
//! `apiserver/pkg/endpoints/handlers/watch.go:438-456`,
//! `apimachinery/pkg/util/framer/framer.go:35-49`.
use std::borrow::Cow;
use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::json;
use super::malformed::{Malformed, offset_in};
use super::protobuf::{FieldReader, UnknownEnvelope};
use crate::Encoding;

/// The type of a watch event. Source: `apimachinery/pkg/watch/watch.go:56-62`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// An object came into being, or into the selection.
    Added,
    /// An object changed.
    Modified,
    /// An object went away, or out of the selection.
    Deleted,
    /// Everything up to a version has been sent.
    Bookmark,
    /// The watch ends, and why.
    Error,
}

impl EventKind {
    /// Returns the type's name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
            Self::Bookmark => "BOOKMARK",
            Self::Error => "ERROR",
        }
    }

    fn parse(word: &[u8]) -> Result<Self, Malformed> {
        [
            Self::Added,
            Self::Modified,
            Self::Deleted,
            Self::Bookmark,
            Self::Error,
        ]
        .into_iter()
        .find(|kind| kind.as_str().as_bytes() == word)
        .ok_or(Malformed("event of an unknown type"))
    }
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The type of the event.
    pub kind: EventKind,
    /// The whole as received: the line with its newline, or the message with its length.
    pub frame: Bytes,
    /// The object in it, a slice of `frame`; a Status for an ERROR.
    pub object: Bytes,
}

impl Frame {
    /// Returns a copy that shares no memory with other bytes.
    #[must_use]
    pub fn detached(&self) -> Self {
        let frame = Bytes::copy_from_slice(&self.frame);
        // An empty slice stands nowhere.
        let start = if self.object.is_empty() {
            0
        } else {
            offset_in(&self.frame, &self.object)
        };
        let object = frame.slice(start..start + self.object.len());
        Self {
            kind: self.kind,
            frame,
            object,
        }
    }
}

/// Cuts the chunks of a watch's body into frames.
///
/// A frame that is kept is a copy of its own size. A slice would hold its chunk in memory, and a
/// chunk may be a slice of a read buffer that is much larger. After an error the decoder returns no
/// more frames.
///
/// ```
/// use watershed_protocol::{Encoding, EventKind, FrameDecoder};
///
/// let mut decoder = FrameDecoder::new(Encoding::Json, 1 << 20);
/// decoder.push(r#"{"type":"ADDED","object":{"kind":"#.into());
/// assert_eq!(decoder.next_frame()?, None);
/// decoder.push("\"Pod\"}}\n".into());
/// let frame = decoder.next_frame()?.expect("the event is complete");
/// assert_eq!(frame.kind, EventKind::Added);
/// assert_eq!(frame.object, r#"{"kind":"Pod"}"#);
/// assert!(decoder.is_clean());
/// # Ok::<(), watershed_protocol::Malformed>(())
/// ```
#[derive(Debug)]
pub struct FrameDecoder {
    encoding: Encoding,
    max_frame_bytes: usize,
    /// Chunks not cut yet.
    chunks: VecDeque<Bytes>,
    /// The start of a frame whose end has not arrived.
    partial: Vec<u8>,
    failed: Option<Malformed>,
}

/// The lifetime of a frame after it is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FrameUse {
    /// It may be held for long.
    Kept,
    /// It is dropped before the next one is taken.
    Transient,
}

impl FrameDecoder {
    /// Creates a decoder that refuses frames above a size, framing included.
    pub fn new(encoding: Encoding, max_frame_bytes: usize) -> Self {
        Self {
            encoding,
            max_frame_bytes,
            chunks: VecDeque::new(),
            partial: Vec::new(),
            failed: None,
        }
    }

    /// Takes the next chunk of the body. Chunks wait in memory until their frames are taken.
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.chunks.push_back(chunk);
        }
    }

    /// Returns the next event, if it has arrived in full.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Malformed> {
        self.next(FrameUse::Kept)
    }

    /// Returns the next event, for a caller that drops it before it takes another.
    ///
    /// The frame is never copied, and may hold a much larger chunk in memory.
    pub fn next_transient_frame(&mut self) -> Result<Option<Frame>, Malformed> {
        self.next(FrameUse::Transient)
    }

    fn next(&mut self, frame_use: FrameUse) -> Result<Option<Frame>, Malformed> {
        if let Some(failure) = self.failed {
            return Err(failure);
        }
        let next = self
            .cut(frame_use)
            .and_then(|frame| frame.map(|frame| open(self.encoding, frame)).transpose());
        if let Err(failure) = next {
            self.failed = Some(failure);
            self.partial = Vec::new();
            self.chunks = VecDeque::new();
        }
        next
    }

    /// Returns `true` if no event is half-read. False at the end of a body: it was cut within an
    /// event.
    pub fn is_clean(&self) -> bool {
        self.failed.is_none() && self.partial.is_empty() && self.chunks.is_empty()
    }

    /// Takes the next frame's bytes off the chunks.
    fn cut(&mut self, frame_use: FrameUse) -> Result<Option<Bytes>, Malformed> {
        const TOO_LARGE: Malformed = Malformed("event larger than allowed");
        while let Some(chunk) = self.chunks.front_mut() {
            // How many bytes of the chunk belong to the frame, and whether they complete it.
            let (length, complete) = match self.encoding {
                Encoding::Json => {
                    memchr::memchr(b'\n', chunk).map_or((chunk.len(), false), |end| (end + 1, true))
                }
                Encoding::Protobuf => match protobuf_frame_len(&self.partial, chunk) {
                    Some(total) if total > self.max_frame_bytes as u64 => return Err(TOO_LARGE),
                    // Not beyond the limit, so it fits a usize.
                    Some(total) => {
                        let missing = total as usize - self.partial.len();
                        (missing.min(chunk.len()), missing <= chunk.len())
                    }
                    None => (chunk.len(), false),
                },
            };
            if self.partial.len() + length > self.max_frame_bytes {
                return Err(TOO_LARGE);
            }
            let is_whole = complete && self.partial.is_empty();
            let frame = if is_whole {
                let frame = chunk.split_to(length);
                Some(match frame_use {
                    FrameUse::Kept => Bytes::copy_from_slice(&frame),
                    FrameUse::Transient => frame,
                })
            } else {
                self.partial.extend_from_slice(&chunk[..length]);
                chunk.advance(length);
                complete.then(|| std::mem::take(&mut self.partial).into_boxed_slice().into())
            };
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
            if frame.is_some() {
                return Ok(frame);
            }
        }
        Ok(None)
    }
}

/// Returns the length of the frame that starts with `partial` and goes on with `chunk`, once its four
/// bytes are there.
fn protobuf_frame_len(partial: &[u8], chunk: &[u8]) -> Option<u64> {
    let mut bytes = partial.iter().chain(chunk).copied();
    let length = [bytes.next()?, bytes.next()?, bytes.next()?, bytes.next()?];
    Some(4 + u64::from(u32::from_be_bytes(length)))
}

fn open(encoding: Encoding, frame: Bytes) -> Result<Frame, Malformed> {
    match encoding {
        Encoding::Json => open_json(frame),
        Encoding::Protobuf => open_protobuf(frame),
    }
}

/// Takes `{"type":"X","object":{…}}` apart.
///
/// The form upstream prints is recognised by its two ends; that the object between them is one
/// well-formed value is for the scan of the object to find out. Any other spelling goes through a
/// parser.
fn open_json(frame: Bytes) -> Result<Frame, Malformed> {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
        #[serde(borrow)]
        object: &'a RawValue,
    }
    if let Some((kind, start)) = printed_form(&frame) {
        let object = frame.slice(start..frame.len() - 2);
        return Ok(Frame {
            kind: EventKind::parse(kind)?,
            object,
            frame,
        });
    }
    let event: Event<'_> = serde_json::from_slice(&frame)
        .map_err(|_| Malformed("line of a watch that is not an event"))?;
    let kind = EventKind::parse(event.kind.as_bytes())?;
    let object = frame.slice(json::span(&frame, event.object));
    Ok(Frame {
        kind,
        frame,
        object,
    })
}

/// Returns the event's type and the start of its object, if the line is as upstream prints it.
fn printed_form(line: &[u8]) -> Option<(&[u8], usize)> {
    let rest = line.strip_prefix(br#"{"type":""#)?;
    let kind = &rest[..memchr::memchr(b'"', rest)?];
    let object = rest[kind.len()..].strip_prefix(br#"","object":"#)?;
    (object.starts_with(b"{") && object.ends_with(b"}}\n"))
        .then(|| (kind, line.len() - object.len()))
}

/// Reads a WatchEvent{1: type, 2: RawExtension{1: envelope}}.
fn open_protobuf(frame: Bytes) -> Result<Frame, Malformed> {
    const NO_OBJECT: Malformed = Malformed("event without an object");
    let (mut kind, mut extension) = (None, None);
    let mut fields = FieldReader::new(&frame[4..]);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => kind = Some(EventKind::parse(value.bytes()?)?),
            2 => extension = Some(value.bytes()?),
            _ => {}
        }
    }
    let mut envelope = None;
    let mut fields = FieldReader::new(extension.ok_or(NO_OBJECT)?);
    while let Some((number, value)) = fields.next()? {
        if number == 1 {
            envelope = Some(value.bytes()?);
        }
    }
    let raw = UnknownEnvelope::read(envelope.ok_or(NO_OBJECT)?)?.raw;
    let start = offset_in(&frame, raw);
    let object = frame.slice(start..start + raw.len());
    Ok(Frame {
        kind: kind.ok_or(Malformed("event without a type"))?,
        object,
        frame,
    })
}
