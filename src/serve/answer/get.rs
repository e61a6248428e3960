//! One object by name.
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use watershed_protocol::{Malformed, RowTable, Status, object_key};

use super::indented::indented;
use super::response::{Answer, from_memory};
use super::{gzip, status};
use crate::body::full;
use crate::budget::MemoryBudget;
use crate::serve::plan::ReadPlan;
use crate::serve::reads::freshness::FreshScope;
use crate::serve::reads::open::{AnswerForm, OpenedScope, OpenedTable};
use crate::serve::reads::unfolding;
use crate::serve::source::ForwardReason;
use crate::store::StoredObject;

/// Answers with the object, or with upstream's words that it does not exist.
pub(in crate::serve) fn answer(
    fresh: &FreshScope,
    read: &ReadPlan,
    name: &str,
    headers: &HeaderMap,
    budget: &MemoryBudget,
) -> Result<Answer, ForwardReason> {
    let opened = &fresh.opened;
    let key = object_key(read.selection.namespace.as_deref(), name);
    let snapshot = opened.scope.reader.snapshot();
    if snapshot.version() < fresh.min_version {
        return Err(ForwardReason::VersionAhead);
    }
    let warnings = &opened.ready.warnings;
    let response = if let Some(object) = snapshot.get(&key).map(Arc::clone) {
        let body = body_of(opened, &object, budget).map_err(|_| {
            opened.note_irreducible(&object);
            opened.form.reason()
        })?;
        let encoding = opened.representation.encoding;
        let body = if read.is_indented(encoding) {
            let length = body.len() as u64;
            indented(std::iter::once(body), length).map_err(|_| ForwardReason::Representation)?
        } else {
            full(body)
        };
        from_memory(StatusCode::OK, encoding.content_type(), body, warnings)
    } else if !opened.is_complete {
        return Err(ForwardReason::NotCovered);
    } else if let Some(reason) = read.refused_by_upstream() {
        return Err(reason);
    } else {
        let not_found = Status::not_found(&read.resource.gvr, name);
        status::status(&not_found, read.refusals, warnings)
    };
    Ok(Answer::new(fresh.source, gzip::apply(headers, response)))
}

/// Returns the object in the form of the answer.
fn body_of(
    opened: &OpenedScope,
    object: &StoredObject,
    budget: &MemoryBudget,
) -> Result<Bytes, Malformed> {
    let bytes = unfolding::bytes(budget, object);
    match &opened.form {
        AnswerForm::Whole => Ok(opened.ready.format.get_body(&bytes)),
        AnswerForm::Metadata(partial) => Ok(partial.get_body(&partial.metadata(&bytes)?)),
        AnswerForm::Table(OpenedTable { form, request }) => {
            let table = RowTable {
                request: *request,
                version: object.version,
                has_columns: true,
                now: Timestamp::now(),
            };
            form.get_body(&bytes, &table)
        }
    }
}
