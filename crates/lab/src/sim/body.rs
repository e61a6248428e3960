//! Bodies of answers.
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;

/// The body of every answer.
pub(crate) type ResponseBody = UnsyncBoxBody<Bytes, BodyError>;

/// The error of a stream that is broken on purpose.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("broken by a simulated fault")]
pub(crate) struct BodyError;
