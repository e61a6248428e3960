//! Events of the audit log, in the form that kube-apiserver writes with `--audit-log-format=json`.
//!
//! Source: `apiserver/pkg/apis/audit/v1/types.go` (fields and their order),
//! `apiserver/pkg/audit/request.go` (what is in them), and lines of a real API server.
use std::fmt::Write as _;
use std::net::IpAddr;

use bytes::Bytes;
use jiff::Timestamp;
use watershed_protocol::{Encoding, ResourceRequest, Status, escape_json};

use crate::access::{Decision, Identity};

/// Start of a line. Items of an EventList have no kind, so it is cut from them.
const KIND: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","#;
/// Length limit of user agents; longer ones are cut. Source: `apiserver/pkg/audit/request.go`.
pub(super) const MAX_USER_AGENT: usize = 1024;
const CUT: &str = "...TRUNCATED";

/// A stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuditStage {
    /// The request has arrived.
    RequestReceived,
    /// The head of an answer that may take long has been sent.
    ResponseStarted,
    /// The answer has ended.
    ResponseComplete,
    /// The request's handler failed. It is never logged here, but policies may name it.
    Panic,
}

impl AuditStage {
    pub(super) const ALL: [Self; 4] = [
        Self::RequestReceived,
        Self::ResponseStarted,
        Self::ResponseComplete,
        Self::Panic,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// The attributes that all events of one request share.
pub(super) struct EventAttributes<'a> {
    /// The audit id. It may have any bytes that a header may have.
    pub(super) id: &'a [u8],
    pub(super) uri: &'a str,
    pub(super) verb: &'a str,
    pub(super) user: Option<&'a Identity>,
    /// The user that `user` impersonates.
    pub(super) impersonated: Option<&'a Identity>,
    /// The verb of the permission, if it is one of constrained impersonation.
    pub(super) constraint: Option<&'a str>,
    pub(super) source_ips: &'a [IpAddr],
    pub(super) user_agent: &'a [u8],
    pub(super) resource: Option<&'a ResourceRequest>,
}

/// The outcome of a request.
pub(super) enum EventOutcome {
    /// An answer with this code and no status object.
    Code(u16),
    /// A refusal.
    Status(Status),
    /// The client went away before the answer. Source: `apiserver/pkg/endpoints/filters/audit.go`.
    Closed,
}

/// The text that all events of one request share.
pub(super) struct EventTemplate {
    received: Timestamp,
    /// The members before the name of the stage.
    head: Box<str>,
    /// The members from there to the user.
    caller: Box<str>,
    /// The impersonated user. The first event lacks it: upstream writes that before it knows
    /// whether the caller may act as another user.
    impersonated: Box<str>,
    /// The members from there to the outcome.
    about: Box<str>,
    /// The outcome, once it is set.
    outcome: Box<str>,
    /// The annotations without the closing brace, once they are set.
    annotations: Box<str>,
    /// The annotations that only the last event has.
    last_annotations: Box<str>,
}

impl EventTemplate {
    pub(super) fn new(received: Timestamp, attributes: &EventAttributes<'_>) -> Self {
        let mut head = r#""level":"Metadata""#.to_owned();
        member(&mut head, ",\"auditID\":", attributes.id);
        head.push_str(",\"stage\":\"");
        Self {
            received,
            head: head.into(),
            caller: caller(attributes).into(),
            impersonated: impersonated(attributes).into(),
            about: about(attributes).into(),
            outcome: "".into(),
            annotations: "".into(),
            last_annotations: "".into(),
        }
    }

