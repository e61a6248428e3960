//! An answer of upstream's that is given to more than one caller.
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, Limited};

use crate::http::body::{Body, full};
use crate::upstream::{UpstreamBody, UpstreamError};

/// What belongs to one answer alone.
const OF_ONE_ANSWER: &[&str] = &[
    "audit-id",
    "connection",
    "content-length",
    "date",
    "keep-alive",
    "transfer-encoding",
    "x-kubernetes-pf-flowschema-uid",
    "x-kubernetes-pf-prioritylevel-uid",
];

/// An answer, whole.
#[derive(Clone, Debug)]
pub(super) struct Replay {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// There is no answer that could be given to several.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoReplay {
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error("upstream answered {0}")]
    Status(StatusCode),
    #[error("the answer is of no use: {0}")]
    Answer(String),
}

impl Replay {
    /// Reads an answer to its end, if its body has at most `limit` bytes.
    pub(super) async fn read(response: Response<UpstreamBody>, limit: usize) -> Result<Self, NoReplay> {
        let (mut parts, body) = response.into_parts();
        let body = Limited::new(body, limit).collect().await;
        let body = body.map_err(|error| NoReplay::Answer(error.to_string()))?.to_bytes();
        for name in OF_ONE_ANSWER {
            parts.headers.remove(*name);
        }
        Ok(Self { status: parts.status, headers: parts.headers, body })
    }

    pub(super) fn response(&self) -> Response<Body> {
        let mut response = Response::new(full(self.body.clone()));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        response
    }
}
