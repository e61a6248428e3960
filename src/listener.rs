//! The client-facing side: listening, TLS, connections, limits and their orderly end.
//!
//! This module knows HTTP and nothing of Kubernetes. What a request means is the business of the
//! [`RequestHandler`] that is handed to [`listen::serve`].

mod accept;
mod activity;
mod activity_stream;
mod answer_body;
mod client_certificates;
mod connection;
mod connection_server;
mod fresh_streams;
mod goaway;
mod http1_rules;
mod input_memory;
pub(crate) mod inspect;
mod inspected;
mod limits;
mod lingering;
pub mod listen;
pub mod metrics;
mod open_body;
mod open_connections;
mod peer_connection;
mod per_address;
pub(crate) mod proxy_protocol;
pub(crate) mod request_frames;
pub(crate) mod request_lines;
mod self_signed;
pub mod socket;
mod stream_stall;
mod timeouts;
pub mod tls;
mod tls_policy;
mod trusted_proxies;
mod unread_bodies;
mod vectored_bytes;
mod watched_frames;
mod watched_lines;
mod write_coalescing;

pub use connection::{Peer, RequestHandler, TlsPeer};
pub use goaway::LastOfConnection;
pub use limits::ConnectionLimits;
pub use peer_connection::PeerConnection;
pub use per_address::client_network;
pub use trusted_proxies::{InvalidNetwork, Network, TrustedProxies};
