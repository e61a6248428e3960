//! Tells upstream how much is left of the time that a client gives its request.
use std::time::Duration;

use http::Uri;
use watershed_protocol::Query;

use crate::serve::target::with_query;

/// Time that may have passed here without upstream being told.
const UNNOTICED: Duration = Duration::from_millis(100);

/// Returns the target of a request with what is left of the time that its client gives it, of which a
/// part has passed here. `None` if the target can stay as it is.
pub(super) fn with_time_left(
    target: &Uri,
    is_watch: bool,
    given: Duration,
    passed: Duration,
) -> Option<Uri> {
    if passed < UNNOTICED {
        return None;
    }
    let (name, left) = if is_watch {
        ("timeoutSeconds", whole_seconds_left(given, passed)?)
    } else {
        ("timeout", go_duration(given.saturating_sub(passed))?)
    };
    let query = Query::parse(target.query()).with(name, &left)?;
    with_query(target, &query)
}

/// Returns the seconds that are left, if less than all are.
fn whole_seconds_left(given: Duration, passed: Duration) -> Option<String> {
    let given = given.as_secs();
    let left = given.saturating_sub(passed.as_secs()).max(1);
    (left < given).then(|| left.to_string())
}

/// Returns a time as a parameter, rounded down so that equal requests stay equal: another proxy may be next,
/// which answers those together. `None` if it does not read so many seconds.
fn go_duration(time: Duration) -> Option<String> {
    const COARSE: Duration = Duration::from_secs(5);
    const MOST: u64 = 999_999;
    if time >= COARSE {
        let seconds = time.as_secs();
        (seconds <= MOST).then(|| format!("{seconds}s"))
    } else {
        let tenths = (time.as_millis() / 100).max(1);
        Some(format!("{tenths}00ms"))
    }
}

#[cfg(test)]
mod tests {
    use watershed_protocol::request_timeout;

    use super::*;

    /// Returns the time that a client gives a request.
    fn time_of(target: &Uri, is_watch: bool) -> Option<Duration> {
        let query = Query::parse(target.query());
        if is_watch {
            let seconds = query.integer("timeoutSeconds").ok()??;
            Some(Duration::from_secs(seconds.try_into().ok()?))
        } else {
            request_timeout(&query)
        }
    }

    #[test]
    fn upstream_has_what_is_left() {
        for (target, is_watch, millis, wanted) in [
            (
                "/a?timeout=4s&b=c",
                false,
                1_440,
                Some("/a?timeout=2500ms&b=c"),
            ),
            (
                "/a?b=%26&timeout=1m",
                false,
                100,
                Some("/a?b=%26&timeout=59s"),
            ),
            ("/a?timeout=1h", false, 140, Some("/a?timeout=3599s")),
            (
                "/a?timeout=1s&timeout=2s",
                false,
                500,
                Some("/a?timeout=500ms&timeout=2s"),
            ),
            ("/a?timeout=1s", false, 5_000, Some("/a?timeout=100ms")),
            (
                "https://h/a?timeout=1s",
                false,
                200,
                Some("https://h/a?timeout=800ms"),
            ),
            ("/a?timeout=1s", false, 99, None),
            ("/a?timeout=9999h", false, 500, None),
            (
                "/a?mytimeout=2s&time%6Fut=1s&timeout=5s",
                false,
                500,
                Some("/a?mytimeout=2s&timeout=500ms&timeout=5s"),
            ),
            (
                "/a?timeoutSeconds=10&watch=1",
                true,
                3_100,
                Some("/a?timeoutSeconds=7&watch=1"),
            ),
            (
                "/a?timeoutSeconds=2",
                true,
                3_100,
                Some("/a?timeoutSeconds=1"),
            ),
            (
                "/a?timeout=1s&timeoutSeconds=10",
                true,
                3_100,
                Some("/a?timeout=1s&timeoutSeconds=7"),
            ),
            ("/a?timeoutSeconds=10", true, 900, None),
        ] {
            let uri: Uri = target.parse().unwrap();
            let given = time_of(&uri, is_watch).unwrap();
            let left = with_time_left(&uri, is_watch, given, Duration::from_millis(millis));
            if let Some(left) = &left {
                assert!(time_of(left, is_watch).is_some_and(|time| time < given));
            }
            assert_eq!(
                left.map(|uri| uri.to_string()).as_deref(),
                wanted,
                "{target}"
            );
        }
    }
}
