//! The body of a list.
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};

use crate::store::{ObjectRun, StoredObject};
use crate::watcher::MIN_SHARED_BYTES;
use watershed_protocol::{Deflated, GzipMember, ListParts, PartialFormat, WireFormat, deflate};

/// Small pieces are joined to pieces of about this size, so that they do not become a frame each.
const CHUNK: usize = 64 * 1024;
/// Room that is made at a time for what stands between pieces that are not copied.
const ROOM: usize = 1024;
/// So many pieces are compressed before others have their turn. Most were compressed before.
const COMPRESSED_AT_ONCE: usize = 4;

/// What is listed: references only, or slices of what is held.
pub(super) enum Items {
    /// Objects that lie side by side.
    Runs(Arc<WireFormat>, Vec<ObjectRun>),
    /// A selection.
    Objects(Arc<WireFormat>, Vec<Arc<StoredObject>>),
    /// The metadata of objects.
    Metadata(PartialFormat, Vec<Bytes>),
}

impl Items {
    pub(super) fn format(&self) -> &WireFormat {
        match self {
            Self::Runs(format, _) | Self::Objects(format, _) => format,
            Self::Metadata(partial, _) => partial.format(),
        }
    }

    /// How many objects there are.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Runs(_, runs) => runs.iter().map(ObjectRun::len).sum(),
            Self::Objects(_, objects) => objects.len(),
            Self::Metadata(_, metadata) => metadata.len(),
        }
    }

    /// Their bytes, with the separators between them.
    pub(super) fn bytes(&self) -> u64 {
        let all: u64 = match self {
            Self::Runs(_, runs) => runs.iter().map(|run| run.items_len() as u64).sum(),
            Self::Objects(format, objects) => objects
                .iter()
                .map(|object| format.item_len(&object.bytes) as u64)
                .sum(),
            Self::Metadata(partial, metadata) => metadata
                .iter()
                .map(|metadata| partial.item_len(metadata) as u64)
                .sum(),
        };
        all.saturating_sub(self.format().separator() as u64)
    }

    /// How many pieces they are put in one by one.
    fn pieces(&self) -> usize {
        match self {
            Self::Runs(_, runs) => runs.len(),
            Self::Objects(_, objects) => objects.len(),
            Self::Metadata(_, metadata) => metadata.len(),
        }
    }

    /// Whether next to nothing of it has to be copied to be sent.
    fn are_in_memory(&self) -> bool {
        match self {
            Self::Runs(..) => true,
            Self::Objects(_, objects) => {
                let lengths = objects.iter().map(|object| object.bytes.len());
                lengths
                    .filter(|length| *length < MIN_SHARED_BYTES)
                    .sum::<usize>()
                    <= CHUNK
            }
            Self::Metadata(..) => false,
        }
    }

    /// Appends a piece; or what stands before it, and gives it back to be sent from where it lies,
    /// if it is large and that is wanted.
    fn put(&self, index: usize, share: bool, out: &mut BytesMut) -> Option<Bytes> {
        let is_last = index + 1 == self.pieces();
        let piece = match self {
            Self::Runs(format, runs) => {
                let items = runs[index].items();
                items.slice(..items.len() - if is_last { format.separator() } else { 0 })
            }
            Self::Objects(format, objects) => {
                if index > 0 {
                    format.put_separator(out);
                }
                format.put_item_head(&objects[index].bytes, out);
                objects[index].bytes.share()
            }
            Self::Metadata(partial, metadata) => {
                partial.put_item(&metadata[index], out);
                out.truncate(
                    out.len()
                        - if is_last {
                            partial.format().separator()
                        } else {
                            0
                        },
                );
                return None;
            }
        };
        if share && piece.len() >= MIN_SHARED_BYTES {
            return Some(piece);
        }
        out.extend_from_slice(&piece);
        None
    }
}

enum Place {
    Head,
    Items,
    Tail,
    Over,
}

