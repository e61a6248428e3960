//! Names and versions of a list's objects, read while the list arrives.
use super::malformed::Malformed;
use super::partial::PartialFormat;
use super::protobuf::{self, FieldReader, ITEMS, MAGIC};
use super::scanned::ScanValues;
use crate::{FieldTable, ResourceVersion};

const NOT_A_LIST: Malformed = Malformed("answer that is not a list of metadata");
const CUT: Malformed = Malformed("list that was cut");
const LONG: Malformed = Malformed("protobuf number that is too long");
const LARGE: Malformed = Malformed("list with metadata of more than 4 MiB in one piece");

/// Longest field that is waited for: the metadata of one object, or of the list. kube-apiserver
/// takes no object of more than 3 MiB, and etcd none of more than 1.5 MiB by default.
/// Source: `apiserver/pkg/server/config.go` (`MaxRequestBodyBytes`).
const MAX_FIELD: usize = 4 << 20;

/// The keys and versions of a list's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionList {
    /// Version of the list.
    pub version: ResourceVersion,
    /// Key and version of each object, in upstream's order.
    pub objects: Vec<(String, ResourceVersion)>,
    /// No further page follows.
    pub is_complete: bool,
}

/// Reads a `PartialObjectMetadataList` in protobuf as it arrives. It holds no more of the bytes
/// than one object, of at most 4 MiB, and the piece that came last. Lengths that exceed that, or
/// the list that they are in, are refused before their bytes arrive.
#[derive(Debug)]
pub struct VersionListReader {
    fields: FieldTable,
    /// Bytes that are not read yet.
    rest: Vec<u8>,
    part: ListPart,
    version: Option<ResourceVersion>,
    objects: Vec<(String, ResourceVersion)>,
    is_complete: bool,
}

/// The part of a list that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListPart {
    Magic,
    /// The envelope's fields before the list.
    Head,
    /// The list, of which this many bytes are left.
    List(usize),
    /// The envelope's fields after the list.
    Tail,
}

impl VersionListReader {
    /// Creates a reader of a type's list.
    pub fn new(fields: FieldTable) -> Self {
        Self {
            fields,
            rest: Vec::new(),
            part: ListPart::Magic,
            version: None,
            objects: Vec::new(),
            is_complete: true,
        }
    }

    /// Returns the number of objects so far.
    pub fn count(&self) -> usize {
        self.objects.len()
    }

    /// Reads the next bytes.
    pub fn push(&mut self, data: &[u8]) -> Result<(), Malformed> {
        self.rest.extend_from_slice(data);
        let rest = std::mem::take(&mut self.rest);
        let mut position = 0;
        while let Some(read) = self.step(&rest[position..])? {
            position += read;
        }
        self.rest = rest;
        self.rest.drain(..position);
        Ok(())
    }

    /// Returns the list, once all bytes were read.
    pub fn end(self) -> Result<VersionList, Malformed> {
        if self.part != ListPart::Tail || !self.rest.is_empty() {
            return Err(CUT);
        }
        Ok(VersionList {
            version: self.version.ok_or(NOT_A_LIST)?,
            objects: self.objects,
            is_complete: self.is_complete,
        })
    }

    /// Reads one field. Returns its length; `None` if more bytes have to come first.
    fn step(&mut self, rest: &[u8]) -> Result<Option<usize>, Malformed> {
        match self.part {
            ListPart::Magic => {
                let Some(start) = rest.get(..MAGIC.len()) else {
                    return Ok(None);
                };
                if start != MAGIC {
                    return Err(NOT_A_LIST);
                }
                self.part = ListPart::Head;
                Ok(Some(MAGIC.len()))
            }
            ListPart::Head => self.head(rest),
            ListPart::List(0) => {
                self.part = ListPart::Tail;
                Ok(Some(0))
            }
            ListPart::List(left) => self.list(rest, left),
            ListPart::Tail => {
                let Some((number, value, read)) = field(rest)? else {
                    return Ok(None);
                };
                // A coding of the list would make it unreadable; nobody uses one.
                if number == 3 && !value.is_empty() {
                    return Err(NOT_A_LIST);
                }
                Ok(Some(read))
            }
        }
    }

