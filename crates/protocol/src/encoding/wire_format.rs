//! How objects of one type are wrapped in gets, lists and watch events.
use std::borrow::Cow;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::{Encoding, EventKind, Frame, ItemBytes, Malformed, json, protobuf};
use crate::ResourceVersion;

/// How objects of one type are wrapped, learned from an answer of upstream's.
///
/// Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireFormat {
    kind: Arc<str>,
    api_version: Arc<str>,
    /// Kind of the list.
    pub(super) list_kind: Arc<str>,
    pub(super) style: Style,
    /// What an object starts with in JSON; its `TypeMeta` in protobuf.
    pub(super) opening: Bytes,
}

/// How upstream prints a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// JSON of a Go struct: kind and apiVersion first, members in the struct's order.
    Struct {
        /// Items of a list lack kind and apiVersion; true of all but PartialObjectMetadata.
        bare_items: bool,
        /// A list of nothing has `"items":null`; true of PartialObjectMetadata only.
        null_items: bool,
    },
    /// JSON of a custom resource: members sorted on every level.
    Sorted,
    /// Protobuf.
    Message,
}

const STATUS: (&str, &str) = ("v1", "Status");

impl WireFormat {
    pub(super) fn new(
        kind: &str,
        api_version: &str,
        list_kind: &str,
        style: Style,
    ) -> Result<Self, Malformed> {
        // Names upstream prints without any escape; so they can be compared and written as they
        // are.
        let plain = |name: &str| {
            !name.is_empty()
                && name
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"./-_".contains(&b))
        };
        if ![kind, api_version, list_kind].into_iter().all(plain) {
            return Err(Malformed("list of a type with an odd name"));
        }
        Ok(Self::of_names(kind, api_version, list_kind, style))
    }

    /// The form of a type whose names are known to need no escapes.
    pub(super) fn of_names(kind: &str, api_version: &str, list_kind: &str, style: Style) -> Self {
        let opening = match style {
            Style::Struct { .. } => {
                format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","#).into()
            }
            Style::Sorted => format!(r#"{{"apiVersion":"{api_version}","#).into(),
            Style::Message => protobuf::type_meta(api_version, kind),
        };
        Self {
            kind: kind.into(),
            api_version: api_version.into(),
            list_kind: list_kind.into(),
            style,
            opening: opening.into(),
        }
    }

    /// The wire form.
    pub fn encoding(&self) -> Encoding {
        match self.style {
            Style::Struct { .. } | Style::Sorted => Encoding::Json,
            Style::Message => Encoding::Protobuf,
        }
    }

    /// Kind of the objects.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Group and version of the objects, for example `apps/v1`.
    pub fn api_version(&self) -> &str {
        &self.api_version
    }

    /// Checks that an object starts as the type's objects do, so that it can be re-framed exactly.
    pub fn check(&self, object: &Bytes) -> Result<(), Malformed> {
        let fits = match self.style {
            Style::Struct { .. } => object.starts_with(&self.opening) && object.ends_with(b"}"),
            // A custom resource may have members that sort before its apiVersion.
            Style::Sorted => {
                let earlier = |first: &[u8]| first < b"apiVersion\"".as_slice();
                let fits = object.starts_with(&self.opening)
                    || object.strip_prefix(b"{\"").is_some_and(earlier);
                fits && object.ends_with(b"}")
            }
            // The names stand in the envelope; of the object itself only its first field is known.
            Style::Message => object.first() == Some(&0x0a),
        };
        if fits {
            Ok(())
        } else {
            Err(Malformed("object of another type or in another style"))
        }
    }

    /// Checks that a received event is byte for byte what [`event`](Self::event) makes of its
    /// object.
    pub fn check_frame(&self, frame: &Frame) -> Result<(), Malformed> {
        if frame.kind != EventKind::Error {
            self.check(&frame.object)?;
        }
        let (head, tail) = self.event_ends(frame.kind, frame.object.len());
        let fits = frame.frame.len() == head.len() + frame.object.len() + tail.len()
            && frame.frame.starts_with(&head)
            && frame.frame.ends_with(tail);
        if fits {
            Ok(())
        } else {
            Err(Malformed("event in another style"))
        }
    }

    /// The body of a GET.
    pub fn get_body(&self, object: &ItemBytes) -> Bytes {
        let opening = &self.opening[..self.omitted()];
        let mut out;
        match self.encoding() {
            Encoding::Json => {
                out = Vec::with_capacity(opening.len() + object.len() + 1);
                out.extend_from_slice(opening);
                out.extend_from_slice(object.bytes());
                out.push(b'\n');
            }
            Encoding::Protobuf => {
                out = Vec::with_capacity(protobuf::envelope_len(&self.opening, object.len()));
                protobuf::put_envelope_head(&mut out, &self.opening, object.len());
                out.extend_from_slice(object.bytes());
                out.extend_from_slice(protobuf::UNKNOWN_TAIL);
            }
        }
        out.into()
    }

    /// A whole watch frame.
    pub fn event(&self, kind: EventKind, object: &ItemBytes) -> Bytes {
        let mut out = BytesMut::new();
        self.put_event(kind, object, &mut out);
        out.freeze()
    }

    /// Appends a whole watch frame.
    pub fn put_event(&self, kind: EventKind, object: &ItemBytes, out: &mut BytesMut) {
        self.put_frame(kind, &self.opening[..self.omitted()], object.bytes(), out);
    }

    /// Appends what stands before an object's [bytes](ItemBytes::share) in a watch frame, and tells
    /// what stands after them.
    pub fn put_event_head(
        &self,
        kind: EventKind,
        object: &ItemBytes,
        out: &mut BytesMut,
    ) -> &'static [u8] {
        let opening = &self.opening[..self.omitted()];
        let (head, tail) = self.event_ends(kind, opening.len() + object.len());
        out.put_slice(&head);
        out.put_slice(opening);
        tail
    }

    /// A whole watch frame around an object's whole text or message.
    pub(super) fn event_of(&self, kind: EventKind, object: &[u8]) -> Bytes {
        let mut out = BytesMut::new();
        self.put_frame(kind, b"", object, &mut out);
        out.freeze()
    }

    /// A whole ERROR frame around a Status: its JSON text, or its bare protobuf message.
    pub fn status_event(&self, status: &[u8]) -> Bytes {
        self.event_of(EventKind::Error, status)
    }

    /// The object with another `metadata.resourceVersion` and every other byte kept.
    ///
    /// This is the splice a DELETED event needs: it carries the previous object with the version of
    /// the change.
    /// Source: `apiserver/pkg/storage/cacher/cacher.go:980-992`.
    pub fn with_version(
        &self,
        object: &ItemBytes,
        version: ResourceVersion,
    ) -> Result<ItemBytes, Malformed> {
        let version = version.to_string();
        match self.encoding() {
            Encoding::Json => {
                let text = [&self.opening[..self.omitted()], object.bytes()].concat();
                let digits = json::version_span(&text)?;
                let spliced = [
                    &text[..digits.start],
                    version.as_bytes(),
                    &text[digits.end..],
                ]
                .concat();
                Ok(self.item_bytes(&spliced.into()))
            }
            Encoding::Protobuf => {
                Ok(self.item_bytes(&protobuf::with_version(object.bytes(), &version)?.into()))
            }
        }
    }

    /// The object's text comes in two parts.
    fn put_frame(&self, kind: EventKind, opening: &[u8], rest: &[u8], out: &mut BytesMut) {
        let length = opening.len() + rest.len();
        let (head, tail) = self.event_ends(kind, length);
        out.reserve(head.len() + length + tail.len());
        for part in [&head, opening, rest, tail] {
            out.put_slice(part);
        }
    }

    /// What stands before and after an event's object.
    fn event_ends(&self, kind: EventKind, object: usize) -> (Cow<'static, [u8]>, &'static [u8]) {
        match (self.encoding(), kind) {
            (Encoding::Json, _) => (json_head(kind).into(), b"}\n"),
            (Encoding::Protobuf, EventKind::Error) => {
                let (api_version, kind_name) = STATUS;
                let names = protobuf::type_meta(api_version, kind_name);
                (
                    protobuf::event_head(kind.as_str(), &names, object).into(),
                    protobuf::UNKNOWN_TAIL,
                )
            }
            (Encoding::Protobuf, _) => (
                protobuf::event_head(kind.as_str(), &self.opening, object).into(),
                protobuf::UNKNOWN_TAIL,
            ),
        }
    }
}

/// What stands before the object in JSON.
fn json_head(kind: EventKind) -> &'static [u8] {
    match kind {
        EventKind::Added => br#"{"type":"ADDED","object":"#,
        EventKind::Modified => br#"{"type":"MODIFIED","object":"#,
        EventKind::Deleted => br#"{"type":"DELETED","object":"#,
        EventKind::Bookmark => br#"{"type":"BOOKMARK","object":"#,
        EventKind::Error => br#"{"type":"ERROR","object":"#,
    }
}
