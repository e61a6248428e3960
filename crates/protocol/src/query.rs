//! The parameters of a URL's query, read as Go reads them.
//!
//! Source: `net/url` of Go (`ParseQuery`), `apimachinery/pkg/runtime/conversion.go` (values).
use std::borrow::Cow;
use std::num::ParseIntError;
use std::time::Duration;

use percent_encoding::percent_decode_str;

/// The query of a URL, cut into parameters as Go's `url.ParseQuery` does.
///
/// ```
/// use watershed_protocol::Query;
///
/// let query = Query::parse(Some("limit=5&resource%56ersion=7&resourceVersion=8"));
/// assert_eq!(query.first("resourceVersion"), Some("7"));
/// assert_eq!(query.integer("limit"), Ok(Some(5)));
/// assert_eq!(query.without("resourceVersion"), "limit=5");
/// let changed = query.with("resourceVersion", "9");
/// assert_eq!(changed.as_deref(), Some("limit=5&resourceVersion=9&resourceVersion=8"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    text: &'a str,
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    is_whole: bool,
}

impl<'a> Query<'a> {
    /// More parameters than anybody needs.
    const MAX: usize = 1_000;
    /// Pieces, empty ones among them, beyond which Go reads none of them.
    const MAX_OF_GO: usize = 10_000;

    /// Reads what can be read. Without a query there are no parameters.
    pub fn parse(query: Option<&'a str>) -> Self {
        let text = query.unwrap_or_default();
        let mut parsed = Self {
            text,
            pairs: Vec::new(),
            is_whole: text.bytes().filter(|&byte| byte == b'&').count() < Self::MAX_OF_GO,
        };
        for piece in text.split('&').filter(|piece| !piece.is_empty()) {
            match parameter(piece) {
                Some((name, value)) if parsed.pairs.len() < Self::MAX => {
                    parsed.is_whole &= name.is_utf8 && value.is_utf8;
                    parsed.pairs.push((name.text, value.text));
                }
                _ => parsed.is_whole = false,
            }
        }
        parsed
    }

    /// Returns the query as it was sent.
    pub fn as_str(&self) -> &'a str {
        self.text
    }

    /// Returns `true` if every piece of the query could be read. Upstream drops malformed ones silently, and
    /// takes text that is no UTF-8 as it is. Parameters beyond a thousand are not read here, and of very many
    /// pieces upstream reads none.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Returns `true` if any piece of the query has this name, whatever its value. It looks at all of them.
    pub fn has_name(&self, name: &str) -> bool {
        let mut pieces = self.text.split('&');
        pieces.any(|piece| {
            let given = piece.split_once('=').map_or(piece, |(given, _)| given);
            decode(given).is_some_and(|given| given.text == name)
        })
    }

    /// Returns the value of the first parameter of this name.
    pub fn first(&self, name: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_ref())
    }

    /// Returns a boolean: `0` and `false` in any case are false, anything else, even nothing, is true.
    pub fn flag(&self, name: &str) -> Option<bool> {
        // Go folds case by Unicode, where the long s is an s.
        let says_false = |value: &str| value.replace('\u{17f}', "s").eq_ignore_ascii_case("false");
        self.first(name)
            .map(|value| value != "0" && !says_false(value))
    }

    /// Parses an integer as Go's `ParseInt` does in base 10.
    ///
    /// # Errors
    ///
    /// The value is no integer, for example because it is empty.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, ParseIntError> {
        self.first(name).map(str::parse).transpose()
    }

    /// Returns the query without the parameters of this name. The others stay as they were sent.
    #[must_use]
    pub fn without(&self, name: &str) -> String {
        let pieces = self.text.split('&');
        let rest: Vec<_> = pieces.filter(|piece| !is_named(piece, name)).collect();
        rest.join("&")
    }

    /// Returns the query with another value of the first parameter of this name, which is the one that
    /// counts. Everything else stays as it was sent. Returns `None` if there is no such parameter.
    #[must_use]
    pub fn with(&self, name: &str, value: &str) -> Option<String> {
        let mut pieces: Vec<_> = self.text.split('&').collect();
        let first = pieces.iter_mut().find(|piece| is_named(piece, name))?;
        let value: String = form_urlencoded::byte_serialize(value.as_bytes()).collect();
        let changed = format!("{name}={value}");
        *first = &changed;
        Some(pieces.join("&"))
    }

    /// Returns `pretty`, if it has a value (`isPrettyPrint` in `handlers/negotiation/negotiate.go`).
    pub(super) fn pretty(&self) -> Option<bool> {
        self.first("pretty")
            .filter(|value| !value.is_empty())
            .map(|value| matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True"))
    }

    /// Parses `timeout`, which is zero if it is absent. Returns `None` if it is malformed: upstream refuses
    /// that on everything but watches (`request_deadline.go`).
    ///
    /// Only the plain durations that clients send are understood, for example `32s` or `1m0s`.
    pub(super) fn timeout(&self) -> Option<Duration> {
        const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
        let mut rest = self.first("timeout").unwrap_or_default();
        let mut sum = Duration::ZERO;
        while !rest.is_empty() {
            let number = rest.trim_start_matches(|c: char| c.is_ascii_digit());
            let digits = rest.len() - number.len();
            let (tail, millis) = UNITS
                .iter()
                .find_map(|(unit, millis)| Some((number.strip_prefix(unit)?, *millis)))?;
            if !(1..=6).contains(&digits) {
                return None;
            }
            let count: u64 = rest[..digits].parse().ok()?;
            sum = sum.saturating_add(Duration::from_millis(count * millis));
            rest = tail;
        }
        Some(sum)
    }
}

