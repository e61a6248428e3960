//! Inputs for every parser of what comes from outside: requests, upstream's answers, files.
//!
//! A [`FuzzTarget`] runs a parser on any bytes, and checks more than that nothing panics. [`fuzz`]
//! makes the bytes. A fuzzer that is guided by coverage can use the targets, too.
#![allow(clippy::unwrap_used, reason = "a check may panic")]
#![allow(clippy::print_stderr, reason = "a fuzzer reports what it found")]
use std::hash::{DefaultHasher, Hash, Hasher as _};

mod fuzzer;
mod objects;
#[cfg(feature = "proxy")]
mod proxy;
mod requests;
mod streams;
mod transcoder;

pub use fuzzer::fuzz;

/// A function that makes a target.
pub type MakeTarget = fn() -> FuzzTarget;

/// The targets, by name.
pub const TARGETS: &[(&str, MakeTarget)] = &[
    ("continue_tokens", requests::continue_tokens),
    ("frames_in_json", streams::frames_in_json),
    ("frames_in_protobuf", streams::frames_in_protobuf),
    ("gzip", streams::gzip),
    ("headers", requests::headers),
    ("indented_json", objects::indented_json),
    ("list_options", requests::list_options),
    ("lists_in_json", objects::lists_in_json),
    ("lists_in_protobuf", objects::lists_in_protobuf),
    ("lists_of_versions", streams::lists_of_versions),
    ("objects_in_json", objects::objects_in_json),
    ("objects_in_protobuf", objects::objects_in_protobuf),
    ("selectors", requests::selectors),
    ("transcoded_objects", transcoder::transcoded_objects),
    ("urls", requests::urls),
    #[cfg(feature = "proxy")]
    ("audit_policies", proxy::audit_policies),
    #[cfg(feature = "proxy")]
    ("certificates", proxy::certificates),
    #[cfg(feature = "proxy")]
    ("checkpoints", proxy::checkpoints),
    #[cfg(feature = "proxy")]
    ("configurations", proxy::configurations),
    #[cfg(feature = "proxy")]
    ("proxy_headers", proxy::proxy_headers),
    #[cfg(feature = "proxy")]
    ("request_frames", proxy::request_frames),
    #[cfg(feature = "proxy")]
    ("request_lines", proxy::request_lines),
];

/// Runs a parser and its checks. Returns a number for what was found.
type InputCheck = Box<dyn Fn(&[u8]) -> u64>;

/// A parser with checks, and material for inputs.
pub struct FuzzTarget {
    corpus: Vec<Vec<u8>>,
    words: &'static [&'static str],
    check: InputCheck,
}

impl FuzzTarget {
    /// Makes a target. The check returns what it found in an input, so that inputs with something
    /// new can be told from others.
    pub fn new<O: Hash>(
        corpus: impl IntoIterator<Item = Vec<u8>>,
        words: &'static [&'static str],
        check: impl Fn(&[u8]) -> O + 'static,
    ) -> Self {
        Self {
            corpus: corpus.into_iter().collect(),
            words,
            check: Box::new(move |input| {
                let mut hasher = DefaultHasher::new();
                check(input).hash(&mut hasher);
                hasher.finish()
            }),
        }
    }

    /// Returns the first inputs, of which others are made.
    pub fn corpus(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    /// Runs the parser and its checks on an input. Returns a number for what was found.
    pub fn run(&self, input: &[u8]) -> u64 {
        (self.check)(input)
    }
}
