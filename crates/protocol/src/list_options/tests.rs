use proptest::prelude::*;

use super::*;

const SEVEN: ResourceVersion = ResourceVersion(7);

fn options(query: &str) -> ListOptions {
    ListOptions::parse(Some(query)).unwrap_or_else(|e| panic!("{query:?}: {e}"))
}

#[test]
fn reads_all_parameters() {
    let query = "watch=1&resourceVersion=7&resourceVersionMatch=NotOlderThan&limit=5&continue=abc\
        &sendInitialEvents=true&allowWatchBookmarks=true&timeoutSeconds=300\
        &labelSelector=a%3Db%2Cc\
        &fieldSelector=metadata.name%3Dx+y&shardSelector=s&pretty=true&timeout=32s&unknown=%F0%9F%8C%8A";
    let expected = ListOptions {
        watch: true,
        version: VersionParam::At(SEVEN),
        version_match: VersionMatch::NotOlderThan,
        limit: 5,
        continue_token: Some("abc".to_owned()),
        send_initial_events: Some(true),
        allow_bookmarks: true,
        timeout_seconds: Some(300),
        label_selector: Some("a=b,c".to_owned()),
        field_selector: Some("metadata.name=x y".to_owned()),
        shard_selector: Some("s".to_owned()),
        pretty: true,
    };
    assert_eq!(options(query), expected);
}

#[test]
fn takes_empty_values_for_absent_ones() {
    let nothing = ListOptions::parse(None).unwrap();
    let empty = "&&resourceVersion=&resourceVersionMatch&continue=&labelSelector=\
        &fieldSelector=&shardSelector=&pretty=";
    assert_eq!(options(empty), nothing);
    assert_eq!(nothing.version, VersionParam::Unset);
    assert_eq!(nothing.continue_token, None);
    assert_eq!(nothing.label_selector, None);
}

#[test]
fn the_first_of_repeated_parameters_counts() {
    assert_eq!(options("limit=1&limit=x").limit, 1);
    assert!(!options("watch=0&watch=1").watch);
}

#[test]
fn everything_but_zero_and_false_is_true() {
    for value in [
        "watch",
        "watch=",
        "watch=1",
        "watch=abc",
        "watch=no",
        "watch=00",
    ] {
        assert!(options(value).watch, "{value:?}");
    }
    for value in [
        "",
        "watch=0",
        "watch=false",
        "watch=FALSE",
        "watch=fal%C5%BFe",
        "Watch=1",
    ] {
        assert!(!options(value).watch, "{value:?}");
    }
}

#[test]
fn names_the_parameter_it_does_not_understand() {
    use InvalidOptions as Bad;
    for (query, bad) in [
        ("resourceVersion=00", Bad::Version),
        ("resourceVersion=007", Bad::Version),
        ("resourceVersion=-1", Bad::Version),
        ("resourceVersion=abc", Bad::Version),
        ("resourceVersion=9223372036854775808", Bad::Version),
        ("resourceVersionMatch=exact", Bad::VersionMatch),
        ("limit=", Bad::Limit),
        ("limit=1.5", Bad::Limit),
        ("timeoutSeconds=abc", Bad::TimeoutSeconds),
        ("timeout=abc", Bad::Timeout),
        ("timeout=5", Bad::Timeout),
        ("limit=1;watch=1", Bad::Query),
        ("labelSelector=%zz", Bad::Query),
        ("labelSelector=%", Bad::Query),
        ("labelSelector=%ff", Bad::Query),
    ] {
        assert_eq!(ListOptions::parse(Some(query)), Err(bad), "{query:?}");
    }
    assert_eq!(
        options("limit=-3&timeoutSeconds=%2B5").timeout_seconds,
        Some(5)
    );
    assert!(options("watch=1&timeout=abc").watch, "watches ignore it");
}

