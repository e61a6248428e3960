//! The upstream side: the API server's addresses and credentials, connections, and requests.
//!
//! Four kinds of requests leave here and never share a connection:
//! - the proxy's own ([`UpstreamClient`]): with its client certificate and its token;
//! - those of known callers ([`Forwarder`]): with the callers' tokens;
//! - those of unknown callers: the same;
//! - those of callers whose credentials upstream does not accept: with the proxy's credentials, which
//!   act as the caller ([`ForwardIdentity::Impersonated`]) or as the proxy ([`ForwardIdentity::Proxy`]).
//!
//! Invariant: the proxy's credentials are never lent to a caller. A forwarded request either
//! travels without the proxy's certificate and token, or names the caller it is for. Only where the
//! operator made all callers one with the proxy ([`ForwardIdentity::Proxy`]) it does not.

mod body;
mod class;
mod client;
mod compression;
mod connection;
mod error;
mod forward;
mod hop_by_hop;
mod initial_events;
mod list_compression;
pub mod metrics;
mod pacing;
mod pool;
mod printed_objects;
mod probe;
mod read;
mod reflect;
mod release;
mod release_probe;
mod repeat;
mod replica;
mod server;
mod state_list;
mod stream;
mod table_form;
#[cfg(test)]
mod tests;
mod traffic;
mod tunnel;
mod upgrade;
mod user_headers;
mod via;

pub use body::UpstreamBody;
pub use class::ConnectionClass;
pub use client::UpstreamClient;
pub use compression::WatchCompression;
pub use connection::ServedBy;
pub use error::{AnswerError, UpstreamError, in_time};
pub use forward::{ForwardIdentity, ForwardOptions, Forwarder, is_upgrade};
pub use initial_events::{InitialEventsAnswer, InitialEventsProbe};
pub use list_compression::{AnswerCompression, ListCompression};
pub use pool::SendOptions;
pub use printed_objects::{PrintedForm, PrintedObjects, PrintedSample};
pub use probe::{CatchUp, MeasuredVersions, ObjectVersions, Probe, ProbeEvent, ProbeList};
pub use reflect::{
    Change, Collect, KnownState, ListedState, Reflector, ReflectorTarget, ResumeProof, Stopped,
    WatchLifetime,
};
pub use release::Release;
pub use release_probe::release_of;
pub use replica::{
    BlockingBody, BodyFeeder, ReplicaClient, ReplicaError, STATE_SILENCE, blocking_body,
    is_slower_than_a_list,
};
pub use server::{Upstream, UpstreamCapacity};
pub use state_list::{ListedObjects, ListedVersions, StateList, StatePage};
pub use table_form::TableForms;
pub use traffic::{ConnectionPurpose, RequestPurpose, UpstreamTraffic};
pub use user_headers::UserHeaders;
pub use via::{ChainError, ProxyChain};
