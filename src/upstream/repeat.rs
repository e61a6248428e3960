//! A request body that can be sent again, as long as little of it was sent.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use parking_lot::Mutex;

use crate::body::{Body, BoxError};

/// Bytes of a body that are kept for a resend. Most writes have a few KB.
const MAX_KEPT: usize = 256 * 1024;

/// Keeps what is needed to send a body again.
///
/// The body is streamed: what was sent is kept, and the rest is read from the client.
pub(super) struct Repeatable {
    shared: Arc<Mutex<RepeatState>>,
}

struct RepeatState {
    /// The unread rest; `None` once the next attempt has taken over.
    rest: Option<Body>,
    kept: SentBytes,
}

/// The bytes sent so far.
enum SentBytes {
    /// A copy of all. A chunk of a connection keeps the buffer that it was read into, and what else the
    /// client sent into it: kilobytes for a byte.
    All(Vec<u8>),
    /// Too much was sent, or no resend is possible any more.
    Nothing,
}

/// The body of one attempt.
struct Attempt {
    shared: Arc<Mutex<RepeatState>>,
    /// The bytes that earlier attempts have sent: they are sent first.
    first: Bytes,
}

/// The attempt was replaced by the next one.
#[derive(Debug, thiserror::Error)]
#[error("the request is being sent on another connection")]
struct Abandoned;

/// Returns an empty body whose end is not sent together with the head, for writes without a body.
///
/// hyper may fail a request that it has just handed to h2, which still writes the head. With the
/// end in it the request would be complete: upstream may carry it out, and it would be sent again.
pub(super) fn open_end() -> Body {
    OpenEnd { over: false }.boxed_unsync()
}

struct OpenEnd {
    over: bool,
}

impl http_body::Body for OpenEnd {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.over = true;
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.over
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(0)
    }
}

impl Repeatable {
    /// Begins the first attempt. The returned body replaces the given one.
    pub(super) fn begin(body: Body) -> (Repeatable, Body) {
        let shared = Arc::new(Mutex::new(RepeatState {
            rest: Some(body),
            kept: SentBytes::All(Vec::new()),
        }));
        let attempt = Attempt {
            shared: Arc::clone(&shared),
            first: Bytes::new(),
        };
        (Repeatable { shared }, attempt.boxed_unsync())
    }

    /// Begins the next attempt with the whole body; `None` if too much was sent. The previous
    /// attempt gets no more.
    pub(super) fn again(&mut self) -> Option<Body> {
        let mut state = self.shared.lock();
        let RepeatState {
            rest,
            kept: SentBytes::All(sent),
        } = &mut *state
        else {
            return None;
        };
        let rest = rest.take()?;
        let sent = mem::take(sent);
        drop(state);
        let first = Bytes::copy_from_slice(&sent);
        let state = RepeatState {
            rest: Some(rest),
            kept: SentBytes::All(sent),
        };
        self.shared = Arc::new(Mutex::new(state));
        Some(
            Attempt {
                shared: Arc::clone(&self.shared),
                first,
            }
            .boxed_unsync(),
        )
    }
}

impl Drop for Repeatable {
    /// Stops keeping what is sent: without this value, nothing is sent again.
    fn drop(&mut self) {
        self.shared.lock().kept = SentBytes::Nothing;
    }
}

impl RepeatState {
    fn keep(&mut self, frame: &Frame<Bytes>) {
        let SentBytes::All(sent) = &mut self.kept else {
            return;
        };
        match frame.data_ref() {
            Some(chunk) if sent.len() + chunk.len() <= MAX_KEPT => sent.extend_from_slice(chunk),
            _ => self.kept = SentBytes::Nothing,
        }
    }
}

