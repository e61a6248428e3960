//! Items of lists: how an object's bytes are written among others, and found again.
use bytes::{BufMut, Bytes, BytesMut};

use super::item_bytes::{ItemBytes, ItemRun};
use super::protobuf;
use super::wire_format::{PrintStyle, WireFormat};

impl WireFormat {
    /// Returns the bytes an object takes as an item of a list, its separator included.
    pub fn item_len(&self, object: &ItemBytes) -> usize {
        let lead = match self.style {
            PrintStyle::Message => protobuf::bytes_field_len(object.len()) - object.len(),
            PrintStyle::Struct { .. } | PrintStyle::Sorted => usize::from(self.omitted() > 0),
        };
        lead + object.len() + self.separator()
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
        let length = objects.clone().map(|object| self.item_len(object)).sum();
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

    /// Returns the objects of a run in their order, as slices of it.
    ///
    /// `lengths` are those of the objects that the run was made of.
    pub fn split(
        &self,
        run: &ItemRun,
        lengths: impl Iterator<Item = usize>,
    ) -> impl Iterator<Item = ItemBytes> {
        run.ends.iter().zip(lengths).map(|(end, length)| {
            let end = *end as usize - self.separator();
            let bytes: Bytes = run.bytes.slice(end - length..end);
            ItemBytes::new(bytes)
        })
    }
}
