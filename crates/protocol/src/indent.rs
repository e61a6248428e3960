//! Indents compact JSON as upstream prints it for people.
//!
//! The text passes through in pieces and is not parsed into values, so numbers, escapes and the
//! order of members stay as they are.
//!
//! Source: `apimachinery/pkg/runtime/serializer/json/json.go` (`doEncode`, with two spaces) and
//! Go's `encoding/json/indent.go` (`appendIndent`).
use bytes::{BufMut, Bytes, BytesMut};
use memchr::memchr2;

use super::Malformed;

/// Deepest nesting that Go indents. Source: `encoding/json/scanner.go` (`maxNestingDepth`).
const MAX_DEPTH: usize = 10_000;
const SPACES: &[u8] = &[b' '; 64];

/// Indents one JSON text that arrives in pieces.
///
/// ```
/// use bytes::BytesMut;
/// use watershed_protocol::JsonIndenter;
///
/// let (mut indenter, mut out) = (JsonIndenter::default(), BytesMut::new());
/// for piece in ["{\"a\":[1,{}],\"b", "\":\"x,y\"}\n"] {
///     let used = indenter.push(piece.as_bytes(), usize::MAX, &mut out)?;
///     assert_eq!(used, piece.len());
/// }
/// assert_eq!(out, "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": \"x,y\"\n}");
/// # Ok::<(), watershed_protocol::Malformed>(())
/// ```
#[derive(Debug, Default)]
pub struct JsonIndenter {
    /// Objects and arrays that are open.
    depth: usize,
    /// The innermost of them was opened last, and nothing is in it yet.
    is_empty: bool,
    place: Place,
}

/// The place of the next byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Outside of strings.
    #[default]
    Between,
    /// Within a string.
    Text,
    /// Within a string, behind a backslash.
    Escape,
}

impl JsonIndenter {
    /// Appends the indented form of the next piece, until `out` has about `limit` bytes. Returns
    /// the number of bytes that were used of the piece; the caller passes the rest again.
    ///
    /// Fails where Go fails, too: if the nesting is too deep, or brackets do not match in number.
    pub fn push(
        &mut self,
        json: &[u8],
        limit: usize,
        out: &mut BytesMut,
    ) -> Result<usize, Malformed> {
        let mut used = 0;
        while used < json.len() && out.len() < limit {
            let within = json.len().min(used.saturating_add(limit - out.len()));
            used += self.put_next(&json[used..within], out)?;
        }
        Ok(used)
    }

    /// Appends the next byte, or more of a string. Returns the number of bytes used.
    fn put_next(&mut self, json: &[u8], out: &mut BytesMut) -> Result<usize, Malformed> {
        match self.place {
            Place::Between => {
                self.put_between(json[0], out)?;
                Ok(1)
            }
            Place::Text => Ok(self.put_text(json, out)),
            Place::Escape => {
                self.place = Place::Text;
                out.put_u8(json[0]);
                Ok(1)
            }
        }
    }

