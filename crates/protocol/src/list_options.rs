//! The parameters of get, list and watch requests, and the state each combination asks for.
//!
//! Source: `apimachinery/pkg/runtime/conversion.go` (decoding),
//! `apimachinery/pkg/apis/meta/internalversion/{defaults.go,validation/validation.go}`,
//! `apiserver/pkg/storage/interfaces.go` and `apiserver/pkg/storage/cacher/delegator/interface.go`
//! (meaning). Requests that upstream refuses, or answers in a way that is not imitated, are an
//! error or `Invalid` here. They are forwarded.
use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::{FieldSelector, LabelSelector, ResourceVersion};

/// QueryParameters of a list or watch request.
///
/// ```
/// use watershed_protocol::{ListOptions, ListRead, ResourceVersion, WatchStart};
///
/// let list = ListOptions::parse(Some("resourceVersion=7&limit=500"))?;
/// assert_eq!(list.list_read(), ListRead::Exact(ResourceVersion(7)));
/// assert_eq!(list.page_limit(), Some(500));
///
/// let watch = ListOptions::parse(Some("watch=1&resourceVersion=7"))?;
/// assert_eq!(watch.watch_start(), WatchStart::EventsAfter(ResourceVersion(7)));
/// # Ok::<(), watershed_protocol::InvalidOptions>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are independent parameters of the protocol"
)]
pub struct ListOptions {
    /// `watch`: stream events instead of answering a list.
    pub watch: bool,
    /// `resourceVersion`
    pub version: VersionParam,
    /// `resourceVersionMatch`
    pub version_match: VersionMatch,
    /// `limit`; zero and negative numbers mean none. [`ListOptions::page_limit`] says what applies.
    pub limit: i64,
    /// `continue`; `None` when absent or empty.
    pub continue_token: Option<String>,
    /// `sendInitialEvents` as sent, before defaulting; see [`ListOptions::initial_events`].
    pub send_initial_events: Option<bool>,
    /// `allowWatchBookmarks`
    pub allow_bookmarks: bool,
    /// `timeoutSeconds`; only watches heed it.
    pub timeout_seconds: Option<i64>,
    /// `labelSelector`, unparsed; `None` when absent or empty.
    pub label_selector: Option<String>,
    /// `fieldSelector`, unparsed; `None` when absent or empty.
    pub field_selector: Option<String>,
    /// `pretty` is given and true. [`super::wants_pretty`] also looks at the client's name.
    pub pretty: bool,
    /// `timeout`, the deadline of a request that is no watch, is given.
    pub timeout: bool,
}

/// The `resourceVersion` parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionParam {
    /// Absent or empty.
    Unset,
    /// Exactly `0`.
    Zero,
    /// A version in its canonical spelling.
    At(ResourceVersion),
}

/// The `resourceVersionMatch` parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    /// Absent or empty.
    Unset,
    /// `Exact`
    Exact,
    /// `NotOlderThan`
    NotOlderThan,
}

/// A parameter that upstream would refuse, or whose meaning is not certain.
///
/// The request is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOptions {
    /// The query has a piece that is no clean key and value.
    #[error("the query is malformed")]
    Query,
    /// `resourceVersion` is no number in canonical spelling.
    #[error("resourceVersion is no canonical number")]
    Version,
    /// `resourceVersionMatch` is neither `Exact` nor `NotOlderThan`.
    #[error("resourceVersionMatch is unknown")]
    VersionMatch,
    /// `limit` is no integer.
    #[error("limit is no integer")]
    Limit,
    /// `timeoutSeconds` is no integer.
    #[error("timeoutSeconds is no integer")]
    TimeoutSeconds,
    /// `timeout` is no plain duration.
    #[error("timeout is no plain duration")]
    Timeout,
    /// `export` is asked for, which upstream has removed.
    #[error("export is no longer supported")]
    Export,
    /// A parameter that changes the answer in a way not known here.
    #[error("{0} is not supported")]
    Unknown(&'static str),
}

