//! The store of the proxy, compiled for loom.
//!
//! `store` is a link to the sources in `src/store`. Only their lock, atomics and wakers are loom's
//! (`src/store/sync.rs`). The tests run a few threads in every interleaving that differs.
#![forbid(unsafe_code)]

pub mod store;
