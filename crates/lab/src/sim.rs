//! A simulated API server: in memory, over TLS, with objects, churn and faults on demand.
//!
//! It plays kube-apiserver's read path (list, get, watch, discovery, reviews) closely enough that
//! the proxy can't tell, and counts what it is asked for. The demo and the tests put the proxy in
//! front of it. JSON only: an Accept header that lists nothing else is refused with 406. Not
//! imitated: admission, defaulting, finalizers, graceful deletion, server-side apply, Table output,
//! gzip of gets and lists.
//!
//! ```no_run
//! # use watershed_lab::sim::{Options, Server};
//! # async fn example() -> anyhow::Result<()> {
//! let upstream = Server::start(Options::default()).await?;
//! upstream.state().create(&watershed_lab::sim::pods(), r#"{"metadata":{"name":"a","namespace":"default"}}"#)?;
//! println!("{} {}", upstream.url(), upstream.admin_token());
//! upstream.faults().cut_watches();
//! # Ok(()) }
//! ```
mod access;
pub mod churn;
mod discovery;
mod faults;
pub mod fixtures;
mod gojson;
mod http;
mod kinds;
mod list;
mod object;
mod options;
mod rbac;
mod request;
mod server;
pub mod simulate;
mod state;
mod stats;
mod status;
mod tls;
mod watch;
mod write;

pub use access::{AccessRule, AccessRules, User};
pub use faults::{ActiveFaults, BrokenFrame, Faults, PlannedRefusal, WatchListSupport};
pub use http::RecordedRequest;
pub use options::{Options, Population};
pub use server::SimulatedServer;
pub use state::{ClusterState, WriteError};
pub use stats::TrafficCounts;

use watershed_protocol::GroupVersionResource;

/// `pods`, the type most experiments are about.
pub fn pods() -> GroupVersionResource {
    GroupVersionResource::new("", "v1", "pods")
}

/// `widgets.example.com`, the custom type.
pub fn widgets() -> GroupVersionResource {
    GroupVersionResource::new("example.com", "v1", "widgets")
}

/// Every type the server has.
pub fn resources() -> Vec<GroupVersionResource> {
    kinds::KINDS
        .iter()
        .map(|k| GroupVersionResource::new(k.group, k.version, k.resource))
        .collect()
}

#[cfg(test)]
mod tests;
