//! Numbers on the command line.
use clap::builder::RangedU64ValueParser;

/// Returns a parser for numbers up to a maximum.
pub(crate) fn up_to(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(..=most)
}
