//! The `Status` objects that answer in upstream's place, byte for byte as upstream writes them.
//!
//! Source: `apimachinery/pkg/api/errors/errors.go` (texts),
//! `apimachinery/pkg/apis/meta/v1/types.go` and `generated.pb.go` (fields and their order),
//! `apiserver/pkg/endpoints/handlers/responsewriters/errors.go` (403),
//! `apiserver/pkg/storage/errors.go` (504).
use std::fmt::Write as _;

use bytes::Bytes;
use prost::Message;

use super::encoding::messages::ListMeta;
use super::encoding::{envelope, type_meta};
use super::go_text::{escape_json, quote};
use super::{Encoding, GroupVersionResource, ResourceRequest, ResourceVersion, Verb, indent};

/// A failure, as the API reports it.
///
/// ```
/// use watershed_protocol::{ResourceVersion, Status};
///
/// let status = Status::expired_watch(ResourceVersion(5), ResourceVersion(287));
/// assert_eq!(status.code, 410);
/// assert_eq!(status.message, "too old resource version: 5 (287)");
/// assert!(status.to_json().ends_with(b"\"reason\":\"Expired\",\"code\":410}\n"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason, for example `Expired`; left out when empty.
    pub reason: &'static str,
    /// The text for people; left out when empty.
    pub message: String,
    /// The subject of the failure. Details without content are written too, as `{}`.
    pub details: Option<StatusDetails>,
}

/// The subject of a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusDetails {
    /// The object's name.
    pub name: String,
    /// The type's API group.
    pub group: String,
    /// The type: mostly its plural name.
    pub kind: String,
    /// The causes.
    pub causes: Vec<StatusCause>,
    /// When to try again; also the `Retry-After` header. Zero says nothing.
    pub retry_after_seconds: u32,
}

/// One of the causes of a failure. What is empty is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusCause {
    /// The machine-readable reason.
    pub reason: String,
    /// The text for people.
    pub message: String,
    /// The field or parameter at fault.
    pub field: String,
}

