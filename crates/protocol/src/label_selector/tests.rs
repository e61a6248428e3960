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
    let key = prop::sample::select(vec!["a", "b", "in", "example.com/c"]).prop_map(str::to_owned);
    let operator = prop::sample::select(vec!["", "!", "=", "==", "!=", ">", "<", "in", "notin"]);
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

fn written((key, operator, values): &(String, &'static str, Vec<String>), blank: &str) -> String {
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
