//! The edge towards the clients: listening, TLS, connections and their orderly end.
//!
//! This room knows HTTP and nothing of Kubernetes: everything a request means is one service,
//! handed to [`listen::serve`].

pub mod body;
mod connection;
pub mod drain;
pub mod listen;
mod self_signed;
pub mod tls;

pub use connection::{Limits, Peer, TlsPeer};
