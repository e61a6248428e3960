//! Refusals: the `Status` bodies of a kube-apiserver 1.37, word for word.
use http::{Response, StatusCode, header};

use super::body::ResponseBody;
use super::gojson;
use super::kinds::ResourceKind;
use crate::body::full_body;

/// A refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: u16,
    reason: &'static str,
    message: String,
    /// JSON text of `details`.
    details: Option<String>,
    /// A fresh token inside `metadata`, for expired continue tokens.
    continue_token: Option<String>,
    retry_after: Option<u32>,
    /// Plain text, for answers of the router instead of a Kubernetes handler.
    plain_text: bool,
}

impl Failure {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
            continue_token: None,
            retry_after: None,
            plain_text: false,
        }
    }

    pub(crate) fn details(mut self, json: impl Into<String>) -> Self {
        self.details = Some(json.into());
        self
    }

    pub(crate) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// The router's own answer to an unknown path.
    pub(crate) fn no_such_path() -> Self {
        Self {
            plain_text: true,
            ..Self::new(404, "", "404 page not found\n")
        }
    }

    /// A resource that a known builtin group-version doesn't have.
    pub(crate) fn no_such_resource() -> Self {
        Self::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        )
        .details("{}")
    }

    pub(crate) fn not_found(kind: &ResourceKind, name: &str) -> Self {
        Self::new(
            404,
            "NotFound",
            format!("{} \"{name}\" not found", kind.qualified()),
        )
        .details(named(kind, name))
    }

    pub(crate) fn already_exists(kind: &ResourceKind, name: &str) -> Self {
        Self::new(
            409,
            "AlreadyExists",
            format!("{} \"{name}\" already exists", kind.qualified()),
        )
        .details(named(kind, name))
    }

    pub(crate) fn conflict(kind: &ResourceKind, name: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": the object has been modified; \
             please apply your changes to the latest version and try again",
            kind.qualified()
        );
        Self::new(409, "Conflict", message).details(named(kind, name))
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
        .details("{}")
    }

    pub(crate) fn not_acceptable() -> Self {
        // Upstream would also name YAML and protobuf, which this server does not have.
        Self::new(
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json",
        )
        .details("{}")
    }

    /// A version the server hasn't reached, after the wait.
    pub(crate) fn too_large(version: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {version}, current: {current}");
        Self::new(504, "Timeout", message)
            .retry_after(1)
            .details(concat!(
                r#"{"causes":[{"reason":"ResourceVersionTooLarge","#,
                r#""message":"Too large resource version"}],"#,
                r#""retryAfterSeconds":1}"#
            ))
    }

    /// A version that etcd does not have yet. It is not waited for.
    pub(crate) fn too_large_for_etcd(version: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {version}, current: {current}");
        Self::new(504, "Timeout", message).details(concat!(
            r#"{"causes":[{"reason":"ResourceVersionTooLarge","#,
            r#""message":"Too large resource version"}]}"#
        ))
    }

    /// An exact list from before the history.
    pub(crate) fn expired_list() -> Self {
        Self::new(
            410,
            "Expired",
            "The resourceVersion for the provided list is too old.",
        )
    }

    /// A continued list from before the history; `token` goes on inconsistently.
    pub(crate) fn expired_token(token: String) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list \
                       result. You can start a new list without the continue parameter, or use \
                       the continue token in this response to retrieve the remainder of the \
                       results. Continuing with the provided token results in an inconsistent \
                       list - objects that were created, modified, or deleted between the time \
                       the first chunk was returned and now may show up in the list.";
        Self {
            continue_token: Some(token),
            ..Self::new(410, "Expired", message)
        }
    }

    /// A watch from before the history.
    pub(crate) fn expired_watch(version: u64, oldest: u64) -> Self {
        Self::new(
            410,
            "Expired",
            format!("too old resource version: {version} ({oldest})"),
        )
    }

    /// A watch of a type without a watch cache, from before etcd's history.
    pub(crate) fn expired_watch_of_etcd() -> Self {
        let message = "The resourceVersion for the provided watch is too old.";
        Self::new(410, "Expired", message)
    }

    /// ListOptions that contradict each other: `(field, cause's reason, message)` each.
    pub(crate) fn invalid_options(errors: &[(&str, &str, &str)]) -> Self {
        let causes: Vec<_> = errors
            .iter()
            .map(|(field, reason, message)| {
                format!(
                    r#"{{"reason":"{reason}","message":{},"field":"{field}"}}"#,
                    gojson::string(message)
                )
            })
            .collect();
        let texts: Vec<_> = errors
            .iter()
            .map(|(field, _, message)| format!("{field}: {message}"))
            .collect();
        let texts = if texts.len() == 1 {
            texts.concat()
        } else {
            format!("[{}]", texts.join(", "))
        };
        Self::new(
            422,
            "Invalid",
            format!("ListOptions.meta.k8s.io \"\" is invalid: {texts}"),
        )
        .details(format!(
            r#"{{"group":"meta.k8s.io","kind":"ListOptions","causes":[{}]}}"#,
            causes.join(",")
        ))
    }

    /// Returns the Status as one JSON document without a newline. ERROR events carry it too.
    pub(crate) fn status(&self) -> String {
        let metadata = self.continue_token.as_ref().map_or(String::new(), |t| {
            format!("\"continue\":{}", gojson::string(t))
        });
        let mut out = format!(
            concat!(
                r#"{{"kind":"Status","apiVersion":"v1","metadata":{{{}}},"#,
                r#""status":"Failure","message":{}"#
            ),
            metadata,
            gojson::string(&self.message)
        );
        if !self.reason.is_empty() {
            out += &[r#","reason":""#, self.reason, "\""].concat();
        }
        if let Some(details) = &self.details {
            out += &[r#","details":"#, details].concat();
        }
        out + &format!(r#","code":{}}}"#, self.code)
    }

    pub(crate) fn response(&self) -> Response<ResponseBody> {
        let (kind, body) = if self.plain_text {
            ("text/plain; charset=utf-8", self.message.clone())
        } else {
            ("application/json", self.status() + "\n")
        };
        let mut response = Response::builder()
            .status(StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR))
            .header(header::CONTENT_TYPE, kind);
        if self.plain_text || self.code == 403 {
            response = response.header(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
        }
        if let Some(seconds) = self.retry_after {
            response = response.header(header::RETRY_AFTER, seconds);
        }
        response.body(full_body(body)).unwrap_or_default()
    }
}

/// `details` that name an object.
pub(crate) fn named(kind: &ResourceKind, name: &str) -> String {
    let group = if kind.group.is_empty() {
        String::new()
    } else {
        format!(r#""group":"{}","#, kind.group)
    };
    format!(
        r#"{{"name":{},{group}"kind":"{}"}}"#,
        gojson::string(name),
        kind.resource
    )
}
