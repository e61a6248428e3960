//! Label selectors, read as upstream reads them.
//!
//! Source: `apimachinery/pkg/labels/selector.go` (lexer, parser, `NewRequirement`) and
//! `apimachinery/pkg/api/validate/content/kube.go` (keys and values).
use std::collections::BTreeSet;
use std::fmt;

/// A selector that upstream would refuse, or whose meaning is not certain.
///
/// It has no text for the client. The request is forwarded, and upstream refuses it in its own
/// words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("selector not understood: {0}")]
pub struct InvalidSelector(pub(super) &'static str);

/// Requirements on an object's labels, all of which must hold.
///
/// ```
/// use watershed_protocol::LabelSelector;
///
/// let selector = LabelSelector::parse("app in (web,api),!canary")?;
/// assert!(selector.matches(|key| (key == "app").then_some("web")));
/// assert!(!selector.matches(|_| None));
/// assert!(LabelSelector::parse("app in web").is_err());
/// # Ok::<(), watershed_protocol::InvalidSelector>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    requirements: Vec<LabelRequirement>,
}

/// One term of a label selector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LabelRequirement {
    /// The label's key, with its prefix.
    pub key: String,
    /// The comparison of the label's value with `values`.
    pub operator: LabelOperator,
    /// Distinct values in byte order: none for `Exists` and `DoesNotExist`, at least one for `In`
    /// and `NotIn`, exactly one otherwise.
    pub values: Vec<String>,
}

/// The operators of a label selector; they keep the spelling the client chose (`=` or `==`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LabelOperator {
    /// `key in (a,b)`
    In,
    /// `key notin (a,b)`; holds for objects without the key.
    NotIn,
    /// `key`
    Exists,
    /// `!key`
    DoesNotExist,
    /// `key=a`
    Equals,
    /// `key==a`
    DoubleEquals,
    /// `key!=a`; holds for objects without the key.
    NotEquals,
    /// `key>1`, on signed 64-bit integers.
    GreaterThan,
    /// `key<1`, on signed 64-bit integers.
    LessThan,
}

impl LabelSelector {
    /// Parses the value of a `labelSelector` parameter.
    pub fn parse(text: &str) -> Result<Self, InvalidSelector> {
        // Upstream's lexer takes a NUL as the end of a token.
        if text.contains('\0') {
            return Err(InvalidSelector("a NUL character"));
        }
        let mut requirements = SelectorParser {
            tokens: scan(text),
            position: 0,
        }
        .selector()?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self { requirements })
    }

    /// Returns the requirements ordered by key, as upstream gives them to authorizers.
    pub fn requirements(&self) -> &[LabelRequirement] {
        &self.requirements
    }

    /// Returns `true` if every object is selected.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Returns `true` if labels, given as a look-up by key, satisfy every requirement.
    pub fn matches<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements
            .iter()
            .all(|requirement| requirement.matches(get(&requirement.key)))
    }
}

/// Writes the selector as upstream does (`Requirement.String`), so that it can be parsed again.
impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            let key = &requirement.key;
            let values = requirement.values.join(",");
            match requirement.operator {
                LabelOperator::In => write!(f, "{key} in ({values})"),
                LabelOperator::NotIn => write!(f, "{key} notin ({values})"),
                LabelOperator::Exists => f.write_str(key),
                LabelOperator::DoesNotExist => write!(f, "!{key}"),
                LabelOperator::Equals => write!(f, "{key}={values}"),
                LabelOperator::DoubleEquals => write!(f, "{key}=={values}"),
                LabelOperator::NotEquals => write!(f, "{key}!={values}"),
                LabelOperator::GreaterThan => write!(f, "{key}>{values}"),
                LabelOperator::LessThan => write!(f, "{key}<{values}"),
            }?;
        }
        Ok(())
    }
}

