//! Callers that a front proxy names in headers.
//!
//! Source: `apiserver/pkg/authentication/request/headerrequest/requestheader.go`.
use std::borrow::Cow;
use std::collections::BTreeMap;

use http::{HeaderMap, HeaderValue};
use percent_encoding::percent_decode_str;
use rustls::pki_types::CertificateDer;

use super::certificate::Certificates;
use crate::access::config::FrontProxyConfig;
use crate::access::identity::Identity;
use crate::listener::tls::TlsError;

/// The front proxies that are trusted.
pub(in crate::access) struct FrontProxies {
    config: FrontProxyConfig,
    certificates: Certificates,
}

impl FrontProxies {
    pub(in crate::access) async fn load(config: FrontProxyConfig) -> Result<Self, TlsError> {
        let certificates = Certificates::load(config.ca.clone()).await?;
        Ok(Self {
            config,
            certificates,
        })
    }

    /// Returns the user that the headers name, if the request comes from a trusted front proxy.
    pub(in crate::access) fn identify(
        &self,
        chain: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> Result<Option<Identity>, HeaderNotUtf8> {
        let Some(subject) = self.certificates.verify(chain) else {
            return Ok(None);
        };
        let allowed = &self.config.allowed_names;
        if !allowed.is_empty() && !allowed.contains(&subject.common_name) {
            tracing::debug!(
                name = subject.common_name,
                "a front proxy of this name is not trusted"
            );
            return Ok(None);
        }
        named_user(&self.config, headers)
    }
}

/// A request header from the front proxy is not valid UTF-8. The request is refused: the front
/// proxy's own certificate must not become the user instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a request header from the front proxy is not valid UTF-8")]
pub(in crate::access) struct HeaderNotUtf8;

/// Returns the user that the headers name, or `None`.
fn named_user(
    config: &FrontProxyConfig,
    headers: &HeaderMap,
) -> Result<Option<Identity>, HeaderNotUtf8> {
    let Some(user) = first_value(&config.username_headers, headers)? else {
        return Ok(None);
    };
    let uid = first_value(&config.uid_headers, headers)?;
    let mut groups = Vec::new();
    for value in config
        .group_headers
        .iter()
        .flat_map(|name| headers.get_all(name))
    {
        let group = text(value)?;
        if !group.is_empty() {
            groups.push(group.to_owned());
        }
    }
    let mut extra = BTreeMap::<_, Vec<_>>::new();
    for prefix in &config.extra_prefixes {
        let prefix = prefix.to_ascii_lowercase();
        for (name, value) in headers {
            let Some(key) = name.as_str().strip_prefix(&prefix) else {
                continue;
            };
            extra
                .entry(decode_key(key))
                .or_default()
                .push(text(value)?.to_owned());
        }
    }
    Ok(Some(Identity {
        user,
        uid,
        groups,
        extra: extra.into_iter().collect(),
    }))
}

/// Returns the first value of these headers that is not empty.
fn first_value(names: &[String], headers: &HeaderMap) -> Result<Option<String>, HeaderNotUtf8> {
    for value in names.iter().filter_map(|name| headers.get(name)) {
        let value = text(value)?;
        if !value.is_empty() {
            return Ok(Some(value.to_owned()));
        }
    }
    Ok(None)
}

fn text(value: &HeaderValue) -> Result<&str, HeaderNotUtf8> {
    std::str::from_utf8(value.as_bytes()).map_err(|_| HeaderNotUtf8)
}

/// Decodes the name of an attribute. One that is not properly encoded is returned as it is.
pub(in crate::access) fn decode_key(key: &str) -> String {
    let bytes = key.as_bytes();
    let is_encoded = bytes
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'%')
        .all(|(at, _)| {
            bytes
                .get(at + 1..at + 3)
                .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        });
    if !is_encoded {
        return key.to_owned();
    }
    percent_decode_str(key)
        .decode_utf8()
        .map_or_else(|_| key.to_owned(), Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn the_headers_name_the_user() {
        let config = FrontProxyConfig {
            username_headers: vec!["x-user".to_owned(), "X-Remote-User".to_owned()],
            ..FrontProxyConfig::new(PathBuf::new())
        };
        let identity = named_user(
            &config,
            &headers(&[
                ("x-user", ""),
                ("x-remote-user", "jane"),
                ("x-remote-uid", "7"),
                ("x-remote-group", "a"),
                ("x-remote-group", "b,c"),
                ("x-remote-extra-scopes.example.com%2fview", "one"),
                ("x-remote-extra-scopes.example.com%2Fview", "two"),
                ("x-remote-extra-odd%zz", ""),
            ]),
        );
        let extra = [
            ("odd%zz", vec![""]),
            ("scopes.example.com/view", vec!["one", "two"]),
        ];
        let extra = extra.map(|(key, values)| {
            (
                key.to_owned(),
                values.into_iter().map(str::to_owned).collect(),
            )
        });
        let groups = vec!["a".to_owned(), "b,c".to_owned()];
        let (user, uid) = ("jane".to_owned(), Some("7".to_owned()));
        assert_eq!(
            identity,
            Ok(Some(Identity {
                user,
                uid,
                groups,
                extra: extra.to_vec()
            }))
        );
        assert_eq!(
            named_user(&config, &headers(&[("x-remote-group", "system:masters")])),
            Ok(None)
        );
        let name = |bytes: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert("x-remote-user", HeaderValue::from_bytes(bytes).unwrap());
            named_user(&config, &headers).map(|identity| identity.unwrap().user)
        };
        assert_eq!(name("j\u{e4}ne".as_bytes()), Ok("j\u{e4}ne".to_owned()));
        assert_eq!(
            name(b"j\xe4ne"),
            Err(HeaderNotUtf8),
            "the certificate's user is not taken instead"
        );
    }
}
