//! The body of a list.
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};

use crate::kube::{Deflated, ListParts, Member, PartialForm, TypeForm, deflate};
use crate::store::{Object, Run};

/// Small pieces are joined to pieces of about this size, so that they do not become a frame each.
const CHUNK: usize = 64 * 1024;
/// From this size on a piece is sent from where it lies, without a copy.
const WORTH_SHARING: usize = 16 * 1024;
/// So many pieces are compressed before others have their turn. Most were compressed before.
const COMPRESSED_AT_ONCE: usize = 4;

/// What is listed: references only, or slices of what is held.
pub(super) enum Items {
    /// Objects that lie side by side.
    Runs(Arc<TypeForm>, Vec<Run>),
    /// A selection.
    Objects(Arc<TypeForm>, Vec<Arc<Object>>),
    /// The metadata of objects.
    Metadata(PartialForm, Vec<Bytes>),
}

impl Items {
    pub(super) fn form(&self) -> &TypeForm {
        match self {
            Self::Runs(form, _) | Self::Objects(form, _) => form,
            Self::Metadata(partial, _) => partial.form(),
        }
    }

    /// How many objects there are.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::Runs(_, runs) => runs.iter().map(Run::len).sum(),
            Self::Objects(_, objects) => objects.len(),
            Self::Metadata(_, metadata) => metadata.len(),
        }
    }

    /// Their bytes, with the separators between them.
    pub(super) fn bytes(&self) -> u64 {
        let all: u64 = match self {
            Self::Runs(_, runs) => runs.iter().map(|run| run.items_len() as u64).sum(),
            Self::Objects(form, objects) => {
                objects.iter().map(|object| form.item_len(&object.bytes) as u64).sum()
            }
            Self::Metadata(partial, metadata) => {
                metadata.iter().map(|metadata| partial.item_len(metadata) as u64).sum()
            }
        };
        all.saturating_sub(self.form().separator() as u64)
    }

    /// How many pieces they are put in one by one.
    fn pieces(&self) -> usize {
        match self {
            Self::Runs(_, runs) => runs.len(),
            Self::Objects(_, objects) => objects.len(),
            Self::Metadata(_, metadata) => metadata.len(),
        }
    }

    /// Appends a piece with a separator behind it, or gives it back to be sent from where it lies.
    fn put(&self, index: usize, out: &mut BytesMut) -> Option<Bytes> {
        match self {
            Self::Runs(_, runs) => {
                let items = runs[index].items();
                if items.len() >= WORTH_SHARING {
                    return Some(items);
                }
                out.extend_from_slice(&items);
            }
            Self::Objects(form, objects) => form.put_item(&objects[index].bytes, out),
            Self::Metadata(partial, metadata) => partial.put_item(&metadata[index], out),
        }
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
    /// A piece that is sent next.
    shared: Option<Bytes>,
    /// Bytes still to be sent.
    left: u64,
}

impl ListBody {
    pub(super) fn new(items: Items, parts: ListParts) -> Self {
        let left = parts.body_len();
        Self { items, parts, next: 0, place: Place::Head, shared: None, left }
    }

    fn next_chunk(&mut self) -> Option<Bytes> {
        if let Some(shared) = self.shared.take() {
            return Some(shared);
        }
        let mut chunk = BytesMut::new();
        loop {
            match self.place {
                Place::Head => {
                    chunk.extend_from_slice(&self.parts.head);
                    self.place = Place::Items;
                }
                Place::Items => {
                    if self.next == self.items.pieces() {
                        self.place = Place::Tail;
                        continue;
                    }
                    let mut shared = self.items.put(self.next, &mut chunk);
                    self.next += 1;
                    if self.next == self.items.pieces() {
                        let separator = self.items.form().separator();
                        match &mut shared {
                            Some(shared) => shared.truncate(shared.len() - separator),
                            None => chunk.truncate(chunk.len() - separator),
                        }
                    }
                    if chunk.is_empty() && shared.is_some() {
                        return shared;
                    }
                    if shared.is_some() || chunk.len() >= CHUNK {
                        self.shared = shared;
                        return Some(chunk.freeze());
                    }
                }
                Place::Tail => {
                    chunk.extend_from_slice(&self.parts.tail);
                    self.place = Place::Over;
                    return Some(chunk.freeze());
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
        this.left -= chunk.as_ref().map_or(0, |chunk| chunk.len() as u64).min(this.left);
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
    runs: std::vec::IntoIter<Run>,
    parts: ListParts,
    separator: Option<Deflated>,
    /// Gone once the end is written.
    member: Option<Member>,
    place: Place,
}

impl CompressedListBody {
    pub(super) fn new(form: &TypeForm, runs: Vec<Run>, parts: ListParts) -> Self {
        let separator = (form.separator() > 0).then(|| Deflated::stored(b","));
        Self { runs: runs.into_iter(), parts, separator, member: None, place: Place::Head }
    }

    /// Whether somebody had nearly all of it before, so that what is left to be compressed keeps nobody waiting.
    pub(super) fn is_in_memory(&self) -> bool {
        let runs = self.runs.as_slice();
        runs.iter().filter(|run| !run.is_deflated()).nth(COMPRESSED_AT_ONCE).is_none()
    }

    fn next_chunk(&mut self) -> Option<Bytes> {
        let mut chunk = BytesMut::new();
        let mut compressed = 0;
        loop {
            match self.place {
                Place::Head => {
                    let member = self.member.insert(Member::begin(&mut chunk));
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
                    if let Some(separator) = self.separator.as_ref().filter(|_| self.runs.len() > 0) {
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
        Poll::Ready(self.get_mut().next_chunk().map(|chunk| Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.place, Place::Over)
    }
}
