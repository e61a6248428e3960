//! Bodies of requests that are answered without them.
use std::time::Duration;

use http::header::EXPECT;
use http::{Request, Version};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::listener::MAX_UNREAD;

/// Time for such a body to arrive.
const LONGEST: Duration = Duration::from_secs(5);

/// Reads the body of a request that nobody reads, beside the answer, and drops it.
///
/// hyper ends an HTTP/1 connection whose body is not at its end. The client would not get to the answer,
/// as it still writes.
pub(super) fn discard(request: Request<Incoming>) {
    let is_stream = request.version() == Version::HTTP_2;
    // A client that waits for `100 Continue` does not send its body to an answer.
    let waits = request.headers().contains_key(EXPECT);
    if is_stream || waits || request.body().is_end_stream() {
        return;
    }
    tokio::spawn(timeout(LONGEST, async move {
        let mut body = Limited::new(request.into_body(), MAX_UNREAD as usize);
        while let Some(Ok(_)) = body.frame().await {}
    }));
}
