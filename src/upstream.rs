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

mod address;
mod body;
mod client;
mod compression;
mod connect;
mod connection;
pub mod credentials;
mod dial;
mod error;
mod forward;
mod hop_by_hop;
pub mod metrics;
mod pool;
mod probe;
mod reflect;
mod repeat;
mod stream;
#[cfg(test)]
pub(crate) mod testing;
mod traffic;
mod upgrade;

pub use address::Address;
pub use body::UpstreamBody;
pub use client::Client;
pub use compression::WatchCompression;
pub use credentials::{CredentialsError, Upstream, UpstreamOptions};
pub use dial::OwnConnection;
pub use error::{NoAnswer, UpstreamError, one_line};
pub use forward::{Authority, Forwarder};

pub use pool::{Class, SendOptions, ServedBy};
pub use probe::{CatchUp, Keys, Listed, Probe, Seen};
pub use reflect::{Change, Collect, Reflector, Stopped, Target};
pub use traffic::{Connected, Purpose, Traffic};
