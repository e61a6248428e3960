//! Tells upstream how much is left of the time that a client gives its request.
use std::time::Duration;

use http::Uri;
use http::uri::PathAndQuery;
use watershed_protocol::{Query, request_timeout};

/// Time that may have passed here without upstream being told.
const UNNOTICED: Duration = Duration::from_millis(100);

/// Returns the target of a request, of whose time a part has passed here, with what is left of it. `None` if
/// the target can stay as it is.
pub(super) fn with_time_left(target: &Uri, is_watch: bool, passed: Duration) -> Option<Uri> {
    if passed < UNNOTICED {
        return None;
    }
    let query = target.query()?;
    let name = if is_watch {
        "timeoutSeconds"
    } else {
        "timeout"
    };
    // The first of several counts. One that is spelled in another way stays.
    let mut pieces = query.split('&').enumerate();
    let (place, value) = pieces.find_map(|(at, piece)| {
        let value = piece.strip_prefix(name)?.strip_prefix('=')?;
        Some((at, value))
    })?;
    let left = if is_watch {
        let seconds: u64 = value.parse().ok()?;
        let left = seconds.saturating_sub(passed.as_secs()).max(1);
        (left < seconds).then(|| left.to_string())?
    } else {
        go_duration(request_timeout(&Query::parse(Some(query)))?.saturating_sub(passed))?
    };
    let changed = format!("{name}={left}");
    let mut pieces: Vec<_> = query.split('&').collect();
    pieces[place] = &changed;
    let path = format!("{}?{}", target.path(), pieces.join("&"));
    let mut parts = target.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(path).ok()?);
    Uri::from_parts(parts).ok()
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
    use super::*;

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
            ("/a?timeout=soon", false, 500, None),
            ("/a?time%6Fut=1s", false, 500, None),
            ("/a?mytimeout=1s", false, 500, None),
            ("/a?timeout=1s", true, 500, None),
            ("/a", false, 500, None),
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
            ("/a?timeoutSeconds=10", true, 900, None),
            ("/a?timeoutSeconds=0", true, 3_100, None),
            ("/a?timeoutSeconds=x", true, 3_100, None),
        ] {
            let uri: Uri = target.parse().unwrap();
            let left = with_time_left(&uri, is_watch, Duration::from_millis(millis));
            let query = left.as_ref().and_then(Uri::query);
            assert!(query.is_none() || is_watch || request_timeout(&Query::parse(query)).is_some());
            assert_eq!(
                left.map(|uri| uri.to_string()).as_deref(),
                wanted,
                "{target}"
            );
        }
    }
}
