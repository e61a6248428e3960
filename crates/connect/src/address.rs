//! One address of the API.

use std::fmt;
use std::sync::Arc;

use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};

/// One address of the API, as `https://10.0.0.1:6443`. Cheap to clone and to compare.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Address(Arc<AddressParts>);

#[derive(PartialEq, Eq, Hash)]
struct AddressParts {
    tls: bool,
    authority: Authority,
    /// What comes before the path of every request (Rancher: `/k8s/clusters/c-1`); no slash at
    /// its end.
    base: String,
}

/// Why a text is no address.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is no address of an API server: {reason} (wanted: https://host:port)")]
pub struct AddressError {
    text: String,
    reason: String,
}

impl Address {
    /// Parses a URL.
    pub fn parse(text: &str) -> Result<Address, AddressError> {
        let wrong = |reason: String| AddressError {
            text: text.to_owned(),
            reason,
        };
        let uri: Uri = text
            .parse()
            .map_err(|error: http::uri::InvalidUri| wrong(error.to_string()))?;
        let parts = uri.into_parts();
        let tls = match parts.scheme {
            Some(scheme) if scheme == Scheme::HTTPS => true,
            Some(scheme) if scheme == Scheme::HTTP => false,
            Some(scheme) => return Err(wrong(format!("unknown scheme {scheme:?}"))),
            None => return Err(wrong("the scheme is missing".to_owned())),
        };
        let authority = parts
            .authority
            .ok_or_else(|| wrong("the host is missing".to_owned()))?;
        if authority.as_str().contains('@') {
            return Err(wrong("user and password do not belong here".to_owned()));
        }
        let path = parts.path_and_query.as_ref().map_or("", PathAndQuery::path);
        let base = path.trim_end_matches('/').to_owned();
        Ok(Address(Arc::new(AddressParts {
            tls,
            authority,
            base,
        })))
    }

    /// Whether TLS is spoken.
    pub fn is_tls(&self) -> bool {
        self.0.tls
    }

    /// The host, without an IPv6 address' brackets.
    pub fn host(&self) -> &str {
        self.0
            .authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
    }

    /// Returns the port; that of the scheme if none is written.
    pub fn port(&self) -> u16 {
        self.0
            .authority
            .port_u16()
            .unwrap_or(if self.0.tls { 443 } else { 80 })
    }

    /// What upstream is called in `Host` and `:authority`.
    pub fn authority(&self) -> &Authority {
        &self.0.authority
    }

    /// The target of a request for `uri`'s path and query, here. HTTP/2 wants it absolute.
    pub fn target(&self, uri: &Uri, absolute: bool) -> Result<Uri, http::Error> {
        let wanted = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let path = if self.0.base.is_empty() {
            match uri.path_and_query() {
                Some(path) => path.clone(),
                None => PathAndQuery::from_static("/"),
            }
        } else {
            PathAndQuery::try_from(format!("{}{wanted}", self.0.base))?
        };
        let mut parts = http::uri::Parts::default();
        parts.path_and_query = Some(path);
        if absolute {
            parts.scheme = Some(if self.0.tls {
                Scheme::HTTPS
            } else {
                Scheme::HTTP
            });
            parts.authority = Some(self.0.authority.clone());
        }
        Ok(Uri::from_parts(parts)?)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.0.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.0.authority, self.0.base)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        let address = Address::parse("https://[::1]:6443").unwrap();
        assert_eq!(
            (address.host(), address.port(), address.is_tls()),
            ("::1", 6443, true)
        );
        assert_eq!(
            Address::parse("https://api.example.com/").unwrap().port(),
            443
        );
        assert_eq!(
            Address::parse("http://localhost:8001").unwrap().to_string(),
            "http://localhost:8001"
        );
        for wrong in [
            "10.0.0.1:6443",
            "ftp://a:1",
            "https://user:pw@a:1",
            "",
            "https://",
        ] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn targets_keep_path_and_query_as_they_are() {
        let uri: Uri = "/api/v1/pods?labelSelector=a%3Db&watch=1".parse().unwrap();
        let plain = Address::parse("https://h:1").unwrap();
        assert_eq!(plain.target(&uri, false).unwrap(), uri);
        assert_eq!(
            plain.target(&uri, true).unwrap(),
            "https://h:1/api/v1/pods?labelSelector=a%3Db&watch=1"
        );
        let behind = Address::parse("https://h:1/k8s/clusters/c-1/").unwrap();
        assert_eq!(
            behind.target(&uri, false).unwrap(),
            "/k8s/clusters/c-1/api/v1/pods?labelSelector=a%3Db&watch=1"
        );
    }
}
