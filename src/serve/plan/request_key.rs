//! The parts of a read that upstream's response depends on.
use http::{HeaderMap, HeaderName, HeaderValue, Request, header};

use crate::body::{self, Body};
use crate::headers;
use crate::upstream::AnswerError;

/// Request headers that the response depends on.
const NEGOTIATED: [HeaderName; 2] = [header::ACCEPT, header::ACCEPT_ENCODING];

/// The parts of a read that upstream's response depends on, besides the caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::serve) struct RequestKey {
    pub(in crate::serve) path_and_query: String,
    negotiated: [Vec<HeaderValue>; 2],
    /// The client gets JSON indented, which can depend on its name.
    indented: bool,
}

impl RequestKey {
    /// Creates the key of a request. `indented` is that of its answers.
    pub(in crate::serve) fn new<B>(request: &Request<B>, indented: bool) -> Self {
        let target = request.uri().path_and_query();
        let target = target.map_or_else(String::new, ToString::to_string);
        Self {
            indented,
            ..Self::of_target(target, request.headers())
        }
    }

    /// Creates the key of a read of this path and query, which is not indented.
    ///
    /// The values are copied, because keys are kept: over HTTP/1, a value is a slice of what was read
    /// from the connection, and would keep all of it.
    pub(in crate::serve) fn of_target(path_and_query: String, headers: &HeaderMap) -> Self {
        Self {
            path_and_query,
            negotiated: NEGOTIATED
                .map(|name| headers.get_all(name).iter().map(headers::copy_of).collect()),
            indented: false,
        }
    }

    /// Returns the bytes that the key takes, roughly.
    pub(in crate::serve) fn bytes(&self) -> usize {
        let negotiated = self.negotiated.iter().flatten();
        self.path_and_query.len() + negotiated.map(HeaderValue::len).sum::<usize>()
    }

    /// Returns a request for the same, with further headers.
    pub(in crate::serve) fn request(
        &self,
        headers: HeaderMap,
    ) -> Result<Request<Body>, AnswerError> {
        let request = Request::get(&self.path_and_query).body(body::empty());
        let mut request = request.map_err(|error| AnswerError::Unusable(error.to_string()))?;
        let own = request.headers_mut();
        for (name, values) in NEGOTIATED.iter().zip(&self.negotiated) {
            for value in values {
                own.append(name, value.clone());
            }
        }
        own.extend(headers);
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_key_keeps_nothing_of_the_connection() {
        let read = Bytes::from(vec![b'a'; 64 << 10]);
        let value = HeaderValue::from_maybe_shared(read.slice(..10)).unwrap();
        let headers = HeaderMap::from_iter([(header::ACCEPT, value)]);
        let key = RequestKey::of_target("/apis".to_owned(), &headers);
        drop(headers);
        assert!(read.is_unique(), "{key:?}");
        let asked = key.request(HeaderMap::new()).unwrap();
        assert_eq!(asked.headers()[header::ACCEPT], "aaaaaaaaaa");
    }

    #[test]
    fn clients_that_get_indented_json_share_nothing_with_others() {
        let request = Request::get("/api/v1/pods").body(()).unwrap();
        let key = |indented| RequestKey::new(&request, indented);
        assert_eq!(key(true), key(true));
        assert_ne!(key(true), key(false));
    }
}
