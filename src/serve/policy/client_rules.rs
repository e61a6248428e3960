//! Features of the API server that the operator turns off for some clients.
//!
//! Some clients fail at what newer API servers do, or at what proxies on the way make of it. They
//! are answered as by a server without the feature.
use std::fmt;

use super::type_name::TypeName;

/// A rule about watches of some clients, of some types. Of several rules that fit a watch, the
/// first that names a feature decides about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientRule {
    /// The `User-Agent` of the clients; unset for all.
    pub user_agent: Option<AgentPattern>,
    /// The watched type; unset for all.
    pub resource: Option<TypeName>,
    /// Compresses the watches that upstream compresses.
    pub watch_compression: Option<bool>,
    /// Lets watches name `sendInitialEvents`.
    pub watch_list: Option<bool>,
}

/// A pattern of `User-Agent` headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentPattern {
    /// The whole header; of clients that send none, if it is empty.
    Exactly(String),
    /// Its beginning.
    BeginsWith(String),
}

impl ClientRule {
    /// Returns `true` if the rule is about this client and this type.
    pub(in crate::serve) fn fits(&self, agent: &str, resource: Option<&TypeName>) -> bool {
        let is_agent = self
            .user_agent
            .as_ref()
            .is_none_or(|pattern| pattern.fits(agent));
        is_agent && (self.resource.is_none() || self.resource.as_ref() == resource)
    }
}

impl fmt::Display for AgentPattern {
    /// Writes the pattern as the configuration has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(whole) => f.write_str(whole),
            Self::BeginsWith(start) => write!(f, "{start}*"),
        }
    }
}

impl AgentPattern {
    fn fits(&self, agent: &str) -> bool {
        match self {
            Self::Exactly(whole) => agent == whole,
            Self::BeginsWith(start) => agent.starts_with(start),
        }
    }
}
