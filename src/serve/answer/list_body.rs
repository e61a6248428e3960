//! The body of a list.
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use watershed_protocol::{Deflated, GzipMember, ListParts, WireFormat, deflate};

use super::items::{Items, WrittenPiece};
use crate::store::ObjectRun;
use crate::work::{COMPRESSED_PIECE, WorkBudget, retire};

/// Small pieces are joined to chunks of about this size, so that they do not become a frame each.
const CHUNK: usize = 64 * 1024;
/// Capacity for the bytes between shared pieces.
const BETWEEN_SHARED: usize = 1024;
/// Runs compressed before other tasks have their turn. Most were compressed before.
const COMPRESSED_AT_ONCE: usize = 4;

/// The parts of a list in the order in which they are sent.
enum ListPosition {
    Head,
    Items,
    Tail,
    End,
}

/// The items of a list, in the form in which they are sent.
pub(super) trait ListSource {
    /// Prepares the buffer of the next chunk.
    fn begin_chunk(&mut self, out: &mut BytesMut);

    /// Appends what comes before the items.
    fn put_head(&mut self, head: &[u8], out: &mut BytesMut);

    /// Appends the next piece of the items.
    fn put_next(&mut self, out: &mut BytesMut) -> WrittenPiece;

    /// Appends what comes after the items.
    fn put_tail(&mut self, tail: &[u8], out: &mut BytesMut);

    /// Takes the chunk out of the buffer.
    fn take_chunk(&self, out: &mut BytesMut) -> Bytes;

    /// Returns the work of writing the piece that comes next.
    fn next_work(&self) -> usize;

    /// Returns `true` if the length of the list in this form is known before it is sent.
    fn has_known_length(&self) -> bool;
}

/// Sends a list piece by piece as the connection takes it.
pub(super) struct ListBody<S> {
    source: S,
    parts: ListParts,
    position: ListPosition,
    /// Appended pieces, up to the next one that is shared.
    out: BytesMut,
    /// A piece that is sent next.
    shared: Option<Bytes>,
    /// Bytes of the uncompressed list that are still to be sent.
    left: u64,
    budget: WorkBudget,
}

impl<S: ListSource> ListBody<S> {
    pub(super) fn new(source: S, parts: ListParts) -> Self {
        Self {
            left: parts.body_len(),
            source,
            parts,
            position: ListPosition::Head,
            out: BytesMut::new(),
            shared: None,
            budget: WorkBudget::default(),
        }
    }

    fn next_piece(&mut self) -> WrittenPiece {
        self.budget.spend(self.source.next_work());
        self.source.put_next(&mut self.out)
    }
}

impl<S: ListSource> Iterator for ListBody<S> {
    type Item = Bytes;

    /// Returns the next chunk.
    fn next(&mut self) -> Option<Bytes> {
        if let Some(shared) = self.shared.take() {
            return Some(shared);
        }
        self.source.begin_chunk(&mut self.out);
        loop {
            match self.position {
                ListPosition::Head => {
                    self.source.put_head(&self.parts.head, &mut self.out);
                    self.position = ListPosition::Items;
                }
                ListPosition::Items => match self.next_piece() {
                    WrittenPiece::Appended if self.out.len() < CHUNK => {}
                    WrittenPiece::Appended | WrittenPiece::Flush => break,
                    WrittenPiece::Shared(piece) if self.out.is_empty() => return Some(piece),
                    WrittenPiece::Shared(piece) => {
                        self.shared = Some(piece);
                        break;
                    }
                    WrittenPiece::None => self.position = ListPosition::Tail,
                },
                ListPosition::Tail => {
                    self.source.put_tail(&self.parts.tail, &mut self.out);
                    self.position = ListPosition::End;
                    break;
                }
                ListPosition::End => return None,
            }
        }
        Some(self.source.take_chunk(&mut self.out))
    }
}

impl<S: ListSource + Unpin> http_body::Body for ListBody<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if !this.is_end_stream() && this.budget.awaits_turn(context) {
            return Poll::Pending;
        }
        let chunk = this.next();
        let sent = chunk.as_ref().map_or(0, Bytes::len);
        this.budget.spend_bytes(sent);
        this.left = this.left.saturating_sub(sent as u64);
        Poll::Ready(chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.position, ListPosition::End)
    }

    fn size_hint(&self) -> SizeHint {
        if self.source.has_known_length() {
            return SizeHint::with_exact(self.left);
        }
        let mut hint = SizeHint::new();
        hint.set_lower(u64::from(!self.is_end_stream()));
        hint
    }
}

