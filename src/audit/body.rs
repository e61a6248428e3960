//! An answer's body that is told of its end, whether it was read to it or not.
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;

use crate::body::{Body, BoxError};

/// Keeps a value until the body is dropped.
struct UntilDropped<T> {
    inner: Body,
    _kept: T,
}

pub(super) fn until_dropped<T: Unpin + Send + 'static>(inner: Body, kept: T) -> Body {
    UntilDropped { inner, _kept: kept }.boxed_unsync()
}

impl<T: Unpin> http_body::Body for UntilDropped<T> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
