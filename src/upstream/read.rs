//! Reads that the proxy makes for itself, in the encoding that upstream chooses.

use bytes::Bytes;
use http::request::Builder;
use http::{Request, StatusCode, header};
use watershed_protocol::{Encoding, Representation};

use super::release_probe::check_release;
use super::{AnswerError, ConnectionClass, SendOptions, UpstreamBody, UpstreamClient};
use crate::body;

/// The kind of a read, a list or a watch, with its `Accept` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadForm {
    List(&'static str),
    Watch(&'static str),
}

impl ReadForm {
    /// Returns the form of lists in this representation only.
    pub(super) fn list_of(representation: Representation) -> Self {
        Self::List(representation.list_accept_header())
    }

    /// Returns the form of watches in this representation only.
    pub(super) fn watch_of(representation: Representation) -> Self {
        Self::Watch(representation.watch_accept_header())
    }

    /// Returns the `Accept` header of the request.
    pub(super) fn accept(self) -> &'static str {
        match self {
            Self::List(accept) | Self::Watch(accept) => accept,
        }
    }

    /// Returns the `Content-Type` of an answer in this encoding.
    pub(super) fn content_type(self, encoding: Encoding) -> &'static str {
        match self {
            Self::List(_) => encoding.content_type(),
            Self::Watch(_) => encoding.watch_content_type(),
        }
    }
}

/// The answer to a list or a watch.
pub(super) struct ReadAnswer {
    pub(super) encoding: Encoding,
    pub(super) is_gzip: bool,
    pub(super) body: UpstreamBody,
}

/// Sends a list or a watch, and returns the encoding of its answer with the body. Any status but
/// 200 is an error, and so is a content type that is none of Kubernetes'. Applies no timeout.
pub(super) async fn read(
    client: &UpstreamClient,
    class: ConnectionClass,
    uri: &str,
    form: ReadForm,
) -> Result<(Encoding, UpstreamBody), AnswerError> {
    let answer = send(client, class, Request::get(uri), form).await?;
    if answer.is_gzip {
        return Err(AnswerError::Unusable(
            "gzip that was not asked for".to_owned(),
        ));
    }
    Ok((answer.encoding, answer.body))
}

/// Sends a list or a short watch like [`read`]. Upstream may compress the answer.
pub(super) async fn read_compressed(
    client: &UpstreamClient,
    uri: &str,
    form: ReadForm,
) -> Result<ReadAnswer, AnswerError> {
    let request = Request::get(uri).header(header::ACCEPT_ENCODING, "gzip");
    send(client, ConnectionClass::Short, request, form).await
}

async fn send(
    client: &UpstreamClient,
    class: ConnectionClass,
    request: Builder,
    form: ReadForm,
) -> Result<ReadAnswer, AnswerError> {
    let request = request.header(header::ACCEPT, form.accept());
    let request = request.body(body::empty()).map_err(unusable)?;
    let response = client.send(class, request, SendOptions::default()).await?;
    check_release(client, &response).await?;
    if response.status() != StatusCode::OK {
        return Err(AnswerError::refused(&response));
    }
    let actual = response.headers().get(header::CONTENT_TYPE);
    let encoding = [Encoding::Protobuf, Encoding::Json]
        .into_iter()
        .find(|encoding| actual.is_some_and(|actual| actual == form.content_type(*encoding)))
        .ok_or_else(|| AnswerError::Unusable(format!("content type {actual:?}")))?;
    let is_gzip = match response.headers().get(header::CONTENT_ENCODING) {
        None => false,
        Some(coding) if coding == "gzip" => true,
        Some(coding) => return Err(AnswerError::Unusable(format!("coding {coding:?}"))),
    };
    Ok(ReadAnswer {
        encoding,
        is_gzip,
        body: response.into_body(),
    })
}

/// Reads a whole body of at most `limit` bytes.
pub(super) async fn whole(body: UpstreamBody, limit: usize) -> Result<Bytes, AnswerError> {
    body::whole(body, limit).await.map_err(AnswerError::of_body)
}

fn unusable(error: impl std::fmt::Display) -> AnswerError {
    AnswerError::Unusable(error.to_string())
}
