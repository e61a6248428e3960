//! HTTP/1 as Go's server speaks it, where hyper leaves the choice.
//!
//! Source: `net/http/server.go` (`conn.readRequest`, `conn.serve`, `chunkWriter.writeHeader`),
//! `net/http/transfer.go` (`parseTransferEncoding`) and `net/http/status.go` of Go.

use http::header::{CONNECTION, CONTENT_TYPE, EXPECT, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::ext::ReasonPhrase;

use super::request_lines::RequestFault;
use crate::body::{self, Body};

/// Returns the answer to a request that Go's server refuses before anybody looks at it. The
/// connection ends with it.
pub(super) fn refusal<B>(request: &Request<B>) -> Option<Response<Body>> {
    if !is_http1(request) {
        return None;
    }
    // Sent on, it would become another request: for the root.
    if request.uri().path().is_empty() && request.method() != Method::CONNECT {
        return Some(bad_request("400 Bad Request"));
    }
    let headers = request.headers();
    let mut hosts = headers.get_all(HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    let is_host_needed =
        request.version() == Version::HTTP_11 && request.method() != Method::CONNECT;
    if second.is_some() {
        return Some(bad_request("400 Bad Request"));
    }
    if headers.contains_key(TRANSFER_ENCODING) && !is_chunked_once(headers) {
        let text = "Unsupported transfer encoding";
        return Some(closing(StatusCode::NOT_IMPLEMENTED, text));
    }
    match host {
        None if is_host_needed => {
            return Some(bad_request("400 Bad Request: missing required Host header"));
        }
        Some(host) if !host.as_bytes().iter().copied().all(is_host_byte) => {
            return Some(bad_request("400 Bad Request: malformed Host header"));
        }
        _ => {}
    }
    let expectation = headers.get(EXPECT)?.as_bytes();
    (!expectation.is_empty() && !expects_continue(expectation)).then(|| {
        let mut response = Response::new(body::empty());
        *response.status_mut() = StatusCode::EXPECTATION_FAILED;
        close(&mut response);
        response
    })
}

/// Returns the answer to a request with a fault that hyper does not see.
///
/// Go's server takes a `#` for a part of the path. Here it is lost, and what is left may be another
/// object, or all of a type.
pub(super) fn refused(fault: RequestFault) -> Response<Body> {
    bad_request(match fault {
        RequestFault::Fragment => {
            "400 Bad Request: a raw # in the URL, which must be written as %23"
        }
        RequestFault::Unclear => "400 Bad Request: the end of the request before is unclear",
    })
}

/// Returns the answer to a request whose path has a bad escape.
///
/// Over HTTP/2, Go's server resets the stream, here and at upstream, which would be blamed for it.
pub(super) fn bad_escape<B>(request: &Request<B>) -> Option<Response<Body>> {
    has_bad_escape(request.uri().path()).then(|| {
        if is_http1(request) {
            return bad_request("400 Bad Request");
        }
        let mut response = Response::new(body::full("the path has an invalid percent-encoding\n"));
        *response.status_mut() = StatusCode::BAD_REQUEST;
        response
    })
}

/// Returns `true` if a path has a `%` without two hexadecimal digits behind it.
fn has_bad_escape(path: &str) -> bool {
    let mut escapes = path.split('%').skip(1).map(str::as_bytes);
    escapes.any(|escape| {
        let digits = escape.first_chunk::<2>();
        digits.is_none_or(|digits| !digits.iter().all(u8::is_ascii_hexdigit))
    })
}

/// Returns `true` if Go's server would end the connection of a request whose body nobody reads.
pub(super) fn has_large_body<B: http_body::Body>(request: &Request<B>) -> bool {
    let length = request.body().size_hint().exact();
    is_http1(request)
        && !request.body().is_end_stream()
        && length.is_none_or(|bytes| bytes > body::MAX_UNREAD)
}

/// Gives an answer the reason phrase of Go, and says if hyper is about to end the connection since
/// the body of the request was not read.
pub(super) fn complete<B>(response: &mut Response<B>, has_large_body: bool) {
    if has_large_body && leaves_body_unread(response.status()) {
        close(response);
    }
    let reason = match response.status() {
        StatusCode::NON_AUTHORITATIVE_INFORMATION => "Non-Authoritative Information",
        StatusCode::PAYLOAD_TOO_LARGE => "Request Entity Too Large",
        StatusCode::RANGE_NOT_SATISFIABLE => "Requested Range Not Satisfiable",
        _ => return,
    };
    let reason = ReasonPhrase::from_static(reason.as_bytes());
    response.extensions_mut().get_or_insert(reason);
}

/// Returns `true` if an API server gives this answer without reading the body of the request.
fn leaves_body_unread(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::TOO_MANY_REQUESTS
    )
}

fn is_http1<B>(request: &Request<B>) -> bool {
    matches!(request.version(), Version::HTTP_10 | Version::HTTP_11)
}

fn is_chunked_once(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let first = codings.next();
    first.is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
        && codings.next().is_none()
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(&byte)
}

fn expects_continue(expectation: &[u8]) -> bool {
    expectation
        .split(|byte| b" ,\t".contains(byte))
        .any(|token| token.eq_ignore_ascii_case(b"100-continue"))
}

/// The text begins with the status, as Go repeats the status line in the body.
fn bad_request(text: &'static str) -> Response<Body> {
    let mut response = closing(StatusCode::BAD_REQUEST, text);
    let reason = text.trim_start_matches("400 ");
    let reason = ReasonPhrase::from_static(reason.as_bytes());
    response.extensions_mut().insert(reason);
    response
}

fn closing(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(body::full(text));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    close(&mut response);
    response
}

fn close<B>(response: &mut Response<B>) {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the status and the text of a refusal.
    fn refused(version: Version, headers: &[(&str, &str)]) -> Option<(u16, String)> {
        let mut request = Request::get("/api").version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = refusal(&request.body(()).unwrap())?;
        assert_eq!(response.headers()[CONNECTION], "close");
        let reason = response.extensions().get::<ReasonPhrase>();
        let reason = reason.map_or(Vec::new(), |reason| reason.as_bytes().to_vec());
        let text = String::from_utf8(reason).unwrap();
        Some((response.status().as_u16(), text))
    }

    #[test]
    fn requests_with_one_host_and_known_codings_are_not_refused() {
        let host = ("host", "[::1]:6443");
        for headers in [
            vec![host],
            vec![("host", "")],
            vec![host, ("transfer-encoding", "Chunked")],
            vec![host, ("expect", "100-Continue")],
            vec![host, ("expect", "")],
        ] {
            assert_eq!(refused(Version::HTTP_11, &headers), None, "{headers:?}");
        }
        assert_eq!(refused(Version::HTTP_10, &[]), None);
        assert_eq!(refused(Version::HTTP_2, &[("expect", "x")]), None);
    }

    #[test]
    fn escapes_in_paths_have_two_digits() {
        for (path, is_bad) in [
            ("/api/100%25", false),
            ("/%aF%00/", false),
            ("/", false),
            ("/100%", true),
            ("/%2", true),
            ("/%2g", true),
            ("/%25%zz", true),
            ("/%\u{e4}", true),
        ] {
            assert_eq!(has_bad_escape(path), is_bad, "{path}");
        }
    }

    #[test]
    fn hosts_codings_and_expectations_are_refused_as_go_does() {
        let host = ("host", "a");
        for (headers, status, reason) in [
            (vec![], 400, "Bad Request: missing required Host header"),
            (vec![host, host], 400, "Bad Request"),
            (
                vec![("host", "a b")],
                400,
                "Bad Request: malformed Host header",
            ),
            (vec![host, ("transfer-encoding", "gzip, chunked")], 501, ""),
            (vec![host, ("expect", "200-ok")], 417, ""),
        ] {
            let answer = refused(Version::HTTP_11, &headers);
            assert_eq!(answer, Some((status, reason.to_owned())), "{headers:?}");
        }
    }

    fn completed(status: StatusCode, has_large_body: bool) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = status;
        complete(&mut response, has_large_body);
        response
    }

    #[test]
    fn reason_phrases_are_those_of_go() {
        let refused = completed(StatusCode::PAYLOAD_TOO_LARGE, false);
        let reason = refused.extensions().get::<ReasonPhrase>().unwrap();
        assert_eq!(reason.as_bytes(), b"Request Entity Too Large");
        let found = completed(StatusCode::OK, false);
        assert!(found.extensions().get::<ReasonPhrase>().is_none());
    }

    #[test]
    fn the_end_of_a_connection_is_announced_when_a_large_body_was_not_read() {
        for (status, has_large_body, is_announced) in [
            (StatusCode::PAYLOAD_TOO_LARGE, true, true),
            (StatusCode::FORBIDDEN, true, true),
            (StatusCode::FORBIDDEN, false, false),
            // Upstream has read the object.
            (StatusCode::CREATED, true, false),
            (StatusCode::CONFLICT, true, false),
        ] {
            let response = completed(status, has_large_body);
            let announced = response.headers().contains_key(CONNECTION);
            assert_eq!(announced, is_announced, "{status}, {has_large_body}");
        }
    }
}