    /// Sets the outcome of the request.
    pub(super) fn set_outcome(&mut self, outcome: &EventOutcome) {
        self.outcome = match outcome {
            EventOutcome::Code(code) => {
                format!(r#","responseStatus":{{"metadata":{{}},"code":{code}}}"#)
            }
            EventOutcome::Closed => concat!(
                r#","responseStatus":{"metadata":{},"status":"Success","#,
                r#""message":"Connection closed early","code":200}"#
            )
            .to_owned(),
            EventOutcome::Status(status) => {
                let object = status.to_object(Encoding::Json);
                let text = String::from_utf8_lossy(&object);
                let inside = text
                    .strip_prefix(r#"{"kind":"Status","apiVersion":"v1","#)
                    .unwrap_or("}");
                format!(",\"responseStatus\":{{{inside}")
            }
        }
        .into();
    }

    /// Sets the annotations about the authorizer's decision.
    pub(super) fn set_decision(&mut self, decision: &Decision) {
        let word = match decision {
            Decision::Allowed(_) => "allow",
            Decision::Denied(_) => "forbid",
        };
        let mut text = format!(
            concat!(
                r#","annotations":{{"authorization.k8s.io/decision":"{}","#,
                r#""authorization.k8s.io/reason":""#
            ),
            word
        );
        escape_json(&mut text, decision.reason());
        text.push('"');
        self.annotations = text.into();
    }

    /// Sets the annotations about a deprecated type, from the warning to the client.
    ///
    /// Source: `apiserver/pkg/endpoints/metrics/metrics.go` (`MonitorRequest`),
    /// `apiserver/pkg/endpoints/deprecation/deprecation.go` (`WarningMessage`).
    pub(super) fn set_deprecation(&mut self, warning: &str) {
        let mut text = r#","k8s.io/deprecated":"true""#.to_owned();
        if let Some(release) = removed_release(warning) {
            let _ = write!(text, r#","k8s.io/removed-release":"{release}""#);
        }
        self.last_annotations = text.into();
    }

    /// Returns the line of one stage.
    pub(super) fn line(&self, stage: AuditStage, now: Timestamp) -> Bytes {
        let Self {
            received,
            head,
            caller,
            impersonated,
            about,
            outcome,
            annotations,
            last_annotations,
        } = self;
        let (at, impersonated, outcome, annotations) = match stage {
            AuditStage::RequestReceived => (*received, "", "", ""),
            _ => (now, &**impersonated, &**outcome, &**annotations),
        };
        let mut out = String::with_capacity(
            KIND.len()
                + head.len()
                + caller.len()
                + impersonated.len()
                + about.len()
                + outcome.len()
                + annotations.len()
                + last_annotations.len()
                + 160,
        );
        out.push_str(KIND);
        out.push_str(head);
        out.push_str(stage.as_str());
        out.push('"');
        for part in [caller, impersonated, about, outcome] {
            out.push_str(part);
        }
        let _ = write!(
            out,
            r#","requestReceivedTimestamp":"{received:.6}","stageTimestamp":"{at:.6}"{annotations}"#
        );
        if !annotations.is_empty() {
            if stage == AuditStage::ResponseComplete {
                out.push_str(last_annotations);
            }
            out.push('}');
        }
        out.push_str("}\n");
        out.into()
    }
}

/// Returns an EventList of these lines, as upstream posts it.
pub(super) fn list(lines: &[Bytes]) -> Bytes {
    let mut out =
        br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#.to_vec();
    out.reserve(lines.iter().map(Bytes::len).sum());
    for (index, line) in lines.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"{" } else { b",{" });
        let inside = line.strip_prefix(KIND.as_bytes()).unwrap_or(line);
        out.extend_from_slice(inside.strip_suffix(b"\n").unwrap_or(inside));
    }
    out.extend_from_slice(b"]}\n");
    out.into()
}

/// Returns the release without the type that a deprecation warning names.
fn removed_release(warning: &str) -> Option<&str> {
    let (_, rest) = warning.split_once(" is deprecated in v")?;
    let (_, rest) = rest.split_once("+, unavailable in v")?;
    let (release, _) = rest.split_once('+')?;
    let is_release = release
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_release.then_some(release)
}

fn caller(attributes: &EventAttributes<'_>) -> String {
    let EventAttributes {
        uri, verb, user, ..
    } = attributes;
    let mut out = String::with_capacity(256);
    member(&mut out, ",\"requestURI\":", uri.as_bytes());
    member(&mut out, ",\"verb\":", verb.as_bytes());
    out.push_str(",\"user\":");
    object(&mut out, |out| {
        if let Some(user) = user {
            write_user(out, user);
        }
    });
    out
}

fn impersonated(attributes: &EventAttributes<'_>) -> String {
    let mut out = String::new();
    if let Some(user) = attributes.impersonated {
        out.push_str(",\"impersonatedUser\":");
        object(&mut out, |out| write_user(out, user));
    }
    if let Some(constraint) = attributes.constraint {
        let _ = write!(
            out,
            r#","authenticationMetadata":{{"impersonationConstraint":"{constraint}"}}"#
        );
    }
    out
}

fn about(attributes: &EventAttributes<'_>) -> String {
    let EventAttributes {
        source_ips,
        user_agent,
        resource,
        ..
    } = attributes;
    let mut out = String::with_capacity(256);
    out.push_str(",\"sourceIPs\":[");
    for (index, address) in source_ips.iter().enumerate() {
        let _ = write!(out, "{}\"{address}\"", if index == 0 { "" } else { "," });
    }
    out.push(']');
    match user_agent.get(..MAX_USER_AGENT) {
        Some(start) if user_agent.len() > MAX_USER_AGENT => {
            member(
                &mut out,
                ",\"userAgent\":",
                &[start, CUT.as_bytes()].concat(),
            );
        }
        _ => member(&mut out, ",\"userAgent\":", user_agent),
    }
    if let Some(resource) = resource {
        out.push_str(",\"objectRef\":");
        object(&mut out, |out| write_resource(out, resource));
    }
    out
}

fn write_resource(out: &mut String, resource: &ResourceRequest) {
    let ResourceRequest {
        gvr,
        namespace,
        name,
        subresource,
        ..
    } = resource;
    for (key, text) in [
        (",\"resource\":", Some(&*gvr.resource)),
        (",\"namespace\":", namespace.as_deref()),
        (",\"name\":", name.as_deref()),
        (",\"apiGroup\":", Some(&*gvr.group)),
        (",\"apiVersion\":", Some(&*gvr.version)),
        (",\"subresource\":", subresource.as_deref()),
    ] {
        member(out, key, text.unwrap_or_default().as_bytes());
    }
}

fn write_user(out: &mut String, user: &Identity) {
    member(out, ",\"username\":", user.user.as_bytes());
    member(
        out,
        ",\"uid\":",
        user.uid.as_deref().unwrap_or_default().as_bytes(),
    );
    if !user.groups.is_empty() {
        out.push_str(",\"groups\":");
        strings(out, &user.groups);
    }
    if !user.extra.is_empty() {
        out.push_str(",\"extra\":");
        object(out, |out| {
            for (key, values) in &user.extra {
                out.push_str(",\"");
                escape_json(out, key);
                out.push_str("\":");
                strings(out, values);
            }
        });
    }
}

fn strings(out: &mut String, texts: &[String]) {
    out.push('[');
    for (index, text) in texts.iter().enumerate() {
        out.push_str(if index == 0 { "\"" } else { ",\"" });
        escape_json(out, text);
        out.push('"');
    }
    out.push(']');
}

/// Appends an object. `write` appends its members, each of which begins with a comma.
fn object(out: &mut String, write: impl FnOnce(&mut String)) {
    let start = out.len();
    write(out);
    if out.len() > start {
        out.replace_range(start..=start, "{");
    } else {
        out.push('{');
    }
    out.push('}');
}

/// Appends key and text, unless the text is empty. A byte that is not valid UTF-8 becomes the
/// replacement character, as in Go's encoder.
fn member(out: &mut String, key: &str, text: &[u8]) {
    if text.is_empty() {
        return;
    }
    out.push_str(key);
    out.push('"');
    for chunk in text.utf8_chunks() {
        escape_json(out, chunk.valid());
        for _ in chunk.invalid() {
            out.push_str("\\ufffd");
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests;
