//! A list of the newest snapshot's objects.
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, StatusCode, header};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;

use super::decide::{List, Read};
use super::source::Reason;
use super::{Opened, Outcome, from_memory};
use crate::kube::{ContinueToken, ListParts, PartialForm, ResourceVersion, TypeForm};
use crate::store::{At, Object, Snapshot};

/// Objects are joined to pieces of about this size, so that small ones do not become a frame each.
const CHUNK: usize = 64 * 1024;

pub(super) fn answer(opened: &Opened, read: &Read, list: &List) -> Outcome {
    let reader = &opened.scope.reader;
    let snapshot = match list.exact.map(|version| reader.at(Instant::now(), version)) {
        None => reader.snapshot(),
        Some(At::Held(snapshot)) => snapshot,
        Some(At::Ahead) => return Outcome::Forward(Reason::VersionAhead),
        Some(At::Lost) => return Outcome::Forward(Reason::Exact),
    };
    // Listed anew since it was looked at, at another server.
    if snapshot.version() < opened.floor {
        return Outcome::Forward(Reason::VersionAhead);
    }
    let page = Page::cut(&snapshot, read.namespace.as_deref(), list);
    if page.token.is_some() && snapshot.version() > reader.followed() {
        // The window does not lead back to a state that is ahead of its events.
        reader.pin(Instant::now(), snapshot.clone());
    }
    let items = match opened.partial() {
        None => Items::Whole(Arc::clone(&opened.ready.form), page.objects),
        Some(partial) => {
            let metadata: Result<_, _> =
                page.objects.iter().map(|object| partial.metadata(&object.bytes)).collect();
            let Ok(metadata) = metadata else { return Outcome::Forward(Reason::Representation) };
            Items::Metadata(partial, metadata)
        }
    };
    let parts = items.parts(snapshot.version(), page.token.as_deref(), page.remaining);
    let length = parts.body_len();
    let body = ListBody { items, parts, next: 0, place: Place::Head, left: length };
    let body = body.map_err(|never| match never {}).boxed_unsync();
    let content_type = opened.representation.encoding.content_type(false);
    let mut response = from_memory(StatusCode::OK, content_type, body, &opened.ready.warnings);
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    Outcome::Answered(opened.source, response)
}

/// Whether the answer has so few objects at the most.
pub(super) fn is_within(snapshot: &Snapshot, namespace: Option<&str>, list: &List, most: usize) -> bool {
    let items = snapshot.items_after(namespace, list.after.as_deref());
    let wanted = items.filter(|object| list.filter.matches(&object.attributes)).take(most + 1).count();
    wanted.min(list.limit.unwrap_or(usize::MAX)) <= most
}

/// The objects of one answer: references only, the body holds no bytes of its own but what it sends.
struct Page {
    objects: Vec<Arc<Object>>,
    /// Where the next page begins, if there is one.
    token: Option<String>,
    /// How many objects come after this page, where that can be told without looking at them.
    remaining: Option<i64>,
}

impl Page {
    /// Source: `apiserver/pkg/storage/continue.go` (PrepareContinueToken) and
    /// `apiserver/pkg/storage/cacher/cacher.go` (GetList).
    fn cut(snapshot: &Snapshot, namespace: Option<&str>, list: &List) -> Self {
        let mut items = snapshot.items_after(namespace, list.after.as_deref());
        let limit = list.limit.unwrap_or(usize::MAX);
        let objects: Vec<_> = items
            .by_ref()
            .filter(|object| list.filter.matches(&object.attributes))
            .take(limit)
            .cloned()
            .collect();
        // Whether what follows matches is not looked at: the last page of a selection may be empty.
        let rest = if objects.len() == limit { items.count() } else { 0 };
        let last = objects.last().filter(|_| rest > 0);
        let token = last.map(|last| {
            let key = last.key();
            let after = namespace.map_or(key, |namespace| &key[namespace.len() + 1..]).to_owned();
            ContinueToken { version: snapshot.version(), after }.encode()
        });
        let plain = token.is_some() && list.filter.is_plain();
        Self { objects, token, remaining: plain.then(|| i64::try_from(rest).unwrap_or(i64::MAX)) }
    }
}

/// What is listed: references only, or slices of what is held.
enum Items {
    Whole(Arc<TypeForm>, Vec<Arc<Object>>),
    Metadata(PartialForm, Vec<Bytes>),
}

impl Items {
    fn parts(&self, version: ResourceVersion, token: Option<&str>, remaining: Option<i64>) -> ListParts {
        match self {
            Self::Whole(form, objects) => {
                form.list_parts(version, token, remaining, objects.iter().map(|object| &object.bytes))
            }
            Self::Metadata(form, metadata) => form.list_parts(version, token, remaining, metadata.iter()),
        }
    }

    /// Writes the item at `index`; false when there is none.
    fn write(&self, index: usize, out: &mut BytesMut) -> bool {
        match self {
            Self::Whole(form, objects) => {
                objects.get(index).map(|object| form.write_item(index, &object.bytes, out)).is_some()
            }
            Self::Metadata(form, metadata) => {
                metadata.get(index).map(|metadata| form.write_item(index, metadata, out)).is_some()
            }
        }
    }
}

enum Place {
    Head,
    Items,
    Tail,
    Over,
}

/// Sends a list piece by piece as the connection takes it.
struct ListBody {
    items: Items,
    parts: ListParts,
    next: usize,
    place: Place,
    /// Bytes still to be sent.
    left: u64,
}

impl ListBody {
    fn next_chunk(&mut self) -> Option<Bytes> {
        let mut chunk = BytesMut::with_capacity(CHUNK.min(usize::try_from(self.left).unwrap_or(CHUNK)));
        loop {
            match self.place {
                Place::Head => {
                    chunk.extend_from_slice(&self.parts.head);
                    self.place = Place::Items;
                }
                Place::Items => {
                    if !self.items.write(self.next, &mut chunk) {
                        self.place = Place::Tail;
                        continue;
                    }
                    self.next += 1;
                    if chunk.len() >= CHUNK {
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
