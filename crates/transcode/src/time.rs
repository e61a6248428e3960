//! `metav1.Time` and `metav1.MicroTime`.
//! Sources: `apimachinery/pkg/apis/meta/v1/time.go`, `time_proto.go`, and those of `micro_time`.
use prost::encoding::WireType;

use crate::unexplained::Reason;
use crate::wire;

/// The precision that a type of time prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimePrecision {
    Seconds,
    Microseconds,
}

/// Appends a time in RFC 3339, or `null` for the zero time, whose message is empty.
pub(crate) fn put_time(
    message: &[u8],
    precision: TimePrecision,
    out: &mut Vec<u8>,
) -> Result<(), Reason> {
    if message.is_empty() {
        out.extend_from_slice(b"null");
        return Ok(());
    }
    let [seconds, nanos] = wire::small_message(message, [WireType::Varint; 2])?;
    let seconds = seconds.map_or(0, |field| field.varint().cast_signed());
    let nanos = wire::int32(nanos.map_or(0, wire::SmallField::varint))?;
    if !(0..1_000_000_000).contains(&nanos) {
        return Err(Reason::Value("nanoseconds beyond a second"));
    }
    let Date { year, month, day } = Date::of(seconds)?;
    let second = seconds.rem_euclid(SECONDS_OF_DAY);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let mut text = *b"\"0000-00-00T00:00:00";
    text[1..5].copy_from_slice(&digits::<4>(year));
    for (at, number) in [(6, month), (9, day), (12, hour), (15, minute), (18, second)] {
        text[at..at + 2].copy_from_slice(&digits::<2>(number));
    }
    out.extend_from_slice(&text);
    if precision == TimePrecision::Microseconds {
        out.push(b'.');
        out.extend_from_slice(&digits::<6>(i64::from(nanos) / 1000));
    }
    out.extend_from_slice(b"Z\"");
    Ok(())
}

/// Returns the last `N` digits of a number that is not negative. Formatting is slower, and objects
/// have many times.
fn digits<const N: usize>(mut number: i64) -> [u8; N] {
    let mut digits = [b'0'; N];
    for digit in digits.iter_mut().rev() {
        *digit += (number % 10).to_le_bytes()[0];
        number /= 10;
    }
    digits
}

/// A date of the Gregorian calendar.
struct Date {
    year: i64,
    month: i64,
    day: i64,
}

impl Date {
    /// Returns the date of a number of seconds since 1970, in UTC.
    ///
    /// Every year begins on the first of March here: so the leap day is a year's last, and months
    /// have 30.6 days on average, from the first on.
    fn of(seconds: i64) -> Result<Self, Reason> {
        if !(YEAR_ZERO..YEAR_TEN_THOUSAND).contains(&seconds) {
            return Err(Reason::Value("a time beyond the years 0 to 9999"));
        }
        if seconds == ZERO_TIME {
            return Err(Reason::Value("a time in the first second of the year 1"));
        }
        let days = (seconds - MARCH_OF_YEAR_MINUS_400).div_euclid(SECONDS_OF_DAY);
        let (era, day_of_era) = (days / DAYS_OF_ERA, days % DAYS_OF_ERA);
        // Leap years: every fourth, not every hundredth, but the last of an era.
        let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / (DAYS_OF_ERA - 1);
        let year_of_era = (day_of_era - leap_days) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let is_next_year = month_from_march >= 10;
        Ok(Self {
            year: era * 400 - 400 + year_of_era + i64::from(is_next_year),
            month: (month_from_march + 2) % 12 + 1,
            day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
        })
    }
}

const SECONDS_OF_DAY: i64 = 86_400;
/// The days after which the calendar repeats: 400 years.
const DAYS_OF_ERA: i64 = 146_097;
/// The zero time of Go. Its message is empty, and its JSON `null`.
const ZERO_TIME: i64 = -62_135_596_800;
const YEAR_ZERO: i64 = -62_167_219_200;
const YEAR_TEN_THOUSAND: i64 = 253_402_300_800;
/// The first of March of the year -400, from which all days of the years 0 to 9999 are counted.
const MARCH_OF_YEAR_MINUS_400: i64 = YEAR_ZERO + 60 * SECONDS_OF_DAY - DAYS_OF_ERA * SECONDS_OF_DAY;

#[cfg(test)]
mod tests {
    use super::*;
    use prost::encoding::{encode_key, encode_varint};

    fn message(seconds: i64, nanos: i32) -> Vec<u8> {
        let mut message = Vec::new();
        encode_key(1, WireType::Varint, &mut message);
        encode_varint(seconds.cast_unsigned(), &mut message);
        encode_key(2, WireType::Varint, &mut message);
        encode_varint(i64::from(nanos).cast_unsigned(), &mut message);
        message
    }

    fn printed(message: &[u8], precision: TimePrecision) -> Result<String, Reason> {
        let mut out = Vec::new();
        put_time(message, precision, &mut out)?;
        Ok(String::from_utf8(out).expect("JSON is UTF-8"))
    }

    #[test]
    fn times_are_printed_in_utc() {
        let seconds = |time: i64| printed(&message(time, 0), TimePrecision::Seconds);
        assert_eq!(seconds(0).as_deref(), Ok(r#""1970-01-01T00:00:00Z""#));
        assert_eq!(seconds(-1).as_deref(), Ok(r#""1969-12-31T23:59:59Z""#));
        assert_eq!(
            seconds(951_827_696).as_deref(),
            Ok(r#""2000-02-29T12:34:56Z""#)
        );
        assert_eq!(
            seconds(253_402_300_799).as_deref(),
            Ok(r#""9999-12-31T23:59:59Z""#)
        );
        assert_eq!(
            seconds(-62_167_219_200).as_deref(),
            Ok(r#""0000-01-01T00:00:00Z""#)
        );
        assert_eq!(printed(b"", TimePrecision::Seconds).as_deref(), Ok("null"));
        assert_eq!(
            printed(b"", TimePrecision::Microseconds).as_deref(),
            Ok("null")
        );
    }

    #[test]
    fn dates_follow_each_other_for_ten_thousand_years() {
        let length = |year: i64, month: i64| match month {
            2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let mut seconds = YEAR_ZERO;
        for year in 0..=9999 {
            for month in 1..=12 {
                for day in 1..=length(year, month) {
                    if seconds != ZERO_TIME {
                        let date = Date::of(seconds).expect("the year is in range");
                        assert_eq!((date.year, date.month, date.day), (year, month, day));
                    }
                    seconds += SECONDS_OF_DAY;
                }
            }
        }
        assert_eq!(seconds, YEAR_TEN_THOUSAND);
    }

    #[test]
    fn micro_times_have_six_digits() {
        let nanos = |nanos| printed(&message(0, nanos), TimePrecision::Microseconds);
        assert_eq!(nanos(0).as_deref(), Ok(r#""1970-01-01T00:00:00.000000Z""#));
        assert_eq!(
            nanos(1_999).as_deref(),
            Ok(r#""1970-01-01T00:00:00.000001Z""#)
        );
        assert_eq!(
            nanos(999_999_999).as_deref(),
            Ok(r#""1970-01-01T00:00:00.999999Z""#)
        );
        assert!(nanos(-1).is_err());
        assert!(nanos(1_000_000_000).is_err());
    }

    #[test]
    fn times_that_json_cannot_say_are_unexplained() {
        for seconds in [
            i64::MIN,
            i64::MAX,
            253_402_300_800,
            -62_167_219_201,
            -62_135_596_800,
        ] {
            assert!(printed(&message(seconds, 0), TimePrecision::Seconds).is_err());
        }
    }
}
