//! Answers that come before the body of the request has arrived.
use std::time::Duration;

use http::Response;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use crate::body::{Body, full, with_first};

/// Longest answer that is gathered, in bytes.
const LONGEST: u64 = 64 << 10;
/// Longest wait for the bytes of such an answer.
const WAIT: Duration = Duration::from_millis(100);

/// Returns a short answer once its first bytes are here, so that they go to the client with its head.
///
/// A client that sees the head of a refusal may end its body where it is. Over HTTP/2, h2 takes that for an
/// error if the request had a `content-length`, and drops what is left of the answer. Go's server sends it.
pub(super) async fn gathered(mut response: Response<Body>) -> Response<Body> {
    let length = response.body().size_hint().exact();
    if length.is_none_or(|bytes| bytes == 0 || bytes > LONGEST) {
        return response;
    }
    let Ok(Some(first)) = timeout(WAIT, response.body_mut().frame()).await else {
        return response;
    };
    let is_all = response.body().is_end_stream();
    match first.map(Frame::into_data) {
        Ok(Ok(bytes)) if is_all => response.map(|_| full(bytes)),
        Ok(Ok(bytes)) => response.map(|rest| with_first(Ok(Frame::data(bytes)), rest)),
        Ok(Err(trailers)) => response.map(|rest| with_first(Ok(trailers), rest)),
        Err(error) => response.map(|rest| with_first(Err(error), rest)),
    }
}
