//! A socket whose reads and writes show in the activity of its connection.
use std::any::Any;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::activity::Activity;

/// A socket that reports reads and writes to an [`Activity`].
pub(super) struct ActivityStream<I> {
    inner: I,
    activity: Arc<Activity>,
    /// Dropped with the socket.
    _share: Box<dyn Any + Send + Sync>,
}

impl<I> ActivityStream<I> {
    /// Also takes what the socket holds until it is closed.
    pub(super) fn new(inner: I, activity: &Arc<Activity>, share: impl Any + Send + Sync) -> Self {
        Self {
            inner,
            activity: Arc::clone(activity),
            _share: Box::new(share),
        }
    }

    fn note<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.activity.written(polled.is_ready());
        polled
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for ActivityStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        let bytes = buf.filled().len() - before;
        if bytes > 0 {
            self.activity.read(bytes);
        }
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for ActivityStream<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.note(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write_vectored(cx, bufs);
        self.note(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
