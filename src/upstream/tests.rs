//! Tests of the proxy's own requests against a small API server.

mod credentials;
