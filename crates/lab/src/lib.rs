//! Tools to try, measure and test the proxy with.
//!
//! | module | content |
//! |---|---|
//! | [`sim`] | a simulated API server that can misbehave on demand |
//! | [`load`] | a load generator for any API server, its measurements and plots |
//! | [`demo`] | the clients of `watershed demo` and its live picture |
//!
//! Production builds leave this crate out (`--no-default-features`).
#![forbid(unsafe_code)]

pub mod demo;
pub mod load;
pub mod sim;
