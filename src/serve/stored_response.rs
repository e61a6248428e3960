//! Responses of upstream that are given to more than one caller, and the requests they answer.
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body::{self, Body, BoxError};
use crate::upstream::AnswerError;

/// Headers that belong to a single response.
const OF_ONE_RESPONSE: &[&str] = &[
    "audit-id",
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "set-cookie",
    "transfer-encoding",
    "x-kubernetes-pf-flowschema-uid",
    "x-kubernetes-pf-prioritylevel-uid",
];
/// Request headers that the response depends on.
const NEGOTIATED: [HeaderName; 2] = [header::ACCEPT, header::ACCEPT_ENCODING];

/// The parts of a read that upstream's response depends on, besides the caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RequestKey {
    pub(super) path_and_query: String,
    negotiated: [Vec<HeaderValue>; 2],
}

impl RequestKey {
    pub(super) fn new<B>(request: &Request<B>) -> Self {
        let path_and_query = request.uri().path_and_query();
        Self {
            path_and_query: path_and_query.map_or_else(String::new, ToString::to_string),
            negotiated: NEGOTIATED
                .map(|name| request.headers().get_all(name).iter().cloned().collect()),
        }
    }

    /// Returns a request for the same, with further headers.
    pub(super) fn request(
        &self,
        headers: impl IntoIterator<Item = (HeaderName, Option<HeaderValue>)>,
    ) -> Result<Request<Body>, AnswerError> {
        let request = Request::get(&self.path_and_query).body(body::empty());
        let mut request = request.map_err(|error| AnswerError::Unusable(error.to_string()))?;
        let own = request.headers_mut();
        for (name, values) in NEGOTIATED.iter().zip(&self.negotiated) {
            for value in values {
                own.append(name, value.clone());
            }
        }
        own.extend(
            headers
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        Ok(request)
    }
}

/// A whole response.
#[derive(Clone, Debug)]
pub(super) struct StoredResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Bounds the memory of responses that clients are being sent, however slowly they take them.
/// Beyond it, responses are not stored.
#[derive(Debug)]
pub(super) struct ResponseBudget {
    kibibytes: Arc<Semaphore>,
    /// Responses that are being read.
    reading: Semaphore,
}

/// A body, and its permit until the last client has it.
struct BudgetedBytes {
    body: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for BudgetedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl ResponseBudget {
    /// Creates a budget of `bytes`, for `reading` responses that are read at a time.
    pub(super) fn new(bytes: usize, reading: usize) -> Self {
        Self {
            kibibytes: Arc::new(Semaphore::new(bytes >> 10)),
            reading: Semaphore::new(reading),
        }
    }

    fn admit(&self, body: Bytes) -> Option<Bytes> {
        let kibibytes = u32::try_from((body.len() >> 10) + 1).ok()?;
        let permit = Arc::clone(&self.kibibytes)
            .try_acquire_many_owned(kibibytes)
            .ok()?;
        Some(Bytes::from_owner(BudgetedBytes {
            body,
            _permit: permit,
        }))
    }
}

impl StoredResponse {
    /// Reads a response to its end, if its body has at most `limit` bytes and the budget has room.
    pub(super) async fn read<B>(
        response: Response<B>,
        limit: usize,
        budget: &ResponseBudget,
    ) -> Result<Self, AnswerError>
    where
        B: http_body::Body<Error: Into<BoxError>>,
    {
        let full =
            || AnswerError::Unusable("too much is held for those who do not take it".to_owned());
        let _reading = budget.reading.try_acquire().map_err(|_| full())?;
        let (mut parts, body) = response.into_parts();
        let body = body::whole(body, limit)
            .await
            .map_err(|error| AnswerError::Unusable(error.to_string()))?;
        let body = budget.admit(body).ok_or_else(full)?;
        for name in OF_ONE_RESPONSE {
            parts.headers.remove(*name);
        }
        Ok(Self {
            status: parts.status,
            headers: parts.headers,
            body,
        })
    }

    pub(super) fn response(&self) -> Response<Body> {
        let mut response = Response::new(body::full(self.body.clone()));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn responses_that_nobody_takes_fill_the_budget() {
        let budget = ResponseBudget::new(8 << 10, 4);
        let read = || {
            StoredResponse::read(
                Response::new(body::full(vec![b'x'; 5000])),
                1 << 20,
                &budget,
            )
        };
        let first = read().await.unwrap();
        assert!(read().await.is_err(), "5 KiB of 8 are taken");
        let response = first.response();
        drop(first);
        assert!(read().await.is_err(), "a client is being sent it");
        drop(response);
        assert_eq!(read().await.unwrap().body.len(), 5000);
    }
}
