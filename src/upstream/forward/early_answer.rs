//! Answers that come before the body of the request has arrived.
use std::time::Duration;

use http::Response;
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use crate::body::{Body, with_first};

/// Longest answer that is gathered, in bytes.
const MAX_GATHERED: u64 = 64 << 10;
/// Longest wait for the bytes of such an answer.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// Returns a short answer once its first bytes are here, so that they go to the client with its head.
///
/// A client that sees the head of a refusal may end its body where it is. Over HTTP/2, h2 takes that for an
/// error if the request had a `content-length`, and drops what is left of the answer. Go's server sends it.
pub(super) async fn gathered(mut response: Response<Body>) -> Response<Body> {
    let length = response.body().size_hint().exact();
    if length.is_none_or(|bytes| bytes == 0 || bytes > MAX_GATHERED) {
        return response;
    }
    match timeout(MAX_WAIT, response.body_mut().frame()).await {
        Ok(Some(first)) => response.map(|rest| with_first(first, rest)),
        Ok(None) | Err(_) => response,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::{FutureExt as _, stream};
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tokio::time::sleep;

    use super::*;
    use crate::body::BoxError;

    /// An answer of three bytes that come after this time.
    fn answer(after: Duration) -> Response<Body> {
        let bytes = stream::once(async move {
            sleep(after).await;
            Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"no\n")))
        });
        Response::new(Sized(StreamBody::new(Box::pin(bytes)).boxed_unsync()).boxed_unsync())
    }

    /// A body of three bytes.
    struct Sized(Body);

    impl http_body::Body for Sized {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            std::pin::Pin::new(&mut self.0).poll_frame(context)
        }

        fn size_hint(&self) -> http_body::SizeHint {
            http_body::SizeHint::with_exact(3)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_answer_has_its_bytes_with_its_head_unless_they_are_late() {
        for (after, is_with_head) in [(MAX_WAIT / 5, true), (MAX_WAIT * 2, false)] {
            let mut body = gathered(answer(after)).await.into_body();
            let first = body.frame().now_or_never().flatten();
            assert_eq!(first.is_some(), is_with_head);
            let first = match first {
                Some(first) => first,
                None => body.frame().await.unwrap(),
            };
            assert_eq!(first.unwrap().into_data().unwrap(), "no\n");
            assert!(body.frame().await.is_none());
        }
    }
}
