//! Mutated inputs for every parser of this crate. Each target checks more than that nothing panics.
//!
//! `make test` gives each target a fixed number of inputs from a fixed seed. `FUZZ_SECONDS` gives
//! each so much time, from the seed in `FUZZ_SEED` or a random one (`make fuzz`).
#![allow(clippy::unwrap_used, reason = "a test may panic")]
mod fuzzer;
mod objects;
mod requests;
mod streams;