#[test]
fn the_time_of_a_request_is_that_of_its_first_timeout() {
    for (query, millis) in [
        ("timeout=32s", Some(32_000)),
        ("limit=1&timeout=1m30s&timeout=1s", Some(90_000)),
        ("timeout=1h0m0s5ms", Some(3_600_005)),
        ("timeout=999999h", Some(3_599_996_400_000)),
        ("timeout=0s", None),
        ("timeout=", None),
        ("limit=1", None),
        ("timeout=1.5s", None),
        ("timeout=-1s", None),
        ("timeout=%zz", None),
    ] {
        let timeout = request_timeout(&Query::parse(Some(query)));
        assert_eq!(timeout, millis.map(Duration::from_millis), "{query}");
    }
    assert_eq!(request_timeout(&Query::parse(None)), None);
}

#[test]
fn starts_watches_as_upstream_does() {
    use Freshness::{Any, MostRecent, NotOlderThan};
    let state = |freshness, end_mark| {
        Ok(WatchStart::State {
            freshness,
            end_mark,
        })
    };
    let (now, after_seven) = (
        |freshness| Ok(WatchStart::Now(freshness)),
        Ok(WatchStart::After(SEVEN)),
    );
    let invalid = Err(InvalidOptions::Combination);
    let sie = "&resourceVersionMatch=NotOlderThan&sendInitialEvents";
    for (query, start) in [
        (String::new(), state(MostRecent, false)),
        (
            "&allowWatchBookmarks=true".to_owned(),
            state(MostRecent, true),
        ),
        (format!("{sie}=true"), state(MostRecent, false)),
        (format!("{sie}=false"), now(MostRecent)),
        ("&resourceVersion=0".to_owned(), state(Any, false)),
        (
            "&resourceVersion=0&allowWatchBookmarks=1".to_owned(),
            state(Any, true),
        ),
        (
            format!("&resourceVersion=0{sie}=1&allowWatchBookmarks=1"),
            state(Any, true),
        ),
        (
            format!("&resourceVersion=0{sie}=0&allowWatchBookmarks=1"),
            now(Any),
        ),
        ("&resourceVersion=7".to_owned(), after_seven),
        (
            "&resourceVersion=7&continue=x&limit=1".to_owned(),
            after_seven,
        ),
        (format!("&resourceVersion=7{sie}=0"), after_seven),
        (
            format!("&resourceVersion=7{sie}=1"),
            state(NotOlderThan(SEVEN), false),
        ),
        (
            format!("&resourceVersion=7{sie}=1&allowWatchBookmarks"),
            state(NotOlderThan(SEVEN), true),
        ),
        ("&sendInitialEvents=true".to_owned(), invalid),
        (
            "&resourceVersion=7&sendInitialEvents=false".to_owned(),
            invalid,
        ),
        ("&resourceVersionMatch=NotOlderThan".to_owned(), invalid),
        (
            "&resourceVersion=7&resourceVersionMatch=Exact".to_owned(),
            invalid,
        ),
        (
            "&resourceVersionMatch=Exact&sendInitialEvents=true".to_owned(),
            invalid,
        ),
        ("&continue=x".to_owned(), invalid),
        ("&continue=x&resourceVersion=0".to_owned(), invalid),
        (format!("&continue=x&resourceVersion=7{sie}=1"), invalid),
    ] {
        assert_eq!(
            options(&format!("watch=1{query}")).watch_start(),
            start,
            "{query:?}"
        );
    }
    assert_eq!(options("resourceVersion=7").watch_start(), invalid);
}

#[test]
fn initial_events_and_their_mark_are_the_default_without_a_version() {
    let told = |query: &str| (options(query).initial_events(), options(query).end_mark());
    let sie = "resourceVersionMatch=NotOlderThan&sendInitialEvents";
    assert_eq!(told("watch=1"), (true, false));
    assert_eq!(told("watch=1&allowWatchBookmarks=1"), (true, true));
    assert_eq!(
        told("watch=1&resourceVersion=0&allowWatchBookmarks=1"),
        (true, true)
    );
    assert_eq!(
        told("watch=1&resourceVersion=7&allowWatchBookmarks=1"),
        (false, false)
    );
    assert_eq!(
        told(&format!("watch=1&allowWatchBookmarks=1&{sie}=false")),
        (false, false)
    );
}

