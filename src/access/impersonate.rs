//! Impersonation: the Impersonate headers of a request, and the same headers for callers that
//! upstream knows only through this proxy.
//!
//! Source: `apiserver/pkg/endpoints/filters/impersonation/`.
use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use watershed_protocol::{GroupVersionResource, ResourceRequest};

use super::front_proxy::decode_key;
use super::identity::Identity;

const PREFIX: &str = "impersonate-";
const USER: HeaderName = HeaderName::from_static("impersonate-user");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";
/// Characters that are escaped in a header's name. Capital letters are escaped, too, because
/// upstream reads names in lower case.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// Returns whether a request asks to impersonate another user.
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

/// The identity that a request asks to impersonate, not authorized yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImpersonationRequest {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl ImpersonationRequest {
    /// Parses the Impersonate headers. The error has upstream's words.
    pub(super) fn parse(headers: &HeaderMap) -> Result<Self, String> {
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
        let requested = Self {
            user: first_value(headers, &USER)?,
            uid: first_value(headers, &UID)?,
            groups,
            extra,
        };
        if requested.user.is_empty() && requested != Self::default() {
            return Err(format!(
                "requested {} without impersonating a user name",
                requested.as_go()
            ));
        }
        Ok(requested)
    }

    /// Returns whether no identity is named. Upstream ignores other headers that begin with
    /// Impersonate.
    pub(super) fn is_empty(&self) -> bool {
        self.user.is_empty()
    }

    /// Returns the objects that the caller must be allowed to impersonate, each by itself.
    ///
    /// Upstream checks them with the verb `impersonate`. The narrower permissions of Kubernetes
    /// 1.36 and later are not considered.
    pub(super) fn targets(&self) -> Vec<ResourceRequest> {
        let mut targets = vec![match service_account(&self.user) {
            Some((namespace, name)) => ResourceRequest {
                namespace: Some(namespace.to_owned()),
                ..target("", "serviceaccounts", name)
            },
            None => target("", "users", &self.user),
        }];
        if !self.uid.is_empty() {
            targets.push(target(AUTHENTICATION, "uids", &self.uid));
        }
        targets.extend(self.groups.iter().map(|group| target("", "groups", group)));
        for (key, values) in &self.extra {
            targets.extend(values.iter().map(|value| ResourceRequest {
                subresource: Some(key.clone()),
                ..target(AUTHENTICATION, "userextras", value)
            }));
        }
        targets
    }

    /// Returns the impersonated identity.
    pub(super) fn identity(self) -> Identity {
        let mut groups = self.groups;
        if let Some((namespace, _)) = service_account(&self.user)
            && groups.is_empty()
        {
            groups = vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
            ];
        }
        Identity {
            user: self.user,
            uid: Some(self.uid).filter(|uid| !uid.is_empty()),
            groups,
            extra: self.extra.into_iter().collect(),
        }
        .with_implicit_group()
    }

    /// Formats the request as Go prints it. Upstream's refusal contains this text.
    fn as_go(&self) -> String {
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

fn go_strings(texts: &[String]) -> String {
    let texts: Vec<_> = texts.iter().map(|text| format!("{text:?}")).collect();
    format!("[]string{{{}}}", texts.join(", "))
}

fn target(group: &str, resource: &str, name: &str) -> ResourceRequest {
    ResourceRequest {
        gvr: GroupVersionResource::new(group, "v1", resource),
        namespace: None,
        name: Some(name.to_owned()),
        subresource: None,
        name_from_selector: false,
    }
}

/// Returns the first value of a header, or an empty text.
fn first_value(headers: &HeaderMap, name: &HeaderName) -> Result<String, String> {
    headers.get(name).map_or(Ok(String::new()), text)
}

fn text(value: &HeaderValue) -> Result<String, String> {
    // Upstream accepts any bytes. No user of this proxy has a name that is not text.
    String::from_utf8(value.as_bytes().to_vec())
        .map_err(|_| "an Impersonate header is not valid UTF-8".to_owned())
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
    let is_name = name.len() <= 253 && name.split('.').all(is_label);
    (is_label(namespace) && namespace.len() <= 63 && is_name).then_some((namespace, name))
}

fn is_label(text: &str) -> bool {
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
    fn each_part_of_an_impersonated_identity_is_authorized() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("impersonate-user", "system:serviceaccount:n:builder"),
            ("impersonate-group", "a"),
            ("impersonate-uid", "7"),
            ("impersonate-extra-k", "v"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let requested = ImpersonationRequest::parse(&headers).unwrap();
        let targets = requested.targets().into_iter().map(|target| {
            let ResourceRequest {
                gvr,
                namespace,
                name,
                subresource,
                ..
            } = target;
            format!("{} {namespace:?} {name:?} {subresource:?}", gvr.resource)
        });
        assert_eq!(
            targets.collect::<Vec<_>>(),
            [
                r#"serviceaccounts Some("n") Some("builder") None"#,
                r#"uids None Some("7") None"#,
                r#"groups None Some("a") None"#,
                r#"userextras None Some("v") Some("k")"#,
            ]
        );
        assert_eq!(requested.identity().groups, ["a", "system:authenticated"]);
        let plain = ImpersonationRequest {
            user: "system:serviceaccount:n:builder".into(),
            ..ImpersonationRequest::default()
        };
        let groups = [
            "system:serviceaccounts",
            "system:serviceaccounts:n",
            "system:authenticated",
        ];
        assert_eq!(plain.identity().groups, groups);
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
    fn groups_without_a_user_are_refused_in_upstreams_words() {
        let mut headers = HeaderMap::new();
        headers.append("impersonate-group", "a".parse().unwrap());
        let words = concat!(
            r#"requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"a"}, "#,
            "Extra:map[string][]string(nil)} without impersonating a user name"
        );
        assert_eq!(ImpersonationRequest::parse(&headers).unwrap_err(), words);
        headers.clear();
        headers.append("impersonate-other", "a".parse().unwrap());
        assert!(is_requested(&headers));
        assert!(ImpersonationRequest::parse(&headers).unwrap().is_empty());
    }
}
