//! Tools to try, measure and test the proxy with.
//!
//! | module | content |
//! |---|---|
//! | [`sim`] | a simulated API server that can misbehave on demand |
//! | [`load`] | a load generator for any API server, and its measurements |
//! | [`plot`] | pictures of what the load generator measured |
//! | [`demo`] | the clients of `watershed demo` and its live picture |
//! | [`client`] | a small HTTP client, also for tests and benchmarks |
//! | [`process`] | CPU time and memory of processes |
//!
//! Functions that the program calls return boxed futures, so that they are compiled with this crate
//! and not anew with each one that awaits them.
//!
//! Production builds leave this crate out (`--no-default-features`).
#![forbid(unsafe_code)]

pub mod body;
pub mod client;
pub mod demo;
mod from_text;
pub mod load;
mod number;
mod output;
pub mod plot;
pub mod process;
mod rate;
pub mod sim;
