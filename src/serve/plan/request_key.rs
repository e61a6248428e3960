//! The parts of a read that upstream's response depends on.
use http::{HeaderMap, HeaderName, HeaderValue, Request, header};
use watershed_protocol::wants_pretty;

use crate::body::{self, Body};
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
    pub(in crate::serve) fn new<B>(request: &Request<B>) -> Self {
        let target = request.uri().path_and_query();
        let target = target.map_or_else(String::new, ToString::to_string);
        Self {
            indented: wants_pretty(request.uri().query(), request.headers()),
            ..Self::of_target(target, request.headers())
        }
    }

    /// Creates the key of a read of this path and query, which is not indented.
    pub(in crate::serve) fn of_target(path_and_query: String, headers: &HeaderMap) -> Self {
        Self {
            path_and_query,
            negotiated: NEGOTIATED.map(|name| headers.get_all(name).iter().cloned().collect()),
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
    use super::*;

    #[test]
    fn clients_that_get_indented_json_share_nothing_with_others() {
        let key = |agent| {
            let request = Request::get("/api/v1/pods").header(header::USER_AGENT, agent);
            RequestKey::new(&request.body(()).unwrap())
        };
        assert_eq!(key("kubectl/v1.37"), key("controller/1"));
        assert_eq!(key("curl/8.9"), key("Wget/1"));
        assert_ne!(key("curl/8.9"), key("kubectl/v1.37"));
    }
}
