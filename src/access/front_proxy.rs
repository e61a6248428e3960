//! Callers that a front proxy vouches for, in headers.
//!
//! Source: `apiserver/pkg/authentication/request/headerrequest/requestheader.go`.
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use http::{HeaderMap, HeaderValue};
use percent_encoding::percent_decode_str;
use rustls::pki_types::CertificateDer;

use super::Identity;
use super::certificate::Certificates;
use crate::listener::tls::TlsError;

/// Whom to believe, and where it is said. Header names are compared without regard to case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Authorities of front proxies' certificates (`--requestheader-client-ca-file`).
    pub ca: PathBuf,
    /// Common names that such a certificate may have; any if there are none
    /// (`--requestheader-allowed-names`).
    pub allowed_names: Vec<String>,
    /// Headers of the user's name; the first that is there counts.
    pub username_headers: Vec<String>,
    /// Headers of the user's unique id; the first that is there counts.
    pub uid_headers: Vec<String>,
    /// Headers of the user's groups; all count.
    pub group_headers: Vec<String>,
    /// What headers of further attributes begin with; the attribute's name follows.
    pub extra_prefixes: Vec<String>,
}

impl Config {
    /// With the headers that kube-apiserver itself sends as a front proxy.
    pub fn new(ca: PathBuf) -> Self {
        let one = |name: &str| vec![name.to_owned()];
        Self {
            ca,
            allowed_names: Vec::new(),
            username_headers: one("x-remote-user"),
            uid_headers: one("x-remote-uid"),
            group_headers: one("x-remote-group"),
            extra_prefixes: one("x-remote-extra-"),
        }
    }
}

/// Front proxies that are believed.
pub(super) struct FrontProxies {
    config: Config,
    certificates: Certificates,
}

impl FrontProxies {
    pub(super) async fn load(config: Config) -> Result<Self, TlsError> {
        let certificates = Certificates::load(config.ca.clone()).await?;
        Ok(Self {
            config,
            certificates,
        })
    }

    /// For whom a request is, if it comes from a front proxy that says so.
    pub(super) fn identify(
        &self,
        chain: &[CertificateDer<'static>],
        headers: &HeaderMap,
    ) -> Result<Option<Identity>, Unreadable> {
        let Some(subject) = self.certificates.verify(chain) else {
            return Ok(None);
        };
        let allowed = &self.config.allowed_names;
        if !allowed.is_empty() && !allowed.contains(&subject.common_name) {
            tracing::debug!(
                name = subject.common_name,
                "a front proxy of this name is not believed"
            );
            return Ok(None);
        }
        said(&self.config, headers)
    }
}

/// What a front proxy says of a user is no text. Nothing else is concluded then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a front proxy's header that says who the user is is no text")]
pub(super) struct Unreadable;

fn text(value: &HeaderValue) -> Result<&str, Unreadable> {
    std::str::from_utf8(value.as_bytes()).map_err(|_| Unreadable)
}

/// `None` if no user is named.
fn said(config: &Config, headers: &HeaderMap) -> Result<Option<Identity>, Unreadable> {
    let first = |names: &[String]| -> Result<Option<String>, Unreadable> {
        for value in names.iter().filter_map(|name| headers.get(name)) {
            let value = text(value)?;
            if !value.is_empty() {
                return Ok(Some(value.to_owned()));
            }
        }
        Ok(None)
    };
    let Some(user) = first(&config.username_headers)? else {
        return Ok(None);
    };
    let uid = first(&config.uid_headers)?;
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
                .entry(decoded(key))
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

/// The name of an attribute. One that is not well encoded is taken as it is.
pub(super) fn decoded(key: &str) -> String {
    let bytes = key.as_bytes();
    let well_encoded = bytes
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'%')
        .all(|(at, _)| {
            bytes
                .get(at + 1..at + 3)
                .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        });
    if !well_encoded {
        return key.to_owned();
    }
    percent_decode_str(key)
        .decode_utf8()
        .map_or_else(|_| key.to_owned(), Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn the_headers_say_who() {
        let config = Config {
            username_headers: vec!["x-user".to_owned(), "X-Remote-User".to_owned()],
            ..Config::new(PathBuf::new())
        };
        let identity = said(
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
            said(&config, &headers(&[("x-remote-group", "system:masters")])),
            Ok(None)
        );
        let name = |bytes: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert("x-remote-user", HeaderValue::from_bytes(bytes).unwrap());
            said(&config, &headers).map(|identity| identity.unwrap().user)
        };
        assert_eq!(name("j\u{e4}ne".as_bytes()), Ok("j\u{e4}ne".to_owned()));
        assert_eq!(
            name(b"j\xe4ne"),
            Err(Unreadable),
            "and not whoever else the certificate may be of"
        );
    }
}
