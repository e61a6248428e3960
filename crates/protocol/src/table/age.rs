//! Times of objects, and the time since then as people read it.
//!
//! Source: `apimachinery/pkg/util/duration/duration.go` (HumanDuration).
use std::borrow::Cow;

use jiff::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

const NANOS: i128 = 1_000_000_000;
/// Go's zero time, in seconds since the Unix epoch: the beginning of the year 1. It is printed as `null`, or
/// in full where it is not a field of its own.
const ZERO: i64 = -62_135_596_800;

/// The shape of a time up to its seconds.
const SECONDS: &[u8] = b"dddd-dd-ddTdd:dd:dd";

/// A moment of an object; `None` if it is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectTime(pub(super) Option<Timestamp>);

impl ObjectTime {
    /// Returns `true` if a text begins like a time in RFC 3339, with a date. Go refuses all others.
    pub(super) fn can_be(text: &str) -> bool {
        has_shape(text.as_bytes(), b"dddd-dd-ddT")
    }

    /// Parses a time in RFC 3339, as Go does. Returns `None` for any text whose meaning in Go is
    /// not certain.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if !has_shape(text.as_bytes(), SECONDS) {
            return None;
        }
        let (head, rest) = text.split_at(SECONDS.len());
        let (fraction, zone) = rest.split_at(rest.find(['Z', '+', '-'])?);
        let has_fraction = match fraction.as_bytes() {
            [] => true,
            [b'.', digits @ ..] => {
                (1..=9).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit)
            }
            _ => false,
        };
        // Go and the parser here have different bounds for the hours and minutes of an offset.
        let has_zone = match zone.as_bytes() {
            b"Z" => true,
            [_, offset @ ..] => {
                offset.len() == 5 && has_shape(offset, b"dd:dd") && zone[1..] < *"24:00"
            }
            [] => false,
        };
        // Leap seconds and hour 24 are errors in Go, and not here.
        let is_common = head[17..] < *"60" && head[11..] < *"24";
        let moment: Timestamp = text.parse().ok()?;
        let zero = Timestamp::from_second(ZERO).ok()?;
        // Go compares those before it with a time that is not set.
        let is_certain = has_fraction && has_zone && is_common && moment >= zero;
        is_certain.then_some(Self(Some(moment).filter(|moment| *moment != zero)))
    }

    /// Returns the time from this moment to `now`, as upstream's columns show it.
    pub(super) fn since(self, now: Timestamp) -> Cow<'static, str> {
        match self.0 {
            None => "<unknown>".into(),
            Some(then) => human_duration(between(then, now)).into(),
        }
    }
}

impl<'de> Deserialize<'de> for ObjectTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Option::<Cow<'de, str>>::deserialize(deserializer)? {
            None => Ok(Self(None)),
            Some(text) => Self::parse(&text).ok_or_else(|| D::Error::custom("an odd time")),
        }
    }
}

/// Reads a time that is a pointer in Go. One that is set and zero is printed as `null`, and one that is
/// not set is left out.
pub(super) fn pointer<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ObjectTime>, D::Error> {
    ObjectTime::deserialize(deserializer).map(Some)
}

/// Returns `true` if a text begins with this shape, in which a `d` stands for a digit.
fn has_shape(text: &[u8], shape: &[u8]) -> bool {
    let begin = text.get(..shape.len());
    begin.is_some_and(|begin| {
        begin.iter().zip(shape).all(|(byte, wanted)| match wanted {
            b'd' => byte.is_ascii_digit(),
            _ => byte == wanted,
        })
    })
}

/// Returns the nanoseconds from one moment to another, within the bounds of Go's `Duration`.
pub(super) fn between(then: Timestamp, now: Timestamp) -> i64 {
    let nanos = now.as_nanosecond() - then.as_nanosecond();
    let clamped = nanos.clamp(i64::MIN.into(), i64::MAX.into());
    i64::try_from(clamped).unwrap_or(i64::MAX)
}

