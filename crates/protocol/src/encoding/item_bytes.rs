//! An object's bytes as they are held.
use std::borrow::Cow;

use bytes::Bytes;

/// The bytes that gets, lists and events of an object have in common.
///
/// A list's items can be held as one run of bytes, of which each object is a slice. Items of a list
/// lack kind and apiVersion in the JSON of most types. For those types, it is the object's text
/// after its [opening](crate::WireFormat), without the brace. For all others it is the whole text
/// or the whole message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemBytes(Bytes);

impl ItemBytes {
    /// Wraps bytes that already lack the opening.
    pub fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Returns the bytes themselves.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a copy that shares no memory with other bytes.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    /// Returns `true` if this is a slice of `bytes`.
    pub fn is_part_of(&self, bytes: &Bytes) -> bool {
        bytes.as_ptr_range().contains(&self.0.as_ptr())
    }

    /// Returns `true` if `bytes` is a slice of this.
    pub fn shares(&self, bytes: &Bytes) -> bool {
        self.0.as_ptr_range().contains(&bytes.as_ptr())
    }

    /// Returns a text that can be parsed: the message, or a JSON value.
    ///
    /// The value lacks kind and apiVersion if items of the type's lists do.
    pub fn text(&self) -> Cow<'_, [u8]> {
        // Only a text without its opening begins with a quote. JSON objects begin with a brace,
        // messages with the tag of their metadata.
        if self.0.first() == Some(&b'"') {
            Cow::Owned([b"{", &self.0[..]].concat())
        } else {
            Cow::Borrowed(&self.0)
        }
    }

    /// Returns the same bytes without copying them.
    pub fn share(&self) -> Bytes {
        self.0.clone()
    }

    pub(super) fn bytes(&self) -> &Bytes {
        &self.0
    }
}

/// Objects side by side, as they are in a list.
#[derive(Clone, Debug)]
pub struct ItemRun {
    /// The items, each with a separator after it.
    pub bytes: Bytes,
    /// End offset of each item, its separator included.
    pub ends: Box<[u32]>,
}
