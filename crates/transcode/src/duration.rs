//! `metav1.Duration`, printed by Go's `time.Duration.String`.
use crate::text::put_string;

const SECOND: u64 = 1_000_000_000;

/// Appends a number of nanoseconds as `1h2m3.5s`.
pub(crate) fn put_duration(nanoseconds: i64, out: &mut Vec<u8>) {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let text = match nanoseconds.unsigned_abs() {
        0 => "0s".to_owned(),
        size @ ..1_000 => format!("{sign}{size}ns"),
        size @ ..1_000_000 => format!("{sign}{}\u{b5}s", decimal(size, 1_000)),
        size @ ..SECOND => format!("{sign}{}ms", decimal(size, 1_000_000)),
        size => format!("{sign}{}", clock(size)),
    };
    put_string(text.as_bytes(), out);
}

/// Formats hours, minutes and seconds, without the leading ones that are zero.
fn clock(size: u64) -> String {
    let minutes = size / SECOND / 60;
    let seconds = decimal(size - minutes * 60 * SECOND, SECOND);
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// Formats `size / unit`, a power of ten, without zeros at the end.
fn decimal(size: u64, unit: u64) -> String {
    let (whole, fraction) = (size / unit, size % unit);
    if fraction == 0 {
        return whole.to_string();
    }
    let digits = unit.ilog10() as usize;
    let text = format!("{whole}.{fraction:0digits$}");
    text.trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_as_go_prints_them() {
        for (nanoseconds, expected) in [
            (0, "0s"),
            (1, "1ns"),
            (-999, "-999ns"),
            (1_000, "1\u{b5}s"),
            (1_010, "1.01\u{b5}s"),
            (1_100_000, "1.1ms"),
            (999_999_999, "999.999999ms"),
            (1_000_000_000, "1s"),
            (1_500_000_000, "1.5s"),
            (60_000_000_000, "1m0s"),
            (61_000_000_001, "1m1.000000001s"),
            (3_600_000_000_000, "1h0m0s"),
            (-3_723_500_000_000, "-1h2m3.5s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            let mut out = Vec::new();
            put_duration(nanoseconds, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), format!("\"{expected}\""));
        }
    }
}
