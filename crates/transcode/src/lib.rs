//! JSON derived from Kubernetes' protobuf, byte for byte as kube-apiserver prints it.
//!
//! kube-apiserver encodes one Go struct as protobuf and as JSON. This crate prints the JSON of the
//! struct that a protobuf message was encoded from. A table that is generated from the Go types
//! describes the messages: `tests/real/internal/transcode` writes it, and compares this crate with
//! the API machinery's own serializers. Pure: no runtime, no IO, no locks.
//!
//! Whatever the table does not explain is an error, [`Unexplained`], never a guess: an unknown field,
//! a wrong wire type, an invalid value. The time and the length of the output are linear in the
//! length of the input, and nesting is bounded.
//!
//! # What protobuf does not tell
//!
//! - An empty list or map and an absent one are the same in protobuf. In JSON they differ where the
//!   member has no `omitempty`. The absent one is printed (`null`), as it is what an object becomes
//!   that was stored in protobuf. [`Transcoder::is_stored_as_json`] names the types that
//!   kube-apiserver stores in JSON, of which such a member is unexplained.
//! - Members that Go always writes are absent if the server's release does not have them. They are
//!   not printed then.
//! - Releases differ in which empty members they print. [`Transcoder::for_release`] prints as one of
//!   them, and [`Transcoder::prints_like`] tells if two differ.
mod duration;
mod member_set;
mod message;
mod number;
mod raw;
mod releases;
mod table;
#[cfg(test)]
mod tests;
mod text;
mod time;
mod transcoder;
mod unexplained;
mod well_known;
mod wire;

pub use transcoder::{Heading, Transcoder};
pub use unexplained::{Reason, Unexplained};
