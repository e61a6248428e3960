//! Test support: the servers that tests start, the clients that they use, and the judges of what
//! clients receive.
//!
//! | file | purpose |
//! |---|---|
//! | `admin` | requests to the admin listener |
//! | `client` | clients: HTTP/1.1, HTTP/2, and bytes written by hand |
//! | `fixture` | a simulated API server with the proxy in front of it, in this process |
//! | `follower` | a client that lists and watches for ever and records all that it receives |
//! | `frames` | HTTP/2 frames written by hand |
//! | `history` | the recorded history of all writes, with which every watch is judged |
//! | `program` | the program `watershed` as a process of its own |
//! | `waiting` | waiting for conditions, with a limit |
pub(crate) mod admin;
pub(crate) mod client;
pub(crate) mod fixture;
pub(crate) mod follower;
pub(crate) mod frames;
pub(crate) mod history;
pub(crate) mod program;
pub(crate) mod rbac;
pub(crate) mod waiting;

pub(crate) use admin::{has_counted, plain_get, plain_request};
pub(crate) use fixture::{Fixture, loopback, small, start_configured, start_proxy, with_secrets};
pub(crate) use waiting::{PATIENCE, at_leisure, becomes, eventually, proven, unless_stalled};
