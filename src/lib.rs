//! watershed: a caching reverse proxy and watch multiplexer for the Kubernetes API.
//!
//! ```text
//!             list+watch            Change            snapshot, window          one service
//!  API server ─────────▶ upstream ─────────▶ store ─────────▶ watch ─────────▶ serve ─────────▶ http ─────▶ clients
//!      ▲                    ▲                  ▲   scope joins the first three │
//!      └────── forward ─────┴──────────────────┴───────────────────────────────┘  whatever memory cannot answer exactly
//! ```
//!
//! | room | what it holds | start reading at |
//! |---|---|---|
//! | [`kube`] | Kubernetes' words: names, parameters, selectors, wire forms. Pure | `kube.rs` |
//! | [`upstream`] | the API server: credentials, connections, forwarding, list+watch | `upstream/reflect.rs` |
//! | [`store`] | one scope's newest snapshot and its window of events. Pure | `store/state.rs` |
//! | [`watch`] | one client's watch: selector transitions, bookmarks, the body | `watcher/body.rs` |
//! | [`scope`] | the task that pumps upstream into a store | `scope/pump.rs` |
//! | [`catalog`] | which types there are: discovery and CRDs | `catalog.rs` |
//! | [`access`] | who is calling, and may they | `access.rs` |
//! | [`audit`] | an audit log of what is answered here | `audit/record.rs` |
//! | [`serve`] | a request: answered from memory, or forwarded and why | `serve/plan.rs` |
//! | [`http`] | listener, TLS, limits, drain. Knows no resources | `listener/listen.rs` |
//! | [`admin`] | health, metrics and the status page | `admin.rs` |
//! | [`metric`] | declarations of metrics, for all modules | `metric.rs` |
//! | [`app`] | the only place that knows every room | `app.rs` |
//! | [`sim`], [`demo`] | a simulated API server, and the demonstration that uses it | `sim.rs` |
//! | [`load`] | clients that put load on any API server and measure what they get | `load/round.rs` |
//! | [`figures`] | figures as people read them. Pure | `figures.rs` |
//!
//! Arrows between rooms go one way; `tests/architecture.rs` holds them.
#![forbid(unsafe_code)]

pub mod access;
pub mod admin;
pub mod app;
pub mod audit;
pub mod body;
pub mod catalog;
pub mod cli;
pub mod drain;
pub mod listener;
pub mod metric;
pub mod scope;
pub mod serve;
pub mod store;
pub mod telemetry;
#[cfg(test)]
pub(crate) mod test_support;
pub mod upstream;
pub mod watcher;