/// Returns nanoseconds as people read them, with two or three digits of precision.
pub(super) fn human_duration(nanos: i64) -> String {
    let seconds = (i128::from(nanos) / NANOS) as i64;
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    // The smaller unit is left out if it is zero.
    let pair = |large: i64, unit: char, small: i64, small_unit: char| {
        if small == 0 {
            format!("{large}{unit}")
        } else {
            format!("{large}{unit}{small}{small_unit}")
        }
    };
    if seconds < -1 {
        "<invalid>".to_owned()
    } else if seconds < 0 {
        "0s".to_owned()
    } else if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        pair(minutes, 'm', seconds % 60, 's')
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        pair(hours, 'h', minutes % 60, 'm')
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 24 * 8 {
        pair(days, 'd', hours % 24, 'h')
    } else if hours < 24 * 365 * 2 {
        format!("{days}d")
    } else if hours < 24 * 365 * 8 {
        pair(days / 365, 'y', days % 365, 'd')
    } else {
        format!("{}y", days / 365)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_as_upstream_does() {
        const DAY: i64 = 86_400;
        for (seconds, text) in [
            (-3, "<invalid>"),
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (121, "2m1s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * 3600 - 1, "179m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 60, "3h1m"),
            (8 * 3600 - 1, "7h59m"),
            (8 * 3600, "8h"),
            (47 * 3600 + 3599, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + 3600, "2d1h"),
            (8 * DAY - 1, "7d23h"),
            (8 * DAY, "8d"),
            (729 * DAY, "729d"),
            (730 * DAY, "2y"),
            (731 * DAY, "2y1d"),
            (2920 * DAY - 1, "7y364d"),
            (2920 * DAY, "8y"),
            (3300 * DAY, "9y"),
        ] {
            assert_eq!(human_duration(seconds * 1_000_000_000), text, "{seconds}");
        }
        assert_eq!(human_duration(-1_999_999_999), "0s");
        assert_eq!(human_duration(119_999_999_999), "119s");
        assert_eq!(human_duration(i64::MAX), "292y");
        assert_eq!(human_duration(i64::MIN), "<invalid>");
    }

    #[test]
    fn times_are_read_only_if_their_meaning_is_certain() {
        let moment = |text| ObjectTime::parse(text);
        let seconds = |text| moment(text).unwrap().0.unwrap().as_second();
        assert_eq!(seconds("1970-01-01T00:01:00Z"), 60);
        assert_eq!(seconds("1970-01-01T00:01:00.999999Z"), 60);
        assert_eq!(seconds("1970-01-01T01:01:00.5+01:00"), 60);
        assert_eq!(seconds("1969-12-31T00:02:00-23:59"), 60);
        assert_eq!(seconds("1970-01-01T00:01:00-00:00"), 60);
        for zero in ["0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"] {
            assert_eq!(moment(zero), Some(ObjectTime(None)), "{zero}");
        }
        for odd in [
            "",
            "null",
            "1970-01-01",
            "1970-01-01 00:01:00Z",
            "1970-01-01t00:01:00Z",
            "1970-01-01T00:01:60Z",
            "1970-01-01T24:00:00Z",
            "1970-02-30T00:00:00Z",
            "1970-01-01T00:01:00,5Z",
            "1970-01-01T00:01:00.Z",
            "1970-01-01T00:01:00+24:00",
            "1970-01-01T00:01:00+01:60",
            "1970-01-01T00:01:00+01:00:00",
            "1970-01-01T00:01:00+0100",
            "1970-01-01T00:01:00Z[UTC]",
            "1970-01-01T1:01:00Z",
            "1970-01-01T00:01:0ü",
            "1970-01-01T00:01:00+ü",
            "1970-01-01T00:01:00",
            "0000-06-01T00:00:00Z",
        ] {
            assert_eq!(moment(odd), None, "{odd}");
        }
    }

    #[test]
    fn texts_without_a_date_are_no_times() {
        for text in [
            "never",
            "1970-01-01",
            "1970-01-01 00:00:00Z",
            "1970-1-01T",
            "ü970-01-01T",
        ] {
            assert!(!ObjectTime::can_be(text), "{text}");
        }
        assert!(ObjectTime::can_be("1970-13-01T1:00:00Z"));
    }

    #[test]
    fn unset_and_distant_times_have_ages() {
        let now: Timestamp = "2026-11-23T00:00:00Z".parse().unwrap();
        assert_eq!(ObjectTime(None).since(now), "<unknown>");
        let distant = ObjectTime::parse("0002-01-01T00:00:00Z").unwrap();
        assert_eq!(distant.since(now), "292y");
        let future = ObjectTime::parse("2026-11-23T00:00:02Z").unwrap();
        assert_eq!(future.since(now), "<invalid>");
    }
}
