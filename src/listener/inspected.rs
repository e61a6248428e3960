//! A connection whose requests are looked at before hyper reads them, and which is read on at its end.
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::activity::Activity;
use super::inspect::Inspect;
use super::lingering::LingeringEnd;

/// A connection whose reads an [`Inspect`] sees first.
pub(super) struct InspectedStream<I, R> {
    inner: I,
    reader: R,
    end: LingeringEnd,
}

impl<I, R> InspectedStream<I, R> {
    pub(super) fn new(inner: I, reader: R, activity: &Arc<Activity>) -> Self {
        Self {
            inner,
            reader,
            end: LingeringEnd::new(activity),
        }
    }
}

impl<I: AsyncRead + Unpin, R: Inspect> AsyncRead for InspectedStream<I, R> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let allowed = ready!(this.reader.poll_allowed(context));
        let before = buffer.filled().len();
        let polled = if allowed < buffer.remaining() {
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(allowed));
            let polled = Pin::new(&mut this.inner).poll_read(context, &mut part);
            let read = part.filled().len();
            buffer.advance(read);
            polled
        } else {
            Pin::new(&mut this.inner).poll_read(context, buffer)
        };
        this.reader.inspect(&mut buffer.filled_mut()[before..]);
        polled
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin, R: Inspect> AsyncWrite for InspectedStream<I, R> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.end.poll_shutdown(&mut this.inner, context)
    }
}
