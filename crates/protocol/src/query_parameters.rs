//! The parameters of a URL's query, read as Go reads them.
//!
//! Source: `net/url` of Go (`ParseQuery`), `apimachinery/pkg/runtime/conversion.go` (values).
use std::borrow::Cow;
use std::num::ParseIntError;
use std::time::Duration;

use percent_encoding::percent_decode_str;

/// A query string cut into parameters as Go's `url.ParseQuery` does.
pub(super) struct QueryParameters<'a> {
    pairs: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    is_whole: bool,
}

impl<'a> QueryParameters<'a> {
    /// More parameters than anybody needs; Go refuses all of a query with over 10,000.
    const MAX: usize = 1_000;

    /// Reads what can be read.
    pub(super) fn parse(query: Option<&'a str>) -> Self {
        let mut parameters = Self {
            pairs: Vec::new(),
            is_whole: true,
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
                _ => parameters.is_whole = false,
            }
        }
        parameters
    }

    /// Returns `true` if every piece of the query could be read. Upstream drops the others silently.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Returns the value of the first parameter of this name.
    pub(super) fn first(&self, name: &str) -> Option<&str> {
        self.pairs
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_ref())
    }

    /// Returns a boolean: `0` and `false` in any case are false, anything else, even nothing, is true.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        // Go folds case by Unicode, where the long s is an s.
        let says_false = |value: &str| value.replace('\u{17f}', "s").eq_ignore_ascii_case("false");
        self.first(name)
            .map(|value| value != "0" && !says_false(value))
    }

    /// Parses an integer as Go's `ParseInt` does in base 10, which an empty value fails.
    pub(super) fn integer(&self, name: &str) -> Result<Option<i64>, ParseIntError> {
        self.first(name).map(str::parse).transpose()
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

/// Decodes text as `url.QueryUnescape` does; `None` for what Go refuses, and for text that is no UTF-8.
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
