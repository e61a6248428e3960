//! watershed: a caching reverse proxy and watch multiplexer for the Kubernetes API.
#![forbid(unsafe_code)]
pub mod demo;
pub mod kube;
pub mod sim;
