//! A watch: from the present state, or from a version still in the window.
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::time::Instant;
use watershed_protocol::{ResourceVersion, WatchStart, accepts_gzip};

use super::gzip;
use super::response::{Answer, from_memory};
use crate::access::WatchGuard;
use crate::body::{Body, InMemory};
use crate::drain::DrainWatch;
use crate::headers::{self, HistoryName};
use crate::scope::Unfolding;
use crate::serve::metrics::{Labels, Meters};
use crate::serve::plan::WatchPlan;
use crate::serve::reads::freshness::FreshScope;
use crate::serve::reads::open::{AnswerForm, OpenedScope};
use crate::serve::source::{AnswerSource, ForwardReason};
use crate::store::{Snapshot, SubscriptionStart};
use crate::watcher::{
    ClientView, ContentCoding, Conversion, EndMark, InitialState, PartialView, TableView,
    WatchBody, WatchOptions,
};

/// Without `timeoutSeconds` a watch ends after one to two times this.
/// Source: `--min-request-timeout`, `apiserver/pkg/endpoints/handlers/get.go`.
const MIN_TIMEOUT: Duration = Duration::from_mins(30);
/// Longer than anybody waits, short enough to be added to a clock.
const MAX_TIMEOUT: Duration = Duration::from_hours(10 * 365 * 24);

/// The surroundings of a watch, besides its scope.
pub(in crate::serve) struct WatchContext<'a> {
    pub(in crate::serve) coding: ContentCoding,
    /// The arrival of the request.
    pub(in crate::serve) arrived: Instant,
    /// The time that its client gives it.
    pub(in crate::serve) timeout: Option<Duration>,
    /// The caller's right to see the watch.
    pub(in crate::serve) guard: WatchGuard,
    pub(in crate::serve) draining: &'a DrainWatch,
    pub(in crate::serve) meters: &'a Meters,
    pub(in crate::serve) labels: &'a Labels,
    /// Memory for the objects that it begins with, if they are folded.
    pub(in crate::serve) unfolding: Option<Unfolding>,
    /// Another proxy asks, which can use the name of the watch's history.
    pub(in crate::serve) is_of_proxy: bool,
}

/// Returns the coding of a watch. Upstream compresses the watches that mark the end of their
/// initial events, for clients that accept gzip.
/// Source: `apiserver/pkg/endpoints/handlers/watch.go` (BeginStream).
pub(in crate::serve) async fn coding(
    opened: &OpenedScope,
    watch: &WatchPlan,
    headers: &HeaderMap,
) -> ContentCoding {
    let is_marked = matches!(watch.start, WatchStart::State { end_mark: true, .. });
    if is_marked && accepts_gzip(headers) && opened.scope.forms.compression.is_on().await {
        ContentCoding::Gzip
    } else {
        ContentCoding::Identity
    }
}

/// Answers with the events, from where the watch starts.
pub(in crate::serve) fn answer(
    fresh: &FreshScope,
    watch: &WatchPlan,
    context: WatchContext<'_>,
) -> Result<Answer, ForwardReason> {
    let OpenedScope { scope, ready, .. } = &fresh.opened;
    let view = ClientView {
        filter: watch.filter.clone(),
        conversion: conversion(&fresh.opened).map(Box::new),
    };
    check_start(&fresh.opened, watch)?;
    // A wait for the watch's version counts, as upstream's does.
    let deadline = context.arrived + lifetime(context.timeout);
    if deadline <= Instant::now() {
        // Upstream need not wait for a list as this proxy did.
        return Err(ForwardReason::Syncing);
    }
    let (subscription, newest) = scope.reader.subscribe(
        subscription_start(fresh, watch.start),
        watch.filter.interest(&scope.fields),
    );
    let history = HistoryName {
        scope: scope.id,
        generation: newest.generation(),
    };
    if let WatchStart::After(version) = watch.start
        && subscription.is_expired()
        && scope.is_history_at_upstream(version)
    {
        return Err(ForwardReason::BeforeHistory);
    }
    let (snapshot, version) = starting_state(fresh, newest)?;
    check_reducible(&fresh.opened, &view, &snapshot)?;
    let (initial, source) = match watch.start {
        WatchStart::State { end_mark, .. } => {
            let runs = snapshot.into_runs(&view.filter.interest(&scope.fields));
            let end_mark = end_mark_of(&fresh.opened, &view, version, end_mark)?;
            let permit = context.unfolding.map(|unfolding| Box::new(unfolding) as _);
            let initial = InitialState::new(runs, scope.reader.clone(), end_mark, permit);
            (Some(initial), fresh.source)
        }
        WatchStart::Now(_) if fresh.source != AnswerSource::Snapshot => (None, fresh.source),
        WatchStart::After(_) | WatchStart::Now(_) => (None, AnswerSource::Window),
    };
    let coding = context.coding;
    let body = WatchBody::new(
        subscription,
        WatchOptions {
            format: Arc::clone(&ready.format),
            view,
            coding,
            start: match watch.start {
                WatchStart::After(version) => version,
                WatchStart::State { .. } | WatchStart::Now(_) => version,
            },
            initial,
            bookmarks: watch.bookmarks.then(|| Arc::clone(&scope.forms.bookmarks)),
            is_from_etcd: scope.key.gvr.is_event(),
            deadline,
            guard: context.guard,
            draining: context.draining.signal(),
            observer: context.meters.begin(context.labels),
        },
    );
    let body = body.map_err(|never| match never {}).boxed_unsync();
    let mut response = respond(&fresh.opened, coding, body);
    if context.is_of_proxy {
        let headers = response.headers_mut();
        headers.insert(headers::HISTORY, history.into());
    }
    Ok(Answer::new(source, response))
}

