//! The stamp in a written object that identifies its delivery: the run, the number of the write and
//! its time.
use std::fmt;
use std::sync::LazyLock;
use std::time::Instant;

use memchr::memmem::Finder;

/// The annotation that holds it. Keys without a prefix are everybody's own.
pub(super) const ANNOTATION: &str = "watershed-load-stamp";

/// Zero of the clock in stamps. Writer and readers are one process, so it is the monotonic one.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Nanoseconds since this process first asked.
pub(super) fn now() -> u64 {
    u64::try_from(EPOCH.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// One write. It is printed with a fixed length, so that it is found and read in any encoding of
/// the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Number of the run that wrote it.
    pub(super) run: u64,
    /// Number of the object.
    pub(super) object: u16,
    /// Counts the writes of the object.
    pub(super) sequence: u32,
    /// When it was sent, by [`now`].
    pub(super) nanos: u64,
}

/// Lengths of the hexadecimal parts after the run.
const OBJECT: usize = 4;
const SEQUENCE: usize = 8;
const NANOS: usize = 16;

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            run,
            object,
            sequence,
            nanos,
        } = self;
        write!(f, "{}{object:04x}{sequence:08x}{nanos:016x}", prefix(*run))
    }
}

fn prefix(run: u64) -> String {
    format!("wsl:{run:016x}:")
}

/// Finds the stamps of one run in objects, without parsing these.
#[derive(Clone, Debug)]
pub(super) struct StampFinder {
    run: u64,
    finder: Finder<'static>,
}

impl StampFinder {
    pub(super) fn new(run: u64) -> Self {
        Self {
            run,
            finder: Finder::new(&prefix(run)).into_owned(),
        }
    }

    /// The stamp in an object's bytes.
    pub(super) fn find(&self, object: &[u8]) -> Option<Stamp> {
        let start = self.finder.find(object)? + self.finder.needle().len();
        let digits = object.get(start..start + OBJECT + SEQUENCE + NANOS)?;
        let digits = std::str::from_utf8(digits).ok()?;
        let (object, rest) = digits.split_at_checked(OBJECT)?;
        let (sequence, nanos) = rest.split_at_checked(SEQUENCE)?;
        Some(Stamp {
            run: self.run,
            object: u16::from_str_radix(object, 16).ok()?,
            sequence: u32::from_str_radix(sequence, 16).ok()?,
            nanos: u64::from_str_radix(nanos, 16).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_found_in_any_encoding() {
        let stamp = Stamp {
            run: 7,
            object: 999,
            sequence: 4_000_000_000,
            nanos: u64::MAX,
        };
        let finder = StampFinder::new(7);
        let json = format!(r#"{{"metadata":{{"annotations":{{"{ANNOTATION}":"{stamp}"}}}}}}"#);
        assert_eq!(finder.find(json.as_bytes()), Some(stamp));
        let text = stamp.to_string();
        let mut message = vec![0x0a, 20];
        message.extend_from_slice(ANNOTATION.as_bytes());
        message.extend([0x12, u8::try_from(text.len()).unwrap()]);
        message.extend_from_slice(text.as_bytes());
        assert_eq!(finder.find(&message), Some(stamp));
    }

    #[test]
    fn stamps_of_other_runs_and_broken_stamps_are_ignored() {
        let stamp = Stamp {
            run: 7,
            object: 1,
            sequence: 2,
            nanos: 3,
        }
        .to_string();
        assert_eq!(StampFinder::new(8).find(stamp.as_bytes()), None);
        let finder = StampFinder::new(7);
        assert!(finder.find(stamp.as_bytes()).is_some());
        assert_eq!(finder.find(&stamp.as_bytes()[..stamp.len() - 1]), None);
        assert_eq!(finder.find(stamp.replace("0003", "00ä").as_bytes()), None);
        assert_eq!(finder.find(b""), None);
    }
}
