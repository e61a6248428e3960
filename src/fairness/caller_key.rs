//! The caller that a share counts for.
use std::net::IpAddr;
use std::sync::Arc;

/// The caller that a share counts for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CallerKey {
    /// A user.
    User(Arc<str>),
    /// An address, for callers whose user is not known.
    Address(IpAddr),
}

impl CallerKey {
    /// Returns the key of a user.
    pub fn user(name: &str) -> Self {
        Self::User(name.into())
    }
}