    fn put_between(&mut self, byte: u8, out: &mut BytesMut) -> Result<(), Malformed> {
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b'}' | b']' => {
                self.depth = self
                    .depth
                    .checked_sub(1)
                    .ok_or(Malformed("JSON with a bracket too many"))?;
                if !std::mem::take(&mut self.is_empty) {
                    self.put_line_end(out);
                }
                out.put_u8(byte);
            }
            _ => {
                if std::mem::take(&mut self.is_empty) {
                    self.put_line_end(out);
                }
                out.put_u8(byte);
                match byte {
                    b'{' | b'[' if self.depth == MAX_DEPTH => {
                        return Err(Malformed("JSON that is nested too deeply"));
                    }
                    b'{' | b'[' => {
                        self.depth += 1;
                        self.is_empty = true;
                    }
                    b',' => self.put_line_end(out),
                    b':' => out.put_u8(b' '),
                    b'"' => self.place = Place::Text,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn put_text(&mut self, json: &[u8], out: &mut BytesMut) -> usize {
        let end = memchr2(b'"', b'\\', json);
        let used = end.map_or(json.len(), |end| end + 1);
        out.put_slice(&json[..used]);
        if let Some(end) = end {
            self.place = if json[end] == b'"' {
                Place::Between
            } else {
                Place::Escape
            };
        }
        used
    }

    fn put_line_end(&self, out: &mut BytesMut) {
        out.put_u8(b'\n');
        let mut left = self.depth * 2;
        while left > 0 {
            let spaces = &SPACES[..left.min(SPACES.len())];
            out.put_slice(spaces);
            left -= spaces.len();
        }
    }
}

/// Returns the indented form of a JSON text, without the line end behind it.
pub fn indent(json: &[u8]) -> Result<Bytes, Malformed> {
    let mut out = BytesMut::with_capacity(json.len() * 2);
    JsonIndenter::default().push(json, usize::MAX, &mut out)?;
    Ok(out.freeze())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// Compact texts and Go's indented forms of them, from `encoding/testdata/generate`.
    const OF_GO: &[(&str, &str)] = &[
        (
            include_str!("encoding/testdata/pods/list.json"),
            include_str!("encoding/testdata/pods/list.indented.json"),
        ),
        (
            include_str!("encoding/testdata/pods/get.json"),
            include_str!("encoding/testdata/pods/get.indented.json"),
        ),
        (
            include_str!("encoding/testdata/foos/list.json"),
            include_str!("encoding/testdata/foos/list.indented.json"),
        ),
        (
            include_str!("encoding/testdata/foos/empty.json"),
            include_str!("encoding/testdata/foos/empty.indented.json"),
        ),
        (
            include_str!("encoding/testdata/partial/list.json"),
            include_str!("encoding/testdata/partial/list.indented.json"),
        ),
        (
            include_str!("encoding/testdata/partial/empty.json"),
            include_str!("encoding/testdata/partial/empty.indented.json"),
        ),
        (
            include_str!("encoding/testdata/indented/odd.json"),
            include_str!("encoding/testdata/indented/odd.indented.json"),
        ),
    ];

    /// Indents pieces of these lengths, in turn, with little room for each result.
    fn in_pieces(json: &[u8], lengths: &[usize], limit: usize) -> Vec<u8> {
        let mut indenter = JsonIndenter::default();
        let (mut all, mut out) = (Vec::new(), BytesMut::new());
        let (mut rest, mut lengths) = (json, lengths.iter().cycle());
        while !rest.is_empty() {
            let (mut piece, behind) = rest.split_at(rest.len().min(*lengths.next().unwrap()));
            rest = behind;
            while !piece.is_empty() {
                let used = indenter.push(piece, limit, &mut out).unwrap();
                piece = &piece[used..];
                all.extend_from_slice(&out.split());
            }
        }
        all
    }

    /// Drops the white space outside of strings.
    fn compact(json: &[u8]) -> Vec<u8> {
        let (mut out, mut in_text, mut is_escaped) = (Vec::new(), false, false);
        for &byte in json {
            if !in_text && byte.is_ascii_whitespace() {
                continue;
            }
            in_text ^= byte == b'"' && !is_escaped;
            is_escaped = in_text && byte == b'\\' && !is_escaped;
            out.push(byte);
        }
        out
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[\"\\\\{}\\[\\]:, a\u{2028}\n]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 64, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map("[\"\\\\,:a-c]{0,3}", inner, 0..5)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn texts_are_indented_as_go_indents_them() {
        for (json, expected) in OF_GO {
            assert_eq!(indent(json.as_bytes()).unwrap(), *expected);
        }
    }

    #[test]
    fn a_line_end_at_the_end_is_dropped() {
        for (json, expected) in [
            ("{}\n", "{}"),
            ("[]", "[]"),
            (" [ { } ] \n", "[\n  {}\n]"),
            ("\"a\\\" {\"\n", "\"a\\\" {\""),
            ("null\n", "null"),
            ("", ""),
        ] {
            assert_eq!(indent(json.as_bytes()).unwrap(), expected);
        }
    }

    #[test]
    fn nesting_is_limited_as_in_go() {
        let nested = |depth: usize| [vec![b'['; depth], vec![b']'; depth]].concat();
        assert!(indent(&nested(MAX_DEPTH)).is_ok());
        assert!(indent(&nested(MAX_DEPTH + 1)).is_err());
        assert!(indent(b"[]]").is_err());
    }

    proptest! {
        /// serde_json's own printer for people uses the same style.
        #[test]
        fn any_value_is_indented_in_any_pieces(
            value in values(),
            lengths in prop::collection::vec(1..20_usize, 1..5),
            limit in 1..40_usize,
        ) {
            let json = serde_json::to_vec(&value).unwrap();
            let expected = serde_json::to_vec_pretty(&value).unwrap();
            prop_assert_eq!(&indent(&json).unwrap()[..], &expected[..]);
            prop_assert_eq!(&in_pieces(&json, &lengths, limit), &expected);
            prop_assert_eq!(compact(&expected), json);
            // What is indented already stays as it is.
            prop_assert_eq!(&indent(&expected).unwrap()[..], &expected[..]);
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = indent(&bytes);
        }
    }
}
