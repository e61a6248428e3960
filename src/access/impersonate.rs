//! Acting as somebody: what a caller asks for in Impersonate headers, and the same headers for
//! callers whom only this proxy knows.
//!
//! Source: `apiserver/pkg/endpoints/filters/impersonation/`.
use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::Identity;
use super::front_proxy::decoded;
use watershed_protocol::{GroupVersionResource, ResourceRequest};

const PREFIX: &str = "impersonate-";
const USER: HeaderName = HeaderName::from_static("impersonate-user");
const UID: HeaderName = HeaderName::from_static("impersonate-uid");
const GROUP: HeaderName = HeaderName::from_static("impersonate-group");
const EXTRA: &str = "impersonate-extra-";
const ANONYMOUS: &str = "system:anonymous";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// What may stand in a header's name as it is. Capital letters may not: upstream reads names in
/// small ones.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// Why a request cannot be sent on in a caller's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the caller's {0} cannot be written in a header exactly as it is")]
pub(super) struct Unwritable(&'static str);

/// Whether a request asks to act as somebody else.
pub(super) fn is_asked_for(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with(PREFIX))
}

/// The headers that make upstream take a request for one of `identity`'s.
pub(super) fn headers(identity: &Identity) -> Result<HeaderMap, Unwritable> {
    let mut headers = HeaderMap::new();
    headers.insert(USER, value(&identity.user, "name")?);
    if let Some(uid) = &identity.uid {
        headers.insert(UID, value(uid, "unique id")?);
    }
    for group in &identity.groups {
        headers.append(GROUP, value(group, "group")?);
    }
    for (key, values) in &identity.extra {
        let name = escaped(key);
        let name = HeaderName::try_from(format!("{EXTRA}{name}"))
            .map_err(|_| Unwritable("extra attribute"))?;
        for text in values {
            headers.append(name.clone(), value(text, "extra attribute")?);
        }
    }
    Ok(headers)
}

fn escaped(key: &str) -> String {
    let mut name = String::with_capacity(key.len());
    for letter in key.chars() {
        if letter.is_ascii_uppercase() {
            let _ = write!(name, "%{:02x}", u32::from(letter));
        } else {
            name.extend(utf8_percent_encode(letter.encode_utf8(&mut [0; 4]), PLAIN));
        }
    }
    name
}

/// Nothing that a reader of headers would change: space at the ends is cut off, and ` admin` is not
/// `admin`.
fn value(text: &str, what: &'static str) -> Result<HeaderValue, Unwritable> {
    let trimmed = text.trim_matches([' ', '\t']);
    if trimmed.is_empty() || trimmed.len() != text.len() {
        return Err(Unwritable(what));
    }
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| Unwritable(what))
}

/// Whom a request asks to act as, before anything is said about whether it may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl Wanted {
    /// `Err` with upstream's words, where the headers make no sense.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, String> {
        let text = |value: &HeaderValue| {
            // Upstream takes any bytes; what is not text is no name of anybody here.
            String::from_utf8(value.as_bytes().to_vec())
                .map_err(|_| "an Impersonate header is not text".to_owned())
        };
        let first = |name: &HeaderName| {
            headers
                .get(name)
                .map(text)
                .transpose()
                .map(Option::unwrap_or_default)
        };
        let (user, uid) = (first(&USER)?, first(&UID)?);
        let groups = headers
            .get_all(GROUP)
            .iter()
            .map(text)
            .collect::<Result<Vec<_>, _>>()?;
        let mut extra = BTreeMap::<_, Vec<_>>::new();
        for (name, value) in headers {
            if let Some(key) = name.as_str().strip_prefix(EXTRA) {
                extra.entry(decoded(key)).or_default().push(text(value)?);
            }
        }
        let wanted = Self {
            user,
            uid,
            groups,
            extra,
        };
        if wanted.user.is_empty() && wanted != Self::default() {
            return Err(format!(
                "requested {} without impersonating a user name",
                wanted.go()
            ));
        }
        Ok(wanted)
    }

    /// Nobody: upstream passes over what else begins with Impersonate.
    pub(super) fn is_nobody(&self) -> bool {
        self.user.is_empty()
    }

    /// What a caller must be allowed to impersonate, each by itself. As upstream asks with the verb
    /// `impersonate`; the narrower permissions of 1.36 and later are not looked for.
    pub(super) fn asks(&self) -> Vec<ResourceRequest> {
        let ask = |group: &str, version: &str, resource: &str, name: &str| ResourceRequest {
            gvr: GroupVersionResource::new(group, version, resource),
            namespace: None,
            name: Some(name.to_owned()),
            subresource: None,
            name_from_selector: false,
        };
        let user = match service_account(&self.user) {
            Some((namespace, name)) => ResourceRequest {
                namespace: Some(namespace.to_owned()),
                ..ask("", "v1", "serviceaccounts", name)
            },
            None => ask("", "v1", "users", &self.user),
        };
        let mut asks = vec![user];
        let authentication = "authentication.k8s.io";
        if !self.uid.is_empty() {
            asks.push(ask(authentication, "v1", "uids", &self.uid));
        }
        asks.extend(
            self.groups
                .iter()
                .map(|group| ask("", "v1", "groups", group)),
        );
        for (key, values) in &self.extra {
            for value in values {
                let subresource = Some(key.clone());
                asks.push(ResourceRequest {
                    subresource,
                    ..ask(authentication, "v1", "userextras", value)
                });
            }
        }
        asks
    }

    /// Who acts from then on.
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
        let uid = Some(self.uid).filter(|uid| !uid.is_empty());
        let extra = self.extra.into_iter().collect();
        with_everybodys_group(Identity {
            user: self.user,
            uid,
            groups,
            extra,
        })
    }

    /// As Go prints it, which upstream's refusal does.
    fn go(&self) -> String {
        let list = |texts: &[String]| {
            let texts: Vec<_> = texts.iter().map(|text| format!("{text:?}")).collect();
            format!("[]string{{{}}}", texts.join(", "))
        };
        let groups = if self.groups.is_empty() {
            "[]string(nil)".to_owned()
        } else {
            list(&self.groups)
        };
        let extra = if self.extra.is_empty() {
            "map[string][]string(nil)".to_owned()
        } else {
            let pairs: Vec<_> = self
                .extra
                .iter()
                .map(|(key, values)| format!("{key:?}:{}", list(values)))
                .collect();
            format!("map[string][]string{{{}}}", pairs.join(", "))
        };
        format!(
            "&user.DefaultInfo{{Name:{:?}, UID:{:?}, Groups:{groups}, Extra:{extra}}}",
            self.user, self.uid
        )
    }
}

