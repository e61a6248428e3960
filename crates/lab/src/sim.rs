//! A simulated API server: in memory, over TLS, with objects, churn and faults on demand.
//!
//! It plays kube-apiserver's read path (list, get, watch, discovery, reviews) closely enough that
//! the proxy can't tell, and counts what it is asked for. The demo and the tests put the proxy in
//! front of it. JSON, and ConfigMaps in protobuf with [`Options::protobuf`]: an Accept header that
//! lists nothing else is refused with 406.
//!
//! Not imitated:
//! - admission, defaulting, finalizers, graceful deletion, server-side apply, subresources;
//! - Table output, gzip of gets and lists, HEAD of custom types (it is refused here);
//! - the order of media types of one quality in an Accept header, of which upstream prefers the
//!   specific ones;
//! - the end of watches that are too slow for the queue of their events;
//! - 429 while the watch caches fill after a restart.
//!
//! ```no_run
//! # use watershed_lab::sim::{Options, SimulatedServer};
//! # async fn example() -> anyhow::Result<()> {
//! let upstream = SimulatedServer::start(Options::default()).await?;
//! let pod = r#"{"metadata":{"name":"a","namespace":"default"}}"#;
//! upstream.state().create(&watershed_lab::sim::pods(), pod)?;
//! println!("{} {}", upstream.url(), upstream.admin_token());
//! upstream.faults().cut_watches();
//! # Ok(()) }
//! ```
mod access;
mod attributes;
mod body;
pub mod churn;
mod discovery;
mod faults;
pub mod fixtures;
mod gojson;
mod kinds;
mod list;
mod message;
mod object;
mod options;
mod populate;
mod rbac;
mod request;
mod server;
mod service;
pub mod simulate;
mod simulation;
mod state;
mod stats;
mod status;
mod tls;
mod watch;
mod write;

pub use access::{AccessRule, AccessRules, VIEWER_TOKEN};
pub use attributes::User;
pub use faults::{
    ActiveFaults, BadAnswer, BadAnswers, BrokenFrame, Faults, PlannedRefusal, WatchListSupport,
};
pub use kinds::{pods, resources, widgets};
pub use options::{Options, Population};
pub use server::SimulatedServer;
pub use service::RecordedRequest;
pub use state::{ClusterState, WriteError};
pub use stats::TrafficCounts;
pub use tls::ServerIdentity;

#[cfg(test)]
mod tests;
