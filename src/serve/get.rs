//! One object by name.
use std::sync::Arc;

use http::StatusCode;

use super::decide::Read;
use super::source::Source;
use super::{Opened, Outcome, answer, from_memory};
use crate::http::body::full;
use crate::kube::Status;

pub(super) fn answer(opened: &Opened, read: &Read, name: &str) -> Outcome {
    let key = match &read.namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    };
    let found = opened.scope.reader.snapshot().get(&key).map(Arc::clone);
    let warnings = &opened.ready.warnings;
    let response = if let Some(object) = found {
        let body = full(opened.ready.form.get_body(&object.bytes));
        from_memory(StatusCode::OK, opened.encoding.content_type(false), body, warnings)
    } else {
        // Refusals come in the form the client likes best, even of types that have no such form.
        answer::status(&Status::not_found(&read.resource.gvr, name), read.encodings[0], warnings)
    };
    Outcome::Answered(Source::Snapshot, response)
}