impl Status {
    /// Creates a failure without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
        }
    }

    /// Creates a 401: no or wrong credentials.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// Creates a 403 for a resource. `reason` is the authorizer's, and may be empty.
    pub fn forbidden(user: &str, verb: Verb, resource: &ResourceRequest, reason: &str) -> Self {
        Self::forbidden_to(user, verb.as_str(), resource, reason)
    }

    /// Creates a 403 for a verb that is none of a request's, such as `impersonate`.
    pub fn forbidden_to(user: &str, verb: &str, resource: &ResourceRequest, reason: &str) -> Self {
        let ResourceRequest {
            gvr,
            namespace,
            name,
            subresource,
            ..
        } = resource;
        let what = match subresource {
            Some(subresource) => format!("{}/{subresource}", gvr.resource),
            None => gvr.resource.to_string(),
        };
        let place = match namespace {
            Some(namespace) => format!("in the namespace {}", quote(namespace)),
            None => "at the cluster scope".to_owned(),
        };
        let sentence = format!(
            "User {} cannot {verb} resource {} in API group {} {place}",
            quote(user),
            quote(&what),
            quote(&gvr.group),
        );
        let subject = match name {
            Some(name) => format!("{} {} is ", gvr.qualified_resource(), quote(name)),
            None => format!("{} is ", gvr.qualified_resource()),
        };
        let details = StatusDetails {
            name: name.clone().unwrap_or_default(),
            group: gvr.group.to_string(),
            kind: gvr.resource.to_string(),
            ..StatusDetails::default()
        };
        Self::forbidden_because(&subject, &sentence, reason, details)
    }

    /// Creates a 403 for a path that is no resource; `verb` is the lower-case method.
    pub fn forbidden_path(user: &str, verb: &str, path: &str, reason: &str) -> Self {
        let sentence = format!("User {} cannot {verb} path {}", quote(user), quote(path));
        Self::forbidden_because("", &sentence, reason, StatusDetails::default())
    }

    fn forbidden_because(
        subject: &str,
        sentence: &str,
        reason: &str,
        details: StatusDetails,
    ) -> Self {
        // Nothing a client sent may look like HTML; upstream leaves the authorizer's words alone.
        let sentence = sentence
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        let separator = if reason.is_empty() { "" } else { ": " };
        let message = format!("{subject}forbidden: {sentence}{separator}{reason}");
        Self {
            details: Some(details),
            ..Self::new(403, "Forbidden", message)
        }
    }

    /// Creates a 410: a watch asks for events older than the oldest still held.
    pub fn expired_watch(requested: ResourceVersion, oldest: ResourceVersion) -> Self {
        Self::new(
            410,
            "Expired",
            format!("too old resource version: {requested} ({oldest})"),
        )
    }

    /// Creates a 410: a watch of a type without a watch cache asks for events that etcd has compacted.
    ///
    /// Source: `apiserver/pkg/storage/etcd3/errors.go` (interpretWatchError).
    pub fn expired_watch_of_etcd() -> Self {
        let message = "The resourceVersion for the provided watch is too old.";
        Self::new(410, "Expired", message)
    }

    /// Creates a 404: there is no object of this name.
    pub fn not_found(gvr: &GroupVersionResource, name: &str) -> Self {
        let details = StatusDetails {
            name: name.to_owned(),
            group: gvr.group.to_string(),
            kind: gvr.resource.to_string(),
            ..StatusDetails::default()
        };
        let message = format!("{} {} not found", gvr.qualified_resource(), quote(name));
        Self {
            details: Some(details),
            ..Self::new(404, "NotFound", message)
        }
    }

    /// Creates a 429: try again later.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        let details = StatusDetails {
            retry_after_seconds,
            ..StatusDetails::default()
        };
        Self {
            details: Some(details),
            ..Self::new(429, "TooManyRequests", message)
        }
    }

    /// Creates a 400: a request that cannot be carried out as it is.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// Creates a 422: a watch names `sendInitialEvents`, and the server has no `WatchList`.
    ///
    /// Source: `apimachinery/pkg/apis/meta/internalversion/validation/validation.go`
    /// (validateWatchOptions).
    pub fn no_initial_events() -> Self {
        let message = concat!(
            "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature ",
            "gate is enabled"
        );
        let field = "sendInitialEvents";
        let details = StatusDetails {
            group: "meta.k8s.io".to_owned(),
            kind: "ListOptions".to_owned(),
            causes: vec![StatusCause {
                reason: "FieldValueForbidden".to_owned(),
                message: message.to_owned(),
                field: field.to_owned(),
            }],
            ..StatusDetails::default()
        };
        let text = format!("ListOptions.meta.k8s.io \"\" is invalid: {field}: {message}");
        Self {
            details: Some(details),
            ..Self::new(422, "Invalid", text)
        }
    }

    /// Creates a 503: not able to answer now.
    pub fn service_unavailable(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        let details = StatusDetails {
            retry_after_seconds,
            ..StatusDetails::default()
        };
        Self {
            details: (retry_after_seconds > 0).then_some(details),
            ..Self::new(503, "ServiceUnavailable", message)
        }
    }

    /// Creates a 500: a failure of this program's own.
    pub fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        let text = format!("Internal error occurred: {message}");
        let details = StatusDetails {
            causes: vec![StatusCause {
                message,
                ..StatusCause::default()
            }],
            ..StatusDetails::default()
        };
        Self {
            details: Some(details),
            ..Self::new(500, "InternalError", text)
        }
    }

    /// Returns the value of the `Retry-After` header, if there is one.
    pub fn retry_after(&self) -> Option<u32> {
        self.details
            .as_ref()
            .map(|details| details.retry_after_seconds)
            .filter(|&seconds| seconds > 0)
    }

    /// Returns the body in this encoding.
    pub fn encode(&self, encoding: Encoding) -> Bytes {
        match encoding {
            Encoding::Json => self.to_json(),
            Encoding::Protobuf => self.to_protobuf(),
        }
    }

    /// Returns compact JSON with a line end, as Go writes it.
    pub fn to_json(&self) -> Bytes {
        let mut out =
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure""#.to_owned();
        json_string(&mut out, ",\"message\":", &self.message);
        json_string(&mut out, ",\"reason\":", self.reason);
        if let Some(details) = &self.details {
            out.push_str(",\"details\":");
            details.write_json(&mut out);
        }
        if self.code != 0 {
            let _ = write!(out, ",\"code\":{}", self.code);
        }
        out.push_str("}\n");
        out.into()
    }

    /// Returns JSON as upstream prints it for people: indented, without a line end.
    pub fn to_indented_json(&self) -> Bytes {
        let text = self.to_json();
        // Its nesting is shallow, so that it can always be indented.
        indent(&text).unwrap_or(text)
    }

    /// Returns `k8s\0` and an `Unknown` message around the Status.
    pub fn to_protobuf(&self) -> Bytes {
        envelope(&type_meta("v1", "Status"), &self.to_message()).into()
    }

    /// Returns the object of an ERROR event: the JSON text without a line end, or the bare message.
    pub fn to_object(&self, encoding: Encoding) -> Bytes {
        match encoding {
            Encoding::Json => {
                let text = self.to_json();
                text.slice(..text.len() - 1)
            }
            Encoding::Protobuf => self.to_message(),
        }
    }

    fn to_message(&self) -> Bytes {
        let status = StatusMessage {
            metadata: ListMeta::default(),
            status: "Failure".to_owned(),
            message: self.message.clone(),
            reason: self.reason.to_owned(),
            details: self.details.as_ref().map(StatusDetails::to_message),
            code: self.code.into(),
        };
        status.encode_to_vec().into()
    }
}

