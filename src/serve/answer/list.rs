//! A list of a snapshot's objects.
use std::time::Instant;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt;
use watershed_protocol::{Freshness, ListParts, Malformed};

use super::gzip;
use super::indented::indented;
use super::items::Items;
use super::list_body::{CompressedRuns, ListBody, ListSource, PlainItems};
use super::page::Page;
use super::response::{Answer, from_memory};
use crate::body::{Body, InMemory, holding};
use crate::fairness::Share;
use crate::serve::limits::list_memory::ListMemory;
use crate::serve::plan::{ListPlan, ReadPlan};
use crate::serve::reads::freshness::FreshScope;
use crate::serve::reads::open::OpenedScope;
use crate::serve::source::ForwardReason;
use crate::serve::unanswered::Unanswered;
use crate::store::{SnapshotAt, StateAt};
use crate::work::retire;

/// The surroundings of a list, besides its scope.
pub(in crate::serve) struct ListContext<'a, P> {
    pub(in crate::serve) headers: &'a HeaderMap,
    /// Counts what the list takes of its own.
    pub(in crate::serve) memory: ListMemory,
    /// Returns the caller's share of a state that is kept for the next page.
    pub(in crate::serve) page_state: P,
}

/// Answers with one page of the objects.
pub(in crate::serve) async fn answer<P: FnOnce() -> Option<Share>>(
    fresh: &FreshScope,
    read: &ReadPlan,
    list: &ListPlan,
    context: ListContext<'_, P>,
) -> Result<Answer, Unanswered> {
    let state = state(fresh, read)?;
    let answer = page_of(&state, fresh, read, list, context).await;
    // Changes during the walk may have left it the last to hold what it walked over.
    if !fresh.opened.scope.reader.holds(state.newest()) {
        let objects = state.newest().len();
        retire(state, objects);
    }
    answer
}

/// Returns the state that a list is about.
fn state(fresh: &FreshScope, read: &ReadPlan) -> Result<StateAt, ForwardReason> {
    let scope = &fresh.opened.scope;
    let reader = &scope.reader;
    let state: StateAt = match read.freshness {
        // Clients are to learn from upstream that it is gone, and how to go on without it.
        Freshness::Exact(version) if scope.may_be_dropped_upstream(version) => {
            return Err(ForwardReason::Exact);
        }
        Freshness::Exact(version) => match reader.state_at(version) {
            SnapshotAt::Found(state) => state,
            SnapshotAt::Future => return Err(ForwardReason::VersionAhead),
            SnapshotAt::Expired => return Err(ForwardReason::Exact),
        },
        _ => reader.snapshot().into(),
    };
    // The scope may have been listed anew at another server since it was fresh.
    if state.version() < fresh.min_version {
        return Err(ForwardReason::VersionAhead);
    }
    Ok(state)
}

async fn page_of<P: FnOnce() -> Option<Share>>(
    state: &StateAt,
    fresh: &FreshScope,
    read: &ReadPlan,
    list: &ListPlan,
    context: ListContext<'_, P>,
) -> Result<Answer, Unanswered> {
    let ListContext {
        headers,
        mut memory,
        page_state,
    } = context;
    let reader = &fresh.opened.scope.reader;
    let namespace = read.selection.namespace.as_deref();
    let page = Page::cut(state, &fresh.opened, namespace, list, &mut memory).await?;
    if page.next.is_some()
        && state.version() > reader.event_version()
        && let Some(snapshot) = state.as_snapshot()
        && let Some(share) = page_state()
    {
        // The window does not lead back to a state that is ahead of its events.
        reader.pin(Instant::now(), snapshot.clone(), Box::new(share));
    }
    let parts = page.parts(state, list);
    let mut response = if read.is_indented(fresh.opened.representation.encoding) {
        respond_indented(&fresh.opened, page.items, parts, headers)
            .map_err(|_| ForwardReason::Representation)?
    } else {
        respond(&fresh.opened, page.items, parts, headers)
    };
    if let Some(held) = memory.until_sent() {
        response = response.map(|body| holding(body, held));
    }
    Ok(Answer::new(fresh.source, response))
}

fn respond(
    opened: &OpenedScope,
    items: Items,
    parts: ListParts,
    headers: &HeaderMap,
) -> Response<Body> {
    let length = parts.body_len();
    let (body, in_memory, is_compressed) = match items {
        // Runs in memory are kept compressed, too.
        Items::Runs(format, runs) if gzip::is_wanted(headers, length) => {
            let runs = CompressedRuns::new(&format, runs);
            (boxed(runs, parts), false, true)
        }
        items => {
            let items = PlainItems::new(items, length);
            let in_memory = items.is_in_memory();
            (boxed(items, parts), in_memory, false)
        }
    };
    let mut response = from_memory(
        StatusCode::OK,
        opened.representation.encoding.content_type(),
        body,
        &opened.ready.warnings,
    );
    if in_memory {
        response.extensions_mut().insert(InMemory);
    }
    if is_compressed {
        gzip::mark(response.headers_mut());
        return response;
    }
    response
        .headers_mut()
        .insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    gzip::apply(headers, response)
}

fn respond_indented(
    opened: &OpenedScope,
    items: Items,
    parts: ListParts,
    headers: &HeaderMap,
) -> Result<Response<Body>, Malformed> {
    let length = parts.body_len();
    let pieces = ListBody::new(PlainItems::new(items, length), parts);
    let response = from_memory(
        StatusCode::OK,
        opened.representation.encoding.content_type(),
        indented(pieces, length)?,
        &opened.ready.warnings,
    );
    Ok(gzip::apply(headers, response))
}

/// Returns the body of a list.
fn boxed(source: impl ListSource + Send + Unpin + 'static, parts: ListParts) -> Body {
    ListBody::new(source, parts)
        .map_err(|never| match never {})
        .boxed_unsync()
}
