//! Bearer tokens, and the files that hold them.
use std::io;
use std::path::Path;

use http::HeaderValue;

/// Reads a token file. Whitespace around the token does not count, as for client-go.
pub(super) fn read(path: &Path) -> io::Result<HeaderValue> {
    let text = std::fs::read_to_string(path)?;
    header(text.trim())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it holds no bearer token"))
}

/// Returns the header `Authorization` of a token; `None` if it is empty or not fit for a header.
pub(super) fn header(token: &str) -> Option<HeaderValue> {
    if token.is_empty() {
        return None;
    }
    let mut header = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}