    fn head(&mut self, rest: &[u8]) -> Result<Option<usize>, Malformed> {
        let Some((number, length, header)) = header(rest)? else {
            return Ok(None);
        };
        if number == 2 {
            self.part = ListPart::List(length);
            return Ok(Some(header));
        }
        let Some((_, value, read)) = field(rest)? else {
            return Ok(None);
        };
        if number != 1 {
            return Err(NOT_A_LIST);
        }
        let mut names = FieldReader::new(value);
        while let Some((number, value)) = names.next()? {
            let kind = value.text()?;
            if number == 2 && kind.strip_suffix("List") != Some(PartialFormat::KIND) {
                return Err(NOT_A_LIST);
            }
        }
        Ok(Some(read))
    }

    fn list(&mut self, rest: &[u8], left: usize) -> Result<Option<usize>, Malformed> {
        if let Some((_, length, header)) = header(rest)?
            && left.checked_sub(header).is_none_or(|left| left < length)
        {
            return Err(CUT);
        }
        let Some((number, value, read)) = field(rest)? else {
            return Ok(None);
        };
        let left = left.checked_sub(read).ok_or(CUT)?;
        match number {
            1 => self.metadata(value)?,
            ITEMS => {
                let mut found = ScanValues::new(&self.fields);
                protobuf::scan(value, self.fields.steps(), &mut found)?;
                let scanned = found.finish(&self.fields)?;
                let key = scanned.attributes.key().to_owned();
                self.objects.push((key, scanned.version));
            }
            _ => return Err(NOT_A_LIST),
        }
        self.part = ListPart::List(left);
        Ok(Some(read))
    }

    fn metadata(&mut self, metadata: &[u8]) -> Result<(), Malformed> {
        let mut fields = FieldReader::new(metadata);
        while let Some((number, value)) = fields.next()? {
            match number {
                2 => self.version = ResourceVersion::parse(value.text()?),
                3 => self.is_complete = value.text()?.is_empty(),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Number and value of a field, and the field's length.
type FirstField<'a> = (u32, &'a [u8], usize);

/// Returns the first field; `None` if it is not all there. A field that claims to be longer than
/// [`MAX_FIELD`] is an error.
fn field(rest: &[u8]) -> Result<Option<FirstField<'_>>, Malformed> {
    let Some((number, length, header)) = header(rest)? else {
        return Ok(None);
    };
    if length > MAX_FIELD {
        return Err(LARGE);
    }
    let end = header.checked_add(length).ok_or(CUT)?;
    Ok(rest.get(header..end).map(|value| (number, value, end)))
}

/// Returns number and length of the first field, and the length of its header; `None` if the
/// header is not all there. All fields of a list and its envelope have a length.
fn header(rest: &[u8]) -> Result<Option<(u32, usize, usize)>, Malformed> {
    let Some((key, first)) = varint(rest)? else {
        return Ok(None);
    };
    let Some((length, second)) = varint(&rest[first..])? else {
        return Ok(None);
    };
    if key & 7 != 2 {
        return Err(NOT_A_LIST);
    }
    let number = u32::try_from(key >> 3).map_err(|_| NOT_A_LIST)?;
    let length = usize::try_from(length).map_err(|_| NOT_A_LIST)?;
    Ok(Some((number, length, first + second)))
}

/// Returns a number and its length; `None` if it is not all there.
fn varint(rest: &[u8]) -> Result<Option<(u64, usize)>, Malformed> {
    let mut value = 0;
    for (index, byte) in rest.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((value, index + 1)));
        }
    }
    if rest.len() < 10 { Ok(None) } else { Err(LONG) }
}

#[cfg(test)]
mod tests {
    use super::super::protobuf::{put_bytes, type_meta};
    use super::*;

