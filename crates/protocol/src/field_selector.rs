//! Field selectors, read as upstream reads them. Which fields a type knows is not decided here.
//!
//! Source: `apimachinery/pkg/fields/selector.go` (`parseSelector`, `splitTerms`, `UnescapeValue`).
use std::fmt;

use super::InvalidSelector;

/// A conjunction of requirements on an object's fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

/// One term of a field selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldRequirement {
    /// The field's label, for example `spec.nodeName`; written without escapes.
    pub field: String,
    /// The comparison of the field with `value`.
    pub operator: FieldOperator,
    /// The value, with its escapes resolved. A field an object lacks compares as the empty value.
    pub value: String,
}

/// The operators of a field selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldOperator {
    /// `field=value` or `field==value`
    Equals,
    /// Creates the requirement `field!=value`.
    NotEquals,
}

impl FieldSelector {
    /// Reads the value of a `fieldSelector` parameter.
    pub fn parse(text: &str) -> Result<Self, InvalidSelector> {
        let mut terms = split_terms(text);
        // Upstream sorts the raw terms, which decides what `required_value` finds first.
        terms.sort_unstable();
        let mut requirements = Vec::with_capacity(terms.len());
        for term in terms.into_iter().filter(|term| !term.is_empty()) {
            let requirement = FieldRequirement::parse(term)?;
            // Empty on both sides: upstream's `Transform` drops such a term, even with `!=`.
            if !requirement.field.is_empty() || !requirement.value.is_empty() {
                requirements.push(requirement);
            }
        }
        Ok(Self { requirements })
    }

    /// Returns the requirements in upstream's order.
    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    /// Returns a selector with a further requirement.
    #[must_use]
    pub fn and(&self, requirement: FieldRequirement) -> Self {
        let mut requirements = self.requirements.clone();
        requirements.push(requirement);
        Self { requirements }
    }

    /// Returns `true` if every object is selected.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Returns `true` if fields, given as a look-up by label, satisfy every requirement.
    ///
    /// The look-up returns the empty string for a field that the object lacks.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> &'a str) -> bool {
        self.requirements.iter().all(|requirement| {
            let equal = get(&requirement.field) == requirement.value;
            match requirement.operator {
                FieldOperator::Equals => equal,
                FieldOperator::NotEquals => !equal,
            }
        })
    }

    /// Returns the value that `field` must equal (`RequiresExactMatch`). Of several contradictory ones it is
    /// upstream's first.
    pub fn required_value(&self, field: &str) -> Option<&str> {
        self.requirements
            .iter()
            .find(|r| r.operator == FieldOperator::Equals && r.field == field)
            .map(|r| r.value.as_str())
    }
}

/// So that it can be read again.
impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (
            index,
            FieldRequirement {
                field,
                operator,
                value,
            },
        ) in self.requirements.iter().enumerate()
        {
            let between = if index > 0 { "," } else { "" };
            let operator = match operator {
                FieldOperator::Equals => "=",
                FieldOperator::NotEquals => "!=",
            };
            let value = value
                .replace('\\', r"\\")
                .replace(',', r"\,")
                .replace('=', r"\=");
            write!(f, "{between}{field}{operator}{value}")?;
        }
        Ok(())
    }
}

impl FieldRequirement {
    /// Creates the requirement `field=value`.
    pub fn equals(field: &str, value: &str) -> Self {
        Self {
            field: field.to_owned(),
            operator: FieldOperator::Equals,
            value: value.to_owned(),
        }
    }

    /// Creates the requirement `field!=value`.
    pub fn differs(field: &str, value: &str) -> Self {
        Self {
            operator: FieldOperator::NotEquals,
            ..Self::equals(field, value)
        }
    }

    fn parse(term: &str) -> Result<Self, InvalidSelector> {
        let split = |at: usize, operator, len: usize| (&term[..at], operator, &term[at + len..]);
        let (field, operator, value) = (0..term.len())
            .find_map(|at| match term.as_bytes()[at..] {
                [b'!', b'=', ..] => Some(split(at, FieldOperator::NotEquals, 2)),
                [b'=', b'=', ..] => Some(split(at, FieldOperator::Equals, 2)),
                [b'=', ..] => Some(split(at, FieldOperator::Equals, 1)),
                _ => None,
            })
            .ok_or(InvalidSelector("a term without operator"))?;
        Ok(Self {
            field: field.to_owned(),
            operator,
            value: unescape(value)?,
        })
    }
}