/// The start of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchStart {
    /// `resourceVersion` unset: at a state no older than the request. It begins with that state's
    /// objects if [`ListOptions::initial_events`] says so (then [`ListOptions::end_mark`] tells
    /// whether they are followed by a mark), otherwise with the events after it.
    Consistent,
    /// The state of the cache, as synthetic ADDED events, then the events after it.
    StateFromCache {
        /// The cache must have reached this version; `None` takes it as it is.
        at_least: Option<ResourceVersion>,
        /// A bookmark marks the end of the initial events.
        end_mark: bool,
    },
    /// The events after this version.
    EventsAfter(ResourceVersion),
    /// The events after the cache's version, whatever it is.
    EventsAfterCurrentCache,
    /// Refused by upstream, or not imitated: forward.
    Invalid,
}

/// The state a list asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListRead {
    /// No older than the request.
    Consistent,
    /// Whatever the cache has; the limit is ignored.
    Any,
    /// This version or a later one.
    NotOlderThan(ResourceVersion),
    /// The state at exactly this version.
    Exact(ResourceVersion),
    /// The page after a continue token, at the token's version.
    Continue,
    /// Refused by upstream, or not imitated: forward.
    Invalid,
}

/// The state a get asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GetRead {
    /// No older than the request.
    Consistent,
    /// Whatever the cache has.
    Any,
    /// This version or a later one.
    NotOlderThan(ResourceVersion),
}

impl ListOptions {
    /// Parses a query string.
    ///
    /// As upstream does, it uses the first of repeated parameters and ignores unknown ones.
    pub fn parse(query: Option<&str>) -> Result<Self, InvalidOptions> {
        let parameters = QueryParameters::checked(query)?;
        let text = |name| parameters.first(name).filter(|value| !value.is_empty());
        if parameters.first("shardSelector").is_some() {
            return Err(InvalidOptions::Unknown("shardSelector"));
        }
        let watch = parameters.flag("watch").unwrap_or(false);
        if !watch {
            parameters.check_timeout()?;
        }
        Ok(Self {
            watch,
            version: parameters.version()?,
            version_match: match text("resourceVersionMatch") {
                None => VersionMatch::Unset,
                Some("Exact") => VersionMatch::Exact,
                Some("NotOlderThan") => VersionMatch::NotOlderThan,
                Some(_) => return Err(InvalidOptions::VersionMatch),
            },
            limit: parameters
                .integer("limit")
                .map_err(|()| InvalidOptions::Limit)?
                .unwrap_or(0),
            continue_token: text("continue").map(str::to_owned),
            send_initial_events: parameters.flag("sendInitialEvents"),
            allow_bookmarks: parameters.flag("allowWatchBookmarks").unwrap_or(false),
            timeout_seconds: parameters
                .integer("timeoutSeconds")
                .map_err(|()| InvalidOptions::TimeoutSeconds)?,
            label_selector: text("labelSelector").map(str::to_owned),
            field_selector: text("fieldSelector").map(str::to_owned),
            pretty: parameters.pretty().unwrap_or(false),
            timeout: parameters.first("timeout").is_some(),
        })
    }

    /// Returns the start of a watch with these options.
    ///
    /// Options without `watch`, as on the deprecated `/watch/` paths, follow older rules and are
    /// `Invalid`.
    pub fn watch_start(&self) -> WatchStart {
        let matched = match self.version_match {
            VersionMatch::Exact => return WatchStart::Invalid,
            VersionMatch::NotOlderThan => true,
            VersionMatch::Unset => false,
        };
        let matched_by_default = self.initial_events_by_default();
        if !self.watch
            || matched != self.send_initial_events.is_some()
            || (self.continue_token.is_some() && (matched || matched_by_default))
        {
            return WatchStart::Invalid;
        }
        let end_mark = self.end_mark();
        match (self.version, self.initial_events()) {
            (VersionParam::Unset, _) => WatchStart::Consistent,
            (VersionParam::Zero, true) => WatchStart::StateFromCache {
                at_least: None,
                end_mark,
            },
            (VersionParam::At(version), true) => WatchStart::StateFromCache {
                at_least: Some(version),
                end_mark,
            },
            (VersionParam::Zero, false) => WatchStart::EventsAfterCurrentCache,
            (VersionParam::At(version), false) => WatchStart::EventsAfter(version),
        }
    }