impl StatusDetails {
    fn write_json(&self, out: &mut String) {
        let start = out.len();
        json_string(out, ",\"name\":", &self.name);
        json_string(out, ",\"group\":", &self.group);
        json_string(out, ",\"kind\":", &self.kind);
        for (index, cause) in self.causes.iter().enumerate() {
            out.push_str(if index == 0 { ",\"causes\":[" } else { "," });
            let start = out.len();
            json_string(out, ",\"reason\":", &cause.reason);
            json_string(out, ",\"message\":", &cause.message);
            json_string(out, ",\"field\":", &cause.field);
            close_object(out, start);
        }
        if !self.causes.is_empty() {
            out.push(']');
        }
        if self.retry_after_seconds != 0 {
            let _ = write!(out, ",\"retryAfterSeconds\":{}", self.retry_after_seconds);
        }
        close_object(out, start);
    }

    fn to_message(&self) -> DetailsMessage {
        let causes = self.causes.iter().map(|cause| CauseMessage {
            reason: cause.reason.clone(),
            message: cause.message.clone(),
            field: cause.field.clone(),
        });
        DetailsMessage {
            name: self.name.clone(),
            group: self.group.clone(),
            kind: self.kind.clone(),
            causes: causes.collect(),
            retry_after_seconds: i32::try_from(self.retry_after_seconds).unwrap_or(i32::MAX),
            uid: String::new(),
        }
    }
}

/// `meta.v1.Status`
#[derive(Clone, PartialEq, Message)]
struct StatusMessage {
    #[prost(message, required, tag = "1")]
    metadata: ListMeta,
    #[prost(string, required, tag = "2")]
    status: String,
    #[prost(string, required, tag = "3")]
    message: String,
    #[prost(string, required, tag = "4")]
    reason: String,
    #[prost(message, optional, tag = "5")]
    details: Option<DetailsMessage>,
    #[prost(int32, required, tag = "6")]
    code: i32,
}

/// `meta.v1.StatusDetails`
#[derive(Clone, PartialEq, Message)]
struct DetailsMessage {
    #[prost(string, required, tag = "1")]
    name: String,
    #[prost(string, required, tag = "2")]
    group: String,
    #[prost(string, required, tag = "3")]
    kind: String,
    #[prost(message, repeated, tag = "4")]
    causes: Vec<CauseMessage>,
    #[prost(int32, required, tag = "5")]
    retry_after_seconds: i32,
    #[prost(string, required, tag = "6")]
    uid: String,
}

/// `meta.v1.StatusCause`
#[derive(Clone, PartialEq, Message)]
struct CauseMessage {
    #[prost(string, required, tag = "1")]
    reason: String,
    #[prost(string, required, tag = "2")]
    message: String,
    #[prost(string, required, tag = "3")]
    field: String,
}

/// Puts braces around the members written since `start`, each of which begins with a comma.
fn close_object(out: &mut String, start: usize) {
    if out.len() > start {
        out.replace_range(start..=start, "{");
    } else {
        out.push('{');
    }
    out.push('}');
}

/// Appends `key` and the text, with the escapes of Go's encoder, unless the text is empty.
fn json_string(out: &mut String, key: &str, text: &str) {
    if text.is_empty() {
        return;
    }
    out.push_str(key);
    out.push('"');
    escape_json(out, text);
    out.push('"');
}

#[cfg(test)]
mod tests;
