//! A list of a snapshot's objects.
use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt;
use watershed_protocol::{ContinueToken, Freshness, ListParts, Malformed};

use super::gzip;
use super::indented::indented;
use super::list_body::{CompressedRuns, Items, ListBody, ListSource, PlainItems};
use super::response::{Answer, from_memory};
use crate::body::{Body, InMemory};
use crate::serve::freshness::FreshScope;
use crate::serve::open::OpenedScope;
use crate::serve::plan::{ListPlan, ReadPlan};
use crate::serve::source::ForwardReason;
use crate::store::{ObjectRun, Snapshot, SnapshotAt, StoredObject};

/// Answers with one page of the objects.
pub(in crate::serve) fn answer(
    fresh: &FreshScope,
    read: &ReadPlan,
    list: &ListPlan,
    headers: &HeaderMap,
) -> Result<Answer, ForwardReason> {
    let reader = &fresh.opened.scope.reader;
    let snapshot = match read.freshness {
        Freshness::Exact(version) => match reader.snapshot_at(Instant::now(), version) {
            SnapshotAt::Found(snapshot) => snapshot,
            SnapshotAt::Future => return Err(ForwardReason::VersionAhead),
            SnapshotAt::Expired => return Err(ForwardReason::Exact),
        },
        _ => reader.snapshot(),
    };
    // The scope may have been listed anew at another server since it was fresh.
    if snapshot.version() < fresh.min_version {
        return Err(ForwardReason::VersionAhead);
    }
    let page = Page::cut(&snapshot, &fresh.opened, read.namespace.as_deref(), list)
        .map_err(|_| ForwardReason::Representation)?;
    if page.token.is_some() && snapshot.version() > reader.event_version() {
        // The window does not lead back to a state that is ahead of its events.
        reader.pin(Instant::now(), snapshot.clone());
    }
    let parts = page.parts(&snapshot);
    let response = if read.is_indented(fresh.opened.representation.encoding) {
        respond_indented(&fresh.opened, page.items, parts, headers)
            .map_err(|_| ForwardReason::Representation)?
    } else {
        respond(&fresh.opened, page.items, parts, headers)
    };
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
            let (body, in_memory) = boxed(CompressedRuns::new(&format, runs), parts);
            (body, in_memory, true)
        }
        items => {
            let (body, in_memory) = boxed(PlainItems::new(items, length), parts);
            (body, in_memory, false)
        }
    };
    let mut response = from_memory(
        StatusCode::OK,
        opened.representation.encoding.content_type(false),
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
        opened.representation.encoding.content_type(false),
        indented(pieces, length)?,
        &opened.ready.warnings,
    );
    Ok(gzip::apply(headers, response))
}

/// Returns the body of a list, and whether it is made of bytes in memory.
fn boxed(source: impl ListSource + Send + Unpin + 'static, parts: ListParts) -> (Body, bool) {
    let in_memory = source.is_in_memory();
    let body = ListBody::new(source, parts)
        .map_err(|never| match never {})
        .boxed_unsync();
    (body, in_memory)
}

/// The objects of one answer, as references. The body holds no bytes of its own but those it sends.
struct Page {
    items: Items,
    /// The token of the next page, if there is one.
    token: Option<String>,
    /// Number of objects after this page, if it is known without looking at them.
    remaining: Option<i64>,
}

impl Page {
    /// Returns what comes before and after the items.
    fn parts(&self, snapshot: &Snapshot) -> ListParts {
        self.items.format().list_parts(
            snapshot.version(),
            self.token.as_deref(),
            self.remaining,
            self.items.count(),
            self.items.bytes(),
        )
    }

    /// Source: `apiserver/pkg/storage/continue.go` (PrepareContinueToken) and
    /// `apiserver/pkg/storage/cacher/cacher.go` (GetList).
    fn cut(
        snapshot: &Snapshot,
        opened: &OpenedScope,
        namespace: Option<&str>,
        list: &ListPlan,
    ) -> Result<Self, Malformed> {
        let limit = list.limit.unwrap_or(usize::MAX);
        let format = &opened.ready.format;
        let partial = opened.partial();
        let (items, last, rest) = if list.filter.is_plain() && partial.is_none() {
            let (runs, rest) =
                first_runs(snapshot.runs_after(namespace, list.after.as_deref()), limit);
            let last = runs
                .last()
                .and_then(|run| run.objects().last())
                .map(Arc::clone);
            (Items::Runs(Arc::clone(format), runs), last, rest)
        } else {
            let (objects, rest) = selected(snapshot, opened, namespace, list, limit);
            let last = objects.last().map(Arc::clone);
            let items = match partial {
                None => Items::Objects(Arc::clone(format), objects),
                Some(partial) => {
                    let metadata = objects.iter().map(|object| partial.metadata(&object.bytes));
                    let metadata = metadata.collect::<Result<_, _>>()?;
                    Items::Metadata(partial, metadata)
                }
            };
            (items, last, rest)
        };
        // The objects that follow may not match: the last page of a selection may be empty.
        let last = last.filter(|_| rest > 0);
        let token = last.map(|last| {
            let key = last.key();
            let after = namespace
                .map_or(key, |namespace| &key[namespace.len() + 1..])
                .to_owned();
            ContinueToken {
                version: snapshot.version(),
                after,
            }
            .encode()
        });
        let plain = token.is_some() && list.filter.is_plain();
        Ok(Self {
            items,
            token,
            remaining: plain.then(|| i64::try_from(rest).unwrap_or(i64::MAX)),
        })
    }
}

/// Returns the first `limit` objects, and the number of those after them.
fn first_runs(all: impl Iterator<Item = ObjectRun>, limit: usize) -> (Vec<ObjectRun>, usize) {
    let (mut runs, mut left, mut rest) = (Vec::new(), limit, 0);
    for mut run in all {
        let whole = run.len();
        run.truncate(left);
        left -= run.len();
        rest += whole - run.len();
        if !run.is_empty() {
            runs.push(run);
        }
    }
    (runs, rest)
}

/// Returns the first `limit` objects that match, and the number of those after them, matching or
/// not.
fn selected(
    snapshot: &Snapshot,
    opened: &OpenedScope,
    namespace: Option<&str>,
    list: &ListPlan,
    limit: usize,
) -> (Vec<Arc<StoredObject>>, usize) {
    let filter = &list.filter;
    let whole = list.limit.is_none() && list.after.is_none();
    if whole {
        let interest = filter.interest(&opened.scope.fields);
        let mut objects = Vec::new();
        for run in snapshot.clone().into_runs(&interest) {
            let matching = run.objects().iter();
            let matching = matching.filter(|object| filter.matches(&object.attributes));
            objects.extend(matching.cloned());
        }
        return (objects, 0);
    }
    let mut items = snapshot.items_after(namespace, list.after.as_deref());
    let matching = items
        .by_ref()
        .filter(|object| filter.matches(&object.attributes));
    let objects: Vec<_> = matching.take(limit).cloned().collect();
    let rest = if objects.len() == limit {
        items.count()
    } else {
        0
    };
    (objects, rest)
}
