//! A list of the newest snapshot's objects.
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, StatusCode, header};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;

use super::decide::{Read, ReadKind};
use super::source::{Reason, Source};
use super::{Opened, Outcome, from_memory};
use crate::kube::{ListParts, TypeForm};
use crate::store::Object;

/// Objects are joined to pieces of about this size, so that small ones do not become a frame each.
const CHUNK: usize = 64 * 1024;

pub(super) fn answer(opened: &Opened, read: &Read) -> Outcome {
    let ReadKind::List(filter) = &read.kind else { return Outcome::Forward(Reason::Parameters) };
    let snapshot = opened.scope.reader.snapshot();
    // References only: the body holds no bytes of its own but the piece it is sending.
    let objects: Vec<_> = snapshot
        .items(read.namespace.as_deref())
        .filter(|object| filter.matches(&object.attributes))
        .cloned()
        .collect();
    let form = Arc::clone(&opened.ready.form);
    let parts = form.list_parts(snapshot.version(), None, None, objects.iter().map(|object| &object.bytes));
    let length = parts.body_len();
    let body = ListBody { form, parts, objects, next: 0, place: Place::Head, left: length };
    let body = body.map_err(|never| match never {}).boxed_unsync();
    let content_type = opened.encoding.content_type(false);
    let mut response = from_memory(StatusCode::OK, content_type, body, &opened.ready.warnings);
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    Outcome::Answered(Source::Snapshot, response)
}

enum Place {
    Head,
    Items,
    Tail,
    Over,
}

/// Sends a list piece by piece as the connection takes it.
struct ListBody {
    form: Arc<TypeForm>,
    parts: ListParts,
    objects: Vec<Arc<Object>>,
    next: usize,
    place: Place,
    /// Bytes still to be sent.
    left: u64,
}

impl ListBody {
    fn next_chunk(&mut self) -> Option<Bytes> {
        let mut chunk = BytesMut::new();
        loop {
            match self.place {
                Place::Head => {
                    chunk.extend_from_slice(&self.parts.head);
                    self.place = Place::Items;
                }
                Place::Items => {
                    let Some(object) = self.objects.get(self.next) else {
                        self.place = Place::Tail;
                        continue;
                    };
                    self.form.write_item(self.next, &object.bytes, &mut chunk);
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
