//! Durations on the command line.
use std::time::Duration;

/// Parses a duration such as `20s` or `1m30s`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let signed: jiff::SignedDuration = text
        .parse()
        .map_err(|_| "write a duration such as 20s or 1m30s".to_owned())?;
    Duration::try_from(signed).map_err(|_| "it is negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
        assert!(parse_duration("-1s").is_err());
    }
}
