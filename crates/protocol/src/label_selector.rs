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

    /// Returns true if every object is selected.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Returns true if labels, given as a look-up by key, satisfy every requirement.
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

    /// Returns true if a value of the key satisfies the requirement. `None`: the object lacks the
    /// key.
    pub fn matches(&self, value: Option<&str>) -> bool {
        use LabelOperator as Op;
        let listed = |value: &str| self.values.iter().any(|v| v == value);
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

    fn numbers(&self, value: Option<&str>) -> Option<(i64, i64)> {
        Some((value?.parse().ok()?, self.values.first()?.parse().ok()?))
    }

    /// `NewRequirement`: the checks that need key, operator and values together.
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
            return Err(InvalidSelector("a bound that is no integer"));
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

    /// A value, or nothing at all, which is the empty value.
    fn single_value(&mut self) -> Result<&'a str, InvalidSelector> {
        if matches!(self.peek(), SelectorToken::End | SelectorToken::Symbol(",")) {
            return Ok("");
        }
        match self.next() {
            SelectorToken::Word(value) => Ok(value),
            _ => Err(InvalidSelector("expected a value")),
        }
    }

    /// `(a,b)`. Between two commas, and between a comma and a parenthesis, stands the empty value.
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

/// `IsLabelKey`: an optional DNS subdomain and a slash, then a name of at most 63 characters.
fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_label_name(name),
        None => is_label_name(key),
    }
}

/// `IsLabelValue`: empty, or formed like the name of a key.
fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_label_name(value)
}