impl LabelRequirement {
    /// Returns the number of a requirement that compares numbers.
    pub(super) fn bound(&self) -> Option<i64> {
        self.values.first()?.parse().ok()
    }

    /// Returns `true` if a value of the key satisfies the requirement. `None`: the object lacks the
    /// key.
    pub fn matches(&self, value: Option<&str>) -> bool {
        use LabelOperator as Op;
        let listed = |value: &str| self.lists(value);
        match self.operator {
            Op::Exists => value.is_some(),
            Op::DoesNotExist => value.is_none(),
            Op::In | Op::Equals | Op::DoubleEquals => value.is_some_and(listed),
            Op::NotIn | Op::NotEquals => !value.is_some_and(listed),
            Op::GreaterThan => self
                .numbers(value)
                .is_some_and(|(label, bound)| label > bound),
            Op::LessThan => self
                .numbers(value)
                .is_some_and(|(label, bound)| label < bound),
        }
    }

    /// Returns `true` if `value` is one of the requirement's values.
    pub(super) fn lists(&self, value: &str) -> bool {
        let order = |listed: &String| listed.as_str().cmp(value);
        self.values.binary_search_by(order).is_ok()
    }

    fn numbers(&self, value: Option<&str>) -> Option<(i64, i64)> {
        Some((value?.parse().ok()?, self.values.first()?.parse().ok()?))
    }

