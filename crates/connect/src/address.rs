//! The address of an API server.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};

use super::protocol::Protocol;

/// One address of the API, as `https://10.0.0.1:6443`. Cheap to clone and to compare.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Address(Arc<AddressParts>);

#[derive(PartialEq, Eq, Hash)]
struct AddressParts {
    tls: bool,
    authority: Authority,
    /// Prefix of every path, without a trailing slash (Rancher: `/k8s/clusters/c-1`).
    base: String,
}

/// Reason why a text is not an address.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not the address of an API server: {reason} (use https://host:port)")]
pub struct AddressError {
    text: String,
    reason: String,
}

impl Address {
    /// Parses a URL.
    pub fn parse(text: &str) -> Result<Address, AddressError> {
        let invalid = |reason: String| AddressError {
            text: text.to_owned(),
            reason,
        };
        let uri: Uri = text
            .parse()
            .map_err(|error: http::uri::InvalidUri| invalid(error.to_string()))?;
        if uri.query().is_some() || text.contains('#') {
            return Err(invalid(
                "a query or fragment does not belong here".to_owned(),
            ));
        }
        let parts = uri.into_parts();
        let tls = match parts.scheme {
            Some(scheme) if scheme == Scheme::HTTPS => true,
            Some(scheme) if scheme == Scheme::HTTP => false,
            Some(scheme) => return Err(invalid(format!("unknown scheme {scheme:?}"))),
            None => return Err(invalid("the scheme is missing".to_owned())),
        };
        let authority = parts
            .authority
            .ok_or_else(|| invalid("the host is missing".to_owned()))?;
        if authority.as_str().contains('@') {
            return Err(invalid("user and password do not belong here".to_owned()));
        }
        if authority.host().is_empty() {
            return Err(invalid("the host is missing".to_owned()));
        }
        let has_port = authority.as_str().len() > authority.host().len();
        if has_port && authority.port_u16().is_none() {
            return Err(invalid("the port is not a number up to 65535".to_owned()));
        }
        let path = parts.path_and_query.as_ref().map_or("", PathAndQuery::path);
        let base = path.trim_end_matches('/').to_owned();
        Ok(Address(Arc::new(AddressParts {
            tls,
            authority,
            base,
        })))
    }

    /// Returns `true` for `https`.
    pub fn is_tls(&self) -> bool {
        self.0.tls
    }

    /// Returns `true` if paths begin with a prefix here.
    pub fn has_base(&self) -> bool {
        !self.0.base.is_empty()
    }

    /// Returns `true` if the server is on this machine.
    pub fn is_local(&self) -> bool {
        let is_loopback = self.ip().is_some_and(|ip| ip.is_loopback());
        is_loopback || self.host().eq_ignore_ascii_case("localhost")
    }

    /// Returns the address, if the host is one and not a name. An IPv4 address may be written as an
    /// IPv6 one, and is the same.
    pub fn ip(&self) -> Option<IpAddr> {
        let address = self.host().parse::<IpAddr>();
        address.ok().map(|ip| ip.to_canonical())
    }

    /// Returns the host, without the brackets of an IPv6 address.
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

    /// Returns the value of `Host` and `:authority`.
    pub fn authority(&self) -> &Authority {
        &self.0.authority
    }

    /// Returns the request target of `uri` at this address. HTTP/2 wants it absolute.
    ///
    /// A path that a client leaves out is `/`, as in `https://host?query`. `http` shows that in the
    /// path, but not in its text with the query, and API servers reset such a stream.
    pub fn target(&self, uri: &Uri, protocol: Protocol) -> Result<Uri, http::Error> {
        let wanted = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let root = if wanted.starts_with('?') { "/" } else { "" };
        let path = match uri.path_and_query() {
            Some(path) if self.0.base.is_empty() && root.is_empty() => path.clone(),
            _ => PathAndQuery::try_from(format!("{}{root}{wanted}", self.0.base))?,
        };
        let mut parts = http::uri::Parts::default();
        parts.path_and_query = Some(path);
        if protocol == Protocol::Http2 {
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
        for text in [
            "10.0.0.1:6443",
            "ftp://a:1",
            "https://user:pw@a:1",
            "",
            "https://",
            "https://:6443",
            "https://a:",
            "https://a:99999",
            "https://a?x=1",
            "https://a/#x",
        ] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_this_machine_is_local() {
        for (text, wanted) in [
            ("http://127.0.0.1:1", true),
            ("http://[::1]:1", true),
            ("http://[::ffff:127.0.0.1]:1", true),
            ("http://LocalHost", true),
            ("http://localhost.example.com", false),
            ("http://10.0.0.1", false),
        ] {
            assert_eq!(Address::parse(text).unwrap().is_local(), wanted, "{text}");
        }
    }

    #[test]
    fn an_ipv4_address_may_be_written_as_an_ipv6_one() {
        let ip = |text| Address::parse(text).unwrap().ip();
        assert_eq!(ip("https://[::ffff:10.0.0.1]:6443"), ip("https://10.0.0.1"));
        assert_eq!(ip("https://[fd00::1]:6443"), "fd00::1".parse().ok());
        assert_eq!(ip("https://api.example.com"), None);
    }

    #[test]
    fn targets_keep_path_and_query_as_they_are() {
        let uri: Uri = "/api/v1/pods?labelSelector=a%3Db&watch=1".parse().unwrap();
        let plain = Address::parse("https://h:1").unwrap();
        assert_eq!(plain.target(&uri, Protocol::Http1).unwrap(), uri);
        assert_eq!(
            plain.target(&uri, Protocol::Http2).unwrap(),
            "https://h:1/api/v1/pods?labelSelector=a%3Db&watch=1"
        );
        let behind = Address::parse("https://h:1/k8s/clusters/c-1/").unwrap();
        assert_eq!(
            behind.target(&uri, Protocol::Http1).unwrap(),
            "/k8s/clusters/c-1/api/v1/pods?labelSelector=a%3Db&watch=1"
        );
    }

    #[test]
    fn a_path_that_is_left_out_is_the_root() {
        let uri: Uri = "https://proxy?watch=1".parse().unwrap();
        let plain = Address::parse("https://h:1").unwrap();
        assert_eq!(plain.target(&uri, Protocol::Http1).unwrap(), "/?watch=1");
        let behind = Address::parse("https://h:1/k8s/clusters/c-1/").unwrap();
        let target = behind.target(&uri, Protocol::Http2).unwrap();
        assert_eq!(target, "https://h:1/k8s/clusters/c-1/?watch=1");
        let uri: Uri = "https://proxy".parse().unwrap();
        assert_eq!(plain.target(&uri, Protocol::Http1).unwrap(), "/");
    }
}
