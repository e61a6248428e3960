//! Compression of the proxy's own lists and watches.

use watershed_connect::Address;

use super::server::Upstream;

/// Policy for compressing the lists and watches of scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListCompression {
    /// If it saves more than it costs: upstream is on another machine, or a proxy,
    /// which compresses an event once for all who follow it.
    #[default]
    WherePays,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl ListCompression {
    /// Returns the flag's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WherePays => "auto",
            Self::Always => "true",
            Self::Never => "false",
        }
    }

    /// Returns `true` if this upstream is asked to compress. What is known of it can change with
    /// each answer.
    pub(super) fn pays(self, upstream: &Upstream) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::WherePays => {
                let is_local = upstream.addresses().iter().all(Address::is_local);
                !is_local || upstream.chain().is_behind_proxy()
            }
        }
    }
}
