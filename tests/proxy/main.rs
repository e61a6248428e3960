//! Tests of the whole proxy, between a simulated API server and clients that speak plain HTTP over
//! TLS. Most start the proxy in this process; see [`support`].
#![allow(clippy::unwrap_used, reason = "a test may panic")]
mod abusive_clients;
mod access;
mod admin;
mod audit;
mod bad_answers;
mod bad_bodies;
mod bad_requests;
mod browser;
mod caching_policy;
mod check_command;
mod compression;
mod consistent_reads;
mod custom_resources;
mod demo;
mod discovery_documents;
mod drain;
mod indented;
mod limits;
mod load_command;
mod mistakes;
mod on_demand_scopes;
mod reference;
mod releases;
mod request_smuggling;
mod restart;
mod restore;
mod revocation;
mod self_check;
mod staleness;
mod status;
mod support;
mod traces;
mod unix_socket;
mod upstream_faults;
mod vanishing_clients;
