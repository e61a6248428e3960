//! The lines of audit logs: plain or compressed files, and standard input.
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use jiff::Timestamp;

use super::event::LoggedEvent;

/// Longest line that is read. Events with the bodies of large lists are longer.
const MAX_LINE: usize = 16 << 20;
/// First bytes of a file that gzip has compressed.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Lines of a file that are looked at for its first event.
const FIRST_LINES: usize = 100;

/// A source of lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogInput {
    /// Standard input.
    Stdin,
    /// A file.
    File(PathBuf),
}

/// A log could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {name}")]
pub struct LogError {
    name: String,
    #[source]
    source: io::Error,
}

impl LogError {
    /// Returns `true` if the rest of a compressed file is missing or damaged. What was read is right.
    pub(super) fn is_cut(&self) -> bool {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        matches!(
            self.source.kind(),
            UnexpectedEof | InvalidData | InvalidInput
        )
    }
}

/// One line, or what stands for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogLine<'a> {
    /// A line without its end.
    Text(&'a [u8]),
    /// A line of more than [`MAX_LINE`] bytes.
    TooLong,
}

/// Lines of one log, in bounded memory.
pub(super) struct LogLines {
    name: String,
    input: Box<dyn BufRead>,
    line: Vec<u8>,
}

impl LogInput {
    /// Returns the input that a path on the command line names: `-` is standard input.
    pub fn of(path: &Path) -> Self {
        if path == Path::new("-") {
            Self::Stdin
        } else {
            Self::File(path.to_owned())
        }
    }

    /// Returns `true` if what is read is gone: the log is no regular file.
    fn is_stream(&self) -> bool {
        match self {
            Self::Stdin => true,
            // Opening one that is missing is an error that names it.
            Self::File(path) => path.metadata().is_ok_and(|file| !file.is_file()),
        }
    }

    /// Opens the log.
    pub(super) fn open(&self) -> Result<LogLines, LogError> {
        let name = match self {
            Self::Stdin => "standard input".to_owned(),
            Self::File(path) => path.display().to_string(),
        };
        let opened = match self {
            Self::Stdin => unpacked(io::stdin().lock()),
            Self::File(path) => File::open(path).and_then(unpacked),
        };
        match opened {
            Ok(input) => Ok(LogLines {
                name,
                input,
                line: Vec::new(),
            }),
            Err(source) => Err(LogError { name, source }),
        }
    }
}

/// Sorts files by the time at which their first event was written: rotated files have names of many
/// kinds. Standard input and pipes can be read once only, and come last.
pub(super) fn sort(inputs: &mut [LogInput]) -> Result<(), LogError> {
    let mut order = Vec::with_capacity(inputs.len());
    for input in inputs.iter() {
        let is_stream = input.is_stream();
        let time = if is_stream { None } else { first_time(input)? };
        order.push(((is_stream, time), input.clone()));
    }
    order.sort_by_key(|(place, _)| *place);
    for (place, (_, input)) in inputs.iter_mut().zip(order) {
        *place = input;
    }
    Ok(())
}

/// Returns the time of a file's first event; `None` if it has none, or is torn before its end.
fn first_time(input: &LogInput) -> Result<Option<Timestamp>, LogError> {
    match input.open().and_then(first_event_time) {
        Err(error) if error.is_cut() => Ok(None),
        time => time,
    }
}

fn first_event_time(mut lines: LogLines) -> Result<Option<Timestamp>, LogError> {
    for _ in 0..FIRST_LINES {
        match lines.next()? {
            None => break,
            Some(LogLine::TooLong) => {}
            Some(LogLine::Text(line)) => {
                if let Some(event) = LoggedEvent::parse(line) {
                    // Lines are written in the order of stages. A watch that ends may have begun
                    // before the files of all other lines.
                    return Ok(Some(event.stage_timestamp));
                }
            }
        }
    }
    Ok(None)
}

