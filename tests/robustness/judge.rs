//! The judge of answers and events: compares what a client received with the history, byte by byte.
use bytes::Bytes;
use serde::Deserialize;

use crate::history::{History, Part, Resource};

/// The bytes that a simulated server sends in place of an event (`BrokenFrame::Garbage`) and of an answer
/// (`BadAnswer::Garbage`). Forwarded watches and lists pass it on.
const PLANTED: [&[u8]; 2] = [b"{\"type\":\"ADD\0garbage\n", b"{\"kind\":\"Po\0garbage\n"];

/// A line of a watch that is as it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    Event,
    Bookmark,
    /// 410: the client has to begin anew.
    Expired,
    /// Another error, with its code. The watch ends.
    Refused(u16),
    /// Garbage that upstream has sent.
    Planted,
}

/// A watch, and the version up to which it has received everything.
#[derive(Clone, Debug)]
pub(crate) struct WatchJudge {
    pub(crate) resource: Resource,
    pub(crate) part: Part,
    pub(crate) at: u64,
}

/// A list, taken apart.
pub(crate) struct ListAnswer<'a> {
    pub(crate) version: u64,
    pub(crate) token: String,
    /// The items as they stand there, separated by commas.
    pub(crate) items: &'a [u8],
}

#[derive(Deserialize)]
struct Line {
    object: LineObject,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LineObject {
    metadata: AnswerMetadata,
    code: u16,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AnswerMetadata {
    resource_version: String,
    r#continue: String,
    annotations: std::collections::BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct ListHead {
    metadata: AnswerMetadata,
}

/// Returns `true` if these are the bytes of a planted fault.
pub(crate) fn is_planted(bytes: &[u8]) -> bool {
    PLANTED.contains(&bytes)
}

/// Returns the version of a bookmark that marks the end of the initial events.
pub(crate) fn end_mark(line: &[u8]) -> Option<u64> {
    if !line.starts_with(br#"{"type":"BOOKMARK""#) {
        return None;
    }
    let line: Line = serde_json::from_slice(line).ok()?;
    let metadata = line.object.metadata;
    metadata.annotations.get("k8s.io/initial-events-end")?;
    metadata.resource_version.parse().ok()
}

/// Returns the code of an ERROR line.
pub(crate) fn error_code(line: &[u8]) -> Option<u16> {
    if !line.starts_with(br#"{"type":"ERROR""#) {
        return None;
    }
    let line: Line = serde_json::from_slice(line).ok()?;
    Some(line.object.code)
}

fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().take(300).collect()
}

impl WatchJudge {
    /// Takes the next line of the watch.
    ///
    /// # Errors
    /// The line is not what comes next in the history.
    pub(crate) fn take(&mut self, history: &History, line: &[u8]) -> Result<Accepted, String> {
        if let Some(code) = error_code(line) {
            return Ok(match code {
                410 => Accepted::Expired,
                code => Accepted::Refused(code),
            });
        }
        if is_planted(line) {
            return Ok(Accepted::Planted);
        }
        let next = history.next(self.resource, &self.part, self.at)?;
        if line.starts_with(br#"{"type":"BOOKMARK""#) {
            let parsed: Line = serde_json::from_slice(line).map_err(|error| error.to_string())?;
            let version = parsed.object.metadata.resource_version;
            let version: u64 = version
                .parse()
                .map_err(|_| format!("bookmark at {version:?}"))?;
            self.bookmark(version, next.map(|next| next.0), history.acknowledged())?;
            return Ok(Accepted::Bookmark);
        }
        match next {
            Some((version, expected)) if expected == line => {
                self.at = version;
                Ok(Accepted::Event)
            }
            Some((version, expected)) => Err(format!(
                "after {} the event at {version} was due, {}, and not {}",
                self.at,
                shown(&expected),
                shown(line)
            )),
            None => Err(format!(
                "after {} nothing was due: {}",
                self.at,
                shown(line)
            )),
        }
    }

    fn bookmark(&mut self, version: u64, next: Option<u64>, newest: u64) -> Result<(), String> {
        if next.is_some_and(|next| next <= version) {
            return Err(format!(
                "a bookmark at {version} before the event at {next:?}, after {}",
                self.at
            ));
        }
        if version < self.at || version > newest {
            return Err(format!(
                "a bookmark at {version}, not between {} and {newest}",
                self.at
            ));
        }
        self.at = version;
        Ok(())
    }

    /// Checks the state that a watch began with, and goes on from its version.
    ///
    /// # Errors
    /// It is not the state of that version.
    pub(crate) fn begin(
        &mut self,
        history: &History,
        initial: &[Bytes],
        version: u64,
    ) -> Result<(), String> {
        let Some(expected) = history.initial(self.resource, &self.part, version) else {
            return Err(format!("the state at {version} is forgotten"));
        };
        if expected.len() != initial.len() || expected.iter().zip(initial).any(|(a, b)| a != b) {
            return Err(format!(
                "{} initial events at {version} instead of {}, or others",
                initial.len(),
                expected.len()
            ));
        }
        self.at = version;
        Ok(())
    }
}

impl<'a> ListAnswer<'a> {
    /// Takes a list apart.
    pub(crate) fn split(resource: Resource, part: &Part, body: &'a [u8]) -> Result<Self, String> {
        let odd = || format!("no list: {}", shown(body));
        let find = |needle: &str| memchr::memmem::find(body, needle.as_bytes()).ok_or_else(odd);
        let (head, items) = if resource.is_custom() && !part.metadata_only {
            let start = find(r#","items":["#)?;
            let end = memchr::memmem::rfind(body, br#"],"kind":""#).ok_or_else(odd)?;
            let items = body.get(start + 10..end).ok_or_else(odd)?;
            ([&body[..start], &body[end + 1..]].concat(), items)
        } else {
            let start = find(r#","items":"#)?;
            let items = body[start + 9..].strip_suffix(b"}\n").ok_or_else(odd)?;
            let items = items
                .strip_prefix(b"[")
                .map_or(&b""[..], |items| items.strip_suffix(b"]").unwrap_or(items));
            ([&body[..start], b"}"].concat(), items)
        };
        let head: ListHead = serde_json::from_slice(&head).map_err(|_| odd())?;
        Ok(Self {
            version: head.metadata.resource_version.parse().map_err(|_| odd())?,
            token: head.metadata.r#continue,
            items,
        })
    }

    /// Checks that these items are the state at their version.
    ///
    /// # Errors
    /// They are not.
    pub(crate) fn judge(
        history: &History,
        resource: Resource,
        part: &Part,
        (version, items): (u64, &[u8]),
    ) -> Result<(), String> {
        if version > history.acknowledged() {
            return Err(format!("a list at {version}, which does not exist yet"));
        }
        let Some(expected) = history.items(resource, part, version) else {
            return Err(format!("the state at {version} is forgotten"));
        };
        if expected == items {
            return Ok(());
        }
        let differs = expected
            .iter()
            .zip(items)
            .take_while(|(a, b)| a == b)
            .count();
        let around = differs.saturating_sub(200);
        Err(format!(
            "a list at {version} differs at byte {differs} of {}: {} instead of {}",
            expected.len(),
            shown(&items[around.min(items.len())..]),
            shown(&expected[around.min(expected.len())..])
        ))
    }
}
