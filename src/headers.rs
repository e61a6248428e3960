//! Header fields: the names of this proxy's own, and the length and memory of a request's.
use http::{HeaderMap, HeaderName, Uri};

/// The proxies that a request has passed, or that are between a client and the API server.
pub const VIA: HeaderName = HeaderName::from_static("x-watershed-via");
/// The source of an answer.
pub const SOURCE: HeaderName = HeaderName::from_static("x-watershed-source");
/// Seconds for which the scope of an answer has not followed upstream.
pub const AGE: HeaderName = HeaderName::from_static("x-watershed-age");
/// The name of the history that the events of a watch belong to, for other proxies.
pub const HISTORY: HeaderName = HeaderName::from_static("x-watershed-history");
/// The member that the objects of an answer lack.
pub const OMITTED: HeaderName = HeaderName::from_static("x-watershed-omitted");
/// The source of the answer that memory would have given.
pub const SHADOW: HeaderName = HeaderName::from_static("x-watershed-shadow");

/// Copies of a request's head, while it waits and while it is forwarded.
const HEAD_COPIES: usize = 2;
/// Bytes that a field takes besides its text. A client names many short ones with a byte each.
const FIELD_BYTES: usize = 80;

/// Returns the length of a request's header fields, as HTTP/1.1 writes them.
pub fn field_bytes(headers: &HeaderMap) -> usize {
    let fields = headers.iter();
    let lengths = fields.map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    lengths.sum()
}

/// Returns the memory that the head of a request takes until the request is answered.
pub fn head_memory(target: &Uri, headers: &HeaderMap) -> usize {
    target_memory(target) + field_memory(headers)
}

/// Returns the memory that the path and query of a request take until it is answered.
pub fn target_memory(target: &Uri) -> usize {
    HEAD_COPIES * target_bytes(target)
}

/// Returns the memory that the header fields of a request take until it is answered.
pub fn field_memory(headers: &HeaderMap) -> usize {
    HEAD_COPIES * field_bytes(headers) + FIELD_BYTES * headers.len()
}

/// Returns the length of a request's path and query.
pub fn target_bytes(target: &Uri) -> usize {
    target
        .path_and_query()
        .map_or(0, |target| target.as_str().len())
}
