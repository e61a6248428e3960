//! An answer of upstream's that is given to more than one caller, and the question it answers.
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body::{self, Body, BoxError};
use crate::upstream::AnswerError;

/// What belongs to one answer alone.
const OF_ONE_ANSWER: &[&str] = &[
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
/// Of a read's header, the fields that its answer depends on.
const NEGOTIATED: [HeaderName; 2] = [header::ACCEPT, header::ACCEPT_ENCODING];

/// What upstream's answer to a read depends on, besides who asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Question {
    pub(super) path_and_query: String,
    negotiated: [Vec<HeaderValue>; 2],
}

impl Question {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let path_and_query = request.uri().path_and_query();
        Self {
            path_and_query: path_and_query.map_or_else(String::new, ToString::to_string),
            negotiated: NEGOTIATED
                .map(|name| request.headers().get_all(name).iter().cloned().collect()),
        }
    }

    /// A request that asks it, with further fields.
    pub(super) fn request(
        &self,
        fields: impl IntoIterator<Item = (HeaderName, Option<HeaderValue>)>,
    ) -> Result<Request<Body>, AnswerError> {
        let request = Request::get(&self.path_and_query).body(body::empty());
        let mut request = request.map_err(|error| AnswerError::Unusable(error.to_string()))?;
        let headers = request.headers_mut();
        for (name, values) in NEGOTIATED.iter().zip(&self.negotiated) {
            for value in values {
                headers.append(name, value.clone());
            }
        }
        headers.extend(
            fields
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        Ok(request)
    }
}

/// An answer, whole.
#[derive(Clone, Debug)]
pub(super) struct Replay {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// How much may be held of answers for those who take them, however slowly they do. Beyond it,
/// answers are not kept.
#[derive(Debug)]
pub(super) struct Room {
    kibibytes: Arc<Semaphore>,
    /// Answers that are being read.
    reading: Semaphore,
}

/// A body, and its place until the last who is sent it has it.
struct Placed {
    body: Bytes,
    _place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Placed {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Room {
    /// For so many bytes, and so many answers that are read at a time.
    pub(super) fn new(bytes: usize, reading: usize) -> Self {
        Self {
            kibibytes: Arc::new(Semaphore::new(bytes >> 10)),
            reading: Semaphore::new(reading),
        }
    }

    fn place(&self, body: Bytes) -> Option<Bytes> {
        let kibibytes = u32::try_from((body.len() >> 10) + 1).ok()?;
        let place = Arc::clone(&self.kibibytes)
            .try_acquire_many_owned(kibibytes)
            .ok()?;
        Some(Bytes::from_owner(Placed {
            body,
            _place: place,
        }))
    }
}

impl Replay {
    /// Reads an answer to its end, if its body has at most `limit` bytes and there is room for it.
    pub(super) async fn read<B>(
        response: Response<B>,
        limit: usize,
        room: &Room,
    ) -> Result<Self, AnswerError>
    where
        B: http_body::Body<Error: Into<BoxError>>,
    {
        let full =
            || AnswerError::Unusable("too much is held for those who do not take it".to_owned());
        let _reading = room.reading.try_acquire().map_err(|_| full())?;
        let (mut parts, body) = response.into_parts();
        let body = body::whole(body, limit)
            .await
            .map_err(|error| AnswerError::Unusable(error.to_string()))?;
        let body = room.place(body).ok_or_else(full)?;
        for name in OF_ONE_ANSWER {
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
    async fn what_nobody_takes_leaves_no_room_for_more() {
        let room = Room::new(8 << 10, 4);
        let read = || Replay::read(Response::new(body::full(vec![b'x'; 5000])), 1 << 20, &room);
        let first = read().await.unwrap();
        assert!(read().await.is_err(), "5 KiB of 8 are taken");
        let response = first.response();
        drop(first);
        assert!(read().await.is_err(), "a client is being sent it");
        drop(response);
        assert_eq!(read().await.unwrap().body.len(), 5000);
    }
}
