//! The annotation of every benchmark pod that holds the time of its last write.

/// Annotation that holds the time of the write in microseconds. Its length never changes.
pub(crate) const STAMP: &[u8] = br#""bench/stamp":""#;
pub(crate) const STAMP_DIGITS: usize = 16;

/// The annotation's key and the start of its value in protobuf. A length precedes each.
const IN_PROTOBUF: &[u8] = b"\x0bbench/stamp\x12\x10";

/// Returns the number of pods in a text of either encoding. Managed fields also name the
/// annotation, but give it no value.
pub(crate) fn stamps(text: &[u8]) -> usize {
    memchr::memmem::find_iter(text, STAMP).count()
        + memchr::memmem::find_iter(text, IN_PROTOBUF).count()
}
