//! GET and LIST: the state that an answer shows, and its bytes.
use std::ops::Bound;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::kinds::{KINDS, ResourceKind, TypeOrigin};
use super::message;
use super::object::SimulatedObject;
use super::request::{AnswerShape, ObjectFilter, QueryParameters};
use super::simulation::Simulation;
use super::state::{TypeView, key};
use super::status::Failure;

/// A continue token, decoded. Source: apiserver `pkg/storage/continue.go`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PageToken {
    v: String,
    rv: i64,
    start: String,
}

/// The state that a list is answered from.
enum ListState {
    /// The newest state, after a consistent read.
    Consistent,
    /// The state that the cache has.
    Any,
    /// The state of the cache, once it has reached a version.
    NotOlderThan(u64),
    /// The state at exactly one version.
    Exact(u64),
}

/// One object. Source of the rules: apiserver `pkg/storage/cacher/delegator.go`.
pub(crate) async fn get(
    simulation: &Simulation,
    index: usize,
    namespace: &str,
    name: &str,
    query: &QueryParameters,
    shape: AnswerShape,
) -> Result<Bytes, Failure> {
    let kind = &KINDS[index];
    let wanted = query.version_number().map_err(|why| {
        if kind.has_watch_cache {
            Failure::new(500, "", why)
        } else {
            Failure::bad_request(format!("invalid resource version: {why}"))
        }
    })?;
    simulation.reach(index, wanted).await?;
    let at = key(kind, namespace, name);
    let object = if query.version.is_some() {
        let view = simulation.view_from(index, wanted);
        view.objects.get(at.as_str()).cloned()
    } else {
        simulation.state.get(index, &at)
    };
    let object = object.ok_or_else(|| Failure::not_found(kind, name))?;
    let body = match shape {
        AnswerShape::Message => {
            let message = message::config_map(&object.bytes);
            return Ok(message::envelope(kind.kind, &message).into());
        }
        AnswerShape::Full => object.bytes.clone(),
        AnswerShape::Partial => object.partial_at(object.version),
    };
    Ok([&body[..], b"\n"].concat().into())
}

/// A list, or a page of one.
pub(crate) async fn list(
    simulation: &Simulation,
    index: usize,
    filter: &ObjectFilter,
    query: &QueryParameters,
    shape: AnswerShape,
) -> Result<Bytes, Failure> {
    let kind = &KINDS[index];
    validate(query)?;
    let prefix = if filter.namespace.is_empty() || !kind.namespaced {
        String::new()
    } else {
        format!("{}/", filter.namespace)
    };
    let token = query
        .continue_token
        .as_deref()
        .map(PageToken::decode)
        .transpose()?;
    let any_version = query.version.as_deref() == Some("0");
    if token.is_some() && query.version.is_some() && !any_version {
        return Err(Failure::bad_request(
            "specifying resource version is not allowed when using continue",
        ));
    }
    let pinned = filter.pins_name(kind);
    let (source, mut limit) = decide(query, token.as_ref(), pinned)?;
    let is_single_key = pinned && token.is_none();
    if is_single_key || (any_version && kind.has_watch_cache) {
        // The watch cache serves the whole list, however small the page that was asked for, and
        // the read of a single key is no page.
        limit = 0;
    }
    let view = view(simulation, index, source, token.as_ref()).await?;
    let start = token.as_ref().map_or_else(
        || prefix.clone(),
        |t| format!("{prefix}{}", t.start.trim_start_matches('/')),
    );
    Ok(page(kind, &view, filter, &prefix, &start, limit, shape))
}

