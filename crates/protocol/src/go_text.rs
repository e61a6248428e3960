//! Text as Go prints it.
//!
//! Sources: `encoding/json/encode.go` (appendString) and `strconv/quote.go` of Go.
use std::fmt::Write as _;

/// Appends the inside of a JSON string with the escapes of Go's encoder.
pub fn escape_json(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            _ => out.push(c),
        }
    }
}

/// Returns a text in quotes, as Go's `%q` prints it.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        let code = u32::from(c);
        let _ = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            '\u{7}' => write!(out, "\\a"),
            '\u{8}' => write!(out, "\\b"),
            '\u{c}' => write!(out, "\\f"),
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            '\u{b}' => write!(out, "\\v"),
            '\0'..='\u{1f}' | '\u{7f}' => write!(out, "\\x{code:02x}"),
            ' '..='~' => write!(out, "{c}"),
            _ if is_printable(c) => write!(out, "{c}"),
            '\u{10000}'.. => write!(out, "\\U{code:08x}"),
            _ => write!(out, "\\u{code:04x}"),
        };
    }
    out.push('"');
    out
}

/// Decides nearly like Go's `IsPrint`, by what Rust leaves as it is inside a debug string.
fn is_printable(c: char) -> bool {
    ['a', c].iter().collect::<String>().escape_debug().count() == 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_escaped_as_go_does() {
        assert_eq!(
            quote("a\"\\\u{7}\u{b}\u{1}\u{7f}ä\u{a0}\u{200b}e\u{301}\u{e0001}"),
            "\"a\\\"\\\\\\a\\v\\x01\\x7fä\\u00a0\\u200be\u{301}\\U000e0001\"",
        );
    }
}
