//! Ends forwarded watches between two events: when the process drains, like watches from memory,
//! when memory can continue them, and when their upstream goes away.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode, header};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::time::Sleep;

use super::stream_position::StreamPosition;
use super::takeover::{FollowedWatch, Takeover};
use crate::body::{Body, BoxError};
use crate::drain;
use crate::watcher::ContentCoding;
use watershed_protocol::Encoding;

/// A watch that ends sooner than this and brought nothing has client-go list again.
/// Source: `client-go/tools/cache/reflector.go` (handleAnyWatch, `VeryShortWatchError`).
const VERY_SHORT: Duration = Duration::from_secs(1);

/// Ends a forwarded watch when the process drains, when memory takes it over, or when upstream goes
/// away. Other responses pass as they are. `is_resumable` tells if the client can go on after the first
/// event already.
pub(in crate::serve) fn apply(
    response: Response<Body>,
    is_resumable: bool,
    draining: &drain::DrainWatch,
    takeover: Option<Takeover>,
) -> Response<Body> {
    let media_type = response
        .headers()
        .get(header::CONTENT_TYPE)
        .map(http::HeaderValue::as_bytes);
    let coding = match response.headers().get(header::CONTENT_ENCODING) {
        None => Some(ContentCoding::Identity),
        Some(coding) if coding == "gzip" => Some(ContentCoding::Gzip),
        Some(_) => None,
    };
    let encoding = [Encoding::Json, Encoding::Protobuf]
        .into_iter()
        .find(|encoding| media_type == Some(encoding.watch_content_type().as_bytes()));
    match encoding {
        Some(encoding) if response.status() == StatusCode::OK => response.map(|body| {
            let followed = takeover
                .zip(coding)
                .map(|(takeover, coding)| Box::new(takeover.follow(encoding, coding)));
            OrderlyEnd {
                body,
                draining: Until::new(draining.signal()),
                place: StreamPosition::new(encoding, coding),
                settled: Until::new(Box::pin(tokio::time::sleep(VERY_SHORT))),
                is_resumable,
                is_gone: false,
                followed,
            }
            .boxed_unsync()
        }),
        _ => response,
    }
}

struct OrderlyEnd {
    body: Body,
    /// Passes when the drain begins.
    draining: Until<drain::DrainSignal>,
    place: StreamPosition,
    /// Passes once the watch has brought something, or has lasted.
    settled: Until<Pin<Box<Sleep>>>,
    /// Its client can go on after the last event. Initial events are not in the order of versions,
    /// so that it would miss those that are still to come.
    is_resumable: bool,
    /// Upstream is gone, and the watch is about to end in order.
    is_gone: bool,
    /// Tells when memory can continue the watch, if it may do so at all.
    followed: Option<Box<FollowedWatch>>,
}

/// A moment that passes once, at the latest when the future completes.
struct Until<F>(Option<F>);

impl<F: Future + Unpin> Until<F> {
    fn new(future: F) -> Self {
        Self(Some(future))
    }

    /// Returns `true` once the moment has passed. Before, the task is woken when it passes.
    fn poll_passed(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(future) = &mut self.0
            && Pin::new(future).poll(context).is_ready()
        {
            self.0 = None;
        }
        self.0.is_none()
    }

    /// Lets the moment pass now.
    fn pass(&mut self) {
        self.0 = None;
    }
}

impl http_body::Body for OrderlyEnd {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let is_draining = this.draining.poll_passed(context);
        let is_settled = this.settled.poll_passed(context);
        if this.is_gone {
            return end_if(is_settled);
        }
        if is_draining && is_settled && this.place.is_between() {
            return Poll::Ready(None);
        }
        if is_settled
            && let Some(followed) = &mut this.followed
            && followed.poll_possible(context).is_ready()
        {
            return Poll::Ready(None);
        }
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            let is_quiet = is_draining && is_settled && this.place.poll_quiet(context).is_ready();
            return end_if(is_quiet);
        };
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            this.settled.pass();
            // The first bookmark comes after all initial events.
            this.is_resumable |= this.place.pass(data);
            if let Some(followed) = &mut this.followed {
                followed.pass(data);
            }
        }
        // Upstream is gone. Over HTTP/2 the client would get a reset, which client-go takes for a
        // failed watch, and lists again. It goes on after an end, as after a lost connection to
        // kube-apiserver.
        // Source: `apimachinery/pkg/watch/streamwatcher.go` (receive).
        if let Some(Err(error)) = &frame
            && this.is_resumable
            && this.place.is_between()
        {
            tracing::debug!(%error, "a forwarded watch ends, as its upstream is gone");
            this.is_gone = true;
            return end_if(is_settled);
        }
        Poll::Ready(frame)
    }
}

