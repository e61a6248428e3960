//! Labels and selectors as columns show them.
//!
//! Sources: `apimachinery/pkg/labels/labels.go` (FormatLabels), `labels/selector.go`,
//! `apimachinery/pkg/apis/meta/v1/helpers.go` (LabelSelectorAsSelector, FormatLabelSelector).
use std::collections::BTreeMap;

use serde::Deserialize;

use crate::encoding::Malformed;

const NONE: &str = "<none>";
/// Longest prefix of a key.
const MAX_PREFIX: usize = 253;
/// Longest value, and longest name in a key.
const MAX_VALUE: usize = 63;
/// Go's sort is stable for as many as that.
const MAX_STABLE: usize = 12;

/// The selector of a workload.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectSelector {
    match_labels: Option<BTreeMap<String, String>>,
    match_expressions: Option<Vec<Expression>>,
}

#[derive(Debug, Deserialize)]
struct Expression {
    key: String,
    operator: String,
    values: Option<Vec<String>>,
}

/// Returns a map of labels as text.
pub(super) fn format_labels(labels: Option<&BTreeMap<String, String>>) -> String {
    let pairs = labels.into_iter().flatten();
    let mut pairs: Vec<_> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
    // Not the order of the keys: `=` sorts after some characters of them.
    pairs.sort_unstable();
    or_none(pairs.join(","))
}

/// Returns a text, or the word for none.
pub(super) fn or_none(text: String) -> String {
    if text.is_empty() { NONE.into() } else { text }
}

impl ObjectSelector {
    /// Returns the selector as text; empty if it has no requirements.
    pub(super) fn format(&self) -> Result<String, Malformed> {
        let mut requirements = Vec::new();
        for (key, value) in self.match_labels.iter().flatten() {
            check_key(key)?;
            check(value, MAX_VALUE)?;
            requirements.push((key.as_str(), format!("{key}={value}")));
        }
        for expression in self.match_expressions.iter().flatten() {
            requirements.push((&expression.key, expression.format()?));
        }
        if requirements.len() > MAX_STABLE {
            return Err(Malformed("a selector with many requirements"));
        }
        requirements.sort_by_key(|(key, _)| *key);
        let texts: Vec<_> = requirements.into_iter().map(|(_, text)| text).collect();
        Ok(texts.join(","))
    }
}

impl Expression {
    fn format(&self) -> Result<String, Malformed> {
        let Self {
            key,
            operator,
            values,
        } = self;
        check_key(key)?;
        let mut values: Vec<_> = values.iter().flatten().map(String::as_str).collect();
        for value in &values {
            check(value, MAX_VALUE)?;
        }
        values.sort_unstable();
        let listed = values.join(",");
        match (operator.as_str(), values.is_empty()) {
            ("In", false) => Ok(format!("{key} in ({listed})")),
            ("NotIn", false) => Ok(format!("{key} notin ({listed})")),
            ("Exists", true) => Ok(key.clone()),
            ("DoesNotExist", true) => Ok(format!("!{key}")),
            _ => Err(Malformed("a selector that upstream would not accept")),
        }
    }
}

/// Returns an error for a key that upstream might call invalid.
fn check_key(key: &str) -> Result<(), Malformed> {
    let (prefix, name) = key.split_once('/').unwrap_or(("", key));
    check(prefix, MAX_PREFIX)?;
    check(name, MAX_VALUE)
}

/// Returns an error for a value, or a part of a key, that upstream might call invalid.
fn check(text: &str, longest: usize) -> Result<(), Malformed> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_end = |byte: Option<u8>| byte.is_none_or(|byte| byte.is_ascii_alphanumeric());
    let has_plain_ends = is_end(text.bytes().next()) && is_end(text.bytes().last());
    if text.len() <= longest && text.bytes().all(plain) && has_plain_ends {
        Ok(())
    } else {
        Err(Malformed("a selector with an odd key or value"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(selector: &str) -> Option<String> {
        let selector: ObjectSelector = serde_json::from_str(selector).unwrap();
        selector.format().ok()
    }

    #[test]
    fn selectors_are_sorted_by_key() {
        for (selector, text) in [
            ("{}", ""),
            (r#"{"matchLabels":{"b":"2","a":""}}"#, "a=,b=2"),
            (
                r#"{"matchLabels":{"m":"1"},"matchExpressions":[
                    {"key":"z","operator":"In","values":["2","1"]},
                    {"key":"a","operator":"NotIn","values":["x"]},
                    {"key":"n","operator":"DoesNotExist"},
                    {"key":"m","operator":"Exists"}]}"#,
                "a notin (x),m=1,m,!n,z in (1,2)",
            ),
        ] {
            assert_eq!(format(selector).as_deref(), Some(text), "{selector}");
        }
        for odd in [
            r#"{"matchExpressions":[{"key":"a","operator":"In"}]}"#,
            r#"{"matchExpressions":[{"key":"a","operator":"Exists","values":["1"]}]}"#,
            r#"{"matchExpressions":[{"key":"a","operator":"Like","values":["1"]}]}"#,
            r#"{"matchLabels":{"a b":"1"}}"#,
            r#"{"matchLabels":{"a":"b/c"}}"#,
            r#"{"matchLabels":{"a":"b-"}}"#,
            r#"{"matchLabels":{"a/b/c":"1"}}"#,
        ] {
            assert_eq!(format(odd), None, "{odd}");
        }
    }

    #[test]
    fn labels_are_sorted_as_texts() {
        let labels = [("a", "1"), ("a-b", "2")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let labels = BTreeMap::from(labels);
        assert_eq!(format_labels(Some(&labels)), "a-b=2,a=1");
        assert_eq!(format_labels(None), "<none>");
    }
}
