//! The responses that answers from memory are made of.
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use crate::body::{self, Body};
use crate::headers;
use crate::serve::reads::freshness::FreshScope;
use crate::serve::source::AnswerSource;

/// A response of this proxy, and where it came from.
pub(in crate::serve) struct Answer {
    pub(in crate::serve) source: AnswerSource,
    pub(in crate::serve) response: Response<Body>,
}

impl Answer {
    pub(in crate::serve) fn new(source: AnswerSource, response: Response<Body>) -> Self {
        Self { source, response }
    }
}

/// Adds the seconds for which the scope has not followed upstream to an answer from memory. While
/// it follows, and to an answer that was proven fresh, nothing is added.
pub(in crate::serve) fn add_age_header(answer: &mut Answer, fresh: &FreshScope) {
    if answer.source == AnswerSource::Linearizable {
        return;
    }
    if let Some(age) = fresh.opened.scope.age() {
        let headers = answer.response.headers_mut();
        headers.insert(headers::AGE, HeaderValue::from(age.as_secs()));
    }
}

/// Names the member that objects of an answer from memory lack, if the operator chose so.
pub(in crate::serve) fn add_omission_header(answer: &mut Answer, fresh: &FreshScope) {
    if !fresh.opened.scope.managed_fields.are_kept() {
        let member = HeaderValue::from_static("metadata.managedFields");
        answer
            .response
            .headers_mut()
            .insert(headers::OMITTED, member);
    }
}

/// Returns the response with a checkpoint.
pub(in crate::serve) fn checkpoint(media_type: &'static str, body: Body) -> Response<Body> {
    from_memory(StatusCode::OK, media_type, body, &[])
}

/// Returns the response with a verdict for another proxy.
pub(in crate::serve) fn verdict(media_type: &'static str, json: Bytes) -> Response<Body> {
    // As a created review, which it stands for.
    from_memory(StatusCode::CREATED, media_type, body::full(json), &[])
}

/// Returns a response with the headers that every answer from memory has.
pub(super) fn from_memory(
    status: StatusCode,
    content_type: &'static str,
    body: Body,
    warnings: &[HeaderValue],
) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    for warning in warnings {
        headers.append(header::WARNING, warning.clone());
    }
    response
}
