//! POST, PUT, PATCH and DELETE, and the three reviews.
use bytes::Bytes;
use serde_json::{Value, json};

use super::access::AccessRules;
use super::attributes::{SimulatedAccess, User};
use super::gojson;
use super::kinds::{KINDS, ResourceKind};
use super::object::{Draft, SimulatedObject};
use super::request::RequestTarget;
use super::simulation::Simulation;
use super::state::{WriteError, key};
use super::status::{Failure, named};

/// A write's answer: status code and body.
type WriteAnswer = Result<(u16, Bytes), Failure>;

pub(crate) fn create(
    simulation: &Simulation,
    index: usize,
    target: &RequestTarget,
    body: &[u8],
) -> WriteAnswer {
    let kind = &KINDS[index];
    let mut draft = parse(body)?;
    if draft.text("name").is_empty() {
        let prefix = draft.text("generateName");
        if !prefix.is_empty() {
            let suffix: String = std::iter::repeat_with(fastrand::lowercase)
                .take(5)
                .collect();
            draft.set_text("name", &format!("{prefix}{suffix}"));
        }
    }
    place(&mut draft, kind, &target.attributes.namespace, None)?;
    let name = draft.text("name");
    let object = simulation
        .state
        .create_draft(index, draft)
        .map_err(|e| refuse(e, kind, &name))?;
    Ok((201, line(&object)))
}

pub(crate) fn update(
    simulation: &Simulation,
    index: usize,
    target: &RequestTarget,
    body: &[u8],
) -> WriteAnswer {
    let kind = &KINDS[index];
    let name = &target.attributes.name;
    let mut draft = parse(body)?;
    place(&mut draft, kind, &target.attributes.namespace, Some(name))?;
    replace(simulation, index, name, draft)
}

/// A JSON merge patch. The patched fields' own keys come out sorted, not in struct order. If another
/// write comes between, it is applied again, unless it has a version.
///
/// Source: apiserver `pkg/storage/etcd3/store.go` (`GuaranteedUpdate`).
pub(crate) fn patch(
    simulation: &Simulation,
    index: usize,
    target: &RequestTarget,
    content_type: &str,
    body: &[u8],
) -> WriteAnswer {
    let kind = &KINDS[index];
    let SimulatedAccess {
        namespace, name, ..
    } = &target.attributes;
    if !matches!(
        content_type,
        "application/merge-patch+json" | "application/strategic-merge-patch+json"
    ) {
        let message = "the body of the request was in an unknown format - \
                       accepted media types include: \
                       application/merge-patch+json, application/strategic-merge-patch+json";
        return Err(Failure::new(415, "UnsupportedMediaType", message));
    }
    let bad = |e: serde_json::Error| Failure::bad_request(e.to_string());
    let patch: Value = serde_json::from_slice(body).map_err(bad)?;
    let has_version = patch.pointer("/metadata/resourceVersion").is_some();
    loop {
        let before = simulation
            .state
            .get(index, &key(kind, namespace, name))
            .ok_or_else(|| Failure::not_found(kind, name))?;
        let mut whole: Value = serde_json::from_slice(&before.bytes).map_err(bad)?;
        merge(&mut whole, &patch);
        let mut draft = parse(whole.to_string().as_bytes())?;
        place(&mut draft, kind, namespace, Some(name))?;
        match replace(simulation, index, name, draft) {
            // Another write came between.
            Err(failure) if failure.code == 409 && !has_version => {}
            answer => return answer,
        }
    }
}

/// Replaces an object. If nothing changes, it keeps its version, and there is no event.
///
/// Source: apiserver `pkg/storage/etcd3/store.go` (`GuaranteedUpdate`).
fn replace(simulation: &Simulation, index: usize, name: &str, draft: Draft) -> WriteAnswer {
    let (kind, state) = (&KINDS[index], &simulation.state);
    let before = state.get(index, &key(kind, &draft.text("namespace"), name));
    if let Some(before) = before.filter(|before| draft.leaves_unchanged(before)) {
        return Ok((200, line(&before)));
    }
    let object = state
        .update_draft(index, draft)
        .map_err(|error| refuse(error, kind, name))?;
    Ok((200, line(&object)))
}

pub(crate) fn delete(simulation: &Simulation, index: usize, target: &RequestTarget) -> WriteAnswer {
    let kind = &KINDS[index];
    let SimulatedAccess {
        namespace, name, ..
    } = &target.attributes;
    let (version, last) = simulation
        .state
        .delete_key(index, &key(kind, namespace, name))
        .map_err(|e| refuse(e, kind, name))?;
    if kind.delete_returns_object {
        return Ok((200, [&last.bytes_at(version)[..], b"\n"].concat().into()));
    }
    let details = named(kind, name);
    let details = format!(
        r#"{},"uid":"{}"}}"#,
        &details[..details.len() - 1],
        last.uid
    );
    let status =
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","details":"#;
    Ok((200, format!("{status}{details}}}\n").into()))
}

