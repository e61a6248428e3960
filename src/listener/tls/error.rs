//! Reasons why certificates and authorities cannot be used.

use std::path::{Path, PathBuf};

use crate::listener::self_signed::SelfSignedError;

/// Reason why the serving certificate or the client authorities cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Only one of the two files was given.
    #[error(
        "--tls-cert and --tls-key belong together: \
         give both, or neither for a self-signed certificate"
    )]
    HalfPair,
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file holds no usable PEM.
    #[error("{} holds no usable PEM {what}: {reason}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The wanted kind of PEM.
        what: &'static str,
        /// The reason.
        reason: String,
    },
    /// rustls rejects the certificate or an authority.
    #[error("the certificate in {} cannot be used: {reason}", path.display())]
    Unusable {
        /// The certificate's file.
        path: PathBuf,
        /// The error of rustls.
        reason: String,
    },
    /// The key belongs to another certificate.
    #[error(
        "the private key in {} is not that of the certificate in {}",
        key.display(),
        cert.display()
    )]
    Mismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The self-signed pair could not be made.
    #[error(transparent)]
    SelfSigned(#[from] SelfSignedError),
}

impl TlsError {
    /// Returns the faulty file, if it was given by the operator.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Read { path, .. } | Self::Pem { path, .. } | Self::Unusable { path, .. } => {
                Some(path)
            }
            Self::Mismatch { key, .. } => Some(key),
            Self::HalfPair | Self::SelfSigned(_) => None,
        }
    }
}
