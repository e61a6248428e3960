//! A small API server on the loopback, with its certificates and clients.
//!
//! The tests of the listener and of upstream use it.

mod api;
mod kubeconfig;
mod pki;
mod proxy;
mod signer;
mod wait;

pub(crate) use api::{Api, HTTP1, HTTP2, Settings, hanging, read, streamed, text, typed};
pub(crate) use kubeconfig::{OWN_TOKEN, kubeconfig, kubeconfig_text, kubeconfig_with, upstream_of};
pub(crate) use pki::{Pki, roots};
pub(crate) use proxy::{
    Proxy, connect, connect_after, connect_by, get, get2, http1_client, http2_client, tls_options,
};
pub(crate) use signer::{Signer, claims, claims_with};
pub(crate) use wait::{SOON, eventually, soon};