/// `POST …/tokenreviews`, `…/subjectaccessreviews`, and of oneself; `None` for anything else.
pub(crate) fn review(
    access: &AccessRules,
    caller: &User,
    target: &RequestTarget,
    body: &[u8],
) -> Option<WriteAnswer> {
    let SimulatedAccess {
        verb,
        group,
        resource,
        ..
    } = &target.attributes;
    if verb != "create" {
        return None;
    }
    let answer: fn(&AccessRules, &User, &Value) -> Value = match (group.as_str(), resource.as_str())
    {
        ("authentication.k8s.io", "tokenreviews") => token_review,
        ("authentication.k8s.io", "selfsubjectreviews") => self_review,
        ("authorization.k8s.io", "selfsubjectaccessreviews") => own_access_review,
        ("authorization.k8s.io", "selfsubjectrulesreviews") => own_rules_review,
        ("authorization.k8s.io", "subjectaccessreviews") => access_review,
        _ => return None,
    };
    let review = match serde_json::from_slice::<Value>(body) {
        Ok(review) => review,
        Err(e) => return Some(Err(Failure::bad_request(e.to_string()))),
    };
    Some(Ok((
        201,
        (gojson::sorted(&answer(access, caller, &review)) + "\n").into(),
    )))
}

fn token_review(access: &AccessRules, _: &User, review: &Value) -> Value {
    let token = review
        .pointer("/spec/token")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let audiences = review.pointer("/spec/audiences").cloned();
    let status = match access.user(token) {
        Some(user) => json!({
            "authenticated": true,
            "user": {"username": user.name, "groups": user.groups},
            "audiences": audiences
                .clone()
                .unwrap_or_else(|| json!(["https://kubernetes.default.svc"])),
        }),
        None => json!({"user": {}, "error": "invalid bearer token"}),
    };
    json!({
        "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
        "spec": review.get("spec"), "status": status,
    })
}

fn self_review(_: &AccessRules, caller: &User, _: &Value) -> Value {
    json!({
        "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
        "status": {"userInfo": {"username": caller.name, "groups": caller.groups}},
    })
}

fn access_review(access: &AccessRules, _: &User, review: &Value) -> Value {
    let groups = review
        .pointer("/spec/groups")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let user = User {
        name: text_at(review, "/spec/user"),
        groups: groups
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
    };
    json!({
        "kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {},
        "spec": review.get("spec"), "status": verdict(access, &user, review),
    })
}

fn own_access_review(access: &AccessRules, caller: &User, review: &Value) -> Value {
    json!({
        "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {},
        "spec": review.get("spec"), "status": verdict(access, caller, review),
    })
}

/// Tells whether the rules can be listed, and lists none.
fn own_rules_review(access: &AccessRules, _: &User, review: &Value) -> Value {
    json!({
        "kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {},
        "spec": review.get("spec"),
        "status": {
            "resourceRules": [], "nonResourceRules": [], "incomplete": !access.lists_rules(),
        },
    })
}

/// Returns the text at a JSON pointer, or an empty one.
fn text_at(review: &Value, pointer: &str) -> String {
    review
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

fn verdict(access: &AccessRules, user: &User, review: &Value) -> Value {
    let asked = if review.pointer("/spec/resourceAttributes").is_some() {
        SimulatedAccess {
            verb: text_at(review, "/spec/resourceAttributes/verb"),
            group: text_at(review, "/spec/resourceAttributes/group"),
            resource: text_at(review, "/spec/resourceAttributes/resource"),
            subresource: text_at(review, "/spec/resourceAttributes/subresource"),
            namespace: text_at(review, "/spec/resourceAttributes/namespace"),
            name: text_at(review, "/spec/resourceAttributes/name"),
            path: String::new(),
        }
    } else {
        SimulatedAccess {
            verb: text_at(review, "/spec/nonResourceAttributes/verb"),
            path: text_at(review, "/spec/nonResourceAttributes/path"),
            ..SimulatedAccess::default()
        }
    };
    if access.is_undecided(user) {
        return json!({"allowed": false, "evaluationError": "the webhook does not answer"});
    }
    match access.reason(user, &asked) {
        None => json!({"allowed": false}),
        Some(reason) if reason.is_empty() => json!({"allowed": true}),
        Some(reason) => json!({"allowed": true, "reason": reason}),
    }
}

/// The URL's namespace and name are the object's; a body that says otherwise is refused.
fn place(
    draft: &mut Draft,
    kind: &ResourceKind,
    namespace: &str,
    name: Option<&str>,
) -> Result<(), Failure> {
    if kind.namespaced {
        let own = draft.text("namespace");
        if !own.is_empty() && own != namespace {
            return Err(Failure::bad_request(
                "the namespace of the provided object does not match \
                 the namespace sent on the request",
            ));
        }
        draft.set_text("namespace", namespace);
    }
    if let Some(name) = name {
        let own = draft.text("name");
        if !own.is_empty() && own != name {
            return Err(Failure::bad_request(format!(
                "the name of the object ({own}) does not match the name on the URL ({name})"
            )));
        }
        draft.set_text("name", name);
    }
    Ok(())
}

fn parse(body: &[u8]) -> Result<Draft, Failure> {
    Draft::parse(body).map_err(Failure::bad_request)
}

fn refuse(error: WriteError, kind: &ResourceKind, name: &str) -> Failure {
    match error {
        WriteError::UnknownResource => Failure::no_such_path(),
        WriteError::Invalid(why) => Failure::bad_request(why),
        WriteError::AlreadyExists => Failure::already_exists(kind, name),
        WriteError::NotFound => Failure::not_found(kind, name),
        WriteError::Conflict => Failure::conflict(kind, name),
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    if let Value::Object(target) = target {
        for (key, value) in patch {
            if value.is_null() {
                target.remove(key);
            } else {
                merge(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
    }
}

fn line(object: &SimulatedObject) -> Bytes {
    [&object.bytes[..], b"\n"].concat().into()
}
