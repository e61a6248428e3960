//! The body of an answer, as it is handed to hyper.
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::Response;
use http_body::{Frame, SizeHint};

use super::activity::RunningRequest;
use super::stream_stall::StreamProgress;
use super::vectored_bytes::VectoredBytes;
use crate::body::{AnswerMeter, Body, BodyMeter, BoxError, InMemory};

/// Largest chunk of an HTTP/2 answer that is handed out at once.
///
/// h2 holds what it was handed until the client takes it, whatever the client's window.
const MAX_CHUNK: usize = 64 * 1024;

/// Bytes handed out at once of an answer that stays in memory anyway.
///
/// Holding them for a client is free, and fewer calls cost less CPU. The bound keeps the stall
/// timeout working: it sees progress only between two chunks.
const MAX_IN_MEMORY_CHUNKS: usize = 256 * 1024;

/// The body of an answer.
///
/// It keeps its connection from being idle, counts what was handed out, and reports the progress of
/// its client.
pub(super) struct AnswerBody {
    inner: Body,
    in_memory: bool,
    /// `true` on HTTP/2, which holds whatever it was handed.
    limit_chunks: bool,
    /// The rest of a frame that is handed out in chunks.
    rest: Bytes,
    meter: Option<Arc<dyn BodyMeter>>,
    _running: RunningRequest,
}

impl AnswerBody {
    /// Wraps the body of an answer to a request.
    pub(super) fn of(mut response: Response<Body>, running: RunningRequest) -> Response<Self> {
        let in_memory = response.extensions().get::<InMemory>().is_some();
        let meter = response
            .extensions_mut()
            .remove::<AnswerMeter>()
            .map(|metered| metered.0);
        response.map(|inner| Self {
            inner,
            in_memory,
            rest: Bytes::new(),
            limit_chunks: StreamProgress::is_tracked(),
            meter,
            _running: running,
        })
    }

    fn count(&self, bytes: usize) {
        if let Some(meter) = &self.meter
            && bytes > 0
        {
            meter.sent(bytes);
        }
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
        if this.rest.is_empty() {
            match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(other) => {
                        return Poll::Ready(Some(Ok(other.map_data(VectoredBytes::from))));
                    }
                },
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        StreamProgress::HandedOut.report();
        let chunk_limit = if this.limit_chunks {
            MAX_CHUNK
        } else {
            usize::MAX
        };
        let mut chunks = VectoredBytes::from(this.rest.split_to(chunk_limit.min(this.rest.len())));
        while this.in_memory && chunks.remaining() < MAX_IN_MEMORY_CHUNKS {
            if this.rest.is_empty()
                && this.inner.size_hint().lower() > 0
                && let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut this.inner).poll_frame(cx)
                && let Ok(data) = frame.into_data()
            {
                this.rest = data;
            }
            if this.rest.is_empty() {
                break;
            }
            chunks.push(this.rest.split_to(chunk_limit.min(this.rest.len())));
        }
        this.count(chunks.remaining());
        Poll::Ready(Some(Ok(Frame::data(chunks))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
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
    use super::*;

    /// The task of an HTTP/2 stream holds both. It takes 384 bytes, and the allocator's next size
    /// is 512. There may be a hundred thousand such tasks.
    #[test]
    fn the_body_of_an_open_stream_is_small() {
        let bytes = size_of::<AnswerBody>() + size_of::<VectoredBytes>();
        assert!(bytes <= 160, "{bytes}");
    }
}
