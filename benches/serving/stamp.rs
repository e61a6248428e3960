//! The mark that every pod of the benchmarks has: when it was written.

/// The annotation that says when an object was written, in microseconds; always of the same length.
pub(crate) const STAMP: &[u8] = br#""bench/stamp":""#;
pub(crate) const STAMP_DIGITS: usize = 16;

/// The same as a key with a value in protobuf: both have their length before them.
const IN_PROTOBUF: &[u8] = b"\x0bbench/stamp\x12\x10";

/// Returns the number of pods in a text of either encoding. Managed fields name the annotation, too,
/// but give it no value.
pub(crate) fn stamps(text: &[u8]) -> usize {
    memchr::memmem::find_iter(text, STAMP).count()
        + memchr::memmem::find_iter(text, IN_PROTOBUF).count()
}