/// Sends a list piece by piece as the connection takes it.
pub(super) struct ListBody {
    items: Items,
    parts: ListParts,
    next: usize,
    place: Place,
    /// What is copied, up to the next piece that is not.
    copied: BytesMut,
    /// Large pieces are not copied. Then there are many small ones, which the connection has to put
    /// together.
    in_memory: bool,
    /// A piece that is sent next.
    shared: Option<Bytes>,
    /// Bytes still to be sent.
    left: u64,
}

impl ListBody {
    pub(super) fn new(items: Items, parts: ListParts) -> Self {
        let left = parts.body_len();
        let in_memory = items.are_in_memory();
        // What comes later gets as much room again.
        let room = if in_memory {
            ROOM
        } else {
            usize::try_from(left).unwrap_or(CHUNK).min(CHUNK)
        };
        let copied = BytesMut::with_capacity(room);
        Self {
            items,
            parts,
            next: 0,
            place: Place::Head,
            copied,
            in_memory,
            shared: None,
            left,
        }
    }

    /// Whether it is made of references to what lies in memory.
    pub(super) fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    fn next_chunk(&mut self) -> Option<Bytes> {
        if let Some(shared) = self.shared.take() {
            return Some(shared);
        }
        loop {
            match self.place {
                Place::Head => {
                    self.copied.extend_from_slice(&self.parts.head);
                    self.place = Place::Items;
                }
                Place::Items => {
                    if self.next == self.items.pieces() {
                        self.place = Place::Tail;
                        continue;
                    }
                    let shared = self.items.put(self.next, self.in_memory, &mut self.copied);
                    self.next += 1;
                    if self.copied.is_empty() && shared.is_some() {
                        return shared;
                    }
                    if shared.is_some() || self.copied.len() >= CHUNK {
                        self.shared = shared;
                        return Some(self.copied.split().freeze());
                    }
                }
                Place::Tail => {
                    self.copied.extend_from_slice(&self.parts.tail);
                    self.place = Place::Over;
                    return Some(self.copied.split().freeze());
                }
                Place::Over => return None,
            }
        }
    }
}

impl http_body::Body for ListBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let chunk = this.next_chunk();
        this.left -= chunk
            .as_ref()
            .map_or(0, |chunk| chunk.len() as u64)
            .min(this.left);
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.place, Place::Over)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Sends a list as one member of gzip, put together of pieces that all clients share.
pub(super) struct CompressedListBody {
    runs: std::vec::IntoIter<ObjectRun>,
    parts: ListParts,
    separator: Option<Deflated>,
    /// Gone once the end is written.
    member: Option<GzipMember>,
    place: Place,
}

impl CompressedListBody {
    pub(super) fn new(format: &WireFormat, runs: Vec<ObjectRun>, parts: ListParts) -> Self {
        let separator = (format.separator() > 0).then(|| Deflated::stored(b","));
        Self {
            runs: runs.into_iter(),
            parts,
            separator,
            member: None,
            place: Place::Head,
        }
    }

    /// Whether somebody had nearly all of it before, so that what is left to be compressed keeps
    /// nobody waiting.
    pub(super) fn is_in_memory(&self) -> bool {
        let runs = self.runs.as_slice();
        runs.iter()
            .filter(|run| !run.is_deflated())
            .nth(COMPRESSED_AT_ONCE)
            .is_none()
    }