fn unpacked(input: impl Read + 'static) -> io::Result<Box<dyn BufRead>> {
    let mut input = BufReader::with_capacity(64 << 10, input);
    let is_compressed = input.fill_buf()?.starts_with(&GZIP);
    Ok(if is_compressed {
        Box::new(BufReader::new(MultiGzDecoder::new(input)))
    } else {
        Box::new(input)
    })
}

impl LogLines {
    /// Returns the next line; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<LogLine<'_>>, LogError> {
        self.line.clear();
        match self.read_line() {
            Ok(None) => Ok(None),
            Ok(Some(true)) => Ok(Some(LogLine::Text(&self.line))),
            Ok(Some(false)) => Ok(Some(LogLine::TooLong)),
            Err(source) => Err(LogError {
                name: self.name.clone(),
                source,
            }),
        }
    }

    /// Reads up to the end of the line. Returns whether all of it was kept; `None` at the end.
    fn read_line(&mut self) -> io::Result<Option<bool>> {
        let (mut is_whole, mut is_end) = (true, true);
        loop {
            let buffer = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                buffer => buffer?,
            };
            if buffer.is_empty() {
                return Ok((!is_end).then_some(is_whole));
            }
            is_end = false;
            let found = memchr::memchr(b'\n', buffer);
            let piece = &buffer[..found.unwrap_or(buffer.len())];
            if is_whole && self.line.len() + piece.len() <= MAX_LINE {
                self.line.extend_from_slice(piece);
            } else {
                is_whole = false;
                self.line = Vec::new();
            }
            let read = piece.len() + usize::from(found.is_some());
            self.input.consume(read);
            if found.is_some() {
                return Ok(Some(is_whole));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn lines(path: &Path) -> Vec<Option<String>> {
        let mut lines = LogInput::of(path).open().unwrap();
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push(match line {
                LogLine::Text(text) => Some(String::from_utf8(text.to_vec()).unwrap()),
                LogLine::TooLong => None,
            });
        }
        all
    }

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn lines_are_read_from_plain_and_compressed_files() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "a\n\nb").unwrap();
        let expected = ["a", "", "b"].map(|line| Some(line.to_owned()));
        assert_eq!(lines(&plain), expected);
        // Logs that were appended to each other have several members.
        let compressed = folder.path().join("compressed");
        std::fs::write(&compressed, [packed(b"a\n\n"), packed(b"b")].concat()).unwrap();
        assert_eq!(lines(&compressed), expected);
        std::fs::write(&plain, "").unwrap();
        assert_eq!(lines(&plain), []);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn pipes_are_opened_once_and_come_last() {
        use std::os::fd::AsRawFd as _;

        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "b").unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"a\n").unwrap();
        drop(writer);
        // As of `<(cat a.log)`.
        let pipe = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let pipe = Path::new(&pipe);
        let mut inputs = [LogInput::of(pipe), LogInput::of(&plain)];
        sort(&mut inputs).unwrap();
        assert_eq!(inputs, [LogInput::of(&plain), LogInput::of(pipe)]);
        assert_eq!(lines(pipe), [Some("a".to_owned())]);
    }

    #[test]
    fn a_line_that_is_too_long_costs_no_memory_and_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let long = "x".repeat(MAX_LINE + 1);
        std::fs::write(&path, format!("a\n{long}\nb\n")).unwrap();
        let expected = [Some("a".to_owned()), None, Some("b".to_owned())];
        assert_eq!(lines(&path), expected);
    }

    #[test]
    fn files_that_cannot_be_read_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = LogInput::File(folder.path().join("missing"));
        let error = missing.open().err().unwrap().to_string();
        assert!(error.ends_with("missing"), "{error}");
        let torn = folder.path().join("torn.gz");
        let whole = packed("a line\n".repeat(1000).as_bytes());
        std::fs::write(&torn, &whole[..whole.len() / 2]).unwrap();
        let mut lines = LogInput::of(&torn).open().unwrap();
        let error = loop {
            match lines.next() {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the end is missing"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.ends_with("torn.gz"), "{error}");
    }
}
