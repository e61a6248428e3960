//! Tells when a client is slow to send a request's body.
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep};

use crate::body::{Body, BoxError};

/// Time for which the sender of a body may be waited for, in all.
const UPLOAD_TIME: Duration = Duration::from_secs(2);

/// Tells when a client is slow to send a request's body. What upstream takes for it does not count.
pub(in crate::serve) struct SlowUpload(oneshot::Receiver<()>);

impl SlowUpload {
    /// Watches the body of a request from now on.
    pub(in crate::serve) fn watch(request: Request<Body>) -> (Request<Body>, Self) {
        let (slow, is_slow) = oneshot::channel();
        let watched = |body: Body| {
            if body.is_end_stream() {
                return body;
            }
            let upload = WatchedUpload {
                body,
                left: UPLOAD_TIME,
                wait: None,
                slow: Some(slow),
            };
            upload.boxed_unsync()
        };
        (request.map(watched), Self(is_slow))
    }

    /// Completes once the client was waited for too long. Never completes if it was not.
    pub(in crate::serve) async fn slow(self) {
        if self.0.await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

struct WatchedUpload {
    body: Body,
    /// The time that is left for the client.
    left: Duration,
    /// The wait for the client's next bytes, since this moment.
    wait: Option<(Instant, Pin<Box<Sleep>>)>,
    slow: Option<oneshot::Sender<()>>,
}

impl http_body::Body for WatchedUpload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let polled = Pin::new(&mut this.body).poll_frame(cx);
        if this.slow.is_none() {
            return polled;
        }
        if polled.is_ready() {
            if let Some((since, _)) = this.wait.take() {
                this.left = this.left.saturating_sub(since.elapsed());
            }
            return polled;
        }
        let left = this.left;
        let (_, wait) = this
            .wait
            .get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
        if wait.as_mut().poll(cx).is_ready()
            && let Some(slow) = this.slow.take()
        {
            // Nobody listens once the answer is there.
            let _ = slow.send(());
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt as _, stream};
    use http_body_util::StreamBody;
    use tokio::time::timeout;

    use super::*;

    /// Returns the seconds after which a client is slow that sends a byte in each of these
    /// intervals, while upstream takes a byte a second; `None` if it is not slow.
    async fn slow_after(interval: Duration, bytes: usize) -> Option<u64> {
        let parts = stream::iter(0..bytes).then(move |_| async move {
            sleep(interval).await;
            Ok(Frame::data(Bytes::from_static(b"x")))
        });
        let body = StreamBody::new(Box::pin(parts)).boxed_unsync();
        let (request, upload) = SlowUpload::watch(Request::new(body));
        let began = Instant::now();
        let mut body = request.into_body();
        let upstream = tokio::spawn(async move {
            while let Some(frame) = body.frame().await {
                assert!(frame.is_ok());
                sleep(Duration::from_secs(1)).await;
            }
        });
        let slow = timeout(Duration::from_mins(5), upload.slow()).await;
        upstream.abort();
        slow.ok().map(|()| began.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_counts_for_which_a_client_is_waited_for() {
        let ms = Duration::from_millis;
        assert_eq!(slow_after(Duration::from_hours(1), 1).await, Some(2));
        // Half a second for each byte, and a second of upstream's.
        assert_eq!(slow_after(ms(500), 100).await, Some(6));
        assert_eq!(slow_after(ms(10), 100).await, None);
        assert_eq!(slow_after(ms(10), 0).await, None);
    }
}
