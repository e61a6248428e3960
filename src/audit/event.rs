//! Events of the audit log, in the form that kube-apiserver writes with `--audit-log-format=json`.
//!
//! Source: `apiserver/pkg/apis/audit/v1/types.go` (fields and their order),
//! `apiserver/pkg/audit/request.go` (what is in them), and lines of a real API server.
use std::fmt::Write as _;
use std::net::IpAddr;

use bytes::Bytes;
use jiff::Timestamp;

use crate::access::Identity;
use watershed_protocol::{Encoding, ResourceRequest, Status, escape_json};

/// What a line begins with. Items of an EventList go without it.
const KIND: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","#;
/// Longer user agents are cut. Source: `apiserver/pkg/audit/request.go`.
const MAX_USER_AGENT: usize = 1024;
const CUT: &str = "...TRUNCATED";

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It has arrived.
    RequestReceived,
    /// The head of an answer that may take long has been sent.
    ResponseStarted,
    /// The answer is over.
    ResponseComplete,
    /// The request's handler failed. Never so here, but policies may name it.
    Panic,
}

impl Stage {
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

/// What is the same in all events of one request.
pub(super) struct Subject<'a> {
    /// Any bytes that a header may have.
    pub(super) id: &'a [u8],
    pub(super) uri: &'a str,
    pub(super) verb: &'a str,
    pub(super) user: Option<&'a Identity>,
    pub(super) source_ips: &'a [IpAddr],
    pub(super) user_agent: &'a [u8],
    pub(super) resource: Option<&'a ResourceRequest>,
}

/// How a request was answered.
pub(super) enum Answered<'a> {
    /// Without words.
    Code(u16),
    /// With a refusal.
    Status(&'a Status),
    /// The client went away before. Source: `apiserver/pkg/endpoints/filters/audit.go`.
    Closed,
}

/// The events of one request, written but for what differs between them.
pub(super) struct Form {
    received: Timestamp,
    /// Up to the name of the stage.
    head: Box<str>,
    /// From there to the answer.
    about: Box<str>,
    /// The answer, once there is one.
    status: Box<str>,
    /// The annotations without the brace that ends them, once there are any.
    annotations: Box<str>,
    /// Those that are added with the end.
    last_annotations: Box<str>,
}

impl Form {
    pub(super) fn new(received: Timestamp, subject: &Subject<'_>) -> Self {
        let mut head = r#""level":"Metadata""#.to_owned();
        member(&mut head, ",\"auditID\":", subject.id);
        head.push_str(",\"stage\":\"");
        Self {
            received,
            head: head.into(),
            about: about(subject).into(),
            status: "".into(),
            annotations: "".into(),
            last_annotations: "".into(),
        }
    }

    pub(super) fn answered(&mut self, answered: &Answered<'_>) {
        self.status = match answered {
            Answered::Code(code) => {
                format!(r#","responseStatus":{{"metadata":{{}},"code":{code}}}"#)
            }
            Answered::Closed => concat!(
                r#","responseStatus":{"metadata":{},"status":"Success","#,
                r#""message":"Connection closed early","code":200}"#
            )
            .to_owned(),
            Answered::Status(status) => {
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

    /// What the authorizer said, and why.
    pub(super) fn decided(&mut self, allowed: bool, reason: &str) {
        let decision = if allowed { "allow" } else { "forbid" };
        let mut text = format!(
            r#","annotations":{{"authorization.k8s.io/decision":"{decision}","authorization.k8s.io/reason":""#
        );
        escape_json(&mut text, reason);
        text.push('"');
        self.annotations = text.into();
    }

    /// The type is deprecated, as a warning to the client says. Source:
    /// `apiserver/pkg/endpoints/metrics/metrics.go` (`MonitorRequest`),
    /// `apiserver/pkg/endpoints/deprecation/deprecation.go` (`WarningMessage`).
    pub(super) fn deprecated(&mut self, warning: &str) {
        let mut text = r#","k8s.io/deprecated":"true""#.to_owned();
        let release = warning
            .split_once(" is deprecated in v")
            .and_then(|(_, rest)| {
                let release = rest.split_once("+, unavailable in v")?.1.split_once('+')?.0;
                release
                    .bytes()
                    .all(|byte| byte.is_ascii_digit() || byte == b'.')
                    .then_some(release)
            });
        if let Some(release) = release {
            let _ = write!(text, r#","k8s.io/removed-release":"{release}""#);
        }
        self.last_annotations = text.into();
    }

    /// The line of one stage.
    pub(super) fn line(&self, stage: Stage, now: Timestamp) -> Bytes {
        let Self {
            received,
            head,
            about,
            status,
            annotations,
            last_annotations,
        } = self;
        let (at, status, annotations) = match stage {
            Stage::RequestReceived => (*received, "", ""),
            _ => (now, &**status, &**annotations),
        };
        let mut out = String::with_capacity(
            KIND.len()
                + head.len()
                + about.len()
                + status.len()
                + annotations.len()
                + last_annotations.len()
                + 160,
        );
        out.push_str(KIND);
        out.push_str(head);
        out.push_str(stage.as_str());
        out.push('"');
        out.push_str(about);
        out.push_str(status);
        let _ = write!(
            out,
            r#","requestReceivedTimestamp":"{received:.6}","stageTimestamp":"{at:.6}"{annotations}"#
        );
        if !annotations.is_empty() {
            if stage == Stage::ResponseComplete {
                out.push_str(last_annotations);
            }
            out.push('}');
        }
        out.push_str("}\n");
        out.into()
    }
}

/// An EventList of these lines, as upstream posts it.
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

fn about(subject: &Subject<'_>) -> String {
    let Subject {
        uri,
        verb,
        user,
        source_ips,
        user_agent,
        resource,
        ..
    } = subject;
    let mut out = String::with_capacity(512);
    member(&mut out, ",\"requestURI\":", uri.as_bytes());
    member(&mut out, ",\"verb\":", verb.as_bytes());
    out.push_str(",\"user\":");
    object(&mut out, |out| {
        if let Some(user) = user {
            write_user(out, user);
        }
    });
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
        object(&mut out, |out| {
            let mut text = |key, text: &str| member(out, key, text.as_bytes());
            text(",\"resource\":", &resource.gvr.resource);
            text(
                ",\"namespace\":",
                resource.namespace.as_deref().unwrap_or_default(),
            );
            text(",\"name\":", resource.name.as_deref().unwrap_or_default());
            text(",\"apiGroup\":", &resource.gvr.group);
            text(",\"apiVersion\":", &resource.gvr.version);
            text(
                ",\"subresource\":",
                resource.subresource.as_deref().unwrap_or_default(),
            );
        });
    }
    out
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

/// Puts braces around the members that `write` writes, each of which begins with a comma.
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

/// Appends key and text, unless the text is empty. Each byte that is no text becomes what Go's
/// encoder makes of it.
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