    /// Creates a requirement (`NewRequirement`). Makes the checks that need key, operator and values together.
    fn checked(
        key: &str,
        operator: LabelOperator,
        values: BTreeSet<&str>,
    ) -> Result<LabelRequirement, InvalidSelector> {
        let numeric = matches!(
            operator,
            LabelOperator::GreaterThan | LabelOperator::LessThan
        );
        if numeric && values.iter().any(|value| value.parse::<i64>().is_err()) {
            return Err(InvalidSelector("a bound that is not an integer"));
        }
        if !values.iter().all(|value| is_label_value(value)) {
            return Err(InvalidSelector("a malformed label value"));
        }
        let values = values.into_iter().map(str::to_owned).collect();
        Ok(LabelRequirement {
            key: key.to_owned(),
            operator,
            values,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SelectorToken<'a> {
    /// A key or value, or one of the keywords `in` and `notin`: the parser knows which it expects.
    Word(&'a str),
    /// One of `= == != ! ( ) , > <`.
    Symbol(&'a str),
    End,
}

/// Cuts the text into tokens; the last one, and only that, is `End`.
fn scan(text: &str) -> Vec<SelectorToken<'_>> {
    const SYMBOLS: [char; 7] = ['=', '!', '(', ')', ',', '>', '<'];
    const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(BLANKS);
    while !rest.is_empty() {
        let (token, tail) = if rest.starts_with("==") || rest.starts_with("!=") {
            (SelectorToken::Symbol(&rest[..2]), &rest[2..])
        } else if rest.starts_with(SYMBOLS) {
            (SelectorToken::Symbol(&rest[..1]), &rest[1..])
        } else {
            let end = rest
                .find(|c| SYMBOLS.contains(&c) || BLANKS.contains(&c))
                .unwrap_or(rest.len());
            (SelectorToken::Word(&rest[..end]), &rest[end..])
        };
        tokens.push(token);
        rest = tail.trim_start_matches(BLANKS);
    }
    tokens.push(SelectorToken::End);
    tokens
}

struct SelectorParser<'a> {
    tokens: Vec<SelectorToken<'a>>,
    position: usize,
}

impl<'a> SelectorParser<'a> {
    fn peek(&self) -> SelectorToken<'a> {
        self.tokens
            .get(self.position)
            .copied()
            .unwrap_or(SelectorToken::End)
    }

    fn next(&mut self) -> SelectorToken<'a> {
        let token = self.peek();
        self.position += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<LabelRequirement>, InvalidSelector> {
        let mut requirements = Vec::new();
        if self.peek() == SelectorToken::End {
            return Ok(requirements);
        }
        loop {
            requirements.push(self.requirement()?);
            match self.next() {
                SelectorToken::End => return Ok(requirements),
                SelectorToken::Symbol(",") => {}
                _ => return Err(InvalidSelector("expected a comma or the end")),
            }
        }
    }

    fn requirement(&mut self) -> Result<LabelRequirement, InvalidSelector> {
        let negated = self.peek() == SelectorToken::Symbol("!");
        if negated {
            self.next();
        }
        let SelectorToken::Word(key) = self.next() else {
            return Err(InvalidSelector("expected a key"));
        };
        if !is_label_key(key) {
            return Err(InvalidSelector("a malformed label key"));
        }
        if negated {
            return LabelRequirement::checked(key, LabelOperator::DoesNotExist, BTreeSet::new());
        }
        if matches!(self.peek(), SelectorToken::End | SelectorToken::Symbol(",")) {
            return LabelRequirement::checked(key, LabelOperator::Exists, BTreeSet::new());
        }
        let operator = match self.next() {
            SelectorToken::Word("in") => LabelOperator::In,
            SelectorToken::Word("notin") => LabelOperator::NotIn,
            SelectorToken::Symbol("=") => LabelOperator::Equals,
            SelectorToken::Symbol("==") => LabelOperator::DoubleEquals,
            SelectorToken::Symbol("!=") => LabelOperator::NotEquals,
            SelectorToken::Symbol(">") => LabelOperator::GreaterThan,
            SelectorToken::Symbol("<") => LabelOperator::LessThan,
            _ => return Err(InvalidSelector("expected an operator")),
        };
        let values = match operator {
            LabelOperator::In | LabelOperator::NotIn => self.value_set()?,
            _ => BTreeSet::from([self.single_value()?]),
        };
        LabelRequirement::checked(key, operator, values)
    }

    /// Parses a value, or nothing at all, which is the empty value.
    fn single_value(&mut self) -> Result<&'a str, InvalidSelector> {
        if matches!(self.peek(), SelectorToken::End | SelectorToken::Symbol(",")) {
            return Ok("");
        }
        match self.next() {
            SelectorToken::Word(value) => Ok(value),
            _ => Err(InvalidSelector("expected a value")),
        }
    }

    /// Parses `(a,b)`. Between two commas, and between a comma and a parenthesis, stands the empty value.
    fn value_set(&mut self) -> Result<BTreeSet<&'a str>, InvalidSelector> {
        if self.next() != SelectorToken::Symbol("(") {
            return Err(InvalidSelector("expected an opening parenthesis"));
        }
        let mut values = BTreeSet::new();
        loop {
            values.insert(match self.peek() {
                SelectorToken::Word(value) => {
                    self.next();
                    value
                }
                _ => "",
            });
            match self.next() {
                SelectorToken::Symbol(",") => {}
                SelectorToken::Symbol(")") => return Ok(values),
                _ => return Err(InvalidSelector("expected a comma or a closing parenthesis")),
            }
        }
    }
}

/// Returns `true` for an optional DNS subdomain and a slash, then a name of at most 63 characters
/// (`IsLabelKey`).
fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_label_name(name),
        None => is_label_name(key),
    }
}

/// Returns `true` for an empty text, or one formed like the name of a key (`IsLabelValue`).
fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_label_name(value)
}

/// Returns `true` for `([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]` of at most 63 characters.
fn is_label_name(name: &str) -> bool {
    name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Returns `true` for labels of lower-case letters, digits and inner hyphens, joined by dots
/// (`IsDNS1123Subdomain`).
fn is_dns_subdomain(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.len() <= 253
        && text.split('.').all(|label| {
            label.bytes().next().is_some_and(plain)
                && label.bytes().last().is_some_and(plain)
                && label.bytes().all(|b| plain(b) || b == b'-')
        })
}

#[cfg(test)]
mod tests;
