//! JSON within an object, as encoding/json passes it on: checked, without whitespace, and with HTML
//! escaped. Source: `encoding/json/indent.go`, `appendCompact`.
use crate::text::{html_escape, line_separator};
use crate::unexplained::Reason;

/// Levels of nesting that are followed. Go follows 10,000.
const MAX_NESTING: usize = 1_000;

const INVALID: Reason = Reason::Value("embedded JSON is not valid");

/// Appends a JSON value that is embedded in an object.
pub(crate) fn put_compact(json: &[u8], out: &mut Vec<u8>) -> Result<(), Reason> {
    let mut compactor = Compactor {
        rest: json,
        open: Vec::new(),
        out,
    };
    compactor.run()
}

/// A walk over a JSON text that does not recurse.
struct Compactor<'a, 'o> {
    rest: &'a [u8],
    /// The closing bracket of each container that is open.
    open: Vec<u8>,
    out: &'o mut Vec<u8>,
}

impl Compactor<'_, '_> {
    fn run(&mut self) -> Result<(), Reason> {
        loop {
            self.value_start()?;
            if self.value_end()? {
                return Ok(());
            }
        }
    }

    /// Copies what stands before the end of the next scalar or empty container.
    fn value_start(&mut self) -> Result<(), Reason> {
        loop {
            match self.peek()? {
                b'{' => {
                    self.enter(b'}')?;
                    if self.peek()? == b'}' {
                        return Ok(());
                    }
                    self.key()?;
                }
                b'[' => {
                    self.enter(b']')?;
                    if self.peek()? == b']' {
                        return Ok(());
                    }
                }
                b'"' => return self.string(),
                b't' => return self.word(b"true"),
                b'f' => return self.word(b"false"),
                b'n' => return self.word(b"null"),
                _ => return self.number(),
            }
        }
    }

    /// Copies what follows a value, up to where the next begins. Returns true at the text's end.
    fn value_end(&mut self) -> Result<bool, Reason> {
        loop {
            let Some(&closing) = self.open.last() else {
                self.skip_space();
                return if self.rest.is_empty() {
                    Ok(true)
                } else {
                    Err(INVALID)
                };
            };
            let next = self.peek()?;
            if next == closing {
                self.open.pop();
                self.copy(1);
                continue;
            }
            if next != b',' {
                return Err(INVALID);
            }
            self.copy(1);
            if closing == b'}' {
                self.key()?;
            }
            return Ok(false);
        }
    }

    fn enter(&mut self, closing: u8) -> Result<(), Reason> {
        if self.open.len() == MAX_NESTING {
            return Err(Reason::TooDeep);
        }
        self.open.push(closing);
        self.copy(1);
        Ok(())
    }

    fn key(&mut self) -> Result<(), Reason> {
        if self.peek()? != b'"' {
            return Err(INVALID);
        }
        self.string()?;
        if self.peek()? != b':' {
            return Err(INVALID);
        }
        self.copy(1);
        Ok(())
    }

    fn string(&mut self) -> Result<(), Reason> {
        self.copy(1);
        loop {
            match *self.rest {
                [b'"', ..] => {
                    self.copy(1);
                    return Ok(());
                }
                [b'\\', b'u', a, b, c, d, ..] if [a, b, c, d].iter().all(u8::is_ascii_hexdigit) => {
                    self.copy(6);
                }
                [
                    b'\\',
                    b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"',
                    ..,
                ] => self.copy(2),
                [] | [b'\\' | ..0x20, ..] => return Err(INVALID),
                [byte, ..] => {
                    if let Some(escape) = html_escape(byte) {
                        self.out.extend_from_slice(escape);
                        self.rest = &self.rest[1..];
                    } else if let Some(escape) = line_separator(self.rest) {
                        self.out.extend_from_slice(escape);
                        self.rest = &self.rest[3..];
                    } else {
                        self.copy(1);
                    }
                }
            }
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Reason> {
        if !self.rest.starts_with(word) {
            return Err(INVALID);
        }
        self.copy(word.len());
        Ok(())
    }

    fn number(&mut self) -> Result<(), Reason> {
        if self.rest.first() == Some(&b'-') {
            self.copy(1);
        }
        if self.rest.first() == Some(&b'0') {
            self.copy(1);
        } else {
            self.digits()?;
        }
        if self.rest.first() == Some(&b'.') {
            self.copy(1);
            self.digits()?;
        }
        if matches!(self.rest.first(), Some(b'e' | b'E')) {
            self.copy(1);
            if matches!(self.rest.first(), Some(b'+' | b'-')) {
                self.copy(1);
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Reason> {
        let count = self
            .rest
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        if count == 0 {
            return Err(INVALID);
        }
        self.copy(count);
        Ok(())
    }

    /// Returns the next byte that is not whitespace.
    fn peek(&mut self) -> Result<u8, Reason> {
        self.skip_space();
        self.rest.first().copied().ok_or(INVALID)
    }

    fn skip_space(&mut self) {
        while let [b' ' | b'\t' | b'\r' | b'\n', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    /// Copies bytes that are known to be there.
    fn copy(&mut self, count: usize) {
        let (copied, rest) = self.rest.split_at(count);
        self.out.extend_from_slice(copied);
        self.rest = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compact(json: &[u8]) -> Result<Vec<u8>, Reason> {
        let mut out = Vec::new();
        put_compact(json, &mut out)?;
        Ok(out)
    }

    #[test]
    fn whitespace_goes_and_html_is_escaped() {
        for (json, expected) in [
            (
                &b" { \"a\" : [ 1 , -0.5e+7, {} , [ ] ] ,\"b\":\tnull}\n"[..],
                &b"{\"a\":[1,-0.5e+7,{},[]],\"b\":null}"[..],
            ),
            (b"true", b"true"),
            (b"\"<&>\xe2\x80\xa8\"", br#""\u003c\u0026\u003e\u2028""#),
            (br#""\ud800\/\"""#, br#""\ud800\/\"""#),
            (b"\"\xff\x7f\"", b"\"\xff\x7f\""),
            (b"0", b"0"),
            (br#"{"<":{"f:a":{}}}"#, br#"{"\u003c":{"f:a":{}}}"#),
        ] {
            assert_eq!(compact(json).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn what_is_no_json_is_unexplained() {
        for json in [
            &b""[..],
            b" ",
            b"{",
            b"}",
            b"[1,]",
            b"{\"a\"}",
            b"{\"a\":1,}",
            b"{a:1}",
            b"01",
            b"-",
            b"1.",
            b"1e",
            b"tru",
            b"nullx",
            b"\"",
            b"\"\n\"",
            b"\"\\x\"",
            b"\"\\u12g4\"",
            b"1 2",
            b"[1}",
            b"k8s\0",
            b"\xd9\xd9\xf7\xa0",
        ] {
            assert_eq!(compact(json), Err(INVALID), "{}", json.escape_ascii());
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| [b"[".repeat(depth), b"]".repeat(depth)].concat();
        assert_eq!(compact(&nested(MAX_NESTING)), Ok(nested(MAX_NESTING)));
        assert_eq!(compact(&nested(MAX_NESTING + 1)), Err(Reason::TooDeep));
    }
}
