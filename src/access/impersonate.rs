//! Impersonation: the Impersonate headers of a request, and the same headers for callers that
//! upstream knows only through this proxy.
//!
//! Source: `apiserver/pkg/endpoints/filters/impersonation/`.
pub(super) mod extra_key;
pub(super) mod filter;
pub(super) mod impersonator;
pub(super) mod mode;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::authenticate::front_proxy::decode_key;
use super::identity::Identity;

const PREFIX: &str = "impersonate-";
const USER: HeaderName = HeaderName::from_static("impersonate-user");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const EXTRA: &str = "impersonate-extra-";
/// Characters that are escaped in a header's name. Capital letters are escaped, too, because
/// upstream reads names in lower case.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// Returns `true` if a request asks to impersonate another user.
pub(super) fn is_requested(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with(PREFIX))
}

/// Returns the headers that make upstream take a request for one of `identity`.
pub(super) fn headers(identity: &Identity) -> Result<HeaderMap, UnwritableAttribute> {
    let mut headers = HeaderMap::new();
    headers.insert(USER, value(&identity.user, "name")?);
    if let Some(uid) = &identity.uid {
        headers.insert(UID, value(uid, "unique id")?);
    }
    for group in &identity.groups {
        headers.append(GROUP, value(group, "group")?);
    }
    for (key, values) in &identity.extra {
        let name = HeaderName::try_from(format!("{EXTRA}{}", escape_key(key)))
            .map_err(|_| UnwritableAttribute("extra attribute"))?;
        for text in values {
            headers.append(name.clone(), value(text, "extra attribute")?);
        }
    }
    Ok(headers)
}

/// An attribute of a caller has no exact form in a header, so that the request cannot be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the caller's {0} cannot be written in a header exactly as it is")]
pub(super) struct UnwritableAttribute(&'static str);

/// An Impersonate header is not valid UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an Impersonate header is not valid UTF-8")]
pub(super) struct HeaderNotText;

/// The identity that a request asks to impersonate, not authorized yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImpersonationRequest {
    pub(super) user: String,
    pub(super) uid: String,
    pub(super) groups: Vec<String>,
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

impl ImpersonationRequest {
    /// Parses the Impersonate headers.
    pub(super) fn parse(headers: &HeaderMap) -> Result<Self, HeaderNotText> {
        let groups = headers
            .get_all(GROUP)
            .iter()
            .map(text)
            .collect::<Result<Vec<_>, _>>()?;
        let mut extra = BTreeMap::<_, Vec<_>>::new();
        for (name, value) in headers {
            if let Some(key) = name.as_str().strip_prefix(EXTRA) {
                extra.entry(decode_key(key)).or_default().push(text(value)?);
            }
        }
        Ok(Self {
            user: first_value(headers, &USER)?,
            uid: first_value(headers, &UID)?,
            groups,
            extra,
        })
    }

    /// Returns `true` if nothing is named. Upstream ignores other headers that begin with
    /// Impersonate.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns `true` if nothing but a user is named.
    pub(super) fn is_user_only(&self) -> bool {
        self.uid.is_empty() && self.groups.is_empty() && self.extra.is_empty()
    }

    /// Returns namespace and name if the named user is a service account.
    pub(super) fn service_account(&self) -> Option<(&str, &str)> {
        service_account(&self.user)
    }

    /// Returns the node if the named user is one.
    /// Source: `apiserver/pkg/endpoints/filters/impersonation/mode.go` (`isNodeUsername`).
    pub(super) fn node(&self) -> Option<&str> {
        let name = self.user.strip_prefix("system:node:")?;
        is_subdomain(name).then_some(name)
    }

    /// Formats each part as Go prints it, as releases before constrained impersonation do.
    /// Source: `apiserver/pkg/endpoints/filters/impersonation/impersonation.go`.
    pub(super) fn as_go_references(&self) -> Vec<String> {
        const VERSION: &str = "authentication.k8s.io/v1";
        let mut parts: Vec<_> = self
            .groups
            .iter()
            .map(|group| go_reference("Group", group, "", ""))
            .collect();
        for (key, values) in &self.extra {
            let values = values.iter();
            parts.extend(values.map(|value| go_reference("UserExtra", value, VERSION, key)));
        }
        if !self.uid.is_empty() {
            parts.push(go_reference("UID", &self.uid, VERSION, ""));
        }
        parts
    }

    /// Formats the request as Go prints it. Upstream's refusal of a request without a user
    /// contains this text.
    pub(super) fn as_go(&self) -> String {
        let groups = if self.groups.is_empty() {
            "[]string(nil)".to_owned()
        } else {
            go_strings(&self.groups)
        };
        let extra = if self.extra.is_empty() {
            "map[string][]string(nil)".to_owned()
        } else {
            let pairs: Vec<_> = self
                .extra
                .iter()
                .map(|(key, values)| format!("{key:?}:{}", go_strings(values)))
                .collect();
            format!("map[string][]string{{{}}}", pairs.join(", "))
        };
        format!(
            "&user.DefaultInfo{{Name:{:?}, UID:{:?}, Groups:{groups}, Extra:{extra}}}",
            self.user, self.uid
        )
    }
}

fn go_reference(kind: &str, name: &str, version: &str, field_path: &str) -> String {
    // Kind, namespace, name, UID, API version, resource version and field path.
    format!("{{{kind}  {name}  {version}  {field_path}}}")
}

fn go_strings(texts: &[String]) -> String {
    let texts: Vec<_> = texts.iter().map(|text| format!("{text:?}")).collect();
    format!("[]string{{{}}}", texts.join(", "))
}

/// Returns the first value of a header, or an empty text.
fn first_value(headers: &HeaderMap, name: &HeaderName) -> Result<String, HeaderNotText> {
    headers.get(name).map_or(Ok(String::new()), text)
}

fn text(value: &HeaderValue) -> Result<String, HeaderNotText> {
    // Upstream accepts any bytes. No user of this proxy has a name that is not text.
    String::from_utf8(value.as_bytes().to_vec()).map_err(|_| HeaderNotText)
}

fn escape_key(key: &str) -> String {
    let mut name = String::with_capacity(key.len());
    for letter in key.chars() {
        if letter.is_ascii_uppercase() {
            let _ = write!(name, "%{:02x}", u32::from(letter));
        } else {
            name.extend(utf8_percent_encode(
                letter.encode_utf8(&mut [0; 4]),
                ESCAPED,
            ));
        }
    }
    name
}

/// Returns the header value of a text, unless a reader of headers would change it. Readers remove
/// spaces at both ends, so ` admin` would become `admin`.
fn value(text: &str, attribute: &'static str) -> Result<HeaderValue, UnwritableAttribute> {
    let trimmed = text.trim_matches([' ', '\t']);
    if trimmed.is_empty() || trimmed.len() != text.len() {
        return Err(UnwritableAttribute(attribute));
    }
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| UnwritableAttribute(attribute))
}

