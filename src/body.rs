//! The body type of every answer and every upstream request.
mod noted_reads;
mod unread;

use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::{BufMut as _, Bytes};
use futures_util::stream;
use http::Request;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, Empty, Full, Limited, StreamBody};
use hyper::body::Incoming;
use tokio_util::sync::{CancellationToken, DropGuard};

use noted_reads::NotedReads;
pub use noted_reads::{BodyReader, RequestBodyReader};
pub use unread::{MAX_UNREAD, discard_of};

/// Most bytes that are reserved for a body before they are here.
const MAX_RESERVED: usize = 1 << 20;

/// Any error, as hyper wants it from a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A boxed body: a buffer, a watch or a stream from upstream.
pub type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>;

/// Marks an answer, in its extensions, whose body refers to bytes that stay in memory anyway.
///
/// Such a body never fails. While its size hint promises more, the next frame is ready.
#[derive(Clone, Copy, Debug)]
pub struct InMemory;

/// Marks an answer, in its extensions, whose body ends by itself, and of which no reader needs a part
/// before the rest.
#[derive(Clone, Copy, Debug)]
pub struct Finite;

/// The end of the tunnel that an answer opens, in its extensions. The answer's body ends before it.
#[derive(Clone, Debug, Default)]
pub struct TunnelEnd(CancellationToken);

impl TunnelEnd {
    /// Returns a guard. The end is reached once it is dropped.
    pub fn reached_on_drop(self) -> DropGuard {
        self.0.drop_guard()
    }

    /// Waits until the tunnel has ended.
    pub async fn reached(self) {
        self.0.cancelled_owned().await;
    }
}

/// Counts the bytes of an answer that were handed to its connection.
///
/// Dropping it says that the answer is over.
pub trait BodyMeter: Send + Sync {
    /// Adds bytes that are handed to the connection, where they wait for the client. Returns `false`
    /// if the client should not leave that much waiting for long.
    fn sent(&self, bytes: usize) -> bool;

    /// Notes that the connection has taken what was waiting.
    fn taken(&self);
}

/// The meter of an answer, in its extensions.
#[derive(Clone)]
pub struct AnswerMeter(pub Arc<dyn BodyMeter>);

/// Returns a body of these bytes.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// Returns a body without bytes.
pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Returns a body of one frame.
pub fn of_frame(frame: Frame<Bytes>) -> Body {
    StreamBody::new(stream::iter([Ok(frame)])).boxed_unsync()
}

/// Returns a body as it was before its first frame was taken.
pub fn with_first(frame: Result<Frame<Bytes>, BoxError>, rest: Body) -> Body {
    WithFirst {
        first: Some(frame),
        rest,
    }
    .boxed_unsync()
}

/// Reads a body to its end. Fails if it has more than `limit` bytes.
///
/// The bytes are copied as they come. A chunk of a connection keeps the buffer that it was read into, and
/// what else the other side sent into it: kilobytes for a byte.
pub async fn whole<B>(body: B, limit: usize) -> Result<Bytes, BoxError>
where
    B: http_body::Body<Error: Into<BoxError>>,
{
    let mut body = pin!(Limited::new(body, limit));
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(limit);
    let mut bytes = Vec::with_capacity(expected.min(limit).min(MAX_RESERVED));
    while let Some(frame) = body.frame().await {
        if let Ok(chunk) = frame?.into_data() {
            bytes.put(chunk);
        }
    }
    Ok(bytes.into_boxed_slice().into())
}

/// Returns the body, which keeps `value` until it is dropped.
///
/// hyper drops a body once it is sent or its client is gone, so a permit or a guard in `value` ends
/// with the answer.
pub fn holding<T: Send + Unpin + 'static>(body: Body, value: T) -> Body {
    Holding {
        body,
        _value: value,
    }
    .boxed_unsync()
}

/// Returns the body, which keeps `value` until it has been read to its end, or is dropped.
pub fn holding_until_end<T: Send + Unpin + 'static>(body: Body, value: T) -> Body {
    HoldingUntilEnd {
        body,
        value: Some(value),
    }
    .boxed_unsync()
}

