//! Notes of how far the body of a request was read.
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use http_body::{Body as _, Frame};
use hyper::body::Incoming;

/// Learns how far the body of a request was read. It is dropped once the body is read to its end, or by
/// nobody any more.
pub trait BodyReader: Send + Sync {
    /// Notes that so many bytes more were read.
    fn has_read(&self, bytes: usize);

    /// Notes that somebody begins to look for more.
    fn begins_reading(&self);

    /// Notes that nothing was found. All that has come was read, if nothing came since [`Self::begins_reading`].
    fn has_read_all(&self);

    /// Notes that something has come.
    fn has_more(&self);
}

/// The reader of a request's body, in its extensions.
#[derive(Clone)]
pub struct RequestBodyReader(pub Arc<dyn BodyReader>);

/// Notes the reads of a body.
pub(super) struct NotedReads {
    reader: Arc<dyn BodyReader>,
    waker: Arc<BodyWaker>,
}

/// Wakes the task that reads a body, after it has told the body's reader. The connection may keep it longer
/// than anybody reads.
struct BodyWaker {
    reader: Weak<dyn BodyReader>,
    task: AtomicWaker,
}

impl NotedReads {
    pub(super) fn of(reader: Arc<dyn BodyReader>) -> Self {
        let waker = Arc::new(BodyWaker {
            reader: Arc::downgrade(&reader),
            task: AtomicWaker::new(),
        });
        Self { reader, waker }
    }

    /// Polls the body, and notes the result.
    pub(super) fn poll_frame(
        &self,
        body: &mut Incoming,
        context: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        self.waker.task.register(context.waker());
        self.reader.begins_reading();
        let waker = Waker::from(Arc::clone(&self.waker));
        let polled = Pin::new(body).poll_frame(&mut Context::from_waker(&waker));
        match &polled {
            Poll::Pending => self.reader.has_read_all(),
            Poll::Ready(Some(Ok(frame))) => {
                self.reader.has_read(frame.data_ref().map_or(0, Bytes::len));
            }
            Poll::Ready(_) => {}
        }
        polled
    }
}

impl Wake for BodyWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(reader) = self.reader.upgrade() {
            reader.has_more();
        }
        self.task.wake();
    }
}
