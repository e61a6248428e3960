//! The bearer token that operators show.
use std::borrow::Cow;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use blake3::Hash;
use http::{HeaderMap, header};
use parking_lot::Mutex;

/// A longer file holds something else.
const MAX_BYTES: usize = 64 * 1024;

/// A token in a file, which may change. Kept is only its hash.
pub struct TokenFile {
    path: PathBuf,
    last: Mutex<Hash>,
}

impl TokenFile {
    /// Reads it for the first time.
    pub async fn load(path: PathBuf) -> anyhow::Result<Self> {
        let last = Mutex::new(read(&path).await.context("--admin-token-file")?);
        Ok(Self { path, last })
    }

    /// Whether these headers show the token that is in the file now. A file that cannot be read
    /// leaves the last one valid.
    pub(super) async fn is_shown(&self, headers: &HeaderMap) -> bool {
        let Some(shown) = shown(headers) else {
            return false;
        };
        match read(&self.path).await {
            Ok(token) => *self.last.lock() = token,
            Err(error) => {
                tracing::warn!(error = %format!("{error:#}"), "keeping the last admin token")
            }
        }
        // Hashes are compared in constant time.
        blake3::hash(&shown) == *self.last.lock()
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

/// The token of the only Authorization header: as a bearer's, or as the password of anybody, as
/// browsers send what they ask for.
fn shown(headers: &HeaderMap) -> Option<Cow<'_, [u8]>> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let of_scheme = |scheme: &str| {
        let (shown, rest) = value.as_bytes().split_at_checked(scheme.len())?;
        shown
            .eq_ignore_ascii_case(scheme.as_bytes())
            .then_some(rest)
    };
    if let Some(token) = of_scheme("Bearer ") {
        return Some(Cow::Borrowed(token));
    }
    let pair = BASE64_STANDARD.decode(of_scheme("Basic ")?).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(Cow::Owned(pair[colon + 1..].to_vec()))
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
    async fn only_the_token_of_the_file_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "first\n").unwrap();
        let token = TokenFile::load(path.clone()).await.unwrap();
        for (shown, right) in [
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
            assert_eq!(token.is_shown(&headers(shown)).await, right, "{shown:?}");
        }
        std::fs::write(&path, "second").unwrap();
        assert!(!token.is_shown(&headers(&["Bearer first"])).await);
        assert!(token.is_shown(&headers(&["Bearer second"])).await);
        for broken in [Some(""), Some(" \n"), None] {
            match broken {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            assert!(
                token.is_shown(&headers(&["Bearer second"])).await,
                "the last good one stays"
            );
            assert!(!token.is_shown(&headers(&["Bearer "])).await);
            assert!(TokenFile::load(path.clone()).await.is_err());
        }
    }
}