#[test]
fn reads_lists_as_upstream_does() {
    use Freshness::{Any, Exact, MostRecent, NotOlderThan};
    let start = |freshness, after: Option<&str>| {
        Ok(ListStart {
            freshness,
            after: after.map(str::to_owned),
        })
    };
    let first = |freshness| start(freshness, None);
    let invalid = Err(InvalidOptions::Combination);
    let token = ContinueToken {
        version: SEVEN,
        after: "ns/a".to_owned(),
    }
    .encode();
    let continued = |more: &str| format!("continue={token}{more}");
    let next = start(Exact(SEVEN), Some("ns/a"));
    for (query, read) in [
        ("", first(MostRecent)),
        ("limit=5", first(MostRecent)),
        ("resourceVersion=0", first(Any)),
        ("resourceVersion=0&limit=5", first(Any)),
        (
            "resourceVersion=0&resourceVersionMatch=NotOlderThan",
            first(Any),
        ),
        ("resourceVersion=7", first(NotOlderThan(SEVEN))),
        ("resourceVersion=7&limit=-1", first(NotOlderThan(SEVEN))),
        ("resourceVersion=7&limit=5", first(Exact(SEVEN))),
        (
            "resourceVersion=7&limit=5&fieldSelector=spec.nodeName=a",
            first(Exact(SEVEN)),
        ),
        (
            "resourceVersion=7&limit=5&fieldSelector=metadata.name=a",
            invalid.clone(),
        ),
        (
            "resourceVersion=7&resourceVersionMatch=NotOlderThan&limit=5",
            first(NotOlderThan(SEVEN)),
        ),
        (
            "resourceVersion=7&resourceVersionMatch=Exact",
            first(Exact(SEVEN)),
        ),
        ("continue=x", Err(InvalidOptions::ContinueToken)),
        (&continued(""), next.clone()),
        (&continued("&resourceVersion=0&limit=5"), next),
        ("continue=x&resourceVersion=7", invalid.clone()),
        (
            "continue=x&resourceVersion=0&resourceVersionMatch=NotOlderThan",
            invalid.clone(),
        ),
        ("resourceVersionMatch=NotOlderThan", invalid.clone()),
        ("resourceVersionMatch=Exact", invalid.clone()),
        (
            "resourceVersion=0&resourceVersionMatch=Exact",
            invalid.clone(),
        ),
        ("sendInitialEvents=false", invalid.clone()),
        ("watch=1", invalid.clone()),
    ] {
        assert_eq!(options(query).list_start(), read, "{query:?}");
    }
}

#[test]
fn version_zero_ignores_the_limit() {
    assert_eq!(options("limit=5").page_limit(), Some(5));
    assert_eq!(options("limit=5&resourceVersion=7").page_limit(), Some(5));
    for query in ["", "limit=0", "limit=-5", "limit=5&resourceVersion=0"] {
        assert_eq!(options(query).page_limit(), None, "{query:?}");
    }
}

