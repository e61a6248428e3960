//! An answer's body, which frees its place in the pool when it ends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::connection::Lease;
use super::error::UpstreamError;
use super::traffic::Received;
use watershed_connect::Address;
use watershed_connect::one_line;

/// The body of an answer from upstream. Dropping it early cancels the request at upstream.
pub struct UpstreamBody {
    inner: Incoming,
    lease: Option<Lease>,
    address: Address,
    end: End,
    received: Received,
}

/// What counts as a clean end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// HTTP/1: hyper reports a missing end.
    Reported,
    /// HTTP/2, request without a body: only `END_STREAM` is one.
    ///
    /// hyper takes a reset with `NO_ERROR` for an end, too. It is meant for answers that came
    /// before the request's body was through, and a request without one can't have those.
    Marked,
    /// HTTP/2, request with a body: a reset with `NO_ERROR` is one, unless the answer told its
    /// length and is shorter.
    MarkedOrReset,
}

impl UpstreamBody {
    pub(super) fn new(
        inner: Incoming,
        mut lease: Lease,
        end: End,
        received: Received,
    ) -> UpstreamBody {
        let address = lease.address().clone();
        // Nobody has to poll an empty body.
        let lease = if inner.is_end_stream() {
            lease.finish();
            None
        } else {
            Some(lease)
        };
        UpstreamBody {
            inner,
            lease,
            address,
            end,
            received,
        }
    }

    /// An answer whose connection is not the pool's.
    pub(super) fn unpooled(inner: Incoming, address: Address, received: Received) -> UpstreamBody {
        UpstreamBody {
            inner,
            lease: None,
            address,
            end: End::Reported,
            received,
        }
    }

    fn is_cut(&self) -> bool {
        match self.end {
            End::Reported => false,
            End::Marked => !self.inner.is_end_stream(),
            End::MarkedOrReset => !self.inner.is_end_stream() && self.inner.size_hint().lower() > 0,
        }
    }

    fn cut(&self, reason: String) -> UpstreamError {
        UpstreamError::Cut {
            address: self.address.clone(),
            reason,
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = UpstreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.received.add(data.len());
                }
                if self.inner.is_end_stream()
                    && let Some(mut lease) = self.lease.take()
                {
                    lease.finish();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                self.lease = None;
                Poll::Ready(Some(Err(self.cut(one_line(&error)))))
            }
            None if self.is_cut() => {
                self.lease = None;
                Poll::Ready(Some(Err(
                    self.cut("the stream was reset without its end".to_owned())
                )))
            }
            None => {
                if let Some(mut lease) = self.lease.take() {
                    lease.finish();
                }
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl std::fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UpstreamBody")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