/// Source: apimachinery `pkg/apis/meta/internalversion/validation/validation.go`.
fn validate(query: &QueryParameters) -> Result<(), Failure> {
    const MATCH: &str = "resourceVersionMatch";
    const FORBIDDEN: &str = "FieldValueForbidden";
    let mut errors = Vec::new();
    let unsupported;
    if let Some(version_match) = &query.version_match {
        if query.version.is_none() {
            errors.push((
                MATCH,
                FORBIDDEN,
                "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        if query.continue_token.is_some() {
            errors.push((
                MATCH,
                FORBIDDEN,
                "Forbidden: resourceVersionMatch is forbidden when continue is provided",
            ));
        }
        if !matches!(version_match.as_str(), "Exact" | "NotOlderThan") {
            unsupported = format!(
                "Unsupported value: {version_match:?}: \
                 supported values: \"Exact\", \"NotOlderThan\", \"\""
            );
            errors.push((MATCH, "FieldValueNotSupported", unsupported.as_str()));
        }
        if version_match == "Exact" && query.version.as_deref() == Some("0") {
            let message =
                r#"Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0""#;
            errors.push((MATCH, FORBIDDEN, message));
        }
    }
    if query.initial_events.is_some() {
        errors.push((
            "sendInitialEvents",
            FORBIDDEN,
            "Forbidden: sendInitialEvents is forbidden for list",
        ));
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Failure::invalid_options(&errors))
    }
}

fn decide(
    query: &QueryParameters,
    token: Option<&PageToken>,
    pinned: bool,
) -> Result<(ListState, usize), Failure> {
    let limit = usize::try_from(query.limit).unwrap_or(0);
    let version = query
        .version_number()
        .map_err(|e| Failure::bad_request(format!("invalid resource version: {e}")))?;
    let source = match (token, query.version_match.as_deref()) {
        (Some(token), _) => u64::try_from(token.rv).map_or(ListState::Consistent, ListState::Exact),
        (None, _) if query.version.is_none() => ListState::Consistent,
        (None, _) if version == 0 => ListState::Any,
        (None, Some("Exact")) => ListState::Exact(version),
        // A limit without a match means exactly that version, from before matches existed.
        (None, None) if limit > 0 && !pinned => ListState::Exact(version),
        (None, _) => ListState::NotOlderThan(version),
    };
    Ok((source, limit))
}

async fn view(
    simulation: &Simulation,
    index: usize,
    source: ListState,
    token: Option<&PageToken>,
) -> Result<TypeView, Failure> {
    let state = &simulation.state;
    match source {
        ListState::Consistent => Ok(state.fresh_view(index)),
        ListState::Any => Ok(simulation.cached_view(index)),
        ListState::NotOlderThan(version) => {
            simulation.reach(index, version).await?;
            Ok(simulation.view_from(index, version))
        }
        ListState::Exact(version) => {
            simulation.reach(index, version).await?;
            state.exact_view(index, version).ok_or_else(|| match token {
                None => Failure::expired_list(),
                Some(token) => Failure::expired_token(
                    PageToken {
                        v: token.v.clone(),
                        rv: -1,
                        start: token.start.clone(),
                    }
                    .encode(),
                ),
            })
        }
    }
}

/// Returns the items of `prefix` from `start` on, in storage order.
fn page(
    kind: &ResourceKind,
    view: &TypeView,
    filter: &ObjectFilter,
    prefix: &str,
    start: &str,
    limit: usize,
    shape: AnswerShape,
) -> Bytes {
    let range = (Bound::Included(start), Bound::Unbounded);
    let mut rest = view
        .objects
        .range::<(Bound<&str>, Bound<&str>), str>(range)
        .take_while(|(k, _)| k.starts_with(prefix));
    let mut items: Vec<&Arc<SimulatedObject>> = Vec::new();
    let mut last = None;
    while limit == 0 || items.len() < limit {
        let Some((key, object)) = rest.next() else {
            break;
        };
        last = Some(key);
        if filter.matches(object) {
            items.push(object);
        }
    }
    let remaining = rest.count();
    let mut metadata = PageMetadata {
        version: view.version,
        token: None,
        remaining: None,
    };
    if remaining > 0 {
        let last = last.map_or(start, |k| k);
        // The watch cache writes a slash in front. etcd's own tokens have none.
        let slash = if kind.has_watch_cache { "/" } else { "" };
        let start = format!("{slash}{}\0", &last[prefix.len()..]);
        let version = i64::try_from(view.version).unwrap_or(-1);
        metadata.token = Some(
            PageToken {
                v: "meta.k8s.io/v1".to_owned(),
                rv: version,
                start,
            }
            .encode(),
        );
        metadata.remaining = (!filter.has_selectors()).then_some(remaining);
    }
    write(kind, &items, &metadata, shape)
}

struct PageMetadata {
    version: u64,
    token: Option<String>,
    remaining: Option<usize>,
}

fn write(
    kind: &ResourceKind,
    items: &[&Arc<SimulatedObject>],
    metadata: &PageMetadata,
    shape: AnswerShape,
) -> Bytes {
    if shape == AnswerShape::Message {
        let objects = items.iter().map(|object| &object.bytes[..]);
        let token = metadata.token.as_deref();
        return message::list(metadata.version, token, metadata.remaining, objects).into();
    }
    let (head, tail) = head_and_tail(kind, metadata, shape);
    let size: usize = items.iter().map(|o| o.bytes.len() + 1).sum();
    let mut out = BytesMut::with_capacity(head.len() + size + tail.len() + 8);
    out.extend_from_slice(head.as_bytes());
    if items.is_empty() && shape == AnswerShape::Partial {
        out.extend_from_slice(b"null");
    } else {
        out.extend_from_slice(b"[");
        for (i, object) in items.iter().enumerate() {
            if i > 0 {
                out.extend_from_slice(b",");
            }
            match shape {
                AnswerShape::Full | AnswerShape::Message => {
                    out.extend_from_slice(&object.item());
                }
                AnswerShape::Partial => out.extend_from_slice(&object.partial_at(object.version)),
            }
        }
        out.extend_from_slice(b"]");
    }
    out.extend_from_slice(tail.as_bytes());
    out.extend_from_slice(b"\n");
    out.freeze()
}

/// Returns the text of a list before and after its items.
fn head_and_tail(
    kind: &ResourceKind,
    metadata: &PageMetadata,
    shape: AnswerShape,
) -> (String, String) {
    let version = metadata.version;
    let token = metadata.token.as_deref();
    let remaining = metadata
        .remaining
        .map_or(String::new(), |n| format!(r#","remainingItemCount":{n}"#));
    let (list_kind, api_version) = match shape {
        AnswerShape::Full | AnswerShape::Message => {
            (format!("{}List", kind.kind), kind.api_version())
        }
        AnswerShape::Partial => (
            "PartialObjectMetadataList".to_owned(),
            "meta.k8s.io/v1".to_owned(),
        ),
    };
    if kind.form == TypeOrigin::Custom && shape == AnswerShape::Full {
        // Sorted keys, and an empty `continue` on the last page.
        let token = token.unwrap_or_default();
        let metadata =
            format!(r#"{{"continue":"{token}"{remaining},"resourceVersion":"{version}"}}"#);
        (
            format!(r#"{{"apiVersion":"{api_version}","items":"#),
            format!(r#","kind":"{list_kind}","metadata":{metadata}}}"#),
        )
    } else {
        let token = token.map_or(String::new(), |t| format!(r#","continue":"{t}""#));
        let kind = format!(r#""kind":"{list_kind}","apiVersion":"{api_version}""#);
        let metadata = format!(r#"{{"resourceVersion":"{version}"{token}{remaining}}}"#);
        (
            format!(r#"{{{kind},"metadata":{metadata},"items":"#),
            "}".to_owned(),
        )
    }
}

impl PageToken {
    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    fn decode(text: &str) -> Result<Self, Failure> {
        let bad = |why: &str| {
            Failure::bad_request(format!(
                "invalid continue token: continue key is not valid: {why}"
            ))
        };
        let json = URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|_| bad("illegal base64 data at input byte 0"))?;
        let token: Self = serde_json::from_slice(&json).map_err(|e| bad(&e.to_string()))?;
        if token.v != "meta.k8s.io/v1" {
            return Err(bad(&format!(
                "server does not recognize this encoded version {}",
                token.v
            )));
        }
        if token.rv == 0 {
            return Err(bad(
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ));
        }
        if token.start.is_empty() {
            return Err(bad("encoded start key empty (version meta.k8s.io/v1)"));
        }
        if token.start.split('/').any(|part| part == "..") {
            return Err(bad(&token.start));
        }
        Ok(token)
    }
}
