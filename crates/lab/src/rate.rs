//! Rates of events.
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer};

use crate::from_text::from_text;

/// More in a second is nothing that one process could pace.
const MOST: f64 = 100_000.0;
/// Less than once in eleven days is never, to all who wait for it.
const LEAST: f64 = 1e-6;

/// Times a second, evenly spread: `5/s`, `30/m`, `0.5/s`, or a bare number of times a second. Zero
/// is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Rate(f64);

impl Rate {
    /// Times a second.
    pub fn per_second(self) -> f64 {
        self.0
    }

    /// Returns `true` if the rate is zero.
    pub fn is_never(self) -> bool {
        self.0 == 0.0
    }

    /// When the n-th time is due, counted from 0 and from the start.
    pub(super) fn due(self, n: u64) -> Duration {
        Duration::try_from_secs_f64(n as f64 / self.0).unwrap_or(Duration::MAX)
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
        let seconds = match unit {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err("not a rate like 5/s or 30/m".to_owned()),
        };
        let times: f64 = number
            .parse()
            .map_err(|_| "not a rate like 5/s or 30/m".to_owned())?;
        let rate = times / seconds;
        if rate == 0.0 || (LEAST..=MOST).contains(&rate) {
            Ok(Self(rate))
        } else {
            Err(format!("not 0, and not between {LEAST}/s and {MOST}/s"))
        }
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read() {
        let rate = |text: &str| text.parse::<Rate>().map(Rate::per_second);
        assert_eq!(rate("5/s"), Ok(5.0));
        assert_eq!(rate("30/m"), Ok(0.5));
        assert_eq!(rate("0.25"), Ok(0.25));
        assert_eq!(rate("0"), Ok(0.0));
        for wrong in [
            "", "-1/s", "5/d", "a/s", "inf", "NaN", "1e9/s", "1e-300/s", "/s", "5/",
        ] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            "4/s".parse::<Rate>().unwrap().due(6),
            Duration::from_millis(1500)
        );
    }
}
