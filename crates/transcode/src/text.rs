//! JSON strings as Go's encoding/json escapes them.
//! Source: `encoding/json/encode.go`, `appendString`, with HTML escaped.
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Appends a string. Each byte that is not UTF-8 becomes `\ufffd`.
pub(crate) fn put_string(text: &[u8], out: &mut Vec<u8>) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    if is_plain(text) {
        out.extend_from_slice(text);
    } else if let Ok(text) = std::str::from_utf8(text) {
        put_escaped(text, out);
    } else {
        for chunk in text.utf8_chunks() {
            put_escaped(chunk.valid(), out);
            for _ in chunk.invalid() {
                out.extend_from_slice(br"\ufffd");
            }
        }
    }
    out.push(b'"');
}

/// Appends bytes in base64, as a string.
pub(crate) fn put_base64(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    let written = STANDARD.encode_slice(bytes, &mut out[start..]);
    debug_assert_eq!(written, Ok(out.len() - start), "the length is exact");
    out.push(b'"');
}

/// Returns the length of a line or paragraph separator at the front, else none. encoding/json
/// escapes them because JavaScript took them for ends of lines.
pub(crate) fn line_separator(text: &[u8]) -> Option<&'static [u8; 6]> {
    match text {
        [0xe2, 0x80, 0xa8, ..] => Some(br"\u2028"),
        [0xe2, 0x80, 0xa9, ..] => Some(br"\u2029"),
        _ => None,
    }
}

/// Returns the escape of a character of HTML.
pub(crate) fn html_escape(byte: u8) -> Option<&'static [u8; 6]> {
    match byte {
        b'<' => Some(br"\u003c"),
        b'>' => Some(br"\u003e"),
        b'&' => Some(br"\u0026"),
        _ => None,
    }
}

fn put_escaped(text: &str, out: &mut Vec<u8>) {
    let mut rest = text.as_bytes();
    loop {
        let position = plain_length(rest);
        out.extend_from_slice(&rest[..position]);
        let Some(&byte) = rest.get(position) else {
            return;
        };
        let mut taken = 1;
        match byte {
            b'"' => out.extend_from_slice(br#"\""#),
            b'\\' => out.extend_from_slice(br"\\"),
            0x08 => out.extend_from_slice(br"\b"),
            0x0c => out.extend_from_slice(br"\f"),
            b'\n' => out.extend_from_slice(br"\n"),
            b'\r' => out.extend_from_slice(br"\r"),
            b'\t' => out.extend_from_slice(br"\t"),
            0xe2 => match line_separator(&rest[position..]) {
                Some(escape) => {
                    out.extend_from_slice(escape);
                    taken = 3;
                }
                None => out.push(byte),
            },
            _ => match html_escape(byte) {
                Some(escape) => out.extend_from_slice(escape),
                None => put_control(byte, out),
            },
        }
        rest = &rest[position + taken..];
    }
}

fn put_control(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(br"\u00");
    out.push(DIGITS[usize::from(byte >> 4)]);
    out.push(DIGITS[usize::from(byte & 15)]);
}

/// Returns `true` if a text is ASCII that needs no escape, as nearly all are.
fn is_plain(text: &[u8]) -> bool {
    let (blocks, rest) = text.as_chunks::<16>();
    // Without a branch for each byte, so that the bytes of a block are looked at together.
    let is_special = |byte: u8| is_escaped(byte) | !byte.is_ascii();
    let is_plain_block = |block: &[u8; 16]| {
        !block
            .iter()
            .fold(false, |any, byte| any | is_special(*byte))
    };
    blocks.iter().all(is_plain_block) && rest.iter().all(|byte| !is_special(*byte))
}

/// Returns `true` if a byte by itself has an escape.
const fn is_escaped(byte: u8) -> bool {
    (byte < 0x20) | matches!(byte, b'"' | b'\\' | b'<' | b'>' | b'&')
}

/// Returns the number of bytes before the first one at which an escape may begin.
pub(crate) fn plain_length(text: &[u8]) -> usize {
    let may_escape = |byte: &u8| MAY_ESCAPE[usize::from(*byte)];
    text.iter().position(may_escape).unwrap_or(text.len())
}

/// The bytes at which an escape may begin: those with one, and the first of a line separator.
const MAY_ESCAPE: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0u8;
    while byte < 0x80 {
        table[byte as usize] = is_escaped(byte);
        byte += 1;
    }
    table[0xe2] = true;
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &[u8]) -> String {
        let mut out = Vec::new();
        put_string(text, &mut out);
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    #[test]
    fn strings_are_escaped_as_go_escapes_them() {
        for (text, expected) in [
            (&b""[..], r#""""#),
            (b"plain /text\x7f", "\"plain /text\x7f\""),
            (br#"a"b\c"#, r#""a\"b\\c""#),
            (b"<a>&amp;", r#""\u003ca\u003e\u0026amp;""#),
            (b"\x00\x08\x0c\n\r\t\x1f", r#""\u0000\b\f\n\r\t\u001f""#),
            (
                "\u{2028}\u{2029}\u{2027}\u{20ac}".as_bytes(),
                "\"\\u2028\\u2029\u{2027}\u{20ac}\"",
            ),
            ("\u{fffd}\u{1f600}".as_bytes(), "\"\u{fffd}\u{1f600}\""),
        ] {
            assert_eq!(string(text), expected);
        }
    }

    #[test]
    fn a_text_without_escapes_is_recognized_by_each_of_its_bytes() {
        for byte in 0..=u8::MAX {
            for position in 0..40 {
                let mut text = [b'a'; 40];
                text[position] = byte;
                // A quote at the end has every byte before it looked at.
                let escaped = string(&[&text[..], b"\""].concat());
                let expected = escaped.replacen(r#"\"""#, "\"", 1);
                assert_eq!(string(&text), expected, "{byte:#x} at {position}");
            }
        }
    }

    #[test]
    fn every_byte_that_is_no_utf8_is_replaced() {
        assert_eq!(string(b"a\xffb"), r#""a\ufffdb""#);
        // A surrogate, a character cut short before text, an overlong one, one at the end.
        assert_eq!(string(b"\xed\xa0\x80"), r#""\ufffd\ufffd\ufffd""#);
        assert_eq!(string(b"\xf0\x9f\x98x"), r#""\ufffd\ufffd\ufffdx""#);
        assert_eq!(string(b"\xc0\xaf"), r#""\ufffd\ufffd""#);
        assert_eq!(string(b"<\xe2\x80"), r#""\u003c\ufffd\ufffd""#);
    }

    #[test]
    fn bytes_are_base64_with_padding() {
        for (bytes, expected) in [
            (&b""[..], r#""""#),
            (b"f", r#""Zg==""#),
            (b"fo", r#""Zm8=""#),
            (b"foo", r#""Zm9v""#),
            (b"\xfb\xff\xfe", r#""+//+""#),
        ] {
            let mut out = Vec::new();
            put_base64(bytes, &mut out);
            assert_eq!(out, expected.as_bytes());
        }
    }
}
