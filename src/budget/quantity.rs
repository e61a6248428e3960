//! Quantities as Kubernetes writes them.

/// Parses a number of bytes as Kubernetes writes quantities: `512Mi`, `1.5Gi`, `2G`, `1e9`, `0`.
/// A part of a byte counts as one.
///
/// Source: `apimachinery/pkg/api/resource/quantity.go` (ParseQuantity) and `suffix.go`.
pub fn parse_quantity(text: &str) -> Result<u64, String> {
    let malformed = || format!("{text:?} is not a quantity of bytes such as 512Mi or 2Gi");
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return Err(malformed());
    }
    let digits: u128 = format!("{whole}{fraction}")
        .parse()
        .map_err(|_| malformed())?;
    let factor = factor(suffix).ok_or_else(malformed)?;
    let parts = 10_u128
        .checked_pow(fraction.len() as u32)
        .ok_or_else(malformed)?;
    let bytes = digits.checked_mul(factor).ok_or_else(malformed)?;
    u64::try_from(bytes.div_ceil(parts)).map_err(|_| format!("{text:?} is too large"))
}

/// Returns what a suffix stands for.
fn factor(suffix: &str) -> Option<u128> {
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    if let Some(index) = binary.iter().position(|known| *known == suffix) {
        return Some(1 << (10 * (index + 1)));
    }
    let decimal = ["", "k", "M", "G", "T", "P", "E"];
    if let Some(index) = decimal.iter().position(|known| *known == suffix) {
        return Some(10_u128.pow(3 * index as u32));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    10_u128.checked_pow(exponent.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_written_as_in_kubernetes() {
        for (text, bytes) in [
            ("0", 0),
            ("512Mi", 512 << 20),
            ("1.5Gi", 3 << 29),
            ("2G", 2_000_000_000),
            ("100k", 100_000),
            ("1e9", 1_000_000_000),
            ("1E3", 1000),
            (".5Ki", 512),
            ("0.1", 1),
            ("1234", 1234),
        ] {
            assert_eq!(parse_quantity(text), Ok(bytes), "{text}");
        }
        for text in [
            "", "Mi", "-1Mi", "512MB", "512 Mi", "1.2.3", "1mi", "1e", ".",
        ] {
            assert!(parse_quantity(text).is_err(), "{text}");
        }
        assert!(parse_quantity("16Ei").is_err(), "too large");
        assert!(parse_quantity(&"9".repeat(60)).is_err());
    }
}