/// Turns a client's request into one whose body can be forwarded. If it has a body, a [`BodyEnd`] is among
/// its extensions.
pub fn from_client(mut request: Request<Incoming>) -> Request<Body> {
    let reader = request.extensions_mut().remove::<RequestBodyReader>();
    let reader = reader.map(|RequestBodyReader(reader)| NotedReads::of(reader));
    if http_body::Body::is_end_stream(request.body()) {
        return request.map(|_| empty());
    }
    let end = BodyEnd::default();
    request.extensions_mut().insert(end.clone());
    let framed = request.version() == http::Version::HTTP_2;
    let is_withheld = unread::waits_for_continue(request.version(), request.headers());
    request.map(|inner| {
        let body = ClientBody {
            inner: Some(inner),
            framed,
            is_withheld,
            end,
            reader,
        };
        body.boxed_unsync()
    })
}

/// The end of a client's request body, which is seen while the body is sent on.
#[derive(Clone, Debug, Default)]
pub struct BodyEnd(Arc<OnceLock<ReachedEnd>>);

/// The way in which a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReachedEnd {
    Whole,
    Broken,
}

impl BodyEnd {
    /// Returns `true` if the body broke off.
    pub fn is_broken(&self) -> bool {
        self.0.get() == Some(&ReachedEnd::Broken)
    }

    /// Returns `true` if a part of the body was not read.
    pub fn is_unfinished(&self) -> bool {
        self.0.get().is_none()
    }
}

/// A request body was reset, and HTTP/2 would show that as a clean end.
#[derive(Debug, thiserror::Error)]
#[error("the client reset the stream in the middle of the request body")]
pub struct RequestCut;

/// A request body that ends cleanly only if the client said so. What is not read of it is discarded
/// behind the answer.
///
/// hyper takes an HTTP/2 reset with `NO_ERROR` for an end. Sent on, that would be a complete
/// request with half a body, and half a YAML document is often a document.
struct ClientBody {
    /// `None` after the end.
    inner: Option<Incoming>,
    /// `true` on HTTP/2, whose end mark `is_end_stream` reports. hyper's HTTP/1 bodies report a
    /// missing end as an error by themselves.
    framed: bool,
    /// The client waits for somebody to read.
    is_withheld: bool,
    end: BodyEnd,
    /// `None` after the end, and over HTTP/1.
    reader: Option<NotedReads>,
}

impl http_body::Body for ClientBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.is_withheld = false;
        let this = &mut *self;
        let framed = this.framed;
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        let frame = ready!(match &this.reader {
            Some(reader) => reader.poll_frame(inner, cx),
            None => Pin::new(&mut *inner).poll_frame(cx),
        });
        let frame = match frame {
            Some(frame) => Some(frame.map_err(BoxError::from)),
            None if framed && !inner.is_end_stream() => Some(Err(RequestCut.into())),
            None => None,
        };
        let end = match frame {
            Some(Ok(_)) if !inner.is_end_stream() => return Poll::Ready(frame),
            Some(Err(_)) => ReachedEnd::Broken,
            Some(Ok(_)) | None => ReachedEnd::Whole,
        };
        self.inner = None;
        self.reader = None;
        // Only the first end counts.
        let _ = self.end.0.set(end);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner
            .as_ref()
            .is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let inner = self.inner.as_ref();
        inner.map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        if let Some(unread) = self.inner.take().filter(|_| !self.is_withheld) {
            unread::discard(unread);
        }
    }
}

/// A body behind its first frame.
struct WithFirst {
    first: Option<Result<Frame<Bytes>, BoxError>>,
    rest: Body,
}

impl http_body::Body for WithFirst {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.first.take() {
            None => Pin::new(&mut self.rest).poll_frame(context),
            first => Poll::Ready(first),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    /// Returns what is left of the rest, if the first frame was taken.
    fn size_hint(&self) -> SizeHint {
        if self.first.is_some() {
            return SizeHint::default();
        }
        self.rest.size_hint()
    }
}

/// A body that keeps a value until its last frame was taken.
struct HoldingUntilEnd<T> {
    body: Body,
    value: Option<T>,
}

impl<T: Unpin> http_body::Body for HoldingUntilEnd<T> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let is_last = self.body.is_end_stream() || self.body.size_hint().exact() == Some(0);
        if is_last || !matches!(frame, Some(Ok(_))) {
            self.value = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that keeps a value until it is dropped.
struct Holding<T> {
    body: Body,
    _value: T,
}

impl<T: Unpin> http_body::Body for Holding<T> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