/// Returns the place in the scope's events from which a watch gets them.
fn subscription_start(fresh: &FreshScope, start: WatchStart) -> SubscriptionStart {
    match (start, &fresh.proven) {
        (WatchStart::After(version), _) => SubscriptionStart::After(version),
        // The scope's events may not have reached it. The watch skips those up to there, which
        // left no trace in what it selects.
        (_, Some(proven)) => SubscriptionStart::After(proven.version),
        (WatchStart::State { .. } | WatchStart::Now(_), None) => SubscriptionStart::Now,
    }
}

/// Returns the state at which a watch without a version starts: the proven one, or the newest.
fn starting_state(
    fresh: &FreshScope,
    newest: Snapshot,
) -> Result<(Snapshot, ResourceVersion), ForwardReason> {
    let (snapshot, version) = if let Some(proven) = &fresh.proven {
        if !proven.snapshot.shares_list_with(&newest) {
            // Listed again since the proof.
            return Err(ForwardReason::Syncing);
        }
        (proven.snapshot.clone(), proven.version)
    } else {
        let version = newest.version();
        (newest, version)
    };
    if version < fresh.min_version {
        return Err(ForwardReason::VersionAhead);
    }
    Ok((snapshot, version))
}

/// Returns an error if an object cannot be turned into what the client wants. The watch would end at
/// the object, whenever it began.
fn check_reducible(
    opened: &OpenedScope,
    view: &ClientView,
    snapshot: &Snapshot,
) -> Result<(), ForwardReason> {
    if view.cannot_show_all(snapshot) {
        return Err(opened.form.reason());
    }
    Ok(())
}

/// Returns the conversion for a client that does not want the objects as they are.
fn conversion(opened: &OpenedScope) -> Option<Conversion> {
    let forms = &opened.scope.forms;
    match &opened.form {
        AnswerForm::Whole => None,
        AnswerForm::Metadata(format) => Some(Conversion::Metadata(PartialView {
            format: format.clone(),
            irreducible: Arc::clone(&forms.irreducible),
        })),
        AnswerForm::Table(table) => Some(Conversion::Table(TableView {
            form: Arc::clone(&table.form),
            request: table.request,
            unprintable: Arc::clone(&forms.unprintable),
            is_first: true,
        })),
    }
}

fn respond(opened: &OpenedScope, coding: ContentCoding, body: Body) -> Response<Body> {
    let mut response = from_memory(
        StatusCode::OK,
        opened.representation.encoding.watch_content_type(),
        body,
        &opened.ready.warnings,
    );
    if coding == ContentCoding::Gzip {
        gzip::mark(response.headers_mut());
    }
    response.extensions_mut().insert(InMemory);
    response
}

/// Returns an error if upstream answers a watch from this start in another way.
fn check_start(opened: &OpenedScope, watch: &WatchPlan) -> Result<(), ForwardReason> {
    // A release that does not stream initial events refuses the parameter, even with `false`, and
    // does not mark the end of those it sends unasked.
    if watch.names_initial_events && !opened.ready.streams_initial_events {
        return Err(ForwardReason::InitialEvents);
    }
    match watch.start {
        // Upstream may still know what happened before this cache began: the client need not list.
        WatchStart::After(version) if opened.scope.is_before_first_list(version) => {
            Err(ForwardReason::BeforeFirstList)
        }
        _ => Ok(()),
    }
}

/// Returns the bookmark that ends the initial events, if the client wants one and upstream has it.
fn end_mark_of(
    opened: &OpenedScope,
    view: &ClientView,
    version: ResourceVersion,
    is_wanted: bool,
) -> Result<Option<EndMark>, ForwardReason> {
    if is_wanted && opened.ready.streams_initial_events {
        // Upstream marked the end of its own initial events, so its format is known.
        let format = opened.scope.forms.bookmarks.load_full();
        let format = format.filter(|format| view.end_mark(format, version).is_some());
        let format = format.ok_or(ForwardReason::InitialEvents)?;
        Ok(Some(EndMark { format, version }))
    } else {
        Ok(None)
    }
}

/// Returns the time after which a watch ends whose client gives it this one.
fn lifetime(timeout: Option<Duration>) -> Duration {
    match timeout {
        Some(timeout) => timeout.min(MAX_TIMEOUT),
        None => MIN_TIMEOUT.mul_f64(1.0 + fastrand::f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::DrainSignal;
    use crate::serve::metrics::WatchMeter;

    /// There may be a hundred thousand.
    #[test]
    fn an_open_watch_is_small() {
        let bytes = size_of::<WatchBody<WatchGuard, DrainSignal, WatchMeter>>();
        assert!(bytes <= 320, "{bytes}");
    }
}
