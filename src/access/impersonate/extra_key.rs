//! The keys and values of attributes that constrained impersonation accepts, with upstream's words
//! about others.
//!
//! Source: `apiserver/pkg/endpoints/filters/impersonation/mode.go` (`validateExtra`),
//! `apimachinery/pkg/util/validation/validation.go` (`IsDomainPrefixedPath`).
use std::collections::BTreeMap;

use super::is_label;

const MAX_DOMAIN: usize = 253;
const NO_DOMAIN: &str = concat!(
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or ",
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used ",
    r"for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
);
const NO_PATH: &str =
    r"Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')";

/// Checks the attributes that a caller wants to act with.
pub(in crate::access) fn check(extra: &BTreeMap<String, Vec<String>>) -> Result<(), String> {
    extra.iter().try_for_each(|(key, values)| {
        if key.is_empty() {
            return Err("impersonating the empty string key in extra is not allowed".to_owned());
        }
        if let Some(error) = path_error(key) {
            return Err(format!(
                "impersonating an invalid key in extra is not allowed: {error}"
            ));
        }
        if *key != key.to_lowercase() {
            return Err(format!(
                "impersonating a non-lowercase key in extra is not allowed: {key:?}"
            ));
        }
        if values.is_empty() {
            return Err("impersonating empty values in extra is not allowed".to_owned());
        }
        if values.iter().any(String::is_empty) {
            return Err("impersonating the empty string value in extra is not allowed".to_owned());
        }
        Ok(())
    })
}

/// Returns what is wrong with a key that is no path behind a domain.
fn path_error(key: &str) -> Option<String> {
    let invalid = |value: &str, why: &str| format!("extra.key: Invalid value: {value:?}: {why}");
    let Some((domain, path)) = key
        .split_once('/')
        .filter(|(domain, path)| !domain.is_empty() && !path.is_empty())
    else {
        let why = r#"must be a domain-prefixed path (such as "acme.io/foo")"#;
        return Some(invalid(key, why));
    };
    let mut errors = Vec::new();
    if domain.len() > MAX_DOMAIN {
        let why = format!("must be no more than {MAX_DOMAIN} characters");
        errors.push(invalid(domain, &why));
    }
    if !domain.split('.').all(is_label) {
        errors.push(invalid(domain, NO_DOMAIN));
    }
    if !path.bytes().all(is_path_byte) {
        errors.push(invalid(path, NO_PATH));
    }
    match &errors[..] {
        [] => None,
        [error] => Some(error.clone()),
        errors => Some(format!("[{}]", errors.join(", "))),
    }
}

fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(key: &str, values: &[&str]) -> String {
        let values = values.iter().map(|&value| value.to_owned()).collect();
        match check(&BTreeMap::from([(key.to_owned(), values)])) {
            Ok(()) => "ok".to_owned(),
            Err(error) => error,
        }
    }

    /// The texts are those of Kubernetes' own function.
    #[test]
    fn unusual_attributes_are_refused_in_upstreams_words() {
        let key = "impersonating an invalid key in extra is not allowed: ";
        for (name, values, wanted) in [
            ("example.com/a", &["x"][..], "ok".to_owned()),
            (
                "example.com/a/B",
                &["x"],
                "impersonating a non-lowercase key in extra is not allowed: \"example.com/a/B\""
                    .to_owned(),
            ),
            (
                "",
                &["x"],
                "impersonating the empty string key in extra is not allowed".to_owned(),
            ),
            (
                "example.com/a",
                &["x", ""],
                "impersonating the empty string value in extra is not allowed".to_owned(),
            ),
            (
                "scopes",
                &["x"],
                format!(
                    r#"{key}extra.key: Invalid value: "scopes": must be a domain-prefixed path (such as "acme.io/foo")"#
                ),
            ),
            (
                "a_b/c",
                &["x"],
                format!("{key}extra.key: Invalid value: \"a_b\": {NO_DOMAIN}"),
            ),
            (
                "a.b/c d",
                &["x"],
                format!("{key}extra.key: Invalid value: \"c d\": {NO_PATH}"),
            ),
            (
                "a_b/c d",
                &["x"],
                format!(
                    "{key}[extra.key: Invalid value: \"a_b\": {NO_DOMAIN}, extra.key: Invalid value: \"c d\": {NO_PATH}]"
                ),
            ),
        ] {
            assert_eq!(checked(name, values), wanted, "{name}");
        }
    }
}