/// Cuts at the commas that no backslash escapes; escapes stay in the terms.
fn split_terms(text: &str) -> Vec<&str> {
    let mut escaped = false;
    text.split(|c| {
        let cut = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        cut
    })
    .collect()
}

/// Resolves `\\`, `\,` and `\=`, the only escapes there are. Bare commas and equals signs are
/// refused.
fn unescape(text: &str) -> Result<String, InvalidSelector> {
    let mut value = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => value.push(c),
                _ => return Err(InvalidSelector("an unknown escape sequence")),
            },
            ',' | '=' => return Err(InvalidSelector("an unescaped character in a value")),
            _ => value.push(c),
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Vec<(String, FieldOperator, String)> {
        let selector = FieldSelector::parse(text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        selector
            .requirements
            .into_iter()
            .map(|r| (r.field, r.operator, r.value))
            .collect()
    }

    fn one(
        field: &str,
        operator: FieldOperator,
        value: &str,
    ) -> Vec<(String, FieldOperator, String)> {
        vec![(field.to_owned(), operator, value.to_owned())]
    }

    #[test]
    fn reads_terms_and_escapes() {
        use FieldOperator::{Equals, NotEquals};
        assert_eq!(parsed("a=b"), one("a", Equals, "b"));
        assert_eq!(parsed("a==b"), one("a", Equals, "b"));
        assert_eq!(parsed("a!=b"), one("a", NotEquals, "b"));
        assert_eq!(parsed(",a=b,,"), one("a", Equals, "b"));
        assert_eq!(parsed(" a = b "), one(" a ", Equals, " b "));
        assert_eq!(parsed(r"a=\\\,\="), one("a", Equals, r"\,="));
        assert_eq!(parsed(r"a\=b"), one(r"a\", Equals, "b"));
        assert_eq!(parsed("a!b=c"), one("a!b", Equals, "c"));
        assert_eq!(parsed("a="), one("a", Equals, ""));
        assert_eq!(parsed("=b"), one("", Equals, "b"));
        assert_eq!(parsed("a=ä"), one("a", Equals, "ä"));
    }

    #[test]
    fn selects_everything_when_both_sides_are_empty() {
        for text in ["", ",", "=", "==", "!=", "=,=="] {
            assert!(
                FieldSelector::parse(text).unwrap().is_everything(),
                "{text:?}"
            );
        }
    }

    #[test]
    fn leaves_to_upstream_what_upstream_refuses() {
        for text in [
            "a", "a,b=c", "a!", "a===b", r"a=\x", r"a=\", r"a=b\", "a=b=c", r"a=\ä", r"a\,b",
        ] {
            assert!(FieldSelector::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn finds_upstreams_first_required_value() {
        let selector = FieldSelector::parse("x!=1,metadata.name=b,metadata.name=a").unwrap();
        assert_eq!(selector.required_value("metadata.name"), Some("a"));
        assert_eq!(selector.required_value("x"), None);
        let fields: Vec<_> = selector
            .requirements()
            .iter()
            .map(|r| r.value.as_str())
            .collect();
        assert_eq!(fields, ["a", "b", "1"]);
    }

    #[test]
    fn matches_missing_fields_as_empty() {
        let get = |field: &str| {
            if field == "spec.nodeName" {
                "node-1"
            } else {
                ""
            }
        };
        for text in [
            "",
            "spec.nodeName=node-1",
            "spec.nodeName!=",
            "x=",
            "x!=y,spec.nodeName==node-1",
        ] {
            assert!(FieldSelector::parse(text).unwrap().matches(get), "{text:?}");
        }
        for text in [
            "spec.nodeName=",
            "spec.nodeName!=node-1",
            "x!=",
            "x=y",
            "spec.nodeName=node-1,x=y",
        ] {
            assert!(
                !FieldSelector::parse(text).unwrap().matches(get),
                "{text:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in any::<String>()) {
            let _ = FieldSelector::parse(&text);
        }

        #[test]
        fn never_panics_on_its_own_alphabet(text in r"[a=!,\\ä]{0,10}") {
            let _ = FieldSelector::parse(&text);
        }

        #[test]
        fn an_escaped_value_comes_back(value in r"[a=!,\\ä ]{0,10}") {
            let escaped = value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
            let expected = one("a", FieldOperator::Equals, &value);
            prop_assert_eq!(parsed(&format!("a={escaped}")), expected);
        }
    }
}
