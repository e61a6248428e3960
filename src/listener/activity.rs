//! What a connection's client does: enough to know when it is idle, and when it abuses its place.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::limits::ConnectionLimits;

/// A connection most of whose requests are taken back before they were answered is closed after so
/// many of them. Requests that are given up are normal, but not in such numbers on one connection:
/// it is "rapid reset", CVE-2023-44487, each of which may cost a request to upstream.
const MANY_RESETS: u64 = 500;

/// What one connection does. Moments are milliseconds after `opened`, plus one; 0 stands for never.
pub(super) struct Activity {
    opened: Instant,
    /// Whether requests come one after the other, so that what is read between two of them is a
    /// head.
    http1: AtomicBool,
    /// Whether anything was read after the handshake.
    heard: AtomicBool,
    /// Requests running.
    running: AtomicU64,
    /// When the connection stood, with TLS or without.
    begun: AtomicU64,
    /// When the last request ended.
    last_end: AtomicU64,
    /// When the head began that is being read.
    head: AtomicU64,
    /// Since when the client takes nothing of what is to be written.
    blocked: AtomicU64,
    requests: AtomicU64,
    /// Requests that were taken back before their answer.
    resets: AtomicU64,
    /// Whether those were too many, and whom to tell.
    resetting: AtomicBool,
    resetter: AtomicWaker,
}

/// One running request of a connection.
pub(super) struct Running {
    activity: Arc<Activity>,
    answered: bool,
}

/// A socket whose progress is watched.
pub(super) struct Watched<I> {
    inner: I,
    activity: Arc<Activity>,
}

// === impl Activity ===

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Activity {
            opened: Instant::now(),
            http1: AtomicBool::new(false),
            heard: AtomicBool::new(false),
            running: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            last_end: AtomicU64::new(0),
            head: AtomicU64::new(0),
            blocked: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            resetting: AtomicBool::new(false),
            resetter: AtomicWaker::new(),
        })
    }

    /// The handshake is over: the time for the first request begins.
    pub(super) fn begin(&self) {
        self.begun.store(self.now(), Ordering::Release);
    }

    pub(super) fn speaks_http1(&self) {
        self.http1.store(true, Ordering::Release);
    }

    pub(super) fn is_http1(&self) -> bool {
        self.http1.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis())
            .unwrap_or(u64::MAX)
            .saturating_add(1)
    }

    /// When a moment is over that began at `mark`; `None` when it did not begin.
    fn until(&self, mark: &AtomicU64, after: Duration) -> Option<Instant> {
        match mark.load(Ordering::Acquire) {
            0 => None,
            mark => Some(self.opened + Duration::from_millis(mark) + after),
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.running.load(Ordering::Acquire) > 0
    }

    /// When the connection has had nothing to do for as long as the limits allow, unless a request
    /// comes.
    pub(super) fn idle_at(&self, limits: &ConnectionLimits) -> Instant {
        let until = self.until(&self.last_end, limits.idle);
        let until = until.or_else(|| self.until(&self.begun, limits.start));
        until.unwrap_or(self.opened + limits.start)
    }

    /// When a head that is being read has taken too long.
    pub(super) fn head_at(&self, limits: &ConnectionLimits) -> Option<Instant> {
        self.until(&self.head, limits.head)
    }

    /// When the client has taken nothing for too long of what waits for it.
    pub(super) fn stalled_at(&self, limits: &ConnectionLimits) -> Option<Instant> {
        self.until(&self.blocked, limits.stall)
    }

    /// Whether most requests are taken back, and there were many. Wakes the task when that becomes
    /// so.
    pub(super) fn is_resetting(&self, context: &Context<'_>) -> bool {
        self.resetter.register(context.waker());
        self.resetting.load(Ordering::Acquire)
    }

    /// Whether the client has said nothing since the handshake.
    pub(super) fn is_silent(&self) -> bool {
        !self.heard.load(Ordering::Relaxed) && self.requests.load(Ordering::Relaxed) == 0
    }

    fn read(&self) {
        if !self.heard.load(Ordering::Relaxed) && self.begun.load(Ordering::Relaxed) > 0 {
            self.heard.store(true, Ordering::Relaxed);
        }
        if self.is_http1()
            && self.head.load(Ordering::Relaxed) == 0
            && self.running.load(Ordering::Acquire) == 0
        {
            self.head.store(self.now(), Ordering::Release);
        }
    }

    fn written(&self, progress: bool) {
        let blocked = self.blocked.load(Ordering::Relaxed) > 0;
        if progress && blocked {
            self.blocked.store(0, Ordering::Release);
        } else if !progress && !blocked {
            self.blocked.store(self.now(), Ordering::Release);
        }
    }
}

// === impl Running ===

impl Running {
    pub(super) fn new(activity: &Arc<Activity>) -> Self {
        activity.running.fetch_add(1, Ordering::AcqRel);
        activity.requests.fetch_add(1, Ordering::Relaxed);
        activity.head.store(0, Ordering::Release);
        Running {
            activity: Arc::clone(activity),
            answered: false,
        }
    }

    /// The answer's head is there: whoever goes away now has had something of it.
    pub(super) fn answered(&mut self) {
        self.answered = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let activity = &self.activity;
        activity.last_end.store(activity.now(), Ordering::Release);
        activity.running.fetch_sub(1, Ordering::AcqRel);
        if !self.answered {
            let resets = activity.resets.fetch_add(1, Ordering::Relaxed) + 1;
            if resets >= MANY_RESETS && resets * 2 > activity.requests.load(Ordering::Relaxed) {
                activity.resetting.store(true, Ordering::Release);
                activity.resetter.wake();
            }
        }
    }
}

// === impl Watched ===

impl<I> Watched<I> {
    pub(super) fn new(inner: I, activity: &Arc<Activity>) -> Self {
        Self {
            inner,
            activity: Arc::clone(activity),
        }
    }

    fn note<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.activity.written(polled.is_ready());
        polled
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Watched<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.activity.read();
        }
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Watched<I> {
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