/// Ends a body in order, or leaves it waiting.
fn end_if<T>(is_due: bool) -> Poll<Option<T>> {
    if is_due {
        Poll::Ready(None)
    } else {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;
    use tokio::sync::mpsc::UnboundedSender;
    use watershed_protocol::gzip_member;

    use super::*;

    /// Returns a response in JSON whose body has these frames.
    fn of_frames<const N: usize>(frames: [Result<Frame<Bytes>, BoxError>; N]) -> Response<Body> {
        let body = StreamBody::new(futures_util::stream::iter(frames));
        Response::builder()
            .header(header::CONTENT_TYPE, "application/json")
            .body(BodyExt::boxed_unsync(body))
            .unwrap()
    }

    /// Returns a response whose body is what the sender sends.
    fn streamed(response: http::response::Builder) -> (UnboundedSender<Bytes>, Response<Body>) {
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel::<Bytes>();
        let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
            let data = receiver.recv().await?;
            Some((Ok::<_, BoxError>(Frame::data(data)), receiver))
        });
        let response = response.header(header::CONTENT_TYPE, "application/json");
        (
            sender,
            response
                .body(BodyExt::boxed_unsync(StreamBody::new(stream)))
                .unwrap(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_compressed_watch_ends_once_it_is_quiet() {
        let (trigger, draining) = drain::channel();
        let (sender, response) =
            streamed(Response::builder().header(header::CONTENT_ENCODING, "gzip"));
        let mut body = apply(response, false, &draining, None).into_body();
        sender.send(Bytes::from_static(b"a member")).unwrap();
        body.frame().await.unwrap().unwrap();
        tokio::time::timeout(Duration::from_mins(1), body.frame())
            .await
            .unwrap_err();
        trigger.drain(Duration::from_secs(20));
        sender.send(Bytes::from_static(b"another")).unwrap();
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            "another"
        );
        let ended = tokio::time::timeout(Duration::from_secs(1), body.frame()).await;
        assert!(ended.unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_has_just_begun_lasts_a_second() {
        let (trigger, draining) = drain::channel();
        trigger.drain(Duration::from_secs(20));
        let (_sender, response) = streamed(Response::builder());
        let mut body = apply(response, false, &draining, None).into_body();
        tokio::time::timeout(Duration::from_millis(990), body.frame())
            .await
            .unwrap_err();
        assert!(
            tokio::time::timeout(Duration::from_secs(1), body.frame())
                .await
                .unwrap()
                .is_none()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_whose_upstream_is_gone_fails_only_within_an_event() {
        let (_trigger, draining) = drain::channel();
        let bookmark = "{\"type\":\"BOOKMARK\",\"object\":{}}\n";
        for (is_resumable, data, is_whole) in [
            (true, "{{}}\n", true),
            (true, "{{}}\n{{", false),
            (false, "{{}}\n", false),
            (false, bookmark, true),
        ] {
            let frames = [
                Ok(Frame::data(Bytes::from(data))),
                Err(BoxError::from("upstream is gone")),
            ];
            let response = of_frames(frames);
            let mut body = apply(response, is_resumable, &draining, None).into_body();
            body.frame().await.unwrap().unwrap();
            let end = body.frame().await;
            assert_eq!(end.is_none(), is_whole, "{is_resumable} {data:?}");
            assert_eq!(
                matches!(end, Some(Err(_))),
                !is_whole,
                "{is_resumable} {data:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_compressed_watch_whose_upstream_is_gone_fails_only_within_an_event() {
        let (_trigger, draining) = drain::channel();
        let initial = gzip_member(b"{{}}\n{{}}\n");
        let mark = gzip_member(b"{{}}\n{\"type\":\"BOOKMARK\",\"object\":{}}\n");
        let half_event = gzip_member(b"{{");
        let (before, after) = (initial.to_vec(), [&initial[..], &mark].concat());
        for (data, is_whole) in [
            (before, false),
            (after.clone(), true),
            ([&after[..], &initial[..7]].concat(), false),
            ([&after[..], &half_event].concat(), false),
        ] {
            let frames = [
                Ok(Frame::data(Bytes::from(data.clone()))),
                Err(BoxError::from("upstream is gone")),
            ];
            let mut response = of_frames(frames);
            let gzip = http::HeaderValue::from_static("gzip");
            response
                .headers_mut()
                .insert(header::CONTENT_ENCODING, gzip);
            let mut body = apply(response, false, &draining, None).into_body();
            body.frame().await.unwrap().unwrap();
            let end = body.frame().await;
            assert_eq!(end.is_none(), is_whole, "{} bytes", data.len());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_whose_upstream_is_gone_at_once_lasts_a_second() {
        let (_trigger, draining) = drain::channel();
        let gone = [Err(BoxError::from("upstream is gone"))];
        let response = of_frames(gone);
        let mut body = apply(response, true, &draining, None).into_body();
        let began = tokio::time::Instant::now();
        assert!(body.frame().await.is_none());
        assert!(began.elapsed() >= VERY_SHORT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_ends_between_two_events() {
        let (trigger, draining) = drain::channel();
        let (sender, response) = streamed(Response::builder());
        let mut body = apply(response, false, &draining, None).into_body();
        sender.send(Bytes::from_static(b"{{}}\n{{")).unwrap();
        body.frame().await.unwrap().unwrap();
        trigger.drain(Duration::from_secs(20));
        tokio::time::timeout(Duration::from_secs(1), body.frame())
            .await
            .unwrap_err();
        sender.send(Bytes::from_static(b"}}\n")).unwrap();
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            "}}\n"
        );
        assert!(body.frame().await.is_none());
    }
}
