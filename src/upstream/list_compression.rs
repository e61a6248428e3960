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

/// Upstream's answer to the wish for a compressed body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AnswerCompression {
    /// The request had no `Accept-Encoding`.
    #[default]
    NotAsked,
    /// Upstream did not compress, although it was asked to.
    Declined,
    /// The body is compressed with gzip.
    Gzip,
}

impl AnswerCompression {
    /// Returns the compression of an answer. Some answers are compressed although nobody asked.
    pub(super) fn of(was_asked: bool, is_gzip: bool) -> Self {
        match (is_gzip, was_asked) {
            (true, _) => Self::Gzip,
            (false, true) => Self::Declined,
            (false, false) => Self::NotAsked,
        }
    }
}
