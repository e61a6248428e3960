//! The body type every answer and every upstream request is made of.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::body::Incoming;

/// Any error, as hyper wants it from a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A boxed body: a buffer, a watch or a stream from upstream.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

/// Put into an answer's extensions: its body is made of references to what lies in memory anyway
/// and never fails. While its size hint promises more, that is ready.
#[derive(Clone, Copy, Debug)]
pub struct InMemory;

/// Hears how much of an answer's body was handed to its connection, and by its drop that the answer
/// is over.
pub trait BodyMeter: Send + Sync {
    /// So many bytes more.
    fn sent(&self, bytes: usize);
}

/// Put into an answer's extensions: who counts it.
#[derive(Clone)]
pub struct AnswerMeter(pub Arc<dyn BodyMeter>);

/// A body of bytes known beforehand.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A body without bytes.
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// All of a body that has at most `limit` bytes.
pub async fn whole<B>(body: B, limit: usize) -> Result<Bytes, BoxError>
where
    B: http_body::Body<Error: Into<BoxError>>,
{
    Ok(Limited::new(body, limit).collect().await?.to_bytes())
}

/// A client's request body, ready to be sent on.
pub fn from_client(body: Incoming, version: http::Version) -> Body {
    if http_body::Body::is_end_stream(&body) {
        return empty();
    }
    Whole {
        inner: body,
        framed: version == http::Version::HTTP_2,
    }
    .boxed_unsync()
}

/// A request body that was cut, where its HTTP version would show a clean end.
#[derive(Debug, thiserror::Error)]
#[error("the client reset the stream in the middle of the request body")]
pub struct RequestCut;

/// A request body that ends cleanly only if the client said so.
///
/// hyper takes an HTTP/2 reset with `NO_ERROR` for an end. Sent on, that would be a complete
/// request with half a body, and half a YAML document is often a document.
struct Whole {
    inner: Incoming,
    /// Whether the version has an end mark that `is_end_stream` reports (HTTP/2). HTTP/1 bodies
    /// report a missing end as an error by themselves.
    framed: bool,
}

impl http_body::Body for Whole {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Poll::Ready(match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
            Some(frame) => Some(frame.map_err(BoxError::from)),
            None if self.framed && !self.inner.is_end_stream() => Some(Err(RequestCut.into())),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
