//! The edge towards the clients: listening, TLS, connections and their orderly end.
//!
//! This room knows HTTP and nothing of Kubernetes: everything a request means is one service,
//! handed to [`listen::serve`].

mod activity;
pub mod body;
mod client_certificates;
mod clock;
mod connection;
pub mod drain;
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
mod validity;

pub use connection::{Peer, TlsPeer};
pub use limits::Limits;
pub use per_address::counted;
pub use validity::Validity;

/// Chooses the cryptography of all TLS in this process; the first call counts.
pub fn install_crypto() {
    // An error says that one is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
