//! Events of an audit log, as far as the replay reads them.
//!
//! Source: `apiserver/pkg/apis/audit/v1/types.go`.
use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::de::{Deserialize, Deserializer};
use watershed_protocol::nullable_text;

/// The version of events that this program reads.
const API_VERSION: &str = "audit.k8s.io/v1";

/// One event. A `null` stands for an absent value, as for Go.
#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LoggedEvent<'a> {
    #[serde(borrow, default, deserialize_with = "nullable_text")]
    api_version: Cow<'a, str>,
    #[serde(borrow, rename = "auditID", deserialize_with = "nullable_text")]
    pub(super) audit_id: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "nullable_text")]
    pub(super) stage: Cow<'a, str>,
    #[serde(borrow, rename = "requestURI", deserialize_with = "nullable_text")]
    pub(super) uri: Cow<'a, str>,
    #[serde(borrow, deserialize_with = "nullable_text")]
    pub(super) verb: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "or_default")]
    pub(super) user: LoggedUser<'a>,
    #[serde(borrow)]
    pub(super) impersonated_user: Option<LoggedUser<'a>>,
    #[serde(borrow, default, deserialize_with = "nullable_text")]
    pub(super) user_agent: Cow<'a, str>,
    pub(super) response_status: Option<LoggedStatus>,
    pub(super) request_received_timestamp: Timestamp,
    pub(super) stage_timestamp: Timestamp,
}

/// The caller of a request.
#[derive(Debug, Default, serde::Deserialize)]
pub(super) struct LoggedUser<'a> {
    #[serde(borrow, default, deserialize_with = "nullable_text")]
    pub(super) username: Cow<'a, str>,
    /// A value is `None` if it is `null`.
    #[serde(borrow, default, deserialize_with = "or_default")]
    pub(super) extra: BTreeMap<Cow<'a, str>, Option<Vec<Cow<'a, str>>>>,
}

/// The outcome of a request.
#[derive(Debug, serde::Deserialize)]
pub(super) struct LoggedStatus {
    #[serde(default, deserialize_with = "or_default")]
    pub(super) code: u16,
}

/// The stage of a request, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoggedStage {
    /// A long-running request has begun to answer.
    Started,
    /// The request has ended.
    Ended,
}

impl<'a> LoggedEvent<'a> {
    /// Parses one line. Returns `None` if it is no event that this program knows.
    pub(super) fn parse(line: &'a [u8]) -> Option<Self> {
        let event: Self = serde_json::from_slice(line).ok()?;
        (event.api_version == API_VERSION).then_some(event)
    }

    /// Returns the stage, if it tells that the request was answered.
    pub(super) fn stage(&self) -> Option<LoggedStage> {
        match &*self.stage {
            "ResponseStarted" => Some(LoggedStage::Started),
            "ResponseComplete" | "Panic" => Some(LoggedStage::Ended),
            _ => None,
        }
    }

    /// Returns the status code; zero if none is logged.
    pub(super) fn code(&self) -> u16 {
        self.response_status
            .as_ref()
            .map_or(0, |status| status.code)
    }

    /// Returns the seconds from the request to this stage.
    pub(super) fn seconds(&self) -> f64 {
        let took = self
            .stage_timestamp
            .duration_since(self.request_received_timestamp);
        took.as_secs_f64().max(0.0)
    }
}

/// Reads a value, or the default for `null`.
fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_another_version_or_without_its_parts_is_none() {
        let line = br#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata",
            "auditID":"a","stage":"ResponseComplete","requestURI":"/api/v1/pods?limit=5",
            "verb":"list","user":{"username":"j\u00fcrgen","groups":["g"],
            "extra":{"k":["v"]}},"sourceIPs":["::1"],"userAgent":"a/1",
            "objectRef":{"resource":"pods","apiVersion":"v1"},
            "responseStatus":{"metadata":{},"code":200},
            "requestReceivedTimestamp":"2026-01-01T00:00:00.000000Z",
            "stageTimestamp":"2026-01-01T00:00:01.500000Z","annotations":{"a":"b"}}"#;
        let event = LoggedEvent::parse(line).unwrap();
        assert_eq!(event.user.username, "jürgen");
        assert_eq!((event.code(), event.seconds()), (200, 1.5));
        assert_eq!(event.stage(), Some(LoggedStage::Ended));
        let text = std::str::from_utf8(line).unwrap();
        for (value, null) in [
            (r#""extra":{"k":["v"]}"#, r#""extra":{"k":null}"#),
            (r#""extra":{"k":["v"]}"#, r#""extra":null"#),
            (r#""a/1""#, "null"),
            ("\"j\\u00fcrgen\"", "null"),
            ("200", "null"),
        ] {
            assert!(text.contains(value), "{value}");
            let line = text.replace(value, null);
            assert!(LoggedEvent::parse(line.as_bytes()).is_some(), "{line}");
        }
        let user = r#"{"username":"j\u00fcrgen","groups":["g"],
            "extra":{"k":["v"]}}"#;
        let without = text.replace(user, "null");
        let event = LoggedEvent::parse(without.as_bytes()).unwrap();
        assert_eq!((&*event.user.username, event.user.extra.len()), ("", 0));
        assert!(
            LoggedEvent::parse(text.replace("k8s.io/v1\"", "k8s.io/v1beta1\"").as_bytes())
                .is_none()
        );
        assert!(LoggedEvent::parse(text.replace("requestURI", "other").as_bytes()).is_none());
        assert!(LoggedEvent::parse(&line[..line.len() - 1]).is_none());
        assert!(LoggedEvent::parse(b"").is_none());
    }
}
