//! Bodies of requests that are answered without them.
use std::time::Duration;

use http::header::EXPECT;
use http::{HeaderMap, Request, Version};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

/// Bytes of a body that are read behind an answer. If there are more, Go's server gives up an HTTP/1
/// connection.
/// Source: `net/http/server.go` of Go (`maxPostHandlerReadBytes`).
pub const MAX_UNREAD: u64 = 256 << 10;
/// Time for such a body to arrive.
const LONGEST: Duration = Duration::from_secs(5);
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
    let Ok(runtime) = Handle::try_current() else {
        return;
    };
    runtime.spawn(timeout(LONGEST, async move {
        let mut body = Limited::new(body, MAX_UNREAD as usize);
        while let Some(frame) = body.frame().await {
            if frame.is_err() {
                sleep(BEFORE_REFUSAL).await;
                return;
            }
        }
    }));
}

/// Returns `true` if the client sends the body only after a `100 Continue`, which hyper sends over HTTP/1
/// to who reads the body.
pub(super) fn waits_for_continue(version: Version, headers: &HeaderMap) -> bool {
    version != Version::HTTP_2 && headers.contains_key(EXPECT)
}
