//! watershed: a caching reverse proxy and watch multiplexer for the Kubernetes API.
//!
//! ```text
//!          list+watch        changes      snapshot, window       responses
//!  API    ──────────▶ upstream ────▶ store ────▶ watcher ──▶ serve ──▶ listener ──▶ clients
//!  server                │             ▲                       │
//!    ▲                   │             └─ scope: its task joins them
//!    └────── forward ────┴─────────────────────────────────────┘  all other requests
//! ```
//!
//! | module | content | start reading at |
//! |---|---|---|
//! | [`upstream`] | the API server: connections, forwarding, lists, watches | `upstream/reflect.rs` |
//! | [`store`] | one scope's newest snapshot and its window of events. Pure | `store/state.rs` |
//! | [`watcher`] | one client's watch: selectors, bookmarks, the body | `watcher/body.rs` |
//! | [`scope`] | the task that moves upstream's changes into a store | `scope/pump.rs` |
//! | [`catalog`] | the types that can be cached: discovery and CRDs | `catalog.rs` |
//! | [`access`] | who calls, and what they may do | `access.rs` |
//! | [`audit`] | an audit log of what is answered from memory | `audit/record.rs` |
//! | [`proof`] | proofs that memory is no older than a consistent read | `proof.rs` |
//! | [`serve`] | the phases of a request: plan, authorize, open, wait, answer | `serve.rs` |
//! | [`listener`] | sockets, TLS, limits. Knows no resources | `listener/listen.rs` |
//! | [`admin`] | health, metrics and the status page | `admin.rs` |
//! | [`advise`] | replays audit logs, to report what a proxy would save | `advise/replay.rs` |
//! | [`app`] | starts all of the above and joins them | `app.rs` |
//! | [`cli`] | the command line and the configuration file | `cli.rs` |
//! | [`budget`] | the memory budget: bytes by class, the limit, steps when memory runs short | `budget/pressure.rs` |
//! | [`backoff`], [`body`], [`drain`], [`fairness`], [`headers`], [`work`] | small types that several modules share | |
//! | [`shared_calls`] | calls whose result several callers share | `shared_calls/singleflight.rs` |
//! | [`atomic_moment`], [`log_throttle`], [`metric`] | moments without locks; log lines; metric declarations | |
//! | [`telemetry`] | logs, traces and the metrics registry | `telemetry.rs` |
//!
//! More crates of the workspace:
//!
//! | crate | content |
//! |---|---|
//! | `watershed_protocol` | the Kubernetes API on the wire: URLs, selectors, encodings. Pure |
//! | `watershed_transcode` | JSON derived from protobuf, as kube-apiserver prints it. Pure |
//! | `watershed_connect` | kubeconfigs, credentials and TLS connections to an API server |
//! | `watershed_lab` | a simulated API server, a load generator, the demo. Not in production |
//! | `watershed_figures` | numbers as people read them |
//! | `watershed_fuzz` | a fuzz target for each parser of what comes from outside |
//! | `watershed_interleavings` | loom's models of what threads share |
//!
//! Dependencies between modules, and between the files of a module, point one way.
//! `tests/architecture` fails otherwise.
#![forbid(unsafe_code)]

pub mod access;
pub mod admin;
pub mod advise;
pub mod app;
pub mod atomic_moment;
pub mod audit;
pub mod backoff;
pub mod body;
pub mod budget;
pub mod catalog;
pub mod cli;
pub mod drain;
pub mod fairness;
#[doc(hidden)]
pub mod fuzzing;
pub mod headers;
pub mod listener;
pub mod log_throttle;
pub mod metric;
pub mod proof;
pub mod scope;
pub mod serve;
pub mod shared_calls;
pub mod store;
pub mod telemetry;
#[cfg(test)]
pub(crate) mod test_support;
pub mod upstream;
pub mod watcher;
pub mod work;
