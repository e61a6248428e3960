//! Formats of the figures on the page.
use std::time::Duration;

use watershed_figures::{grouped, three_digits};

/// Formats a count with separators: `1,234,567`.
pub(super) fn count(number: u64) -> String {
    grouped(number)
}

/// Formats a rate with up to three significant digits: 0, 0.52, 12.3, 1,234.
pub(super) fn rate(value: f64) -> String {
    match value {
        v if v < 0.005 => "0".into(),
        v if v < 1.0 => format!("{v:.2}"),
        v if v < 1000.0 => three_digits(v),
        v => whole(v),
    }
}

/// Formats a figure without its fraction.
pub(super) fn whole(value: f64) -> String {
    grouped(format_args!("{value:.0}"))
}

/// Formats a size in binary units: 12.3 MiB.
pub(super) fn bytes(bytes: f64) -> String {
    let mut value = bytes;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1024.0, larger);
    }
    let digits = match value {
        _ if unit == "B" => 0,
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

/// Formats a share with one decimal place: 97.5 %.
pub(super) fn percent(part: f64) -> String {
    match part * 100.0 {
        p if p >= 99.95 && part < 1.0 => "> 99.9 %".into(),
        p if p > 0.0 && p < 0.05 => "< 0.1 %".into(),
        p => format!("{p:.1} %"),
    }
}

/// Formats a duration in its two largest units.
pub(super) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (
        seconds / 86_400,
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60,
    ) {
        (0, 0, 0, 0) => format!("{} ms", duration.as_millis()),
        (0, 0, 0, s) => format!("{s} s"),
        (0, 0, m, s) => format!("{m} min {s} s"),
        (0, h, m, _) => format!("{h} h {m} min"),
        (d, h, ..) => format!("{d} d {h} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(
            [0.0, 0.001, 0.5, 3.0, 12.34, 999.0, 12_345.6].map(rate),
            ["0", "0", "0.50", "3.00", "12.3", "999", "12,346"]
        );
        assert_eq!(
            [0.0, 512.0, 1024.0, 1_048_575.0, 3e9].map(bytes),
            ["0 B", "512 B", "1.00 KiB", "1.00 MiB", "2.79 GiB"]
        );
        assert_eq!(
            [0.0, 0.0001, 0.975, 0.9999, 1.0].map(percent),
            ["0.0 %", "< 0.1 %", "97.5 %", "> 99.9 %", "100.0 %"]
        );
        let durations = [5, 1_000, 65_000, 3_700_000, 90_000_000]
            .map(|millis| duration(Duration::from_millis(millis)));
        assert_eq!(
            durations,
            ["5 ms", "1 s", "1 min 5 s", "1 h 1 min", "1 d 1 h"]
        );
    }
}
