//! Compresses gets and lists where upstream does. Watches are compressed frame by frame, in
//! `watcher`.
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::body::{Body, BoxError, InMemory};
use watershed_protocol::{GzipWriter, accepts_gzip};

/// Bodies up to this length are sent as they are.
/// Source: `apiserver/pkg/endpoints/handlers/responsewriters/writers.go`
/// (defaultGzipThresholdBytes).
pub(super) const THRESHOLD: u64 = 128 * 1024;

/// Returns `true` if a body of this length is compressed for this client.
pub(super) fn is_wanted(request: &HeaderMap, length: u64) -> bool {
    length > THRESHOLD && accepts_gzip(request)
}

/// Compresses a body if the client accepts gzip and the body is large enough.
pub(super) fn apply(request: &HeaderMap, response: Response<Body>) -> Response<Body> {
    if !is_wanted(request, response.body().size_hint().lower()) {
        return response;
    }
    // Compression is optional, and an encoder stays as long as its client takes nothing.
    let Ok(permit) = ENCODERS.try_acquire() else {
        return response;
    };
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.extensions.remove::<InMemory>();
    mark(&mut parts.headers);
    let body = GzipBody {
        body,
        encoder: Some(GzipWriter::default()),
        _permit: permit,
    };
    Response::from_parts(parts, body.boxed_unsync())
}

/// Marks a response as compressed.
pub(super) fn mark(headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
}

/// Compresses piece by piece, as the connection takes it. Holds nothing but the encoder's state.
struct GzipBody {
    body: Body,
    /// Gone once the end is written.
    encoder: Option<GzipWriter>,
    _permit: SemaphorePermit<'static>,
}

/// Permits of responses that are compressed at the same time. An encoder takes some 300 KiB.
static ENCODERS: Semaphore = Semaphore::const_new(200);

impl http_body::Body for GzipBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        while let Some(encoder) = &mut this.encoder {
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else {
                        continue;
                    };
                    let compressed = encoder.push(&data)?;
                    if !compressed.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(compressed.into()))));
                    }
                }
                None => {
                    let rest = this.encoder.take().map(GzipWriter::finish).transpose()?;
                    return Poll::Ready(rest.map(|rest| Ok(Frame::data(rest.into()))));
                }
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.encoder.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::body::full;

    fn accepting(text: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(text))])
    }

    #[tokio::test]
    async fn large_bodies_are_one_gzip_member() {
        let text: Vec<u8> = (0..200_000_u32)
            .flat_map(|n| (n % 977).to_string().into_bytes())
            .collect();
        let mut response = Response::new(full(text.clone()));
        response
            .headers_mut()
            .insert(header::CONTENT_LENGTH, HeaderValue::from(text.len()));
        let compressed = apply(&accepting("gzip"), response);
        assert_eq!(compressed.headers()[header::CONTENT_ENCODING], "gzip");
        assert_eq!(compressed.headers()[header::VARY], "Accept-Encoding");
        assert!(!compressed.headers().contains_key(header::CONTENT_LENGTH));
        let bytes = compressed.into_body().collect().await.unwrap().to_bytes();
        let mut again = Vec::new();
        // Reads a single member only.
        flate2::read::GzDecoder::new(&bytes[..])
            .read_to_end(&mut again)
            .unwrap();
        assert!(again == text);
    }

    #[tokio::test]
    async fn small_bodies_stay_as_they_are() {
        let response = apply(
            &accepting("gzip"),
            Response::new(full(vec![b'a'; 128 * 1024])),
        );
        assert!(response.headers().is_empty());
        assert_eq!(
            response
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .len(),
            128 * 1024
        );
    }
}
