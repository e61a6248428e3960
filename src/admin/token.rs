//! The bearer token that operators present.
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use blake3::Hash;
use http::{HeaderMap, HeaderValue, header};
use parking_lot::Mutex;

use crate::log_throttle::LogThrottle;

/// Longest token, in bytes. A longer file holds something else.
const MAX_BYTES: usize = 64 * 1024;

static UNREADABLE: LogThrottle = LogThrottle::new(Duration::from_secs(10));

/// A token in a file that may change. Memory holds only its hash.
pub struct TokenFile {
    path: PathBuf,
    last: Mutex<Hash>,
}

impl TokenFile {
    /// Reads the token.
    pub async fn load(path: PathBuf) -> anyhow::Result<Self> {
        let last = Mutex::new(read(&path).await.context("--admin-token-file")?);
        Ok(Self { path, last })
    }

    /// Returns `true` if the headers present the token that is in the file now.
    ///
    /// If the file cannot be read, the last token remains valid.
    pub(super) async fn is_presented(&self, headers: &HeaderMap) -> bool {
        let Some(presented) = presented(headers) else {
            return false;
        };
        match read(&self.path).await {
            Ok(token) => *self.last.lock() = token,
            Err(error) => {
                if let Some(requests) = UNREADABLE.count(1) {
                    let error = format!("{error:#}");
                    tracing::warn!(error, requests, "keeping the last admin token");
                }
            }
        }
        // Hashes are compared in constant time.
        blake3::hash(&presented) == *self.last.lock()
    }
}

async fn read(path: &Path) -> anyhow::Result<Hash> {
    let bytes = tokio::fs::read(path)
        .await
        .with_context(|| format!("cannot read {}", path.display()))?;
    let token = bytes.trim_ascii();
    ensure!(!token.is_empty(), "{} is empty", path.display());
    ensure!(
        token.len() <= MAX_BYTES,
        "{} is too long for a token",
        path.display()
    );
    Ok(blake3::hash(token))
}

/// Returns the token of the only Authorization header.
///
/// The token is a bearer token, or the password of any user: browsers send passwords.
fn presented(headers: &HeaderMap) -> Option<Cow<'_, [u8]>> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    if let Some(token) = credentials(value, "Bearer ") {
        return Some(Cow::Borrowed(token));
    }
    let pair = BASE64_STANDARD.decode(credentials(value, "Basic ")?).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(Cow::Owned(pair[colon + 1..].to_vec()))
}

/// Returns the part of an Authorization header after the scheme, if the scheme is this one.
fn credentials<'a>(value: &'a HeaderValue, scheme: &str) -> Option<&'a [u8]> {
    let (start, rest) = value.as_bytes().split_at_checked(scheme.len())?;
    start
        .eq_ignore_ascii_case(scheme.as_bytes())
        .then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, value.parse().unwrap());
        }
        headers
    }

    #[tokio::test]
    async fn only_the_token_in_the_file_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "first\n").unwrap();
        let token = TokenFile::load(path.clone()).await.unwrap();
        for (presented, accepted) in [
            (&["Bearer first"][..], true),
            (&["bearer first"], true),
            (&["Bearer firs"], false),
            (&["Bearer first2"], false),
            (&["Bearer "], false),
            (&["Basic first"], false),
            (&["Basic OmZpcnN0"], true),             // :first
            (&["Basic YW55Ym9keTpmaXJzdA=="], true), // anybody:first
            (&["Basic Zmlyc3Q6"], false),            // first:
            (&["Basic Zmlyc3Q="], false),            // first
            (&["Bearer first", "Bearer first"], false),
            (&[], false),
        ] {
            assert_eq!(
                token.is_presented(&headers(presented)).await,
                accepted,
                "{presented:?}"
            );
        }
        std::fs::write(&path, "second").unwrap();
        assert!(!token.is_presented(&headers(&["Bearer first"])).await);
        assert!(token.is_presented(&headers(&["Bearer second"])).await);
        for broken in [Some(""), Some(" \n"), None] {
            match broken {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            assert!(
                token.is_presented(&headers(&["Bearer second"])).await,
                "the last token stays valid"
            );
            assert!(!token.is_presented(&headers(&["Bearer "])).await);
            assert!(TokenFile::load(path.clone()).await.is_err());
        }
    }
}
