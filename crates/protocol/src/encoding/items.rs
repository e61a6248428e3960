//! Items of lists: how an object's bytes are written among others, and found again.
use std::ops::Range;

use bytes::{BufMut, BytesMut};

use super::item_bytes::{ItemBytes, ItemRun};
use super::protobuf;
use super::wire_format::{PrintStyle, WireFormat};

impl WireFormat {
    /// Returns the bytes that an object of this length takes as an item of a list, its separator
    /// included.
    pub fn item_len(&self, length: usize) -> usize {
        let lead = match self.style {
            PrintStyle::Message => protobuf::bytes_field_len(length) - length,
            PrintStyle::Struct { .. } | PrintStyle::Sorted => usize::from(self.omitted() > 0),
        };
        lead + length + self.separator()
    }

    /// Returns the number of bytes between two items of a list.
    pub fn separator(&self) -> usize {
        usize::from(self.style != PrintStyle::Message)
    }

    /// Appends an object as an item of a list, and a separator.
    pub fn put_item(&self, object: &ItemBytes, out: &mut BytesMut) {
        self.put_item_head(object, out);
        out.put_slice(object.bytes());
        self.put_separator(out);
    }

    /// Appends the part of an item that comes before the object's [bytes](ItemBytes::share).
    pub fn put_item_head(&self, object: &ItemBytes, out: &mut BytesMut) {
        match self.style {
            PrintStyle::Message => protobuf::put_header(out, protobuf::ITEMS, object.len()),
            PrintStyle::Struct { .. } | PrintStyle::Sorted if self.omitted() > 0 => {
                out.put_u8(b'{');
            }
            PrintStyle::Struct { .. } | PrintStyle::Sorted => {}
        }
    }

    /// Appends a separator, which is empty in protobuf.
    pub fn put_separator(&self, out: &mut BytesMut) {
        out.put_bytes(b',', self.separator());
    }

    /// Joins objects to a run of items.
    pub fn join<'a>(&self, objects: impl Iterator<Item = &'a ItemBytes> + Clone) -> ItemRun {
        let length = objects
            .clone()
            .map(|object| self.item_len(object.len()))
            .sum();
        let mut out = BytesMut::with_capacity(length);
        let ends = objects
            .map(|object| {
                self.put_item(object, &mut out);
                out.len() as u32
            })
            .collect();
        ItemRun {
            bytes: out.freeze(),
            ends,
        }
    }

    /// Returns the places of a run's objects within it, given the ends of its items.
    ///
    /// `lengths` are those of the objects that the run was made of.
    pub fn places(
        &self,
        ends: &[u32],
        lengths: impl Iterator<Item = usize>,
    ) -> impl Iterator<Item = Range<u32>> {
        ends.iter().zip(lengths).map(|(end, length)| {
            let end = *end - self.separator() as u32;
            end - length as u32..end
        })
    }
}
