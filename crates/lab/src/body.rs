//! Bodies that are known in full.
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};

/// Returns a body of these bytes.
pub fn full_body<E: Send + 'static>(bytes: impl Into<Bytes>) -> UnsyncBoxBody<Bytes, E> {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// Returns a body without bytes.
pub fn empty_body<E: Send + 'static>() -> UnsyncBoxBody<Bytes, E> {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}
