//! The rest of a request's body once the request has its answer.
use std::time::Duration;

use http::header::EXPECT;
use http::{HeaderMap, Request, Version};
use http_body::Body as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Bytes of a body that are read behind an answer. If there are more, Go's server gives up an HTTP/1
/// connection.
/// Source: `net/http/server.go` of Go (`maxPostHandlerReadBytes`).
pub const MAX_UNREAD: u64 = 256 << 10;
/// Bodies that are read at a time. Each keeps its stream, which is counted with its request no more.
static DISCARDS: Semaphore = Semaphore::const_new(1024);
/// Time for such a body to arrive.
const MAX_DISCARD_TIME: Duration = Duration::from_secs(5);
/// Time for the client to read the answer, before the rest of a longer body is refused.
const BEFORE_REFUSAL: Duration = Duration::from_millis(100);

/// Reads the body of a request that nobody reads, as [`discard`] does.
pub fn discard_of(request: Request<Incoming>) {
    if !waits_for_continue(request.version(), request.headers()) {
        discard(request.into_body());
    }
}

/// Reads what is left of a request's body, beside the answer, and drops it.
///
/// hyper ends an HTTP/1 connection whose body is not at its end, and resets an HTTP/2 stream in the same
/// write as the answer. The client, which still writes, might not get to the answer.
pub(super) fn discard(body: Incoming) {
    if body.is_end_stream() {
        return;
    }
    // The client of one too many may lose its answer.
    let (Ok(runtime), Ok(turn)) = (Handle::try_current(), DISCARDS.try_acquire()) else {
        return;
    };
    runtime.spawn(timeout(MAX_DISCARD_TIME, async move {
        let _turn = turn;
        let mut body = Limited::new(body, MAX_UNREAD as usize);
        while let Some(frame) = body.frame().await {
            if let Err(error) = frame {
                if error.is::<LengthLimitError>() {
                    sleep(BEFORE_REFUSAL).await;
                }
                return;
            }
        }
    }));
}

/// Returns `true` if the client sends the body only after a `100 Continue`. hyper sends that over HTTP/1 once
/// the body is read.
pub(super) fn waits_for_continue(version: Version, headers: &HeaderMap) -> bool {
    version != Version::HTTP_2 && headers.contains_key(EXPECT)
}
