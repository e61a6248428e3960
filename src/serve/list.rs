//! A list of the newest snapshot's objects.
use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::BodyExt;

use super::decide::{List, Read};
use super::list_body::{CompressedListBody, Items, ListBody};
use super::source::ForwardReason;
use super::{Opened, Outcome, from_memory, gzip};
use crate::body::InMemory;
use crate::store::{ObjectRun, Snapshot, SnapshotAt, StoredObject};
use watershed_protocol::{ContinueToken, Malformed};

pub(super) fn answer(opened: &Opened, read: &Read, list: &List, headers: &HeaderMap) -> Outcome {
    let reader = &opened.scope.reader;
    let snapshot = match list
        .exact
        .map(|version| reader.snapshot_at(Instant::now(), version))
    {
        None => reader.snapshot(),
        Some(SnapshotAt::Found(snapshot)) => snapshot,
        Some(SnapshotAt::Future) => return Outcome::Forward(ForwardReason::VersionAhead),
        Some(SnapshotAt::Expired) => return Outcome::Forward(ForwardReason::Exact),
    };
    // Listed anew since it was looked at, at another server.
    if snapshot.version() < opened.floor {
        return Outcome::Forward(ForwardReason::VersionAhead);
    }
    let page = Page::cut(&snapshot, opened, read.namespace.as_deref(), list);
    let Ok(page) = page else {
        return Outcome::Forward(ForwardReason::Representation);
    };
    if page.token.is_some() && snapshot.version() > reader.event_version() {
        // The window does not lead back to a state that is ahead of its events.
        reader.pin(Instant::now(), snapshot.clone());
    }
    let Page {
        items,
        token,
        remaining,
    } = page;
    let (count, bytes) = (items.count(), items.bytes());
    let parts = items.format().list_parts(
        snapshot.version(),
        token.as_deref(),
        remaining,
        count,
        bytes,
    );
    let length = parts.body_len();
    let content_type = opened.representation.encoding.content_type(false);
    let respond = |body| from_memory(StatusCode::OK, content_type, body, &opened.ready.warnings);
    let response = match items {
        // What lies in memory as it is sent lies there compressed, too.
        Items::Runs(format, runs) if gzip::is_wanted(headers, length) => {
            let body = CompressedListBody::new(&format, runs, parts);
            let in_memory = body.is_in_memory();
            let mut response = respond(body.map_err(|never| match never {}).boxed_unsync());
            gzip::mark(response.headers_mut());
            if in_memory {
                response.extensions_mut().insert(InMemory);
            }
            response
        }
        items => {
            let body = ListBody::new(items, parts);
            let in_memory = body.is_in_memory();
            let mut response = respond(body.map_err(|never| match never {}).boxed_unsync());
            response
                .headers_mut()
                .insert(header::CONTENT_LENGTH, HeaderValue::from(length));
            if in_memory {
                response.extensions_mut().insert(InMemory);
            }
            gzip::apply(headers, response)
        }
    };
    Outcome::Answered(opened.source, response)
}

/// Whether the answer has so few objects at the most.
pub(super) fn is_within(
    snapshot: &Snapshot,
    namespace: Option<&str>,
    list: &List,
    most: usize,
) -> bool {
    let items = snapshot.items_after(namespace, list.after.as_deref());
    let wanted = items
        .filter(|object| list.filter.matches(&object.attributes))
        .take(most + 1)
        .count();
    wanted.min(list.limit.unwrap_or(usize::MAX)) <= most
}

/// The objects of one answer: references only, the body holds no bytes of its own but what it
/// sends.
struct Page {
    items: Items,
    /// Where the next page begins, if there is one.
    token: Option<String>,
    /// How many objects come after this page, where that can be told without looking at them.
    remaining: Option<i64>,
}

impl Page {
    /// Source: `apiserver/pkg/storage/continue.go` (PrepareContinueToken) and
    /// `apiserver/pkg/storage/cacher/cacher.go` (GetList).
    fn cut(
        snapshot: &Snapshot,
        opened: &Opened,
        namespace: Option<&str>,
        list: &List,
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
        // Whether what follows matches is not looked at: the last page of a selection may be empty.
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

/// The first `limit` objects, and how many come after them.
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

/// The first `limit` objects that match, and how many come after them, matching or not.
fn selected(
    snapshot: &Snapshot,
    opened: &Opened,
    namespace: Option<&str>,
    list: &List,
    limit: usize,
) -> (Vec<Arc<StoredObject>>, usize) {
    let filter = &list.filter;
    let whole = list.limit.is_none() && list.after.is_none();
    let indexed = opened.scope.fields.indexed().filter(|_| whole);
    if let Some(position) = indexed
        && let Some(value) = filter.equal_to(position)
        && let Some(objects) = snapshot.with_field(position, value)
    {
        return (
            objects
                .filter(|object| filter.matches(&object.attributes))
                .cloned()
                .collect(),
            0,
        );
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
