//! Upstream's answers to the requests of a reflector.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use tokio::time::timeout;
use watershed_protocol::{Encoding, gunzip, read_error};

use super::change::Stopped;
use super::error::ReflectorError;
use crate::body;
use crate::upstream::UpstreamBody;

/// Timeout of a list's response headers, and of its body.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);
/// Timeout of a watch's response headers: nothing is followed until they come. Upstream sends them
/// before the first event, but priority and fairness may hold a request back for 15 s.
pub(super) const WATCH_ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Limit of a page's body, to bound memory. etcd limits an object to about 1.5 MiB.
const MAX_PAGE_BYTES: usize = 2 << 30;
/// Limit of an error's body.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// Returns the headers and the body of an answer with status 200 and this content type.
pub(super) async fn accepted(
    response: Response<UpstreamBody>,
    content_type: &str,
) -> Result<(HeaderMap, UpstreamBody), ReflectorError> {
    if response.status() != StatusCode::OK {
        return Err(refusal(response).await);
    }
    let actual = response.headers().get(header::CONTENT_TYPE);
    if actual.is_none_or(|actual| actual.as_bytes() != content_type.as_bytes()) {
        return Err(
            Stopped::NotUnderstood(format!("content type {actual:?}, not {content_type}")).into(),
        );
    }
    let (parts, body) = response.into_parts();
    Ok((parts.headers, body))
}

/// Returns `true` if an answer is compressed.
pub(super) fn is_gzip(headers: &HeaderMap) -> Result<bool, ReflectorError> {
    match headers.get(header::CONTENT_ENCODING) {
        None => Ok(false),
        Some(coding) if coding == "gzip" => Ok(true),
        Some(coding) => Err(ReflectorError::Broken(format!("the coding {coding:?}"))),
    }
}

/// Reads the whole body of a list, and unpacks it if it is compressed.
pub(super) async fn read_list(
    headers: &HeaderMap,
    body: UpstreamBody,
) -> Result<Bytes, ReflectorError> {
    let is_gzip = is_gzip(headers)?;
    let body = timeout(ANSWER_TIMEOUT, body::whole(body, MAX_PAGE_BYTES))
        .await
        .map_err(|_| ReflectorError::Silent(ANSWER_TIMEOUT))?
        .map_err(|error| ReflectorError::Broken(error.to_string()))?;
    if is_gzip {
        Ok(gunzip([&body[..]], MAX_PAGE_BYTES)?)
    } else {
        Ok(body)
    }
}

async fn refusal(response: Response<UpstreamBody>) -> ReflectorError {
    let status = response.status();
    let message = error_message(response.into_body()).await;
    match status {
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Stopped::Vanished.into(),
        StatusCode::FORBIDDEN => Stopped::Forbidden(message).into(),
        StatusCode::UNAUTHORIZED => Stopped::Unauthorized(message).into(),
        StatusCode::NOT_ACCEPTABLE => Stopped::NotAcceptable.into(),
        StatusCode::GONE => ReflectorError::Expired(message),
        status => ReflectorError::Status(status, message),
    }
}

/// Returns the message of a `Status`, or the whole text of another body. It is for a line of the
/// log and for a page.
async fn error_message(body: UpstreamBody) -> String {
    let Ok(Ok(body)) = timeout(ANSWER_TIMEOUT, body::whole(body, MAX_ERROR_BYTES)).await else {
        return String::new();
    };
    in_one_line(&message_of(&body))
}

fn message_of(body: &[u8]) -> String {
    // kube-apiserver answers in the encoding that was asked for, and others in JSON.
    let messages = [Encoding::Json, Encoding::Protobuf].map(|it| read_error(it, body).message);
    let message = messages.into_iter().find(|message| !message.is_empty());
    message.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned())
}

/// Returns the text with a space in place of each line end and other control character.
fn in_one_line(text: &str) -> String {
    text.trim().replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use watershed_protocol::Status;

    use super::*;

    #[test]
    fn messages_of_refusals_are_one_line_of_text() {
        let status = Status::bad_request("pods is forbidden:\nnobody may");
        for body in [status.to_json(), status.to_protobuf()] {
            let message = in_one_line(&message_of(&body));
            assert_eq!(message, "pods is forbidden: nobody may");
        }
        let page = in_one_line(&message_of(b"<html>\r\nno\x00 gateway\n"));
        assert_eq!(page, "<html>  no  gateway");
    }
}