/// Text of a query, with replacement characters for bytes that are no UTF-8.
struct Decoded<'a> {
    text: Cow<'a, str>,
    is_utf8: bool,
}

/// Returns the name and the value in a piece of a query; `None` if Go drops it.
fn parameter(piece: &str) -> Option<(Decoded<'_>, Decoded<'_>)> {
    let (name, value) = piece.split_once('=').unwrap_or((piece, ""));
    Some((decode(name)?, decode(value)?))
}

/// Returns `true` if a piece of a query is a parameter of this name.
fn is_named(piece: &str, name: &str) -> bool {
    parameter(piece).is_some_and(|(given, _)| given.text == name)
}

/// Decodes text as `url.QueryUnescape` does; `None` for what Go refuses.
fn decode(text: &str) -> Option<Decoded<'_>> {
    if !text.contains(['%', '+', ';']) {
        let text = Cow::Borrowed(text);
        let is_utf8 = true;
        return Some(Decoded { text, is_utf8 });
    }
    let escapes_are_whole = text.split('%').skip(1).all(|tail| {
        let digits = tail.as_bytes();
        digits.len() >= 2 && digits[..2].iter().all(u8::is_ascii_hexdigit)
    });
    if text.contains(';') || !escapes_are_whole {
        return None;
    }
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced);
    let (text, is_utf8) = match decoded.clone().decode_utf8() {
        Ok(text) => (text.into_owned(), true),
        Err(_) => (decoded.decode_utf8_lossy().into_owned(), false),
    };
    let text = Cow::Owned(text);
    Some(Decoded { text, is_utf8 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_not_overlooked() {
        let many = format!("{}watch=1", "&".repeat(2_000));
        for (query, watch, is_whole) in [
            ("watch=%ff", Some("\u{fffd}"), false),
            ("watch=%zz&watch=1", Some("1"), false),
            ("watch=1;a=2", None, false),
            (&*many, Some("1"), true),
        ] {
            let parsed = Query::parse(Some(query));
            assert_eq!(
                (parsed.first("watch"), parsed.is_whole()),
                (watch, is_whole),
                "{query}"
            );
        }
        let most = format!("{}watch=1", "&".repeat(10_000));
        assert!(!Query::parse(Some(&most)).is_whole());
        let more = format!("{}watch=1", "a&".repeat(2_000));
        let more = Query::parse(Some(&more));
        assert_eq!((more.first("watch"), more.is_whole()), (None, false));
        assert!(more.has_name("watch") && !more.has_name("watc"));
    }

    #[test]
    fn a_changed_query_keeps_the_rest_as_it_was_sent() {
        for (query, without, with) in [
            ("a=1&b=%26", "b=%26", Some("a=x+y&b=%26")),
            ("b&a&b&a=2", "b&b", Some("b&a=x+y&b&a=2")),
            ("%61=1", "", Some("a=x+y")),
            ("a=%zz&a=1&;a=2", "a=%zz&;a=2", Some("a=%zz&a=x+y&;a=2")),
            ("A=1&aa=2&&", "A=1&aa=2&&", None),
            ("", "", None),
        ] {
            let parsed = Query::parse(Some(query));
            assert_eq!(parsed.without("a"), without, "{query}");
            assert_eq!(parsed.has_name("a"), with.is_some(), "{query}");
            let changed = parsed.with("a", "x y");
            assert_eq!(changed.as_deref(), with, "{query}");
            if let Some(changed) = changed {
                assert_eq!(Query::parse(Some(&changed)).first("a"), Some("x y"));
            }
        }
    }
}