/// Everybody is in one of two groups, whatever else they are in.
pub(super) fn with_everybodys_group(mut identity: Identity) -> Identity {
    let ensure = |groups: &mut Vec<String>, group: &str| {
        if !groups.iter().any(|there| there == group) {
            groups.push(group.to_owned());
        }
    };
    if identity.user == ANONYMOUS {
        ensure(&mut identity.groups, UNAUTHENTICATED);
    } else if !identity.groups.iter().any(|group| group == UNAUTHENTICATED) {
        ensure(&mut identity.groups, AUTHENTICATED);
    }
    identity
}

/// Who comes without credentials.
pub(super) fn anonymous() -> Identity {
    let user = ANONYMOUS.to_owned();
    with_everybodys_group(Identity {
        user,
        uid: None,
        groups: Vec::new(),
        extra: Vec::new(),
    })
}

/// Namespace and name, if the user is a service account.
/// Source: `apiserver/pkg/authentication/serviceaccount/util.go` (SplitUsername).
fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user
        .strip_prefix("system:serviceaccount:")?
        .split_once(':')?;
    let is_name = name.len() <= 253 && name.split('.').all(is_label);
    (is_label(namespace) && namespace.len() <= 63 && is_name).then_some((namespace, name))
}

fn is_label(text: &str) -> bool {
    let plain = text
        .bytes()
        .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    plain && !text.is_empty() && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(user: &str, groups: &[&str], extra: &[(&str, &[&str])]) -> Identity {
        let all = |texts: &[&str]| {
            texts
                .iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>()
        };
        let extra = extra
            .iter()
            .map(|(key, values)| ((*key).to_owned(), all(values)))
            .collect();
        Identity {
            user: user.to_owned(),
            uid: None,
            groups: all(groups),
            extra,
        }
    }

    #[test]
    fn what_is_written_is_read_as_the_same() {
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
            let read = Wanted::of(&written).unwrap();
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
    fn nobody_becomes_somebody_else_by_being_written_down() {
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
                Err(Unwritable("name")),
                "{text:?}"
            );
            assert_eq!(
                headers(&identity("jane", &[text], &[])),
                Err(Unwritable("group")),
                "{text:?}"
            );
        }
    }

    #[test]
    fn upstream_is_asked_about_each_part() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("impersonate-user", "system:serviceaccount:n:builder"),
            ("impersonate-group", "a"),
            ("impersonate-uid", "7"),
            ("impersonate-extra-k", "v"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let wanted = Wanted::of(&headers).unwrap();
        let asks = wanted.asks().into_iter().map(|ask| {
            let ResourceRequest {
                gvr,
                namespace,
                name,
                subresource,
                ..
            } = ask;
            format!("{} {namespace:?} {name:?} {subresource:?}", gvr.resource)
        });
        assert_eq!(
            asks.collect::<Vec<_>>(),
            [
                r#"serviceaccounts Some("n") Some("builder") None"#,
                r#"uids None Some("7") None"#,
                r#"groups None Some("a") None"#,
                r#"userextras None Some("v") Some("k")"#,
            ]
        );
        assert_eq!(wanted.identity().groups, ["a", "system:authenticated"]);
        let plain = Wanted {
            user: "system:serviceaccount:n:builder".into(),
            ..Wanted::default()
        };
        let groups = [
            "system:serviceaccounts",
            "system:serviceaccounts:n",
            "system:authenticated",
        ];
        assert_eq!(plain.identity().groups, groups);
    }

    #[test]
    fn what_is_no_service_account_is_a_user() {
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
        let words = r#"requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"a"}, Extra:map[string][]string(nil)} without impersonating a user name"#;
        assert_eq!(Wanted::of(&headers).unwrap_err(), words);
        headers.clear();
        headers.append("impersonate-other", "a".parse().unwrap());
        assert!(is_asked_for(&headers) && Wanted::of(&headers).unwrap().is_nobody());
    }
}
