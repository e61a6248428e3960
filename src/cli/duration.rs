//! Durations as values of flags.
use std::time::Duration;

use watershed_figures::parse_duration;

/// Maximum value of these flags.
const MAX_DURATION: Duration = Duration::from_hours(24);

/// Maximum value of flags in seconds: a year.
pub(super) const MAX_SECONDS: u64 = 365 * 24 * 60 * 60;

/// Returns a duration, of a year at most: more cannot be added to every point in time.
pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds.min(MAX_SECONDS))
}

/// Parses a duration of at most a day as kube-apiserver's flags do: 5m, 30s, 1h30m, 0s.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration > MAX_DURATION {
        Err("it is longer than a day".to_owned())
    } else {
        Ok(duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_in_kube_apiserver() {
        for (text, seconds) in [
            ("5m", 300.0),
            ("30s", 30.0),
            ("0s", 0.0),
            ("1h30m", 5400.0),
            ("5m0s", 300.0),
            ("1.5s", 1.5),
        ] {
            assert_eq!(
                duration(text).map(|duration| duration.as_secs_f64()),
                Ok(seconds),
                "{text}"
            );
        }
        for (text, error) in [
            ("", "it is no duration such as 30s, 5m or 1h30m"),
            ("5", "it has no unit: write 5s or 5m"),
            ("-5m", "it is negative"),
            ("5 apples", "it is no duration such as 30s, 5m or 1h30m"),
            ("1000000h", "it is longer than a day"),
        ] {
            assert_eq!(duration(text), Err(error.to_owned()), "{text}");
        }
    }
}
