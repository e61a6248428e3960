//! Responses of upstream that are given to more than one caller.
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::body::{self, Body, BoxError, InMemory};
use crate::budget::{MemoryBudget, MemoryCharge, MemoryClass};
use crate::headers;
use crate::upstream::AnswerError;

/// The part of the memory budget that one kind of stored responses may have.
const SHARE_OF_RESPONSES: usize = 8;
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

/// A whole response.
#[derive(Clone, Debug)]
pub(in crate::serve) struct StoredResponse {
    pub(in crate::serve) status: StatusCode,
    pub(in crate::serve) headers: HeaderMap,
    pub(in crate::serve) body: Bytes,
}

/// Bounds the memory of responses that are being read, are stored, or are being sent to clients,
/// however slowly they take them. Beyond it, responses are not stored.
#[derive(Debug)]
pub(in crate::serve) struct ResponseBudget {
    kibibytes: Arc<Semaphore>,
    memory: MemoryBudget,
    class: MemoryClass,
}

/// A body, and its permit and charge until the last client has it.
struct BudgetedBytes {
    body: Bytes,
    _permit: OwnedSemaphorePermit,
    _charge: MemoryCharge,
}

impl AsRef<[u8]> for BudgetedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// The part of a budget that a response takes.
struct BudgetShare<'a> {
    budget: &'a ResponseBudget,
    permit: Option<OwnedSemaphorePermit>,
    charge: MemoryCharge,
}

impl ResponseBudget {
    /// Creates a budget of `bytes`, or of the share of `memory` that responses may have, if that is
    /// less. They are charged to the class.
    pub(in crate::serve) fn new(bytes: usize, memory: &MemoryBudget, class: MemoryClass) -> Self {
        Self {
            kibibytes: Arc::new(Semaphore::new(share_of(memory, bytes) >> 10)),
            memory: memory.clone(),
            class,
        }
    }
}

/// Returns `bytes`, or less if that is more than a share of the memory's limit.
pub(in crate::serve) fn share_of(memory: &MemoryBudget, bytes: usize) -> usize {
    memory
        .limit()
        .map_or(bytes, |limit| bytes.min(limit / SHARE_OF_RESPONSES))
}

impl BudgetShare<'_> {
    /// Takes more. Returns `false` if the budget is used up.
    fn grow(&mut self, bytes: usize) -> bool {
        self.charge.grow(bytes);
        let held = self
            .permit
            .as_ref()
            .map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = (self.charge.bytes() >> 10) + 1 - held;
        let Ok(missing) = u32::try_from(missing) else {
            return false;
        };
        let kibibytes = Arc::clone(&self.budget.kibibytes);
        let Ok(permit) = kibibytes.try_acquire_many_owned(missing) else {
            return false;
        };
        match &mut self.permit {
            Some(held) => held.merge(permit),
            None => self.permit = Some(permit),
        }
        true
    }

    fn hold(self, body: Bytes) -> Bytes {
        match self.permit {
            Some(permit) => Bytes::from_owner(BudgetedBytes {
                body,
                _permit: permit,
                _charge: self.charge,
            }),
            None => body,
        }
    }
}

impl StoredResponse {
    /// Reads a response to its end, if its body has at most `limit` bytes and the budget has room.
    pub(in crate::serve) async fn read<B>(
        response: Response<B>,
        limit: usize,
        budget: &ResponseBudget,
    ) -> Result<Self, AnswerError>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let unusable = |why: &str| AnswerError::Unusable(why.to_owned());
        let (mut parts, body) = response.into_parts();
        let mut share = BudgetShare {
            budget,
            permit: None,
            charge: budget.memory.charge(budget.class, 0),
        };
        let mut chunks = Vec::new();
        let mut body = std::pin::pin!(body);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| AnswerError::of_body(error.into()))?;
            let Ok(chunk) = frame.into_data() else {
                continue;
            };
            if share.charge.bytes() + chunk.len() > limit {
                return Err(unusable("it is too large to be kept"));
            }
            if !share.grow(chunk.len()) {
                return Err(unusable("too much is held for those who do not take it"));
            }
            chunks.push(chunk);
        }
        // The body is copied even if it is one chunk, and so are the headers: what was read may be a
        // slice of a larger buffer.
        let body = chunks.concat().into();
        for name in OF_ONE_RESPONSE {
            parts.headers.remove(*name);
        }
        for value in parts.headers.values_mut() {
            *value = headers::copy_of(value);
        }
        Ok(Self {
            status: parts.status,
            headers: parts.headers,
            body: share.hold(body),
        })
    }

    pub(in crate::serve) fn response(&self) -> Response<Body> {
        let mut response = Response::new(body::full(self.body.clone()));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        response.extensions_mut().insert(InMemory);
        response
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    #[tokio::test]
    async fn responses_that_nobody_takes_fill_the_budget() {
        let memory = MemoryBudget::default();
        let budget = ResponseBudget::new(8 << 10, &memory, MemoryClass::Answers);
        let read = || {
            StoredResponse::read(
                Response::new(body::full(vec![b'x'; 5000])),
                1 << 20,
                &budget,
            )
        };
        let first = read().await.unwrap();
        assert!(read().await.is_err(), "5 KiB of 8 are taken");
        assert_eq!(memory.counted_total(), 5000);
        let response = first.response();
        drop(first);
        assert!(read().await.is_err(), "a client is being sent it");
        drop(response);
        assert_eq!(memory.counted_total(), 0);
        assert_eq!(read().await.unwrap().body.len(), 5000);
    }

    #[tokio::test]
    async fn a_response_counts_while_it_is_read() {
        let memory = MemoryBudget::default();
        let budget = ResponseBudget::new(8 << 10, &memory, MemoryClass::Answers);
        let half = Bytes::from(vec![b'x'; 5000]);
        let hanging = futures_util::stream::iter([Ok::<_, BoxError>(Frame::data(half.clone()))])
            .chain(futures_util::stream::pending());
        let hanging = Response::new(StreamBody::new(hanging));
        let mut reading = Box::pin(StoredResponse::read(hanging, 1 << 20, &budget));
        assert!((&mut reading).now_or_never().is_none());
        let read =
            || StoredResponse::read(Response::new(body::full(half.clone())), 1 << 20, &budget);
        assert!(read().await.is_err(), "5 KiB of 8 are taken");
        drop(reading);
        assert_eq!(read().await.unwrap().body.len(), 5000);
    }
}
