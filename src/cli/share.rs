//! Shares as values of flags.

/// The whole, in the unit of the values.
pub(super) const MILLION: u32 = 1_000_000;

/// Parses a share of the whole, as a percentage (0.1%) or a fraction (0.001), in millionths.
pub(super) fn share(text: &str) -> Result<u32, String> {
    let (number, whole) = match text.strip_suffix('%') {
        Some(percent) => (percent, f64::from(MILLION) / 100.0),
        None => (text, f64::from(MILLION)),
    };
    let number: f64 = number
        .trim_end()
        .parse()
        .map_err(|_| "neither a percentage nor a fraction".to_owned())?;
    let millionths = (number * whole).round();
    if !(0.0..=f64::from(MILLION)).contains(&millionths) {
        return Err("it is not between 0% and 100%".to_owned());
    }
    if millionths == 0.0 && number != 0.0 {
        return Err("it is less than a millionth".to_owned());
    }
    #[expect(clippy::cast_sign_loss, reason = "the range was checked")]
    Ok(millionths as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages_or_fractions() {
        for (text, millionths) in [
            ("0", 0),
            ("0.1%", 1000),
            ("0.001", 1000),
            ("100%", MILLION),
            ("1", MILLION),
            ("12.5 %", 125_000),
        ] {
            assert_eq!(share(text), Ok(millionths), "{text}");
        }
        for text in [
            "",
            "%",
            "101%",
            "1.1",
            "-1%",
            "NaN",
            "inf",
            "some",
            "0.00000001",
        ] {
            assert!(share(text).is_err(), "{text}");
        }
    }
}
