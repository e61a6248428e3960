//! One object by name.
use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use watershed_protocol::{Status, object_key};

use super::indented::indented;
use super::response::{Answer, from_memory};
use super::{gzip, status};
use crate::body::full;
use crate::budget::MemoryBudget;
use crate::serve::plan::ReadPlan;
use crate::serve::reads::freshness::FreshScope;
use crate::serve::reads::unfolding;
use crate::serve::source::ForwardReason;

/// Answers with the object, or with upstream's words that it does not exist.
pub(in crate::serve) fn answer(
    fresh: &FreshScope,
    read: &ReadPlan,
    name: &str,
    headers: &HeaderMap,
    budget: &MemoryBudget,
) -> Result<Answer, ForwardReason> {
    let opened = &fresh.opened;
    let key = object_key(read.namespace.as_deref(), name);
    let snapshot = opened.scope.reader.snapshot();
    if snapshot.version() < fresh.min_version {
        return Err(ForwardReason::VersionAhead);
    }
    let warnings = &opened.ready.warnings;
    let response = if let Some(object) = snapshot.get(&key).map(Arc::clone) {
        let bytes = unfolding::bytes(budget, &object);
        let body = match (&opened.table, opened.partial()) {
            (Some(table), _) => table
                .form
                .get_body(table.request, &bytes, object.version, Timestamp::now())
                .map_err(|_| ForwardReason::Table)?,
            (None, None) => opened.ready.format.get_body(&bytes),
            (None, Some(partial)) => {
                let metadata = partial
                    .metadata(&bytes)
                    .map_err(|_| ForwardReason::Representation)?;
                partial.get_body(&metadata)
            }
        };
        let encoding = opened.representation.encoding;
        let body = if read.is_indented(encoding) {
            let length = body.len() as u64;
            indented(std::iter::once(body), length).map_err(|_| ForwardReason::Representation)?
        } else {
            full(body)
        };
        from_memory(StatusCode::OK, encoding.content_type(false), body, warnings)
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
