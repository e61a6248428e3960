//! An object's bytes as they are held.
use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};

use super::protobuf;
use super::wire_format::{Style, WireFormat};

/// The bytes that gets, lists and events of an object have in common, so that a list's items can be
/// held as one run of bytes, of which each object is a slice.
///
/// Items of a list lack kind and apiVersion in the JSON of most types. Of those it is the object's
/// text after its [opening](WireFormat), without the brace; of all others it is the whole text, or
/// the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemBytes(Bytes);

/// Objects side by side, as they stand in a list.
#[derive(Clone, Debug)]
pub struct ItemRun {
    /// The items, each with a separator behind it.
    pub bytes: Bytes,
    /// Where each item ends, its separator included.
    pub ends: Box<[u32]>,
}

// === impl ItemBytes ===

impl ItemBytes {
    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A copy that shares no memory with anything.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    /// Whether it is a part of these bytes.
    pub fn is_part_of(&self, bytes: &Bytes) -> bool {
        bytes.as_ptr_range().contains(&self.0.as_ptr())
    }

    /// What can be parsed: the message, or a JSON value, without kind and apiVersion where lists
    /// have none.
    pub fn text(&self) -> Cow<'_, [u8]> {
        // Nothing else begins with a quote: JSON objects begin with a brace, messages with their
        // metadata's tag.
        if self.0.first() == Some(&b'"') {
            Cow::Owned([b"{", &self.0[..]].concat())
        } else {
            Cow::Borrowed(&self.0)
        }
    }

    /// The same bytes, not copied.
    pub fn share(&self) -> Bytes {
        self.0.clone()
    }

    pub(super) fn bytes(&self) -> &Bytes {
        &self.0
    }
}

// === impl WireFormat ===

impl WireFormat {
    /// What is held of an object, given its whole text or message: a slice of it.
    ///
    /// The object must have passed [`check`](Self::check).
    pub fn item_bytes(&self, object: &Bytes) -> ItemBytes {
        ItemBytes(object.slice(self.omitted().min(object.len())..))
    }

    /// Bytes an object takes as an item of a list, with the separator behind it.
    pub fn item_len(&self, object: &ItemBytes) -> usize {
        self.lead(object) + object.len() + self.separator()
    }

    /// Bytes of what stands between two items of a list.
    pub fn separator(&self) -> usize {
        usize::from(self.style != Style::Message)
    }

    /// Appends an object as an item of a list, with the separator behind it.
    pub fn put_item(&self, object: &ItemBytes, out: &mut BytesMut) {
        self.put_item_head(object, out);
        out.put_slice(object.bytes());
        self.put_separator(out);
    }

    /// Appends what stands before an object's [bytes](ItemBytes::share) in a list.
    pub fn put_item_head(&self, object: &ItemBytes, out: &mut BytesMut) {
        match self.style {
            Style::Message => {
                let mut header = Vec::with_capacity(6);
                protobuf::put_header(&mut header, protobuf::ITEMS, object.len());
                out.put_slice(&header);
            }
            Style::Struct { .. } | Style::Sorted if self.omitted() > 0 => out.put_u8(b'{'),
            Style::Struct { .. } | Style::Sorted => {}
        }
    }

    /// Appends what stands between two items of a list.
    pub fn put_separator(&self, out: &mut BytesMut) {
        out.put_bytes(b',', self.separator());
    }

    /// Objects as a run of items.
    pub fn join<'a>(&self, objects: impl Iterator<Item = &'a ItemBytes> + Clone) -> ItemRun {
        let length = objects.clone().map(|object| self.item_len(object)).sum();
        let mut out = BytesMut::with_capacity(length);
        let ends = objects.map(|object| {
            self.put_item(object, &mut out);
            out.len() as u32
        });
        let ends = ends.collect();
        ItemRun {
            bytes: out.freeze(),
            ends,
        }
    }

    /// The objects of a run of items, in their order, as slices of it. `lengths` are those of the
    /// objects it was made of.
    pub fn split(
        &self,
        joined: &ItemRun,
        lengths: impl Iterator<Item = usize>,
    ) -> impl Iterator<Item = ItemBytes> {
        joined.ends.iter().zip(lengths).map(|(end, length)| {
            let end = *end as usize - self.separator();
            ItemBytes(joined.bytes.slice(end - length..end))
        })
    }

    /// Bytes of the opening that items of a list lack.
    pub(super) fn omitted(&self) -> usize {
        if matches!(
            self.style,
            Style::Struct {
                bare_items: true,
                ..
            }
        ) {
            self.opening.len()
        } else {
            0
        }
    }

    /// Bytes that stand before an object in a list.
    fn lead(&self, object: &ItemBytes) -> usize {
        match self.style {
            Style::Message => protobuf::bytes_field_len(object.len()) - object.len(),
            Style::Struct { .. } | Style::Sorted => usize::from(self.omitted() > 0),
        }
    }
}
