//! Connects to API servers: kubeconfigs, addresses, credentials and TLS dialling.
//!
//! The proxy and the lab both connect to API servers. What they share lives here: reading a
//! kubeconfig or a pod's service account, keeping tokens and certificates fresh, and opening
//! connections. The caller decides what is sent on them.
#![forbid(unsafe_code)]

mod address;
mod api_server;
mod blocking;
mod credentials;
mod dial;
mod error;
mod kubeconfig;
mod options;
mod protocol;
mod validity;

pub use address::{Address, AddressError};
pub use api_server::ApiServer;
pub use blocking::blocking;
pub use credentials::{Credentials, CredentialsError, Fingerprint, TlsIdentity};
pub use dial::{CONNECT_TIMEOUT, Dialed, DialedStream, Dialer};
pub use error::{ConnectError, one_line};
pub use kubeconfig::{KubeconfigReadError, read_kubeconfig};
pub use options::ConnectOptions;
pub use protocol::{OfferedProtocols, Protocol};
pub use validity::Validity;

/// Installs aws-lc-rs as the cryptography of all TLS in this process. Later calls do nothing.
pub fn install_crypto() {
    // An error says that a provider is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}
