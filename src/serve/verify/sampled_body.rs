//! The body of an answer that is compared with upstream when it has ended.
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};

use super::comparison::AnswerComparison;
use crate::body::{Body, BoxError};

/// Largest answer that is compared, as it is sent.
const MAX_BYTES: usize = 16 << 20;

/// A body that remembers what was sent.
pub(super) struct SampledBody {
    inner: Body,
    sample: Option<AnswerSample>,
}

/// The part of an answer that was sent.
struct AnswerSample {
    chunks: Vec<Bytes>,
    bytes: usize,
    comparison: AnswerComparison,
}

impl SampledBody {
    pub(super) fn new(inner: Body, comparison: AnswerComparison) -> Self {
        Self {
            inner,
            sample: Some(AnswerSample {
                chunks: Vec::new(),
                bytes: 0,
                comparison,
            }),
        }
    }

    fn note(&mut self, frame: &Frame<Bytes>) {
        let (Some(sample), Some(data)) = (&mut self.sample, frame.data_ref()) else {
            return;
        };
        sample.bytes += data.len();
        sample.chunks.push(data.clone());
        sample.comparison.keep(data.len());
        if sample.bytes > MAX_BYTES {
            self.skip();
        }
    }

    /// Compares what was sent.
    fn finish(&mut self) {
        if let Some(sample) = self.sample.take() {
            tokio::spawn(sample.comparison.run(sample.chunks));
        }
    }

    fn skip(&mut self) {
        if let Some(sample) = self.sample.take() {
            sample.comparison.skip();
        }
    }
}

impl http_body::Body for SampledBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                self.note(frame);
                // Nobody may ask for the end of a body whose length is known.
                if self.inner.is_end_stream() {
                    self.finish();
                }
            }
            Some(Err(_)) => self.skip(),
            None => self.finish(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for SampledBody {
    fn drop(&mut self) {
        // A connection that knows the length drops the body behind its last byte.
        if self.inner.size_hint().exact() == Some(0) {
            self.finish();
        } else {
            self.skip();
        }
    }
}
