//! The edge towards the clients: listening, TLS, connections and their orderly end.
//!
//! This room knows HTTP and nothing of Kubernetes: everything a request means is one service,
//! handed to [`listen::serve`].

mod activity;
mod client_certificates;
mod clock;
mod connection;
mod gathered;
mod limits;
pub mod listen;
pub mod metrics;
mod per_address;
mod pieces;
mod self_signed;
pub mod socket;
mod stall;
pub mod tls;

pub use connection::{Peer, TlsPeer};
pub use limits::ConnectionLimits;
pub use per_address::client_network;