/// `([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]`, at most 63 characters.
fn is_label_name(name: &str) -> bool {
    name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// `IsDNS1123Subdomain`: labels of lower-case letters, digits and inner hyphens, joined by dots.
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
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Vec<(String, LabelOperator, Vec<String>)> {
        let selector = LabelSelector::parse(text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        selector
            .requirements
            .into_iter()
            .map(|r| (r.key, r.operator, r.values))
            .collect()
    }

    fn one(
        key: &str,
        operator: LabelOperator,
        values: &[&str],
    ) -> Vec<(String, LabelOperator, Vec<String>)> {
        vec![(
            key.to_owned(),
            operator,
            values.iter().map(|&v| v.to_owned()).collect(),
        )]
    }

    #[test]
    fn reads_every_operator() {
        use LabelOperator as Op;
        assert_eq!(parsed("a"), one("a", Op::Exists, &[]));
        assert_eq!(parsed("!a"), one("a", Op::DoesNotExist, &[]));
        assert_eq!(parsed(" ! \t a\r\n"), one("a", Op::DoesNotExist, &[]));
        assert_eq!(parsed("a=b"), one("a", Op::Equals, &["b"]));
        assert_eq!(parsed("a = b"), one("a", Op::Equals, &["b"]));
        assert_eq!(parsed("a==b"), one("a", Op::DoubleEquals, &["b"]));
        assert_eq!(parsed("a!=b"), one("a", Op::NotEquals, &["b"]));
        assert_eq!(parsed("a="), one("a", Op::Equals, &[""]));
        assert_eq!(parsed("a>1"), one("a", Op::GreaterThan, &["1"]));
        assert_eq!(parsed("a<007"), one("a", Op::LessThan, &["007"]));
        assert_eq!(parsed("a in(c,b,c)"), one("a", Op::In, &["b", "c"]));
        assert_eq!(parsed("a notin ( b )"), one("a", Op::NotIn, &["b"]));
        assert_eq!(parsed("a in ()"), one("a", Op::In, &[""]));
        assert_eq!(parsed("a in (,b,,)"), one("a", Op::In, &["", "b"]));
        assert_eq!(
            parsed("example.com/a=b"),
            one("example.com/a", Op::Equals, &["b"])
        );
    }

    #[test]
    fn takes_keywords_for_keys_and_values_where_upstream_does() {
        use LabelOperator as Op;
        assert_eq!(parsed("in"), one("in", Op::Exists, &[]));
        assert_eq!(
            parsed("in in (in,notin)"),
            one("in", Op::In, &["in", "notin"])
        );
        assert_eq!(parsed("a=notin"), one("a", Op::Equals, &["notin"]));
    }

    #[test]
    fn orders_requirements_by_key() {
        let keys: Vec<_> = parsed("b,!c,a=1,b!=2").into_iter().map(|r| r.0).collect();
        assert_eq!(keys, ["a", "b", "b", "c"]);
    }

    #[test]
    fn an_empty_text_selects_everything() {
        for text in ["", " ", "\t\r\n"] {
            assert!(
                LabelSelector::parse(text).unwrap().is_everything(),
                "{text:?}"
            );
        }
    }

    #[test]
    fn leaves_to_upstream_what_upstream_refuses() {
        let long = "x".repeat(64);
        let refused = [
            ",",
            "a,",
            ",a",
            "a,,b",
            "!",
            "!a=b",
            "!!a",
            "a b",
            "a=b c",
            "a=b=c",
            "a===b",
            "a=!b",
            "a in",
            "a in b",
            "a in (b",
            "a in (b c)",
            "a in (b,",
            "a in (b))",
            "a in (!b)",
            "a notin",
            "in (a)",
            "a>",
            "a>b",
            "a>1.5",
            "a>-1",
            "a>+1",
            "a<9223372036854775808",
            "a>=1",
            "=a",
            "(a)",
            "_a",
            "a-",
            "a=_b",
            "a=b/c",
            "/a",
            "x/",
            "X/a",
            "a/b/c",
            "-x/a",
            "x..y/a",
            "ä",
            "a=ä",
            "a\0",
            "a\u{a0}",
            &long,
            &format!("a={long}"),
            &format!("{}/a", "x".repeat(254)),
        ];
        for text in refused {
            assert!(LabelSelector::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn matches_as_upstream_does() {
        let labels = HashMap::from([("app", "web"), ("n", "10"), ("empty", "")]);
        let matches = |text: &str| {
            LabelSelector::parse(text)
                .unwrap()
                .matches(|key| labels.get(key).copied())
        };
        for text in [
            "",
            "app",
            "app=web",
            "app==web",
            "app in (db,web)",
            "app!=db",
            "app notin (db)",
            "none!=x",
            "none notin (x)",
            "!none",
            "n>9",
            "n<11",
            "empty=",
            "empty in ()",
            "app=web,n>1,!none",
        ] {
            assert!(matches(text), "{text:?}");
        }
        for text in [
            "none",
            "!app",
            "app=db",
            "app!=web",
            "app notin (web)",
            "none=",
            "none in ()",
            "n>10",
            "n<10",
            "none>1",
            "app>1",
            "empty<1",
            "app=web,none",
        ] {
            assert!(!matches(text), "{text:?}");
        }
    }

    /// A requirement of the test's own, with its text and its meaning written down apart from the
    /// parser.
    fn term() -> impl Strategy<Value = (String, &'static str, Vec<String>)> {
        let key =
            prop::sample::select(vec!["a", "b", "in", "example.com/c"]).prop_map(str::to_owned);
        let operator =
            prop::sample::select(vec!["", "!", "=", "==", "!=", ">", "<", "in", "notin"]);
        let values = prop::collection::vec(
            prop::sample::select(vec!["", "0", "1", "2", "x", "in"]),
            1..4,
        );
        (key, operator, values).prop_map(|(key, operator, values)| {
            let mut values: Vec<String> = values.into_iter().map(str::to_owned).collect();
            match operator {
                "" | "!" => values.clear(),
                "in" | "notin" => {}
                ">" | "<" => values = vec!["1".to_owned()],
                _ => values.truncate(1),
            }
            (key, operator, values)
        })
    }

    fn written(
        (key, operator, values): &(String, &'static str, Vec<String>),
        blank: &str,
    ) -> String {
        match *operator {
            "" => key.clone(),
            "!" => format!("!{blank}{key}"),
            "in" | "notin" => format!(
                "{key} {operator}{blank}({})",
                values.join(&format!("{blank},"))
            ),
            _ => format!("{key}{blank}{operator}{blank}{}", values[0]),
        }
    }

    fn holds(
        (key, operator, values): &(String, &'static str, Vec<String>),
        labels: &HashMap<String, String>,
    ) -> bool {
        let value = labels.get(key);
        let number = value.and_then(|v| v.parse::<i64>().ok());
        match *operator {
            "" => value.is_some(),
            "!" => value.is_none(),
            "=" | "==" | "in" => value.is_some_and(|v| values.contains(v)),
            "!=" | "notin" => value.is_none_or(|v| !values.contains(v)),
            ">" => number.is_some_and(|n| n > 1),
            _ => number.is_some_and(|n| n < 1),
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in any::<String>()) {
            let _ = LabelSelector::parse(&text);
        }

        #[test]
        fn never_panics_on_its_own_alphabet(
            text in "[ab_/.!=<>(), \t-]{0,12}|(in|notin|[a!=(), ]){0,9}",
        ) {
            let _ = LabelSelector::parse(&text);
        }

        #[test]
        fn agrees_with_a_plain_reading(
            terms in prop::collection::vec(term(), 0..4),
            blank in "[ \t]{0,2}",
            labels in prop::collection::hash_map(
                prop::sample::select(vec!["a", "b", "in", "example.com/c"]).prop_map(str::to_owned),
                prop::sample::select(vec!["", "0", "1", "2", "x", "in"]).prop_map(str::to_owned),
                0..4,
            ),
        ) {
            let text = terms.iter().map(|t| written(t, &blank)).collect::<Vec<_>>().join(",");
            let selector = LabelSelector::parse(&text).unwrap();
            prop_assert_eq!(selector.requirements().len(), terms.len());
            let expected = terms.iter().all(|term| holds(term, &labels));
            let matches = selector.matches(|key| labels.get(key).map(String::as_str));
            prop_assert_eq!(matches, expected, "{}", text);
        }
    }
}