/// Returns namespace and name if the user is a service account.
/// Source: `apiserver/pkg/authentication/serviceaccount/util.go` (SplitUsername).
fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user
        .strip_prefix("system:serviceaccount:")?
        .split_once(':')?;
    let is_namespace = is_label(namespace) && namespace.len() <= 63;
    (is_namespace && is_subdomain(name)).then_some((namespace, name))
}

/// Returns `true` if a text is a DNS subdomain.
/// Source: `apimachinery/pkg/api/validation/generic.go` (`NameIsDNSSubdomain`).
fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Returns `true` if a text is a part of a DNS name.
pub(super) fn is_label(text: &str) -> bool {
    let is_plain = text
        .bytes()
        .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    is_plain && !text.is_empty() && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    fn identity(user: &str, groups: &[&str], extra: &[(&str, &[&str])]) -> Identity {
        let extra = extra
            .iter()
            .map(|(key, values)| ((*key).to_owned(), owned(values)))
            .collect();
        Identity {
            user: user.to_owned(),
            uid: None,
            groups: owned(groups),
            extra,
        }
    }

    #[test]
    fn written_headers_are_read_as_the_same_identity() {
        for wanted in [
            identity("jane", &[], &[]),
            identity("jane doe", &["a", "b, c", "system:masters"], &[]),
            identity(
                "J\u{e4}ne",
                &["\u{1f600}"],
                &[
                    ("scopes.example.com/View", &["x y", "z"]),
                    ("50%", &["%41"]),
                ],
            ),
            Identity {
                uid: Some("7".into()),
                ..identity("jane", &[], &[])
            },
        ] {
            let written = headers(&wanted).unwrap();
            let read = ImpersonationRequest::parse(&written).unwrap();
            let read = Identity {
                user: read.user.clone(),
                uid: Some(read.uid.clone()).filter(|uid| !uid.is_empty()),
                groups: read.groups.clone(),
                extra: read.extra.clone().into_iter().collect(),
            };
            let mut wanted = wanted;
            wanted.extra.sort();
            assert_eq!(read, wanted);
        }
    }

    #[test]
    fn an_identity_that_headers_would_change_is_not_written() {
        for text in [
            " admin",
            "admin ",
            "\tadmin",
            "admin\r\nImpersonate-Group: system:masters",
            "",
            " ",
            "a\0b",
        ] {
            assert_eq!(
                headers(&identity(text, &[], &[])),
                Err(UnwritableAttribute("name")),
                "{text:?}"
            );
            assert_eq!(
                headers(&identity("jane", &[text], &[])),
                Err(UnwritableAttribute("group")),
                "{text:?}"
            );
        }
    }

    #[test]
    fn only_well_formed_names_are_service_accounts() {
        assert_eq!(
            service_account("system:serviceaccount:n:a.b-c"),
            Some(("n", "a.b-c"))
        );
        for user in [
            "n:a",
            "system:serviceaccount:n",
            "system:serviceaccount:n:",
            "system:serviceaccount:n:a:b",
        ] {
            assert_eq!(service_account(user), None, "{user}");
        }
        for user in ["N:a", "n.m:a", "n:-a", "n:a..b", ":a"] {
            assert_eq!(
                service_account(&format!("system:serviceaccount:{user}")),
                None,
                "{user}"
            );
        }
    }

    #[test]
    fn a_request_is_printed_as_go_prints_it() {
        let mut headers = HeaderMap::new();
        headers.append("impersonate-group", "a".parse().unwrap());
        let words = concat!(
            r#"&user.DefaultInfo{Name:"", UID:"", Groups:[]string{"a"}, "#,
            "Extra:map[string][]string(nil)}"
        );
        let requested = ImpersonationRequest::parse(&headers).unwrap();
        assert_eq!(requested.as_go(), words);
        headers.clear();
        headers.append("impersonate-other", "a".parse().unwrap());
        assert!(is_requested(&headers));
        assert!(ImpersonationRequest::parse(&headers).unwrap().is_empty());
        headers.append(
            "impersonate-user",
            HeaderValue::from_bytes(b"\xff").unwrap(),
        );
        assert_eq!(ImpersonationRequest::parse(&headers), Err(HeaderNotText));
    }
}
