//! Reads that the proxy makes for itself, in the encoding that upstream chooses.

use bytes::Bytes;
use http::{Request, StatusCode, header};
use watershed_protocol::Encoding;

use super::release_probe::check_release;
use super::{AnswerError, ConnectionClass, SendOptions, UpstreamBody, UpstreamClient};
use crate::body;

/// Sends a list or a watch, and returns the encoding of its answer with the body. Any status but
/// 200 is an error, and so is a content type that is none of Kubernetes'. Applies no timeout.
pub(super) async fn read(
    client: &UpstreamClient,
    class: ConnectionClass,
    uri: &str,
    accept: &'static str,
    watch: bool,
) -> Result<(Encoding, UpstreamBody), AnswerError> {
    let request = Request::get(uri)
        .header(header::ACCEPT, accept)
        .body(body::empty())
        .map_err(unusable)?;
    let response = client.send(class, request, SendOptions::default()).await?;
    check_release(client, &response).await?;
    if response.status() != StatusCode::OK {
        return Err(AnswerError::Status(response.status()));
    }
    let actual = response.headers().get(header::CONTENT_TYPE);
    let encoding = [Encoding::Protobuf, Encoding::Json]
        .into_iter()
        .find(|encoding| actual.is_some_and(|actual| actual == encoding.content_type(watch)))
        .ok_or_else(|| AnswerError::Unusable(format!("content type {actual:?}")))?;
    Ok((encoding, response.into_body()))
}

/// Reads a whole body of at most `limit` bytes.
pub(super) async fn whole(body: UpstreamBody, limit: usize) -> Result<Bytes, AnswerError> {
    body::whole(body, limit).await.map_err(unusable)
}

fn unusable(error: impl std::fmt::Display) -> AnswerError {
    AnswerError::Unusable(error.to_string())
}