    fn next_chunk(&mut self) -> Option<Bytes> {
        // Room for all of it where it is only put together: it would be copied once more as it
        // grows.
        let is_ready = self
            .runs
            .as_slice()
            .first()
            .is_some_and(ObjectRun::is_deflated);
        let mut chunk = BytesMut::with_capacity(if is_ready { CHUNK + CHUNK / 8 } else { 0 });
        let mut compressed = 0;
        loop {
            match self.place {
                Place::Head => {
                    let member = self.member.insert(GzipMember::begin(&mut chunk));
                    member.put(&deflate(&self.parts.head), &mut chunk);
                    self.place = Place::Items;
                }
                Place::Items => {
                    let Some(run) = self.runs.next() else {
                        self.place = Place::Tail;
                        continue;
                    };
                    let member = self.member.as_mut()?;
                    compressed += usize::from(!run.is_deflated());
                    member.put(&run.deflated(), &mut chunk);
                    if let Some(separator) = self.separator.as_ref().filter(|_| self.runs.len() > 0)
                    {
                        member.put(separator, &mut chunk);
                    }
                    if chunk.len() >= CHUNK || compressed >= COMPRESSED_AT_ONCE {
                        return Some(chunk.freeze());
                    }
                }
                Place::Tail => {
                    let mut member = self.member.take()?;
                    member.put(&deflate(&self.parts.tail), &mut chunk);
                    member.end(&mut chunk);
                    self.place = Place::Over;
                    return Some(chunk.freeze());
                }
                Place::Over => return None,
            }
        }
    }
}

impl http_body::Body for CompressedListBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(
            self.get_mut()
                .next_chunk()
                .map(|chunk| Ok(Frame::data(chunk))),
        )
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.place, Place::Over)
    }

    /// How much it is, nobody knows before it is compressed.
    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(u64::from(!self.is_end_stream()));
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;

    use super::*;
    use watershed_protocol::{Encoding, FieldTable, GroupVersionResource, ResourceVersion, scan};

    const LIST: &str = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[]}"#;

    /// Config maps with so many bytes of data.
    fn selected(format: &WireFormat, sizes: &[usize]) -> Vec<Arc<StoredObject>> {
        let fields =
            FieldTable::builtin(&GroupVersionResource::new("", "v1", "configmaps"), true).unwrap();
        let object = |(index, size): (usize, &usize)| {
            let data = "x".repeat(*size);
            let text = format!(
                r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"c-{index}","namespace":"ns","resourceVersion":"5"}},"data":{{"text":"{data}"}}}}"#
            );
            let scanned = scan(Encoding::Json, text.as_bytes(), &fields).unwrap();
            let bytes = format.item_bytes(&text.into());
            Arc::new(StoredObject {
                bytes,
                version: scanned.version,
                attributes: scanned.attributes,
            })
        };
        sizes.iter().enumerate().map(object).collect()
    }

    #[test]
    fn a_selection_is_sent_from_where_it_lies_if_little_of_it_has_to_be_copied() {
        let (format, _) =
            WireFormat::learn(Encoding::Json, "ConfigMap", &format!("{LIST}\n").into()).unwrap();
        let format = Arc::new(format);
        let mixed = [[3_000; 10], [300; 10]].concat();
        for (sizes, in_memory) in [
            (vec![3_000; 40], true),
            (mixed, true),
            (vec![300; 400], false),
            (vec![], true),
        ] {
            let objects = selected(&format, &sizes);
            let mut all = BytesMut::new();
            for object in &objects {
                format.put_item(&object.bytes, &mut all);
            }
            all.truncate(all.len().saturating_sub(format.separator()));
            let items = Items::Objects(Arc::clone(&format), objects.clone());
            let parts =
                format.list_parts(ResourceVersion(9), None, None, items.count(), items.bytes());
            let expected = [&parts.head[..], &all, &parts.tail].concat();
            let mut body = ListBody::new(items, parts);
            assert_eq!(body.is_in_memory(), in_memory);
            let mut frames = Vec::new();
            while let Some(frame) = body.next_chunk() {
                frames.push(frame);
            }
            assert!(body.is_end_stream());
            assert!(frames.concat() == expected);
            let is_shared = |object: &&Arc<StoredObject>| {
                frames.iter().any(|frame| object.bytes.is_part_of(frame))
            };
            let large = sizes
                .iter()
                .filter(|size| **size >= MIN_SHARED_BYTES)
                .count();
            assert_eq!(
                objects.iter().filter(is_shared).count(),
                if in_memory { large } else { 0 }
            );
        }
    }
}
