//! The operator's choices that hold for all types or for one.
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::{Deserialize, Deserializer, Error as _};
use watershed_protocol::ManagedFields;

use super::scope_choice::OnDemandLimits;

/// Source of lists and watches with `resourceVersion` unset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
pub enum ConsistentReads {
    /// Memory, once it is proven no older than the request; otherwise upstream.
    #[default]
    #[serde(rename = "linearizable")]
    ProvenFresh,
    /// Upstream.
    #[serde(rename = "forward")]
    Upstream,
    /// Memory as it is: **answers may be older than the request**. This includes gets.
    #[serde(rename = "stale")]
    PossiblyStale,
}

impl ConsistentReads {
    /// Returns the source's name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ProvenFresh => "linearizable",
            Self::Upstream => "forward",
            Self::PossiblyStale => "stale",
        }
    }
}

/// Takes the names of earlier releases, too. A derived implementation would offer these in errors.
impl<'de> Deserialize<'de> for ConsistentReads {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const NAMES: &[&str] = &["linearizable", "forward", "stale"];
        match &*String::deserialize(deserializer)? {
            "linearizable" | "fence" => Ok(Self::ProvenFresh),
            "forward" => Ok(Self::Upstream),
            "stale" | "cache" => Ok(Self::PossiblyStale),
            other => Err(D::Error::unknown_variant(other, NAMES)),
        }
    }
}

/// The part of a type that is cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// Nothing: all reads of the type are forwarded.
    Nothing,
    /// Upstream's `PartialObjectMetadata`. Reads of whole objects are forwarded.
    Metadata,
    /// Whole objects.
    #[default]
    Objects,
}

impl CacheMode {
    /// Returns the mode's name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "never",
            Self::Metadata => "metadata",
            Self::Objects => "onDemand",
        }
    }
}

/// Rules by which the scopes of a type are opened and kept. Unset fields follow the policy of
/// unnamed types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScopePolicy {
    /// Opens the type's scopes at the start, before the first request.
    pub always_open: bool,
    /// Opens scopes for the namespaces and selectors that clients ask for, instead of one scope of
    /// everything. Scopes that the configuration names stay as they are.
    pub selector_scopes: Option<bool>,
    /// Allows one scope of a namespace, or of everything, to replace many selector scopes.
    pub merge: Option<bool>,
    /// Upper bound of on-demand scopes, over all versions and representations of the type.
    pub max_scopes: Option<usize>,
    /// Closes a scope that nobody has used for this long; zero for never.
    pub idle: Option<Duration>,
    /// Age of the oldest event kept.
    pub window_age: Option<Duration>,
    /// Upper bound of the events kept, in bytes.
    pub window_bytes: Option<usize>,
    /// Time for which a scope that does not follow upstream is still served; zero for no limit.
    pub max_staleness: Option<Duration>,
    /// Derives JSON from the type's scope in protobuf, so that upstream has one watch of both.
    pub derive_json: Option<bool>,
    /// The treatment of `metadata.managedFields`.
    pub managed_fields: Option<ManagedFields>,
}

impl ScopePolicy {
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            always_open: self.always_open,
            selector_scopes: self.selector_scopes.or(other.selector_scopes),
            merge: self.merge.or(other.merge),
            max_scopes: self.max_scopes.or(other.max_scopes),
            idle: self.idle.or(other.idle),
            window_age: self.window_age.or(other.window_age),
            window_bytes: self.window_bytes.or(other.window_bytes),
            max_staleness: self.max_staleness.or(other.max_staleness),
            derive_json: self.derive_json.or(other.derive_json),
            managed_fields: self.managed_fields.or(other.managed_fields),
        }
    }

    /// Returns the limits of on-demand scopes; `None` if the type has no such scopes.
    pub(super) fn on_demand(self) -> Option<OnDemandLimits> {
        let default = OnDemandLimits::default();
        let limits = OnDemandLimits {
            max_scopes: self.max_scopes.unwrap_or(default.max_scopes),
            merge: self.merge.unwrap_or(default.merge),
        };
        self.selector_scopes.unwrap_or(false).then_some(limits)
    }
}
