//! Compares upstream's objects with those held, after an interruption that leaves it open whether
//! upstream still has the history that was followed.
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use watershed_protocol::ResourceVersion;

use crate::backoff::PauseRange;
use crate::scope::cached::Scope;
use crate::store::Snapshot;
use crate::upstream::{AnswerError, Probe, ProbeList, in_time};

/// Number of objects that are compared. Of a larger type, these are the first.
const SAMPLE: usize = 500;
/// Timeout of a comparison.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses after a comparison that failed.
const PAUSES: PauseRange = PauseRange::new(Duration::from_millis(200), Duration::from_secs(5));
/// Time after which the attempts end: upstream cannot be compared with.
const LIMIT: Duration = Duration::from_secs(30);

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HistoryVerdict {
    /// Upstream's objects can have followed on those held.
    Proven,
    /// It cannot be told, or the timeline has ended.
    Unknown,
}

/// Compares upstream's objects with those held until there is an answer, or for [`LIMIT`].
///
/// A contradiction ends the timeline if upstream itself has shown what is held.
pub(super) async fn find_out(
    scope: Arc<Scope>,
    probe: Probe,
    is_upstreams: bool,
) -> HistoryVerdict {
    let (mut backoff, began) = (PAUSES.backoff(), Instant::now());
    loop {
        let error = match ask(&scope, &probe, is_upstreams).await {
            Ok(verdict) => return verdict,
            Err(error) => error,
        };
        tracing::debug!(
            resource = %scope.key.gvr,
            %error,
            "cannot compare upstream's objects with those held"
        );
        if began.elapsed() >= LIMIT {
            return HistoryVerdict::Unknown;
        }
        sleep(backoff.pause()).await;
    }
}

/// Returns `true` if the same question will probably get the same answer.
fn is_refusal(error: &AnswerError) -> bool {
    error.is_lasting_refusal() || matches!(error, AnswerError::Unusable(_))
}

async fn ask(
    scope: &Scope,
    probe: &Probe,
    is_upstreams: bool,
) -> Result<HistoryVerdict, AnswerError> {
    let held = scope.reader.followed();
    let question = scope.ask();
    let list = in_time(ANSWER_TIMEOUT, probe.list(SAMPLE)).await?;
    if question.answered(list.version).is_err() {
        return Ok(HistoryVerdict::Unknown);
    }
    let contradicts = match compare(&held, &list) {
        HistoryComparison::Follows => return Ok(HistoryVerdict::Proven),
        HistoryComparison::Contradicts(version) => version,
        // The state that is held tells, if upstream still knows what it was itself.
        HistoryComparison::Open => {
            let past = probe.list_at(held.version(), SAMPLE);
            match in_time(ANSWER_TIMEOUT, past).await {
                Ok(past) => match compare(&held, &past) {
                    HistoryComparison::Follows => return Ok(HistoryVerdict::Proven),
                    HistoryComparison::Contradicts(version) => version,
                    HistoryComparison::Open => held.version(),
                },
                Err(error) if is_refusal(&error) => return Ok(HistoryVerdict::Unknown),
                Err(error) => return Err(error),
            }
        }
    };
    if is_upstreams {
        question.contradicted(contradicts);
    }
    Ok(HistoryVerdict::Unknown)
}

/// The relation of a list to an earlier state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HistoryComparison {
    /// The list can have followed.
    Follows,
    /// Objects are missing. They may have been deleted before or after the state.
    Open,
    /// An object has a version from before the state, and was another one in it.
    Contradicts(ResourceVersion),
}

fn compare(held: &Snapshot, list: &ProbeList) -> HistoryComparison {
    let mut known = 0;
    for (key, version) in &list.objects {
        let object = held.get(key);
        known += usize::from(object.is_some());
        let is_held = object.is_some_and(|object| object.version == *version);
        if *version <= held.version() && !is_held {
            return HistoryComparison::Contradicts(*version);
        }
    }
    if list.is_complete && known < held.len() {
        HistoryComparison::Open
    } else {
        HistoryComparison::Follows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::SnapshotBuilder;
    use crate::upstream::Collect;
    use bytes::Bytes;
    use http::StatusCode;
    use watershed_protocol::{Encoding, FieldTable, GroupVersionResource, WireFormat, scan};

    /// Returns the state at version 10 with two pods, of versions 4 and 8.
    fn held() -> Snapshot {
        let item = |name: &str, version: u64| {
            format!(
                r#"{{"metadata":{{"name":"{name}","namespace":"n","resourceVersion":"{version}"}}}}"#
            )
        };
        let body = format!(
            r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"10"}},"items":[{},{}]}}"#,
            item("a", 4),
            item("b", 8)
        ) + "\n";
        let (format, page) = WireFormat::learn(Encoding::Json, "Pod", &Bytes::from(body)).unwrap();
        let format = Arc::new(format);
        let gvr = GroupVersionResource::new("", "v1", "pods");
        let fields = FieldTable::builtin(&gvr, true).unwrap();
        let mut builder = SnapshotBuilder::begin(&format, &fields);
        for object in &page.objects {
            builder.add(object, scan(Encoding::Json, object, &fields).unwrap());
        }
        builder.finish(page.version)
    }

    #[test]
    fn a_list_contradicts_a_state_if_it_shows_its_past_differently() {
        let compared = |objects: &[(&str, u64)], is_complete| {
            let objects = objects
                .iter()
                .map(|(key, version)| ((*key).to_owned(), ResourceVersion(*version)));
            compare(
                &held(),
                &ProbeList {
                    version: ResourceVersion(20),
                    objects: objects.collect(),
                    is_complete,
                },
            )
        };
        for (objects, is_complete, expected) in [
            (
                &[("n/a", 4), ("n/b", 8)][..],
                true,
                HistoryComparison::Follows,
            ),
            // Changed and created since.
            (
                &[("n/a", 11), ("n/b", 8), ("n/c", 12)],
                true,
                HistoryComparison::Follows,
            ),
            (&[("n/a", 4)], false, HistoryComparison::Follows),
            // Deleted, nobody knows when.
            (&[("n/a", 4)], true, HistoryComparison::Open),
            (&[("n/a", 4), ("n/c", 12)], true, HistoryComparison::Open),
            // Objects that were not so.
            (
                &[("n/a", 3), ("n/b", 8)],
                true,
                HistoryComparison::Contradicts(ResourceVersion(3)),
            ),
            (
                &[("n/a", 9)],
                false,
                HistoryComparison::Contradicts(ResourceVersion(9)),
            ),
            (
                &[("n/a", 4), ("n/c", 10)],
                false,
                HistoryComparison::Contradicts(ResourceVersion(10)),
            ),
        ] {
            assert_eq!(compared(objects, is_complete), expected, "{objects:?}");
        }
    }

    #[test]
    fn an_answer_that_broke_off_is_asked_for_again() {
        let refused = |status| AnswerError::Refused {
            status,
            retry_after: Some(Duration::from_secs(1)),
        };
        for (error, is_final) in [
            (refused(StatusCode::GONE), true),
            (refused(StatusCode::FORBIDDEN), true),
            (refused(StatusCode::TOO_MANY_REQUESTS), false),
            (refused(StatusCode::SERVICE_UNAVAILABLE), false),
            (AnswerError::Unusable("a form".to_owned()), true),
            (AnswerError::Cut("reset".into()), false),
            (AnswerError::Late(ANSWER_TIMEOUT), false),
        ] {
            assert_eq!(is_refusal(&error), is_final, "{error}");
        }
    }
}
