//! A watch: from the present state, or from a version still in the window.
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::decide::{Begin, Read, Watch};
use super::metrics::Labels;
use super::source::{AnswerSource, ForwardReason};
use super::{Inner, Opened, Outcome, from_memory, gzip};
use crate::access::Guard;
use crate::body::InMemory;
use crate::store::SubscriptionStart;
use crate::watcher::{ClientView, ContentCoding, InitialState, WatchBody, WatchOptions};
use watershed_protocol::accepts_gzip;

/// Without `timeoutSeconds` a watch ends after one to two times this.
/// Source: `--min-request-timeout`, `apiserver/pkg/endpoints/handlers/get.go`.
const MIN_TIMEOUT: Duration = Duration::from_mins(30);
/// Longer than anybody waits, short enough to be added to a clock.
const MAX_TIMEOUT: Duration = Duration::from_hours(10 * 365 * 24);

/// Compressed are the watches that mark the end of the state they begin with, for who takes gzip,
/// where upstream does so. Source: `apiserver/pkg/endpoints/handlers/watch.go` (BeginStream).
pub(super) async fn coding(opened: &Opened, watch: &Watch, headers: &HeaderMap) -> ContentCoding {
    let asked_for =
        matches!(watch.begin, Begin::State { end_mark: true, .. }) && accepts_gzip(headers);
    if asked_for && opened.scope.compression.is_on().await {
        ContentCoding::Gzip
    } else {
        ContentCoding::Identity
    }
}

pub(super) fn answer(
    server: &Inner,
    opened: &Opened,
    read: &Read,
    watch: &Watch,
    coding: ContentCoding,
    guard: Guard,
    labels: &Labels,
) -> Outcome {
    let Opened {
        scope,
        ready,
        representation,
        ..
    } = opened;
    let view = ClientView {
        filter: watch.filter.clone(),
        partial: opened.partial().map(Box::new),
    };
    // A release that does not stream initial events refuses to be asked, and does not mark the end
    // of those it sends unasked.
    if matches!(
        watch.begin,
        Begin::State {
            asked_for: true,
            ..
        }
    ) && !ready.streams_initial_events
    {
        return Outcome::Forward(ForwardReason::InitialEvents);
    }
    // What happened before this cache began, upstream may still know: no reason for the client to
    // list.
    if let Begin::After(version) = watch.begin
        && scope.is_before_first_list(version)
    {
        return Outcome::Forward(ForwardReason::BeforeFirstList);
    }
    let start = match watch.begin {
        Begin::After(version) => SubscriptionStart::After(version),
        Begin::State { .. } | Begin::Now => SubscriptionStart::Now,
    };
    let (subscription, snapshot) = scope
        .reader
        .subscribe(start, watch.filter.interest(&scope.fields));
    let version = snapshot.version();
    if version < opened.floor {
        return Outcome::Forward(ForwardReason::VersionAhead);
    }
    let (initial, source) = match watch.begin {
        Begin::State { end_mark, .. } => {
            let end_mark = if end_mark && ready.streams_initial_events {
                // Upstream marked the end of its own initial events, so its form is known.
                let format = scope.bookmarks.load_full();
                let Some(mark) = format.and_then(|format| view.end_mark(&format, version)) else {
                    return Outcome::Forward(ForwardReason::InitialEvents);
                };
                Some(mark)
            } else {
                None
            };
            let runs = snapshot.into_runs(watch.filter.namespace());
            (
                Some(InitialState {
                    runs,
                    rest: None,
                    end_mark,
                }),
                opened.source,
            )
        }
        Begin::Now if opened.source != AnswerSource::Snapshot => (None, opened.source),
        Begin::After(_) | Begin::Now => (None, AnswerSource::Window),
    };
    let timeout = match watch.timeout_seconds {
        Some(seconds) => Duration::from_secs(seconds).min(MAX_TIMEOUT),
        None => MIN_TIMEOUT.mul_f64(1.0 + fastrand::f64()),
    };
    let body = WatchBody::new(
        subscription,
        WatchOptions {
            format: Arc::clone(&ready.format),
            view,
            coding,
            start: match watch.begin {
                Begin::After(version) => version,
                Begin::State { .. } | Begin::Now => version,
            },
            initial,
            bookmarks: watch.bookmarks.then(|| Arc::clone(&scope.bookmarks)),
            deadline: Instant::now() + timeout,
            grant: guard,
            draining: server.draining.signal(),
            observer: server.meters.begin(labels, &read.resource),
        },
    );
    let body = body.map_err(|never| match never {}).boxed_unsync();
    let mut response = from_memory(
        StatusCode::OK,
        representation.encoding.content_type(true),
        body,
        &ready.warnings,
    );
    if coding == ContentCoding::Gzip {
        gzip::mark(response.headers_mut());
    }
    response.extensions_mut().insert(InMemory);
    Outcome::Answered(source, response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::DrainSignal;
    use crate::serve::metrics::WatchMeter;

    /// There may be a hundred thousand.
    #[test]
    fn an_open_watch_is_small() {
        let bytes = size_of::<WatchBody<Guard, DrainSignal, WatchMeter>>();
        assert!(bytes <= 320, "{bytes}");
    }
}
