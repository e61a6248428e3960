//! The side of the API server: its addresses and credentials, the connections to it, and the
//! requests that go there.
//!
//! Three kinds of requests leave here and never share a connection:
//! - the proxy's own ([`UpstreamClient`]): with its client certificate and its token;
//! - the callers' ([`Forwarder`]): with their tokens;
//! - those of callers who have nothing that upstream would take, for whom the proxy vouches: with
//!   its credentials, which act as the caller ([`ForwardIdentity::Impersonated`]).
//!
//! Invariant: the proxy's credentials are never lent to a caller. A forwarded request either
//! travels on connections made without the proxy's client certificate and gets no token, or says
//! whom it is for. Only where the operator made all callers one with the proxy ([`ForwardIdentity::Own`])
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
pub use client::UpstreamClient;
pub use compression::WatchCompression;
pub use error::{AnswerError, UpstreamError};
pub use forward::{ForwardIdentity, Forwarder};
pub use server::Upstream;

pub use pool::{ConnectionClass, SendOptions, ServedBy};
pub use probe::{CatchUp, ObjectVersions, Probe, ProbeEvent, ProbeList};
pub use reflect::{Change, Collect, Reflector, ReflectorTarget, Stopped};
pub use traffic::{ConnectionPurpose, RequestPurpose, UpstreamTraffic};