/// Items as they are.
pub(super) struct PlainItems {
    items: Items,
    next: usize,
    /// Capacity of the first chunk. Later ones get as much again.
    capacity: usize,
    /// Large pieces are shared. Otherwise there are many small ones, which would be a frame each.
    in_memory: bool,
}

impl PlainItems {
    /// Takes the items of a list with this many bytes.
    pub(super) fn new(items: Items, length: u64) -> Self {
        let in_memory = items.are_in_memory();
        let capacity = if in_memory {
            BETWEEN_SHARED
        } else {
            usize::try_from(length).unwrap_or(CHUNK).min(CHUNK)
        };
        Self {
            items,
            next: 0,
            capacity,
            in_memory,
        }
    }

    /// Returns `true` if the body consists of references to bytes in memory.
    pub(super) fn is_in_memory(&self) -> bool {
        self.in_memory
    }
}

impl Drop for PlainItems {
    fn drop(&mut self) {
        self.items.retire();
    }
}

impl ListSource for PlainItems {
    fn begin_chunk(&mut self, out: &mut BytesMut) {
        if self.next == 0 && out.capacity() == 0 {
            *out = BytesMut::with_capacity(self.capacity);
        }
    }

    fn put_head(&mut self, head: &[u8], out: &mut BytesMut) {
        out.extend_from_slice(head);
    }

    fn put_next(&mut self, out: &mut BytesMut) -> WrittenPiece {
        if self.next == self.items.pieces() {
            return WrittenPiece::None;
        }
        let piece = self.items.put(self.next, self.in_memory, out);
        self.next += 1;
        piece
    }

    fn put_tail(&mut self, tail: &[u8], out: &mut BytesMut) {
        out.extend_from_slice(tail);
    }

    fn next_work(&self) -> usize {
        // At the end, nothing is left to write.
        if self.next < self.items.pieces() {
            self.items.work(self.next)
        } else {
            1
        }
    }

    /// The rest of the buffer is for the next chunk.
    fn take_chunk(&self, out: &mut BytesMut) -> Bytes {
        out.split().freeze()
    }

    fn has_known_length(&self) -> bool {
        true
    }
}

/// Runs of items as one member of gzip, put together from pieces that all clients share. They are
/// copied into chunks, which each client has for itself.
pub(super) struct CompressedRuns {
    runs: std::vec::IntoIter<ObjectRun>,
    separator: Option<Deflated>,
    /// Gone once the end is written.
    member: Option<GzipMember>,
    /// Runs of the current chunk that were not compressed before.
    compressed: usize,
}

impl CompressedRuns {
    pub(super) fn new(format: &WireFormat, runs: Vec<ObjectRun>) -> Self {
        let separator = (format.separator() > 0).then(|| Deflated::stored(b","));
        Self {
            runs: runs.into_iter(),
            separator,
            member: None,
            compressed: 0,
        }
    }
}

impl Drop for CompressedRuns {
    /// The runs that were sent are dropped already.
    fn drop(&mut self) {
        let runs = std::mem::take(&mut self.runs);
        let objects = runs.as_slice().iter().map(ObjectRun::len).sum();
        retire(runs, objects);
    }
}

impl ListSource for CompressedRuns {
    /// Reserves the whole chunk if its runs are compressed already: it would be copied once more as
    /// it grows.
    fn begin_chunk(&mut self, out: &mut BytesMut) {
        let is_ready = self
            .runs
            .as_slice()
            .first()
            .is_some_and(ObjectRun::is_deflated);
        self.compressed = 0;
        *out = BytesMut::with_capacity(if is_ready { CHUNK + CHUNK / 8 } else { 0 });
    }

    fn put_head(&mut self, head: &[u8], out: &mut BytesMut) {
        let member = self.member.insert(GzipMember::begin(out));
        member.put(&deflate(head), out);
    }

