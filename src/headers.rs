//! Header fields: the names of this proxy's own, and the length and memory of a request's.
use std::fmt;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, Uri};

/// The proxies that a request has passed, or that are between a client and the API server.
pub const VIA: HeaderName = HeaderName::from_static("x-watershed-via");
/// The source of an answer.
pub const SOURCE: HeaderName = HeaderName::from_static("x-watershed-source");
/// Seconds for which the scope of an answer has not followed upstream.
pub const AGE: HeaderName = HeaderName::from_static("x-watershed-age");
/// The [`HistoryName`] of a watch that another proxy asked for.
pub const HISTORY: HeaderName = HeaderName::from_static("x-watershed-history");
/// The member that the objects of an answer lack.
pub const OMITTED: HeaderName = HeaderName::from_static("x-watershed-omitted");
/// The source of the answer that memory would have given.
pub const SHADOW: HeaderName = HeaderName::from_static("x-watershed-shadow");

/// Copies of a request's head, while it waits and while it is forwarded.
const HEAD_COPIES: usize = 2;
/// Bytes that a field takes besides its text. A client names many short ones with a byte each.
const FIELD_BYTES: usize = 80;

/// Returns the same value in memory of its own. A value that was read over HTTP/1 is a slice of the
/// connection's buffer, and keeps all of that for as long as it is kept.
pub fn copy_of(value: &HeaderValue) -> HeaderValue {
    let mut copy =
        HeaderValue::from_bytes(value.as_bytes()).expect("these are the bytes of a header value");
    copy.set_sensitive(value.is_sensitive());
    copy
}

/// Returns the same target of a request over HTTP/2 in memory of its own. Its parts are slices of the
/// buffer that their frame was read into, and keep all of that.
pub fn copy_of_target(target: &Uri) -> Uri {
    let copied = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let authority = target
        .authority()
        .map(|authority| copied(authority.as_str()));
    let path = target.path_and_query().map(|path| copied(path.as_str()));
    let mut parts = target.clone().into_parts();
    parts.authority =
        authority.map(|text| Authority::from_maybe_shared(text).expect("it is the same as before"));
    parts.path_and_query =
        path.map(|text| PathAndQuery::from_maybe_shared(text).expect("it is the same as before"));
    Uri::from_parts(parts).expect("it has the same parts as before")
}

/// The name of the history that a watch from memory brings. A watch goes on from an earlier one of the same
/// name as if that one had never ended.
///
/// The history of a scope ends with a list, after which its watches would have ended, too. Watches of other
/// selections may share a name: it is for those that ask for the same again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryName {
    /// The random number of the scope. No other one has it, of this process or another.
    pub scope: u64,
    /// The generation of the scope's objects, which changes with each list.
    pub generation: u64,
}

impl HistoryName {
    /// Returns the name in the headers of an answer. Only answers of proxies count, which name the proxies
    /// behind them, too.
    pub fn in_answer(headers: &HeaderMap) -> Option<Self> {
        let name = headers.get(HISTORY).filter(|_| headers.contains_key(VIA))?;
        let (scope, generation) = name.to_str().ok()?.split_once('-')?;
        Some(Self {
            scope: u64::from_str_radix(scope, 16).ok()?,
            generation: generation.parse().ok()?,
        })
    }
}

impl From<HistoryName> for HeaderValue {
    fn from(name: HistoryName) -> Self {
        Self::try_from(name.to_string()).expect("digits and a hyphen are a header value")
    }
}

impl fmt::Display for HistoryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.scope, self.generation)
    }
}

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

/// Returns the memory that header fields take which are kept.
pub fn kept_memory(headers: &HeaderMap) -> usize {
    field_bytes(headers) + FIELD_BYTES * headers.len()
}

/// Returns the length of a request's path and query.
pub fn target_bytes(target: &Uri) -> usize {
    target
        .path_and_query()
        .map_or(0, |target| target.as_str().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_keep_nothing_of_what_was_read() {
        for text in [
            "https://api.example:6443/api/v1/pods?watch=1&x=%20",
            "http://10.0.0.1/",
            "https://[::1]:6443",
            "/apis?timeout=32s",
            "/",
            "api.example:443",
            "*",
        ] {
            let read = Bytes::from([text.as_bytes(), &vec![b'#'; 64 << 10]].concat());
            let target = Uri::from_maybe_shared(read.slice(..text.len())).unwrap();
            let copy = copy_of_target(&target);
            assert_eq!(copy, target);
            assert_eq!(copy.to_string(), target.to_string());
            drop(target);
            assert!(read.is_unique(), "{copy}");
        }
    }

    #[test]
    fn a_history_is_named_by_proxies_alone_and_in_one_form() {
        let name = HistoryName {
            scope: u64::MAX,
            generation: 12,
        };
        let named = |name: HeaderValue, via: bool| {
            let mut headers = HeaderMap::from_iter([(HISTORY, name)]);
            if via {
                headers.insert(VIA, HeaderValue::from_static("0123456789abcdef"));
            }
            HistoryName::in_answer(&headers)
        };
        assert_eq!(named(name.into(), true), Some(name));
        assert_eq!(
            named(name.into(), false),
            None,
            "an aggregated server wrote it"
        );
        for other in ["", "12", "x-1", "1-x", "10000000000000000-1", "1-1-1"] {
            let other = HeaderValue::from_static(other);
            assert_eq!(named(other.clone(), true), None, "{other:?}");
        }
    }
}
