//! An answer of upstream's that is given to more than one caller, and the question it answers.
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};

use crate::http::body::{self, Body, BoxError};
use crate::upstream::NoAnswer;

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
            negotiated: NEGOTIATED.map(|name| request.headers().get_all(name).iter().cloned().collect()),
        }
    }

    /// A request that asks it, with further fields.
    pub(super) fn request(
        &self,
        fields: impl IntoIterator<Item = (HeaderName, Option<HeaderValue>)>,
    ) -> Result<Request<Body>, NoAnswer> {
        let request = Request::get(&self.path_and_query).body(body::empty());
        let mut request = request.map_err(|error| NoAnswer::Useless(error.to_string()))?;
        let headers = request.headers_mut();
        for (name, values) in NEGOTIATED.iter().zip(&self.negotiated) {
            for value in values {
                headers.append(name, value.clone());
            }
        }
        headers.extend(fields.into_iter().filter_map(|(name, value)| Some((name, value?))));
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

impl Replay {
    /// Reads an answer to its end, if its body has at most `limit` bytes.
    pub(super) async fn read<B>(response: Response<B>, limit: usize) -> Result<Self, NoAnswer>
    where
        B: http_body::Body<Error: Into<BoxError>>,
    {
        let (mut parts, body) = response.into_parts();
        let body = body::whole(body, limit).await.map_err(|error| NoAnswer::Useless(error.to_string()))?;
        for name in OF_ONE_ANSWER {
            parts.headers.remove(*name);
        }
        Ok(Self { status: parts.status, headers: parts.headers, body })
    }

    pub(super) fn response(&self) -> Response<Body> {
        let mut response = Response::new(body::full(self.body.clone()));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        response
    }
}