    fn message(fields: &[(u32, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, value) in fields {
            put_bytes(&mut out, *number, value);
        }
        out
    }

    fn list(objects: usize, token: &[u8]) -> Vec<u8> {
        let mut raw = Vec::new();
        put_bytes(&mut raw, 1, &message(&[(2, b"900"), (3, token)]));
        for number in 0..objects {
            let (name, version) = (format!("pod-{number}"), number.to_string());
            let annotation = vec![b'x'; number * 7];
            let metadata = message(&[
                (1, name.as_bytes()),
                (3, b"shop"),
                (6, version.as_bytes()),
                (12, &annotation),
            ]);
            put_bytes(&mut raw, ITEMS, &message(&[(1, &metadata)]));
        }
        let names = type_meta("meta.k8s.io/v1", "PartialObjectMetadataList");
        let fields = message(&[(1, &names), (2, &raw), (3, b""), (4, b"")]);
        [&MAGIC[..], &fields].concat()
    }

    fn read(body: &[u8], size: usize) -> Result<VersionList, Malformed> {
        let mut reader = VersionListReader::new(FieldTable::metadata_only(true));
        for piece in body.chunks(size) {
            reader.push(piece)?;
        }
        reader.end()
    }

    #[test]
    fn a_list_is_read_in_any_chunking() {
        for (objects, token) in [(0, &b""[..]), (1, b""), (100, b"more")] {
            let body = list(objects, token);
            for size in [1, 7, 100, body.len()] {
                let list = read(&body, size).unwrap();
                assert_eq!(list.version, ResourceVersion(900));
                assert_eq!(list.is_complete, token.is_empty());
                let wanted: Vec<_> = (0..objects)
                    .map(|number| (format!("shop/pod-{number}"), ResourceVersion(number as u64)))
                    .collect();
                assert_eq!(list.objects, wanted, "{objects} by {size}");
            }
        }
    }

    #[test]
    fn a_list_that_is_cut_is_refused() {
        let body = list(5, b"");
        // The last four bytes are two empty fields, which need not be there.
        for end in 0..body.len() - 4 {
            assert!(read(&body[..end], 64).is_err(), "{end} of {}", body.len());
        }
    }

    #[test]
    fn what_is_no_list_of_metadata_is_refused() {
        let pods = type_meta("v1", "PodList");
        let pods = [&MAGIC[..], &message(&[(1, &pods), (2, b"")])].concat();
        for body in [&b"{\"kind\":\"List\"}"[..], &pods, &[0xff; 30]] {
            assert!(read(body, 8).is_err());
        }
    }

    /// Returns the beginning of a list up to a field that claims to have this length.
    fn claiming(number: u32, length: u64) -> Vec<u8> {
        let varint = |mut value: u64| {
            let mut out = Vec::new();
            while value > 0x7f {
                out.push(value as u8 | 0x80);
                value >>= 7;
            }
            out.push(value as u8);
            out
        };
        let names = type_meta("meta.k8s.io/v1", "PartialObjectMetadataList");
        let head = [&MAGIC[..], &message(&[(1, &names)])].concat();
        // The list claims to be a little longer than its field.
        let list = [vec![2 << 3 | 2], varint(length.saturating_add(100))].concat();
        let field = [vec![(number << 3 | 2) as u8], varint(length)].concat();
        [head, list, field].concat()
    }

    #[test]
    fn a_claimed_length_is_not_waited_for() {
        for number in [1, ITEMS, 5] {
            for length in [MAX_FIELD as u64 + 1, 1 << 40, u64::MAX >> 1, u64::MAX] {
                let mut reader = VersionListReader::new(FieldTable::metadata_only(true));
                let refused = reader.push(&claiming(number, length));
                assert!(refused.is_err(), "field {number} of {length}");
            }
        }
    }

    #[test]
    fn a_field_that_is_longer_than_its_list_is_not_waited_for() {
        let names = type_meta("meta.k8s.io/v1", "PartialObjectMetadataList");
        let list = [&MAGIC[..], &message(&[(1, &names)]), &[2 << 3 | 2, 10]].concat();
        let mut reader = VersionListReader::new(FieldTable::metadata_only(true));
        reader.push(&list).unwrap();
        assert_eq!(reader.push(&[ITEMS as u8 * 8 + 2, 9]), Err(CUT));
        let mut reader = VersionListReader::new(FieldTable::metadata_only(true));
        reader.push(&list).unwrap();
        assert_eq!(reader.push(&[ITEMS as u8 * 8 + 2, 8]), Ok(()));
    }
}
