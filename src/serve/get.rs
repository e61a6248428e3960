//! One object by name.
use std::sync::Arc;

use http::StatusCode;

use super::decide::Read;
use super::source::ForwardReason;
use super::{Opened, Outcome, answer, from_memory};
use crate::body::full;
use watershed_protocol::Status;

pub(super) fn answer(opened: &Opened, read: &Read, name: &str) -> Outcome {
    let key = match &read.namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    };
    let snapshot = opened.scope.reader.snapshot();
    if snapshot.version() < opened.floor {
        return Outcome::Forward(ForwardReason::VersionAhead);
    }
    let found = snapshot.get(&key).map(Arc::clone);
    let warnings = &opened.ready.warnings;
    let response = if let Some(object) = found {
        let body = match opened.partial() {
            None => opened.ready.format.get_body(&object.bytes),
            Some(partial) => match partial.metadata(&object.bytes) {
                Ok(metadata) => partial.get_body(&metadata),
                Err(_) => return Outcome::Forward(ForwardReason::Representation),
            },
        };
        let content_type = opened.representation.encoding.content_type(false);
        from_memory(StatusCode::OK, content_type, full(body), warnings)
    } else if !opened.is_complete {
        return Outcome::Forward(ForwardReason::NotCovered);
    } else if let Some(reason) = read.refused_by_upstream() {
        return Outcome::Forward(reason);
    } else {
        answer::status(
            &Status::not_found(&read.resource.gvr, name),
            read.errors(),
            warnings,
        )
    };
    Outcome::Answered(opened.source, response)
}
