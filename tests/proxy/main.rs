//! The whole proxy, in this process, between a simulated API server and clients that speak plain
//! HTTP over TLS.
//!
//! | file | what |
//! |---|---|
//! | `rig` | the simulated API server with the proxy in front of it |
//! | `client` | the clients: HTTP/1.1, HTTP/2, and bytes written by hand |
//! | `ledger` | what really happened: the judge of every watch |
//! | `frames` | HTTP/2 written by hand |
//! | `follow` | a client that lists and watches for ever and remembers all it was told |
//! | `browser` | the status page in a real browser, if there is one |
//! | `program` | the program itself, as a process of its own |
//! | the others | tests |
#![allow(clippy::unwrap_used, reason = "a test may panic")]
mod abuse;
mod access;
mod admin;
mod audit;
mod bad_bodies;
mod bad_requests;
mod browser;
mod check;
mod client;
mod compressed;
mod custom;
mod demand;
mod demo;
mod documents;
mod drain;
mod edge;
mod faults;
mod fence;
mod follow;
mod frames;
mod ledger;
mod load;
mod mistakes;
mod policy;
mod program;
mod reference;
mod restart;
mod revoke;
mod rig;
mod smuggling;
mod socket;
mod status;
mod traces;
mod vanishing;
