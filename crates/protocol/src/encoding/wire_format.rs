//! The format of a type's objects in gets, lists and watch events.
use std::borrow::Cow;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::frames::{EventKind, Frame};
use super::item_bytes::ItemBytes;
use super::malformed::Malformed;
use super::managed_fields::{ManagedFields, without_field, without_member};
use super::{json, protobuf};
use crate::resource::{GroupVersionResource, is_built_in_group};
use crate::{Encoding, ResourceVersion};

/// The format of a type's objects, learned from an answer of upstream. Cheap to clone.
///
/// It writes upstream's envelopes around an object's bytes, in gets, lists and watch events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireFormat {
    kind: Arc<str>,
    api_version: Arc<str>,
    /// Kind of the list.
    pub(super) list_kind: Arc<str>,
    pub(super) style: PrintStyle,
    /// The start of an object in JSON; its `TypeMeta` in protobuf.
    pub(crate) opening: Bytes,
    pub(super) managed_fields: ManagedFields,
}

/// The style in which upstream prints a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrintStyle {
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
        style: PrintStyle,
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

    /// Creates the format of a type whose names are known to need no escapes.
    pub(super) fn of_names(
        kind: &str,
        api_version: &str,
        list_kind: &str,
        style: PrintStyle,
    ) -> Self {
        let opening = match style {
            PrintStyle::Struct { .. } => {
                format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","#).into()
            }
            PrintStyle::Sorted => format!(r#"{{"apiVersion":"{api_version}","#).into(),
            PrintStyle::Message => protobuf::type_meta(api_version, kind),
        };
        Self {
            kind: kind.into(),
            api_version: api_version.into(),
            list_kind: list_kind.into(),
            style,
            opening: opening.into(),
            managed_fields: ManagedFields::Keep,
        }
    }

    /// Returns the format of a type that is compiled into kube-apiserver; `None` for others, which
    /// are printed otherwise.
    ///
    /// Nothing of upstream's shows it yet: what comes has to pass
    /// [`check_frame`](Self::check_frame). Names of lists follow from those of their objects.
    /// Source: `kubernetes/pkg/apis/*/v*/register.go` (addKnownTypes).
    pub fn built_in(gvr: &GroupVersionResource, kind: &str, encoding: Encoding) -> Option<Self> {
        if !is_built_in_group(&gvr.group) {
            return None;
        }
        let api_version = match &*gvr.group {
            "" => gvr.version.to_string(),
            group => format!("{group}/{}", gvr.version),
        };
        let style = match encoding {
            Encoding::Json => PrintStyle::Struct {
                bare_items: true,
                null_items: false,
            },
            Encoding::Protobuf => PrintStyle::Message,
        };
        Self::new(kind, &api_version, &format!("{kind}List"), style).ok()
    }

    /// Returns the encoding.
    pub fn encoding(&self) -> Encoding {
        match self.style {
            PrintStyle::Struct { .. } | PrintStyle::Sorted => Encoding::Json,
            PrintStyle::Message => Encoding::Protobuf,
        }
    }

    /// Returns the kind of the objects.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns group and version of the objects, for example `apps/v1`.
    pub fn api_version(&self) -> &str {
        &self.api_version
    }

    /// Returns the format with another treatment of managed fields.
    #[must_use]
    pub fn with_managed_fields(mut self, managed_fields: ManagedFields) -> Self {
        self.managed_fields = managed_fields;
        self
    }

    /// Returns the treatment of managed fields.
    pub fn managed_fields(&self) -> ManagedFields {
        self.managed_fields
    }

    /// Returns an object of upstream's as it is held: without managed fields if they are dropped.
    ///
    /// The object must have passed [`check`](Self::check).
    pub fn held(&self, object: &Bytes) -> Result<Bytes, Malformed> {
        match (self.managed_fields, self.style) {
            (ManagedFields::Keep, _) => Ok(object.clone()),
            (ManagedFields::Drop, PrintStyle::Message) => without_field(object),
            (ManagedFields::Drop, PrintStyle::Struct { .. }) => {
                without_member(object, self.opening.len())
            }
            (ManagedFields::Drop, PrintStyle::Sorted) => without_member(object, 0),
        }
    }

    /// Returns the part of an object's whole text or message that is held: a slice of it.
    ///
    /// The object must have passed [`check`](Self::check).
    pub fn item_bytes(&self, object: &Bytes) -> ItemBytes {
        ItemBytes::new(object.slice(self.omitted().min(object.len())..))
    }

    /// Returns the number of bytes that are held of an object with a text or message of this length.
    pub fn item_bytes_len(&self, object: usize) -> usize {
        object.saturating_sub(self.omitted())
    }

    /// Returns `true` if items of a list lack kind and apiVersion.
    pub fn has_bare_items(&self) -> bool {
        self.omitted() > 0
    }

    /// Returns the bytes of the opening that items of a list lack.
    pub(crate) fn omitted(&self) -> usize {
        match self.style {
            PrintStyle::Struct {
                bare_items: true, ..
            } => self.opening.len(),
            _ => 0,
        }
    }

    /// Checks that an object starts as the type's objects do, so that it can be re-framed exactly.
    pub fn check(&self, object: &[u8]) -> Result<(), Malformed> {
        let fits = match self.style {
            PrintStyle::Struct { .. } => {
                object.starts_with(&self.opening) && object.ends_with(b"}")
            }
            // A custom resource may have members that sort before its apiVersion.
            PrintStyle::Sorted => {
                let earlier = |first: &[u8]| first < b"apiVersion\"".as_slice();
                let fits = object.starts_with(&self.opening)
                    || object.strip_prefix(b"{\"").is_some_and(earlier);
                fits && object.ends_with(b"}")
            }
            // The names stand in the envelope; of the object itself only its first field is known.
            PrintStyle::Message => object.first() == Some(&0x0a),
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

    /// Returns the object in the body of a GET.
    pub fn object_in(&self, get_body: &Bytes) -> Result<Bytes, Malformed> {
        match self.encoding() {
            Encoding::Json => Ok(get_body.clone()),
            Encoding::Protobuf => {
                let envelope = protobuf::UnknownEnvelope::read(get_body)?;
                Ok(get_body.slice_ref(envelope.raw))
            }
        }
    }

    /// Returns the body of a GET.
    pub fn get_body(&self, object: &ItemBytes) -> Bytes {
        let body = match self.encoding() {
            Encoding::Json => [&self.opening[..self.omitted()], object.bytes(), b"\n"].concat(),
            Encoding::Protobuf => protobuf::envelope(&self.opening, object.bytes()),
        };
        body.into()
    }

    /// Returns a whole watch frame.
    pub fn event(&self, kind: EventKind, object: &ItemBytes) -> Bytes {
        let mut out = BytesMut::new();
        self.put_event(kind, object, &mut out);
        out.freeze()
    }

    /// Appends a whole watch frame.
    pub fn put_event(&self, kind: EventKind, object: &ItemBytes, out: &mut BytesMut) {
        self.put_frame(kind, &self.opening[..self.omitted()], object.bytes(), out);
    }

    /// Appends the part of a watch frame before an object's [bytes](ItemBytes::share), and returns
    /// the part after them.
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

    /// Returns a whole watch frame around an object's whole text or message.
    pub(crate) fn event_of(&self, kind: EventKind, object: &[u8]) -> Bytes {
        let mut out = BytesMut::new();
        self.put_frame(kind, b"", object, &mut out);
        out.freeze()
    }

    /// Returns a watch event around an object's whole text or message.
    pub fn frame(&self, kind: EventKind, object: &[u8]) -> Frame {
        let frame = self.event_of(kind, object);
        let start = self.event_ends(kind, object.len()).0.len();
        Frame {
            kind,
            object: frame.slice(start..start + object.len()),
            frame,
        }
    }

    /// Returns a whole ERROR frame around a Status: its JSON text, or its bare protobuf message.
    pub fn status_event(&self, status: &[u8]) -> Bytes {
        self.event_of(EventKind::Error, status)
    }

    /// Returns the object with another `metadata.resourceVersion`. Every other byte is kept.
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

    /// Appends a whole watch frame of an object, whose text comes in two parts.
    fn put_frame(&self, kind: EventKind, opening: &[u8], rest: &[u8], out: &mut BytesMut) {
        let length = opening.len() + rest.len();
        let (head, tail) = self.event_ends(kind, length);
        out.reserve(head.len() + length + tail.len());
        for part in [&head, opening, rest, tail] {
            out.put_slice(part);
        }
    }

    /// Returns the bytes before and after an event's object.
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

/// Returns the text before the object in JSON.
fn json_head(kind: EventKind) -> &'static [u8] {
    match kind {
        EventKind::Added => br#"{"type":"ADDED","object":"#,
        EventKind::Modified => br#"{"type":"MODIFIED","object":"#,
        EventKind::Deleted => br#"{"type":"DELETED","object":"#,
        EventKind::Bookmark => br#"{"type":"BOOKMARK","object":"#,
        EventKind::Error => br#"{"type":"ERROR","object":"#,
    }
}
