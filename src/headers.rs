//! Header fields: the names of this proxy's own, and the length of a request's.
use http::{HeaderMap, HeaderName};

/// The proxies that a request has passed, or that are between a client and the API server.
pub const VIA: HeaderName = HeaderName::from_static("x-watershed-via");
/// The source of an answer.
pub const SOURCE: HeaderName = HeaderName::from_static("x-watershed-source");
/// Seconds for which the scope of an answer has not followed upstream.
pub const AGE: HeaderName = HeaderName::from_static("x-watershed-age");
/// The member that the objects of an answer lack.
pub const OMITTED: HeaderName = HeaderName::from_static("x-watershed-omitted");
/// The source of the answer that memory would have given.
pub const SHADOW: HeaderName = HeaderName::from_static("x-watershed-shadow");

/// Returns the length of a request's header fields, as HTTP/1.1 writes them.
pub fn field_bytes(headers: &HeaderMap) -> usize {
    let fields = headers.iter();
    let lengths = fields.map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    lengths.sum()
}