impl http_body::Body for Attempt {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let first = mem::take(&mut self.first);
        if !first.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let mut state = self.shared.lock();
        let Some(rest) = &mut state.rest else {
            return Poll::Ready(Some(Err(Abandoned.into())));
        };
        let frame = ready!(Pin::new(rest).poll_frame(cx));
        match &frame {
            // A resend would miss the error and end as if the body were complete.
            Some(Err(_)) => state.kept = SentBytes::Nothing,
            Some(Ok(frame)) => state.keep(frame),
            None => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let state = self.shared.lock();
        self.first.is_empty()
            && state
                .rest
                .as_ref()
                .is_some_and(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.shared.lock();
        let first = self.first.len() as u64;
        let rest = state
            .rest
            .as_ref()
            .map(http_body::Body::size_hint)
            .unwrap_or_default();
        let mut hint = SizeHint::new();
        hint.set_lower(first + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(first + upper);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, stream};
    use http_body::Body as _;
    use http_body_util::StreamBody;

    use super::*;

    fn chunks(chunks: Vec<Result<&'static [u8], BoxError>>) -> Body {
        let frames = stream::iter(chunks)
            .map(|chunk| chunk.map(|bytes| Frame::data(Bytes::from_static(bytes))));
        StreamBody::new(frames).boxed_unsync()
    }

    async fn next(body: &mut Body) -> Option<Result<Bytes, BoxError>> {
        Some(body.frame().await?.map(|frame| frame.into_data().unwrap()))
    }

    async fn text(body: Body) -> Result<String, BoxError> {
        Ok(String::from_utf8(body.collect().await?.to_bytes().to_vec()).unwrap())
    }

    #[tokio::test]
    async fn sent_chunks_are_repeated_and_the_rest_is_sent_once() {
        for sent in 0..=4 {
            let (mut repeatable, mut first) =
                Repeatable::begin(chunks(vec![Ok(b"a"), Ok(b"bc"), Ok(b"def")]));
            for _ in 0..sent {
                next(&mut first).await;
            }
            let mut second = repeatable.again().unwrap();
            assert!(
                next(&mut first)
                    .await
                    .unwrap()
                    .unwrap_err()
                    .is::<Abandoned>(),
                "two would share the rest"
            );
            let begun = next(&mut second).await.unwrap().unwrap();
            let sent_before = ["a", "a", "abc", "abcdef", "abcdef"][sent];
            assert_eq!(begun, sent_before);
            assert_eq!(text(repeatable.again().unwrap()).await.unwrap(), "abcdef");
        }
    }

    #[tokio::test]
    async fn a_cut_body_is_cut_at_every_attempt() {
        let (mut repeatable, mut first) =
            Repeatable::begin(chunks(vec![Ok(b"a"), Err("cut".into())]));
        next(&mut first).await.unwrap().unwrap();
        assert_eq!(
            text(repeatable.again().unwrap())
                .await
                .unwrap_err()
                .to_string(),
            "cut"
        );
    }

    #[tokio::test]
    async fn sent_chunks_are_kept_up_to_a_limit_and_only_while_needed() {
        static LARGE: [u8; MAX_KEPT] = [0; MAX_KEPT];
        let (mut repeatable, mut first) = Repeatable::begin(chunks(vec![Ok(&LARGE), Ok(b"a")]));
        next(&mut first).await;
        let is_kept = |kept: &_| matches!(kept, SentBytes::All(sent) if sent.len() == MAX_KEPT);
        assert!(is_kept(&repeatable.shared.lock().kept));
        next(&mut first).await;
        assert!(repeatable.again().is_none());
        assert!(
            next(&mut first).await.is_none(),
            "the first attempt goes on"
        );

        let (repeatable, first) = Repeatable::begin(chunks(vec![Ok(b"a")]));
        let shared = Arc::clone(&repeatable.shared);
        drop(repeatable);
        assert_eq!(text(first).await.unwrap(), "a");
        assert!(matches!(shared.lock().kept, SentBytes::Nothing));
    }

    #[tokio::test]
    async fn bytes_that_were_sent_do_not_keep_the_buffer_that_they_were_read_into() {
        let read = Bytes::from(vec![b'x'; 8192]);
        let body = StreamBody::new(stream::iter([Ok(Frame::data(read.slice(..1)))]));
        let (mut repeatable, mut first) = Repeatable::begin(body.boxed_unsync());
        drop(next(&mut first).await.unwrap().unwrap());
        assert_eq!(text(repeatable.again().unwrap()).await.unwrap(), "x");
        drop(first);
        assert!(read.is_unique());
    }

    #[test]
    fn every_attempt_has_the_length_of_the_whole_body() {
        let (mut repeatable, first) = Repeatable::begin(crate::body::full("abc"));
        assert_eq!(first.size_hint().exact(), Some(3));
        assert!(!first.is_end_stream());
        assert_eq!(repeatable.again().unwrap().size_hint().exact(), Some(3));
    }
}
