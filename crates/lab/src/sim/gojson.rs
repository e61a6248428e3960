//! JSON text as Go's encoder writes it: compact, `<`, `>`, `&` and the two line separators escaped,
//! map keys sorted.
//!
//! serde's own output differs in exactly these points, and the proxy's promise is about bytes.
use std::fmt::Write as _;

use memchr::{memchr, memchr2, memchr3};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// A JSON string literal.
pub(crate) fn string(text: &str) -> String {
    escape_html(&Value::from(text).to_string())
}

/// Takes the whitespace between tokens out of a JSON text and escapes what Go escapes inside
/// strings.
pub(crate) fn compact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(quote) = memchr(b'"', rest.as_bytes()) {
        let (between, string) = rest.split_at(quote);
        let (string, after) = string.split_at(string_len(string));
        out.extend(between.split_ascii_whitespace());
        out.push_str(string);
        rest = after;
    }
    out.extend(rest.split_ascii_whitespace());
    escape_html(&out)
}

/// Returns the bytes of the string literal with which a text begins, with its quotes.
fn string_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 1;
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found + 1;
        if bytes[at - 1] == b'"' {
            return at;
        }
        // The character after a backslash ends nothing.
        at += 1;
    }
    text.len()
}

/// Prints a value with sorted keys at every level, as custom resources are stored.
pub(crate) fn sorted(value: &Value) -> String {
    // serde_json's map is a BTreeMap here (no `preserve_order`), so its output is sorted already.
    escape_html(&value.to_string())
}

/// Escapes over a whole JSON text: outside of strings none of these characters can occur.
fn escape_html(json: &str) -> String {
    let bytes = json.as_bytes();
    // Both line separators begin with this byte.
    let separators = "\u{2028}".as_bytes()[0];
    if memchr3(b'<', b'>', b'&', bytes).is_none() && memchr(separators, bytes).is_none() {
        return json.to_owned();
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            _ => out.push(c),
        }
    }
    out
}

/// A JSON object's members in the order of the text, values untouched.
pub(crate) struct Members(pub(crate) Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    members.push(entry);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_escaped_as_go_does() {
        assert_eq!(
            string("a<b>&\"\u{2028}"),
            r#""a\u003cb\u003e\u0026\"\u2028""#
        );
        assert_eq!(
            compact("{ \"a b\" : [ 1, \"x \\\" <\" ] }\n"),
            r#"{"a b":[1,"x \" \u003c"]}"#
        );
        assert_eq!(
            compact(" [ \"\u{201c}\\\\\" , \"\u{2029}\" ] "),
            "[\"\u{201c}\\\\\",\"\\u2029\"]"
        );
    }
}
