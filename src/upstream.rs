//! The side of the API server: its addresses and credentials, the connections to it, and the
//! requests that go there.
//!
//! Three kinds of requests leave here and never share a connection:
//! - the proxy's own ([`Client`]): with its client certificate and its token;
//! - the callers' ([`Forwarder`]): with their tokens;
//! - those of callers who have nothing that upstream would take, for whom the proxy vouches: with
//!   its credentials, which act as the caller ([`Authority::Impersonated`]).
//!
//! Invariant: the proxy's credentials are never lent to a caller. A forwarded request either
//! travels on connections made without the proxy's client certificate and gets no token, or says
//! whom it is for. Only where the operator made all callers one with the proxy ([`Authority::Own`])
//! it does not.

mod body;
mod client;
mod compression;
mod connection;
#[cfg(test)]
mod credentials_tests;
mod error;
mod forward;
mod hop_by_hop;
pub mod metrics;
mod pool;
mod probe;
mod reflect;
mod repeat;
mod server;
mod stream;
mod traffic;
mod upgrade;

pub use body::UpstreamBody;
pub use client::Client;
pub use compression::WatchCompression;
pub use error::{NoAnswer, UpstreamError};
pub use forward::{Authority, Forwarder};
pub use server::Upstream;

pub use pool::{Class, SendOptions, ServedBy};
pub use probe::{CatchUp, Keys, Listed, Probe, Seen};
pub use reflect::{Change, Collect, Reflector, Stopped, Target};
pub use traffic::{Connected, Purpose, Traffic};