    /// Returns true if a watch with these options begins with the existing objects.
    ///
    /// Clients ask for that. It is also the default if nothing about the start is given.
    pub fn initial_events(&self) -> bool {
        self.send_initial_events
            .unwrap_or_else(|| self.initial_events_by_default())
    }

    /// Returns true if the initial events end with a marked bookmark.
    ///
    /// Upstream compresses exactly these watches.
    pub fn end_mark(&self) -> bool {
        self.initial_events() && self.allow_bookmarks
    }

    /// `SetListOptionsDefaults`
    fn initial_events_by_default(&self) -> bool {
        self.watch
            && self.send_initial_events.is_none()
            && self.version_match == VersionMatch::Unset
            && !matches!(self.version, VersionParam::At(_))
    }

    /// Returns the state that a list with these options asks for.
    pub fn list_read(&self) -> ListRead {
        if self.watch || self.send_initial_events.is_some() {
            return ListRead::Invalid;
        }
        if self.continue_token.is_some() {
            return match (self.version, self.version_match) {
                (VersionParam::Unset | VersionParam::Zero, VersionMatch::Unset) => {
                    ListRead::Continue
                }
                _ => ListRead::Invalid,
            };
        }
        match (self.version, self.version_match) {
            (VersionParam::Unset, VersionMatch::Unset) => ListRead::Consistent,
            (VersionParam::Zero, VersionMatch::Unset | VersionMatch::NotOlderThan) => ListRead::Any,
            (VersionParam::At(version), VersionMatch::NotOlderThan) => {
                ListRead::NotOlderThan(version)
            }
            (VersionParam::At(version), VersionMatch::Unset) if self.limit <= 0 => {
                ListRead::NotOlderThan(version)
            }
            // A limit makes it exact, except where a selector for one name makes it a read of one
            // key, which is then the latest.
            (VersionParam::At(_), VersionMatch::Unset) if self.may_select_one_name() => {
                ListRead::Invalid
            }
            (VersionParam::At(version), VersionMatch::Unset | VersionMatch::Exact) => {
                ListRead::Exact(version)
            }
            (VersionParam::Unset, _) | (VersionParam::Zero, VersionMatch::Exact) => {
                ListRead::Invalid
            }
        }
    }

    /// Returns the limit that applies to a list. At version `0`, limits have no effect.
    pub fn page_limit(&self) -> Option<u64> {
        match self.version {
            VersionParam::Zero => None,
            _ => u64::try_from(self.limit).ok().filter(|&limit| limit > 0),
        }
    }

    fn may_select_one_name(&self) -> bool {
        self.field_selector.as_deref().is_some_and(|text| {
            FieldSelector::parse(text).map_or(true, |s| s.required_value("metadata.name").is_some())
        })
    }
}

/// Returns the state that a get with this query asks for.
///
/// Only `resourceVersion` matters. Upstream ignores all list parameters here, even malformed ones.
pub fn get_read(query: Option<&str>) -> Result<GetRead, InvalidOptions> {
    let parameters = QueryParameters::checked(query)?;
    if parameters.flag("export") == Some(true) {
        return Err(InvalidOptions::Export);
    }
    parameters.check_timeout()?;
    Ok(match parameters.version()? {
        VersionParam::Unset => GetRead::Consistent,
        VersionParam::Zero => GetRead::Any,
        VersionParam::At(version) => GetRead::NotOlderThan(version),
    })
}

/// A query string cut into parameters as Go's `url.ParseQuery` does.
pub(super) struct QueryParameters<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// Every piece of the query could be read. Upstream drops the others silently.
    clean: bool,
}

impl<'a> QueryParameters<'a> {
    /// More parameters than anybody needs; Go refuses all of a query with over 10,000.
    const MAX: usize = 1_000;