    fn put_next(&mut self, out: &mut BytesMut) -> WrittenPiece {
        let (Some(member), Some(run)) = (self.member.as_mut(), self.runs.next()) else {
            return WrittenPiece::None;
        };
        self.compressed += usize::from(!run.is_deflated());
        member.put(&run.deflated(), out);
        if let Some(separator) = self.separator.as_ref().filter(|_| self.runs.len() > 0) {
            member.put(separator, out);
        }
        if self.compressed >= COMPRESSED_AT_ONCE {
            WrittenPiece::Flush
        } else {
            WrittenPiece::Appended
        }
    }

    fn put_tail(&mut self, tail: &[u8], out: &mut BytesMut) {
        if let Some(mut member) = self.member.take() {
            member.put(&deflate(tail), out);
            member.end(out);
        }
    }

    fn next_work(&self) -> usize {
        let next = self.runs.as_slice().first();
        let is_ready = next.is_none_or(ObjectRun::is_deflated);
        if is_ready { 1 } else { COMPRESSED_PIECE }
    }

    /// Nothing of the buffer outlives the chunk.
    fn take_chunk(&self, out: &mut BytesMut) -> Bytes {
        std::mem::take(out).freeze()
    }

    /// The compressed length is unknown until the body is sent.
    fn has_known_length(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;

    use std::sync::Arc;

    use super::*;
    use crate::store::StoredObject;
    use crate::watcher::MIN_SHARED_BYTES;
    use crate::work::OBJECTS_PER_TURN;
    use crate::work::tests::assert_freed_elsewhere;
    use watershed_protocol::{
        Encoding, FieldTable, GroupVersionResource, ListMetadata, ResourceVersion, scan,
    };

    const LIST: &str = concat!(
        r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"#,
        r#""items":[]}"#
    );

    /// Config maps with so many bytes of data.
    fn selected(format: &WireFormat, sizes: &[usize]) -> Vec<Arc<StoredObject>> {
        let fields =
            FieldTable::builtin(&GroupVersionResource::new("", "v1", "configmaps"), true).unwrap();
        let object = |(index, size): (usize, &usize)| {
            let data = "x".repeat(*size);
            let text = format!(
                concat!(
                    r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"c-{}","#,
                    r#""namespace":"ns","resourceVersion":"5"}},"data":{{"text":"{}"}}}}"#
                ),
                index, data
            );
            let scanned = scan(Encoding::Json, text.as_bytes(), &fields).unwrap();
            let bytes = format.item_bytes(&text.into()).into();
            Arc::new(StoredObject {
                bytes,
                version: scanned.version,
                attributes: scanned.attributes,
            })
        };
        sizes.iter().enumerate().map(object).collect()
    }

    #[test]
    fn many_objects_of_a_list_are_freed_elsewhere() {
        let (format, _) =
            WireFormat::learn(Encoding::Json, "ConfigMap", &format!("{LIST}\n").into()).unwrap();
        let objects = selected(&format, &vec![1; OBJECTS_PER_TURN + 1]);
        let last = Arc::downgrade(objects.last().unwrap());
        let items = Items::Objects(format.into(), objects.into());
        let body = PlainItems::new(items, 1);
        assert_freed_elsewhere(&last, || drop(body));
    }

    #[test]
    fn a_selection_is_shared_if_little_of_it_has_to_be_copied() {
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
                format.put_item(&object.bytes.get(), &mut all);
            }
            all.truncate(all.len().saturating_sub(format.separator()));
            let items = Items::Objects(Arc::clone(&format), objects.clone().into());
            let metadata = ListMetadata::of(ResourceVersion(9));
            let parts = format.list_parts(&metadata, items.count(), items.bytes());
            let expected = [&parts.head[..], &all, &parts.tail].concat();
            let items = PlainItems::new(items, parts.body_len());
            assert_eq!(items.is_in_memory(), in_memory);
            let mut body = ListBody::new(items, parts);
            let frames: Vec<_> = body.by_ref().collect();
            assert!(body.is_end_stream());
            assert!(frames.concat() == expected);
            let is_shared = |object: &&Arc<StoredObject>| {
                let bytes = object.bytes.get();
                frames.iter().any(|frame| bytes.is_part_of(frame))
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
