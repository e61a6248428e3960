//! The version of a list, read from its ends: the list itself is not kept, however long it is.
use bytes::Bytes;

use super::trouble::LoadError;
use watershed_protocol::{Encoding, ResourceVersion};

/// Bytes kept of the beginning and of the end.
const HEAD: usize = 4096;
const TAIL: usize = 1024;

const KEY: &[u8] = br#""resourceVersion":""#;

/// Takes the pieces of a list's body.
#[derive(Default)]
pub(super) struct ListEnds {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl ListEnds {
    pub(super) fn push(&mut self, data: &Bytes) {
        let room = HEAD - self.head.len();
        self.head.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() >= TAIL {
            self.tail.clear();
        }
        self.tail
            .extend_from_slice(&data[data.len().saturating_sub(TAIL)..]);
        let surplus = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..surplus);
    }

    /// The list's own version, not that of an item.
    pub(super) fn version(&self, encoding: Encoding) -> Result<ResourceVersion, LoadError> {
        let found = match encoding {
            Encoding::Json => self.json(),
            Encoding::Protobuf => self.protobuf(),
        };
        found
            .and_then(|text| ResourceVersion::parse(std::str::from_utf8(text).ok()?))
            .ok_or(LoadError::NoVersion)
    }

    /// Built-in types print the list's metadata before the items; custom ones, which are maps,
    /// after them.
    fn json(&self) -> Option<&[u8]> {
        let items = memchr::memmem::find(&self.head, br#""items":["#).unwrap_or(self.head.len());
        let before = memchr::memmem::find(&self.head[..items], KEY).map(|at| &self.head[at..]);
        let after = || memchr::memmem::rfind(&self.tail, KEY).map(|at| &self.tail[at..]);
        let text = &before.or_else(after)?[KEY.len()..];
        Some(&text[..memchr::memchr(b'"', text)?])
    }

    /// `k8s\0`, Unknown{1: type, 2: raw}; raw is the list, {1: ListMeta{2: resourceVersion}}.
    /// Lengths may point behind what is kept.
    fn protobuf(&self) -> Option<&[u8]> {
        let unknown = self.head.strip_prefix(b"k8s\0")?;
        let list = field(unknown, 2)?;
        field(field(list, 1)?, 2)
    }
}

/// The first field of a number that has a length, cut where the bytes end.
fn field(mut message: &[u8], number: u64) -> Option<&[u8]> {
    while !message.is_empty() {
        let key = varint(&mut message)?;
        match key & 7 {
            0 => drop(varint(&mut message)?),
            2 => {
                let length = usize::try_from(varint(&mut message)?)
                    .ok()?
                    .min(message.len());
                let (value, rest) = message.split_at(length);
                if key >> 3 == number {
                    return Some(value);
                }
                message = rest;
            }
            _ => return None,
        }
    }
    None
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(encoding: Encoding, pieces: &[&[u8]]) -> Option<u64> {
        let mut ends = ListEnds::default();
        for piece in pieces {
            ends.push(&Bytes::copy_from_slice(piece));
        }
        ends.version(encoding).ok().map(|version| version.0)
    }

    #[test]
    fn the_lists_version_is_found_before_and_after_the_items() {
        let item = br#"{"metadata":{"name":"a","resourceVersion":"7"}},"#;
        let items = item.repeat(1000);
        let before =
            br#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"42"},"items":["#;
        assert_eq!(version(Encoding::Json, &[before, &items, b"]}"]), Some(42));
        let head = br#"{"apiVersion":"v1","items":["#;
        let after = br#"],"kind":"FooList","metadata":{"continue":"","resourceVersion":"43"}}"#;
        assert_eq!(
            version(Encoding::Json, &[head, &items, &after[..20], &after[20..]]),
            Some(43)
        );
        assert_eq!(version(Encoding::Json, &[b"{}"]), None);
    }

    #[test]
    fn both_encodings_of_a_real_list_are_read() {
        let json = include_bytes!("../../../protocol/src/encoding/testdata/pods/list.json");
        let message = include_bytes!("../../../protocol/src/encoding/testdata/pods/list.pb");
        let found = version(Encoding::Json, &[json]).unwrap();
        assert_eq!(version(Encoding::Protobuf, &[message]), Some(found));
        let custom = include_bytes!("../../../protocol/src/encoding/testdata/foos/list.json");
        assert!(version(Encoding::Json, &[custom]).is_some());
        for length in 0..200 {
            version(Encoding::Protobuf, &[&message[..length]]);
        }
    }
}
