//! Log records of one line each.
use std::borrow::Cow;
use std::io::{self, Write};

/// A log in which each record takes one line, whatever callers have put into it: a selector with a line
/// break could look like another record.
pub(super) struct OneLineEach<W>(pub(super) W);

impl<W: Write> Write for OneLineEach<W> {
    /// Writes a whole record. The subscriber gives each at once.
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        self.0.write_all(&in_one_line(record))?;
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns a record without line breaks but the one at its end.
fn in_one_line(record: &[u8]) -> Cow<'_, [u8]> {
    let text = record.strip_suffix(b"\n").unwrap_or(record);
    if !text.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return Cow::Borrowed(record);
    }
    let mut line = Vec::with_capacity(record.len() + 16);
    for byte in text {
        match byte {
            b'\n' => line.extend(br"\n"),
            b'\r' => line.extend(br"\r"),
            other => line.push(*other),
        }
    }
    line.extend(&record[text.len()..]);
    Cow::Owned(line)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    struct Guarded(Arc<Mutex<Vec<u8>>>);

    impl Write for Guarded {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_record_takes_one_line() {
        let log = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&log);
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || OneLineEach(Guarded(Arc::clone(&written))))
            .with_target(false)
            .without_time()
            .with_ansi(false)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(selection = %"a=b\n ERROR all is lost\r\nc", "a scope ends");
            tracing::info!("the next one");
        });
        let text = String::from_utf8(log.lock().clone()).unwrap();
        let lines = [
            r" WARN a scope ends selection=a=b\n ERROR all is lost\r\nc",
            " INFO the next one",
            "",
        ];
        assert_eq!(text, lines.join("\n"));
    }
}
