//! JSON within an object, as encoding/json passes it on: checked, without whitespace, and with HTML
//! escaped. Source: `encoding/json/indent.go`, `appendCompact`.
use crate::text::{html_escape, line_separator, plain_length};
use crate::unexplained::Reason;

/// Levels of nesting that are followed. Go follows 10,000.
const MAX_NESTING: usize = 1_000;

const INVALID: Reason = Reason::Value("embedded JSON is not valid");

/// Appends a JSON value that is embedded in an object.
pub(crate) fn put_compact(json: &[u8], out: &mut Vec<u8>) -> Result<(), Reason> {
    let mut compactor = Compactor {
        json,
        at: 0,
        copied: 0,
        open: Vec::new(),
        out,
    };
    compactor.run()
}

/// A walk over a JSON text that does not recurse.
struct Compactor<'a, 'o> {
    json: &'a [u8],
    /// The position of the next byte to be read.
    at: usize,
    /// The start of the bytes that were read and not copied yet. Most texts are compact already, and
    /// are copied at once.
    copied: usize,
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

    /// Passes what stands before the end of the next scalar or empty container.
    fn value_start(&mut self) -> Result<(), Reason> {
        loop {
            match self.peek()? {
                // Half of the values in managedFields, which are most of what is embedded.
                b'{' if self.json.get(self.at + 1) == Some(&b'}') => {
                    self.check_depth()?;
                    self.at += 2;
                    return Ok(());
                }
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

    /// Passes what follows a value, up to where the next begins. Returns `true` at the text's end.
    fn value_end(&mut self) -> Result<bool, Reason> {
        loop {
            let Some(&closing) = self.open.last() else {
                self.skip_space();
                self.copy();
                return if self.at == self.json.len() {
                    Ok(true)
                } else {
                    Err(INVALID)
                };
            };
            let next = self.peek()?;
            if next == closing {
                self.open.pop();
                self.at += 1;
                continue;
            }
            if next != b',' {
                return Err(INVALID);
            }
            self.at += 1;
            if closing == b'}' {
                self.key()?;
            }
            return Ok(false);
        }
    }

    fn enter(&mut self, closing: u8) -> Result<(), Reason> {
        self.check_depth()?;
        self.open.push(closing);
        self.at += 1;
        Ok(())
    }

    /// Fails if no container may be opened here.
    fn check_depth(&self) -> Result<(), Reason> {
        if self.open.len() == MAX_NESTING {
            return Err(Reason::TooDeep);
        }
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
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Result<(), Reason> {
        self.at += 1;
        loop {
            let rest = &self.json[self.at..];
            let plain = plain_length(rest);
            let rest = &rest[plain..];
            self.at += plain;
            match *rest {
                [b'"', ..] => {
                    self.at += 1;
                    return Ok(());
                }
                [b'\\', b'u', a, b, c, d, ..] if [a, b, c, d].iter().all(u8::is_ascii_hexdigit) => {
                    self.at += 6;
                }
                [
                    b'\\',
                    b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"',
                    ..,
                ] => self.at += 2,
                [] | [b'\\' | ..0x20, ..] => return Err(INVALID),
                [byte, ..] => {
                    if let Some(escape) = html_escape(byte) {
                        self.replace(1, escape);
                    } else if let Some(escape) = line_separator(rest) {
                        self.replace(3, escape);
                    } else {
                        self.at += 1;
                    }
                }
            }
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Reason> {
        if !self.json[self.at..].starts_with(word) {
            return Err(INVALID);
        }
        self.at += word.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), Reason> {
        if self.next() == Some(b'-') {
            self.at += 1;
        }
        if self.next() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.next() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.next(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.next(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Reason> {
        let digits = self.json[self.at..].iter();
        let count = digits.take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            return Err(INVALID);
        }
        self.at += count;
        Ok(())
    }

    /// Returns the next byte that is not whitespace.
    fn peek(&mut self) -> Result<u8, Reason> {
        self.skip_space();
        self.next().ok_or(INVALID)
    }

    fn next(&self) -> Option<u8> {
        self.json.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.next() {
            self.replace(1, b"");
        }
    }

    /// Passes bytes, and puts others in their place.
    fn replace(&mut self, count: usize, by: &[u8]) {
        self.copy();
        self.out.extend_from_slice(by);
        self.at += count;
        self.copied = self.at;
    }

    /// Copies what was passed.
    fn copy(&mut self) {
        self.out.extend_from_slice(&self.json[self.copied..self.at]);
        self.copied = self.at;
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
        let empty = |depth: usize| [&b"[".repeat(depth)[..], b"{}", &b"]".repeat(depth)].concat();
        let deepest = empty(MAX_NESTING - 1);
        assert_eq!(compact(&deepest).as_ref(), Ok(&deepest));
        assert_eq!(compact(&empty(MAX_NESTING)), Err(Reason::TooDeep));
    }
}