    /// Reads what can be read.
    pub(super) fn parse(query: Option<&'a str>) -> Self {
        let mut parameters = Self {
            pairs: Vec::new(),
            clean: true,
        };
        for (index, piece) in query.unwrap_or_default().split('&').enumerate() {
            if piece.is_empty() {
                continue;
            }
            let (key, value) = piece.split_once('=').unwrap_or((piece, ""));
            match (decode(key), decode(value)) {
                (Some(key), Some(value)) if index < Self::MAX => {
                    parameters.pairs.push((key, value));
                }
                _ => parameters.clean = false,
            }
        }
        parameters
    }

    fn checked(query: Option<&'a str>) -> Result<Self, InvalidOptions> {
        let parameters = Self::parse(query);
        if parameters.clean {
            Ok(parameters)
        } else {
            Err(InvalidOptions::Query)
        }
    }

    /// The value of the first parameter of this name.
    pub(super) fn first(&self, name: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_ref())
    }

    /// A boolean: `0` and `false` in any case are false, anything else, even nothing, is true.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        // Go folds case by Unicode, where the long s is an s.
        let says_false = |value: &str| value.replace('\u{17f}', "s").eq_ignore_ascii_case("false");
        self.first(name)
            .map(|value| value != "0" && !says_false(value))
    }

    /// Go's `ParseInt` in base 10, which an empty value fails.
    fn integer(&self, name: &str) -> Result<Option<i64>, ()> {
        self.first(name)
            .map(|value| value.parse().map_err(|_| ()))
            .transpose()
    }

    /// Returns true if upstream can decode the list options, selectors included.
    pub(super) fn decode_as_list_options(&self) -> bool {
        self.integer("limit").is_ok()
            && self.integer("timeoutSeconds").is_ok()
            && self
                .first("labelSelector")
                .is_none_or(|text| LabelSelector::parse(text).is_ok())
            && self
                .first("fieldSelector")
                .is_none_or(|text| FieldSelector::parse(text).is_ok())
    }

    /// `pretty`, if it has a value (`isPrettyPrint` in `handlers/negotiation/negotiate.go`).
    pub(super) fn pretty(&self) -> Option<bool> {
        self.first("pretty")
            .filter(|value| !value.is_empty())
            .map(|value| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"))
    }

    fn version(&self) -> Result<VersionParam, InvalidOptions> {
        match self.first("resourceVersion") {
            None | Some("") => Ok(VersionParam::Unset),
            Some("0") => Ok(VersionParam::Zero),
            // Upstream takes leading zeros; and revisions are signed numbers inside etcd.
            Some(text) => ResourceVersion::parse(text)
                .filter(|version| !text.starts_with('0') && i64::try_from(version.0).is_ok())
                .map(VersionParam::At)
                .ok_or(InvalidOptions::Version),
        }
    }

    /// Upstream refuses a malformed `timeout` on everything but watches (`request_deadline.go`).
    /// Only the plain durations that clients send are understood, for example `32s` or `1m0s`.
    fn check_timeout(&self) -> Result<(), InvalidOptions> {
        let mut rest = self.first("timeout").unwrap_or_default();
        while !rest.is_empty() {
            let number = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            let digits = rest.len() - number.len();
            let tail = ["ms", "s", "m", "h"]
                .iter()
                .find_map(|unit| number.strip_prefix(unit));
            rest = match tail {
                Some(tail) if (1..=6).contains(&digits) => tail,
                _ => return Err(InvalidOptions::Timeout),
            };
        }
        Ok(())
    }
}

