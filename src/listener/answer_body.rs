//! The body of an answer, as it is handed to hyper.
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::Response;
use http_body::{Body as _, Frame, SizeHint};

use super::activity::RunningRequest;
use super::stream_stall::{StreamProgress, Unread};
use super::vectored_bytes::VectoredBytes;
use crate::body::{self, AnswerMeter, Body, BodyMeter, BoxError, Finite, InMemory};

/// Largest chunk of an HTTP/2 answer that is handed out at once.
///
/// h2 holds what it was handed until the client takes it, whatever the client's window.
const MAX_CHUNK: usize = 64 * 1024;

/// Bytes handed out at once of an answer that stays in memory anyway.
///
/// Holding them for a client is free, and fewer calls cost less CPU. The bound keeps the stall
/// timeout working: it sees progress only between two chunks.
const MAX_IN_MEMORY_CHUNKS: usize = 256 * 1024;

/// Bytes of a chunk from which on its last byte is handed out alone, if no other may follow.
///
/// hyper hands a chunk to h2 whole once the client takes a byte. If nothing came after it, the
/// stream's task would end then, and with it the timer and all that the answer counts for.
const LAST_BYTE_ALONE: usize = 8 * 1024;

/// One byte of each value.
static SINGLE_BYTES: [u8; 256] = {
    let (mut bytes, mut value) = ([0; 256], 0_u8);
    while value < u8::MAX {
        value += 1;
        bytes[value as usize] = value;
    }
    bytes
};

/// The body of an answer.
///
/// It keeps its connection from being idle, counts what was handed out, and reports the progress of
/// its client.
pub(super) struct AnswerBody {
    inner: Body,
    in_memory: bool,
    /// `true` on HTTP/2, which holds whatever it was handed.
    limit_chunks: bool,
    /// Nobody needs a part of the answer before the rest ([`Finite`]).
    is_finite: bool,
    /// A byte that is kept back until it is known what follows.
    kept: Option<u8>,
    /// The rest of a frame that is handed out in chunks.
    rest: Bytes,
    meter: Option<Arc<dyn BodyMeter>>,
    running: RunningRequest,
}

impl AnswerBody {
    /// Wraps the body of an answer to a request.
    pub(super) fn of(mut response: Response<Body>, running: RunningRequest) -> Response<Self> {
        let extensions = response.extensions_mut();
        let in_memory = extensions.get::<InMemory>().is_some();
        let is_finite = extensions.get::<Finite>().is_some();
        let meter = extensions.remove::<AnswerMeter>().map(|metered| metered.0);
        response.map(|inner| Self {
            inner,
            in_memory,
            limit_chunks: StreamProgress::is_tracked(),
            is_finite: is_finite || running.is_refused(),
            kept: None,
            rest: Bytes::new(),
            meter,
            running,
        })
    }

    /// Returns the next chunks of the frame that is there, and of what follows in memory.
    fn next_chunks(&mut self, cx: &mut Context<'_>) -> VectoredBytes {
        let chunk_limit = if self.limit_chunks {
            MAX_CHUNK
        } else {
            usize::MAX
        };
        let mut chunks = VectoredBytes::from(match self.kept.take() {
            Some(kept) => Bytes::from_static(&SINGLE_BYTES[usize::from(kept)..][..1]),
            None => Bytes::new(),
        });
        chunks.push(self.rest.split_to(chunk_limit.min(self.rest.len())));
        while self.in_memory && chunks.remaining() < MAX_IN_MEMORY_CHUNKS {
            if self.rest.is_empty()
                && self.inner.size_hint().lower() > 0
                && let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut self.inner).poll_frame(cx)
                && let Ok(data) = frame.into_data()
            {
                self.rest = data;
            }
            if self.rest.is_empty() {
                break;
            }
            chunks.push(self.rest.split_to(chunk_limit.min(self.rest.len())));
        }
        let may_be_last = self.limit_chunks && self.is_finite && self.rest.is_empty();
        // A refusal counts until its client takes it, so its last byte is always alone.
        let least = if self.running.is_refused() {
            1
        } else {
            LAST_BYTE_ALONE
        };
        if may_be_last && chunks.remaining() > least {
            self.kept = chunks.split_last();
        }
        chunks
    }

    /// Counts bytes that are handed out. Returns `false` if the client should not leave them waiting.
    fn count(&self, bytes: usize) -> bool {
        let meter = self.meter.as_ref();
        bytes == 0 || meter.is_none_or(|meter| meter.sent(bytes))
    }
}