#[test]
fn gets_heed_only_their_version() {
    assert_eq!(
        get_freshness(&Query::parse(None)),
        Ok(Freshness::MostRecent)
    );
    assert_eq!(
        get_freshness(&Query::parse(Some(
            "resourceVersion=&limit=abc&export=false"
        ))),
        Ok(Freshness::MostRecent)
    );
    assert_eq!(
        get_freshness(&Query::parse(Some(
            "resourceVersion=0&resourceVersionMatch=Foo"
        ))),
        Ok(Freshness::Any)
    );
    assert_eq!(
        get_freshness(&Query::parse(Some("resourceVersion=7&timeout=10s"))),
        Ok(Freshness::NotOlderThan(SEVEN))
    );
    assert_eq!(
        get_freshness(&Query::parse(Some("resourceVersion=x"))),
        Err(InvalidOptions::Version)
    );
    assert_eq!(
        get_freshness(&Query::parse(Some("export"))),
        Err(InvalidOptions::Export)
    );
    assert_eq!(
        get_freshness(&Query::parse(Some("timeout=x"))),
        Err(InvalidOptions::Timeout)
    );
    assert_eq!(
        get_freshness(&Query::parse(Some("a;b"))),
        Err(InvalidOptions::Query)
    );
}

fn escaped(text: &str) -> String {
    percent_encoding::percent_encode(text.as_bytes(), percent_encoding::NON_ALPHANUMERIC)
        .to_string()
}

proptest! {
    #[test]
    fn never_panics(query in any::<String>()) {
        let _ = get_freshness(&Query::parse(Some(&query)));
        if let Ok(options) = ListOptions::parse(Some(&query)) {
            let _ = (options.watch_start(), options.list_start());
        }
    }

    #[test]
    fn every_combination_has_a_meaning(
        query in "(watch=1)?(&resourceVersion=(0|7|00))?\
            (&resourceVersionMatch=(Exact|NotOlderThan))?(&sendInitialEvents=(true|false))?\
            (&limit=[0-9])?(&continue=x)?(&fieldSelector=[a=!\\\\]{0,3})?",
    ) {
        if let Ok(options) = ListOptions::parse(Some(&query)) {
            let _ = (options.watch_start(), options.list_start(), options.page_limit());
        }
    }

    #[test]
    fn escaped_values_come_back(
        label in ".{1,12}",
        field in ".{1,12}",
        token in "[a-zA-Z0-9_-]{1,40}",
    ) {
        let query = format!(
            "labelSelector={}&continue={token}&fieldSelector={}",
            escaped(&label),
            escaped(&field),
        );
        let options = ListOptions::parse(Some(&query)).unwrap();
        prop_assert_eq!(options.label_selector, Some(label));
        prop_assert_eq!(options.field_selector, Some(field));
        prop_assert_eq!(options.continue_token, Some(token));
    }

    /// Whatever is accepted reads the same with `form_urlencoded`, an independent reader.
    #[test]
    fn agrees_with_another_reader(query in "([a-c=&+]|%[0-9a-f]{2}|labelSelector=){0,16}") {
        if let Ok(options) = ListOptions::parse(Some(&query)) {
            let other = form_urlencoded::parse(query.as_bytes())
                .find(|(key, _)| key == "labelSelector")
                .map(|(_, value)| value.into_owned())
                .filter(|value| !value.is_empty());
            prop_assert_eq!(options.label_selector, other);
        }
    }
}

#[test]
fn deprecated_paths_start_watches_by_older_rules() {
    let start = |query: &str| options(query).legacy_watch_start();
    let state = |freshness, end_mark| {
        Ok(WatchStart::State {
            freshness,
            end_mark,
        })
    };
    assert_eq!(start("resourceVersion=7"), Ok(WatchStart::After(SEVEN)));
    let bookmarks = "&allowWatchBookmarks=true";
    for query in ["", bookmarks] {
        assert_eq!(start(query), state(Freshness::MostRecent, false));
    }
    let zero = "resourceVersion=0&allowWatchBookmarks=true&limit=1";
    assert_eq!(start(zero), state(Freshness::Any, false));
    let named = format!("watch=1&resourceVersion=0{bookmarks}");
    assert_eq!(start(&named), state(Freshness::Any, true));
    for refused in [
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
        "resourceVersion=7&resourceVersionMatch=NotOlderThan",
        "continue=abc",
    ] {
        assert!(start(refused).is_err(), "{refused}");
    }
}