/// `url.QueryUnescape`; `None` for what Go refuses, and for text that is no UTF-8.
fn decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains(['%', '+', ';']) {
        return Some(Cow::Borrowed(text));
    }
    let escapes_are_whole = text.split('%').skip(1).all(|tail| {
        let digits = tail.as_bytes();
        digits.len() >= 2 && digits[..2].iter().all(u8::is_ascii_hexdigit)
    });
    if text.contains(';') || !escapes_are_whole {
        return None;
    }
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8().ok()?;
    Some(Cow::Owned(decoded.into_owned()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEVEN: ResourceVersion = ResourceVersion(7);

    fn options(query: &str) -> ListOptions {
        ListOptions::parse(Some(query)).unwrap_or_else(|e| panic!("{query:?}: {e}"))
    }

    #[test]
    fn reads_all_parameters() {
        let query = "watch=1&resourceVersion=7&resourceVersionMatch=NotOlderThan&limit=5&continue=abc\
            &sendInitialEvents=true&allowWatchBookmarks=true&timeoutSeconds=300&labelSelector=a%3Db%2Cc\
            &fieldSelector=metadata.name%3Dx+y&pretty=true&timeout=32s&unknown=%F0%9F%8C%8A";
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
            pretty: true,
            timeout: true,
        };
        assert_eq!(options(query), expected);
    }

    #[test]
    fn takes_empty_values_for_absent_ones() {
        let nothing = ListOptions::parse(None).unwrap();
        let empty = "&&resourceVersion=&resourceVersionMatch&continue=&labelSelector=&fieldSelector=&pretty=";
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
            ("shardSelector=", Bad::Unknown("shardSelector")),
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
        assert!(options("timeout=1m30s").timeout);
        assert!(options("watch=1&timeout=abc").timeout, "watches ignore it");
    }

    #[test]
    fn starts_watches_as_upstream_does() {
        use WatchStart as Start;
        let state = |at_least, end_mark| Start::StateFromCache { at_least, end_mark };
        let sie = "&resourceVersionMatch=NotOlderThan&sendInitialEvents";
        for (query, start) in [
            (String::new(), Start::Consistent),
            ("&allowWatchBookmarks=true".to_owned(), Start::Consistent),
            (format!("{sie}=true"), Start::Consistent),
            (format!("{sie}=false"), Start::Consistent),
            ("&resourceVersion=0".to_owned(), state(None, false)),
            (
                "&resourceVersion=0&allowWatchBookmarks=1".to_owned(),
                state(None, true),
            ),
            (
                format!("&resourceVersion=0{sie}=1&allowWatchBookmarks=1"),
                state(None, true),
            ),
            (
                format!("&resourceVersion=0{sie}=0&allowWatchBookmarks=1"),
                Start::EventsAfterCurrentCache,
            ),
            ("&resourceVersion=7".to_owned(), Start::EventsAfter(SEVEN)),
            (
                "&resourceVersion=7&continue=x&limit=1".to_owned(),
                Start::EventsAfter(SEVEN),
            ),
            (
                format!("&resourceVersion=7{sie}=0"),
                Start::EventsAfter(SEVEN),
            ),
            (
                format!("&resourceVersion=7{sie}=1"),
                state(Some(SEVEN), false),
            ),
            (
                format!("&resourceVersion=7{sie}=1&allowWatchBookmarks"),
                state(Some(SEVEN), true),
            ),
            ("&sendInitialEvents=true".to_owned(), Start::Invalid),
            (
                "&resourceVersion=7&sendInitialEvents=false".to_owned(),
                Start::Invalid,
            ),
            (
                "&resourceVersionMatch=NotOlderThan".to_owned(),
                Start::Invalid,
            ),
            (
                "&resourceVersion=7&resourceVersionMatch=Exact".to_owned(),
                Start::Invalid,
            ),
            (
                "&resourceVersionMatch=Exact&sendInitialEvents=true".to_owned(),
                Start::Invalid,
            ),
            ("&continue=x".to_owned(), Start::Invalid),
            ("&continue=x&resourceVersion=0".to_owned(), Start::Invalid),
            (
                format!("&continue=x&resourceVersion=7{sie}=1"),
                Start::Invalid,
            ),
        ] {
            assert_eq!(
                options(&format!("watch=1{query}")).watch_start(),
                start,
                "{query:?}"
            );
        }
        assert_eq!(options("resourceVersion=7").watch_start(), Start::Invalid);
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
        use ListRead as Read;
        for (query, read) in [
            ("", Read::Consistent),
            ("limit=5", Read::Consistent),
            ("resourceVersion=0", Read::Any),
            ("resourceVersion=0&limit=5", Read::Any),
            (
                "resourceVersion=0&resourceVersionMatch=NotOlderThan",
                Read::Any,
            ),
            ("resourceVersion=7", Read::NotOlderThan(SEVEN)),
            ("resourceVersion=7&limit=-1", Read::NotOlderThan(SEVEN)),
            ("resourceVersion=7&limit=5", Read::Exact(SEVEN)),
            (
                "resourceVersion=7&limit=5&fieldSelector=spec.nodeName=a",
                Read::Exact(SEVEN),
            ),
            (
                "resourceVersion=7&limit=5&fieldSelector=metadata.name=a",
                Read::Invalid,
            ),
            (
                "resourceVersion=7&resourceVersionMatch=NotOlderThan&limit=5",
                Read::NotOlderThan(SEVEN),
            ),
            (
                "resourceVersion=7&resourceVersionMatch=Exact",
                Read::Exact(SEVEN),
            ),
            ("continue=x", Read::Continue),
            ("continue=x&resourceVersion=0&limit=5", Read::Continue),
            ("continue=x&resourceVersion=7", Read::Invalid),
            (
                "continue=x&resourceVersion=0&resourceVersionMatch=NotOlderThan",
                Read::Invalid,
            ),
            ("resourceVersionMatch=NotOlderThan", Read::Invalid),
            ("resourceVersionMatch=Exact", Read::Invalid),
            (
                "resourceVersion=0&resourceVersionMatch=Exact",
                Read::Invalid,
            ),
            ("sendInitialEvents=false", Read::Invalid),
            ("watch=1", Read::Invalid),
        ] {
            assert_eq!(options(query).list_read(), read, "{query:?}");
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
        assert_eq!(get_read(None), Ok(GetRead::Consistent));
        assert_eq!(
            get_read(Some("resourceVersion=&limit=abc&export=false")),
            Ok(GetRead::Consistent)
        );
        assert_eq!(
            get_read(Some("resourceVersion=0&resourceVersionMatch=Foo")),
            Ok(GetRead::Any)
        );
        assert_eq!(
            get_read(Some("resourceVersion=7&timeout=10s")),
            Ok(GetRead::NotOlderThan(SEVEN))
        );
        assert_eq!(
            get_read(Some("resourceVersion=x")),
            Err(InvalidOptions::Version)
        );
        assert_eq!(get_read(Some("export")), Err(InvalidOptions::Export));
        assert_eq!(get_read(Some("timeout=x")), Err(InvalidOptions::Timeout));
        assert_eq!(get_read(Some("a;b")), Err(InvalidOptions::Query));
    }

    fn escaped(text: &str) -> String {
        percent_encoding::percent_encode(text.as_bytes(), percent_encoding::NON_ALPHANUMERIC)
            .to_string()
    }

    proptest! {
        #[test]
        fn never_panics(query in any::<String>()) {
            let _ = get_read(Some(&query));
            if let Ok(options) = ListOptions::parse(Some(&query)) {
                let _ = (options.watch_start(), options.list_read());
            }
        }

        #[test]
        fn every_combination_has_a_meaning(
            query in "(watch=1)?(&resourceVersion=(0|7|00))?(&resourceVersionMatch=(Exact|NotOlderThan))?\
                (&sendInitialEvents=(true|false))?(&limit=[0-9])?(&continue=x)?(&fieldSelector=[a=!\\\\]{0,3})?",
        ) {
            if let Ok(options) = ListOptions::parse(Some(&query)) {
                let _ = (options.watch_start(), options.list_read(), options.page_limit());
            }
        }

        #[test]
        fn escaped_values_come_back(label in ".{1,12}", field in ".{1,12}", token in "[a-zA-Z0-9_-]{1,40}") {
            let query = format!(
                "labelSelector={}&continue={token}&fieldSelector={}", escaped(&label), escaped(&field),
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
}