impl http_body::Body for AnswerBody {
    type Data = VectoredBytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<VectoredBytes>, BoxError>>> {
        let this = &mut *self;
        StreamProgress::Requested.report();
        if let Some(meter) = &this.meter {
            meter.taken();
        }
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(other) if this.kept.is_none() => {
                        return Poll::Ready(Some(Ok(other.map_data(VectoredBytes::from))));
                    }
                    // After the byte that was kept back.
                    Err(other) => this.inner = body::of_frame(other),
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None if this.kept.is_none() => return Poll::Ready(None),
                None => this.inner = body::empty(),
            }
        }
        let chunks = this.next_chunks(cx);
        let is_within_share = this.count(chunks.remaining());
        let unread = match is_within_share {
            _ if this.running.is_refused() => Unread::Refusal,
            true => Unread::WithinShare,
            false => Unread::BeyondShare,
        };
        StreamProgress::HandedOut(unread).report();
        this.running.note_share(is_within_share);
        Poll::Ready(Some(Ok(Frame::data(chunks))))
    }

    fn is_end_stream(&self) -> bool {
        let has_more = !self.rest.is_empty() || self.kept.is_some();
        !has_more && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64 + u64::from(self.kept.is_some());
        let inner = self.inner.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper().and_then(|upper| upper.checked_add(rest)) {
            hint.set_upper(upper);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http::{HeaderName, HeaderValue};
    use http_body_util::{BodyExt as _, StreamBody};

    use super::super::activity::Activity;
    use super::*;

    /// Returns the lengths of the chunks that HTTP/2 gets of an answer, and its trailers' number.
    async fn handed_out(body: Body, is_finite: bool) -> (Vec<usize>, usize) {
        let mut answer = Response::new(body);
        if is_finite {
            answer.extensions_mut().insert(Finite);
        }
        let mut body = AnswerBody::of(answer, RunningRequest::new(&Activity::alone())).into_body();
        body.limit_chunks = true;
        let (mut chunks, mut trailers) = (Vec::new(), 0);
        while !body.is_end_stream()
            && let Some(frame) = body.frame().await
        {
            match frame.unwrap().into_data() {
                Ok(data) => chunks.push(data.remaining()),
                Err(frame) => trailers += frame.trailers_ref().unwrap().len(),
            }
        }
        (chunks, trailers)
    }

    fn parts(lengths: &[usize]) -> Vec<Result<Frame<Bytes>, BoxError>> {
        let parts = lengths.iter().map(|length| Bytes::from(vec![7; *length]));
        parts.map(|part| Ok(Frame::data(part))).collect()
    }

    #[tokio::test]
    async fn the_last_byte_of_a_large_answer_is_handed_out_alone() {
        let streamed = |parts| StreamBody::new(stream::iter(parts)).boxed_unsync();
        let large = MAX_CHUNK - 10;
        for (lengths, is_finite, wanted) in [
            (vec![large], true, vec![large - 1, 1]),
            (vec![large, large], true, vec![large - 1, large, 1]),
            (vec![large, 5], true, vec![large - 1, 6]),
            (vec![100], true, vec![100]),
            // Somebody may wait for the end of an event.
            (vec![large, 5], false, vec![large, 5]),
        ] {
            let body = streamed(parts(&lengths));
            assert_eq!(
                handed_out(body, is_finite).await,
                (wanted, 0),
                "{lengths:?}"
            );
        }
        let mut parts = parts(&[large]);
        let trailers = [(HeaderName::from_static("a"), HeaderValue::from_static("b"))];
        parts.push(Ok(Frame::trailers(trailers.into_iter().collect())));
        let wanted = (vec![large - 1, 1], 1);
        assert_eq!(handed_out(streamed(parts), true).await, wanted);
        let whole = handed_out(body::full(vec![0; large]), true).await;
        assert_eq!(whole, (vec![large - 1, 1], 0));
        assert_eq!(handed_out(body::empty(), true).await, (vec![], 0));
    }

    /// The task of an HTTP/2 stream holds both. It takes 384 bytes, and the allocator's next size
    /// is 512. There may be a hundred thousand such tasks.
    #[test]
    fn the_body_of_an_open_stream_is_small() {
        let bytes = size_of::<AnswerBody>() + size_of::<VectoredBytes>();
        assert!(bytes <= 160, "{bytes}");
    }
}
