//! The body of an answer from upstream, which returns its connection to the pool when it ends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::connection::Lease;
use super::error::UpstreamError;
use super::hop_by_hop;
use super::traffic::ReceivedMeter;
use crate::body::{Body, BoxError, holding};
use crate::fairness::Share;
use watershed_connect::Address;
use watershed_connect::one_line;

/// The body of an answer from upstream. Dropping it early cancels the request at upstream.
pub struct UpstreamBody {
    inner: Incoming,
    lease: Option<Lease>,
    address: Address,
    end: End,
    received: ReceivedMeter,
}

/// The clean end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// HTTP/1: hyper reports a missing end.
    Reported,
    /// HTTP/2, request without a body: only `END_STREAM` is one.
    ///
    /// hyper takes a reset with `NO_ERROR` for an end, too. Such a reset is meant for answers that
    /// precede the end of the request's body, so a request without a body cannot get one.
    Marked,
    /// HTTP/2, request with a body: a reset with `NO_ERROR` is one, unless the answer is shorter
    /// than its declared length.
    MarkedOrReset,
}

impl UpstreamBody {
    pub(super) fn new(
        inner: Incoming,
        lease: Lease,
        end: End,
        received: ReceivedMeter,
    ) -> UpstreamBody {
        let address = lease.address().clone();
        // An empty body may never be polled.
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

    /// Returns a body whose connection is not pooled.
    pub(super) fn unpooled(
        inner: Incoming,
        address: Address,
        received: ReceivedMeter,
    ) -> UpstreamBody {
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

    /// Returns the connection to the pool.
    fn finish(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.finish();
        }
    }

    fn cut(&self, reason: String) -> UpstreamError {
        UpstreamError::Cut {
            address: self.address.clone(),
            reason,
        }
    }
}

impl http_body::Body for UpstreamBody {
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
                if self.inner.is_end_stream() {
                    self.finish();
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
                self.finish();
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

/// Lets an answer hold what its caller was given for it, until its body has ended.
pub(super) fn held_by(response: Response<Body>, share: Option<Share>) -> Response<Body> {
    match share {
        Some(share) => response.map(|body| holding(body, share)),
        None => response,
    }
}

/// Turns an answer of upstream into one for the client.
pub(super) fn to_client(response: Response<UpstreamBody>) -> Response<Body> {
    let (mut parts, upstream_body) = response.into_parts();
    hop_by_hop::clean_response(&mut parts.headers);
    let mut answer = Response::new(upstream_body.map_err(BoxError::from).boxed_unsync());
    *answer.status_mut() = parts.status;
    *answer.headers_mut() = parts.headers;
    answer
}
