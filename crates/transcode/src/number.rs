//! Numbers as Go's encoding/json prints them.
use std::io::Write as _;

use crate::unexplained::Reason;

/// Appends an integer.
pub(crate) fn put_integer(value: i64, out: &mut Vec<u8>) {
    // Most are small, and formatting is slower than this.
    if let Ok(digit @ 0..10) = u8::try_from(value) {
        out.push(b'0' + digit);
    } else {
        put(format_args!("{value}"), out);
    }
}

/// Appends a float with as few digits as identify it.
/// Source: `encoding/json/encode.go`, `floatEncoder`.
pub(crate) fn put_float(value: f64, out: &mut Vec<u8>) -> Result<(), Reason> {
    if !value.is_finite() {
        return Err(Reason::Value("a float that is not finite"));
    }
    let Decimal {
        sign,
        digits,
        exponent,
    } = Decimal::of(value);
    let (first, more) = digits.split_at(1);
    let size = value.abs();
    if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let point = if more.is_empty() { "" } else { "." };
        put(format_args!("{sign}{first}{point}{more}e{exponent:+}"), out);
    } else if exponent < 0 {
        let zeros = usize::from(exponent.unsigned_abs()) - 1;
        put(format_args!("{sign}0.{:0<zeros$}{digits}", ""), out);
    } else {
        let whole = usize::from(exponent.unsigned_abs()) + 1;
        match digits.split_at_checked(whole) {
            Some((whole, fraction)) if !fraction.is_empty() => {
                put(format_args!("{sign}{whole}.{fraction}"), out);
            }
            _ => put(format_args!("{sign}{digits:0<whole$}"), out),
        }
    }
    Ok(())
}

/// The fewest decimal digits that identify a float: `digits[0].digits[1..]` times ten to `exponent`.
struct Decimal {
    sign: &'static str,
    digits: String,
    exponent: i16,
}

impl Decimal {
    fn of(value: f64) -> Self {
        let shortest = format!("{:e}", value.abs());
        let length = shortest
            .bytes()
            .take_while(|byte| *byte != b'e')
            .filter(u8::is_ascii_digit);
        // Of two texts that are equally near, Go takes the even one. So does Rust if it is told how
        // many digits there are, but not if it finds the fewest.
        let nearest = format!("{:.*e}", length.count() - 1, value.abs());
        let (digits, exponent) = nearest.split_once('e').unwrap_or((&nearest, "0"));
        Self {
            sign: if value.is_sign_negative() { "-" } else { "" },
            digits: digits.replace('.', ""),
            exponent: exponent.parse().unwrap_or(0),
        }
    }
}

fn put(text: std::fmt::Arguments<'_>, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = out.write_fmt(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_printed_as_go_prints_them() {
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (0.1, "0.1"),
            (100.0, "100"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (-1.25e22, "-1.25e+22"),
            (1e-6, "0.000001"),
            (9.99e-7, "9.99e-7"),
            (5e-324, "5e-324"),
            // Halfway between two texts of 17 digits.
            (4_292_741_566_850_369.0 / 4.0, "1073185391712592.2"),
            (4_292_741_566_850_371.0 / 4.0, "1073185391712592.8"),
            (123.456, "123.456"),
            (f64::MAX, "1.7976931348623157e+308"),
        ] {
            let mut out = Vec::new();
            put_float(value, &mut out).expect("the float is finite");
            assert_eq!(String::from_utf8_lossy(&out), expected);
        }
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(put_float(value, &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn integers_at_their_limits() {
        for value in [0, 9, 10, -1, i64::MIN, i64::MAX] {
            let mut out = Vec::new();
            put_integer(value, &mut out);
            assert_eq!(out, value.to_string().as_bytes());
        }
    }
}
