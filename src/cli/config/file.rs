//! The keys of the configuration file, and their JSON schema.
use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde_saphyr::Spanned;
use watershed_protocol::{FieldSelector, LabelSelector, ManagedFields};

use crate::budget::parse_quantity;
use crate::cli::duration::seconds;
use crate::serve::{AgentPattern, CacheMode, ConsistentReads, ScopePolicy};

/// The configuration file. Unknown keys are refused: a misspelt one would leave a silent default.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ConfigFile {
    /// Source of lists and watches with `resourceVersion` unset. Default: `linearizable`.
    pub(super) consistent_reads: ConsistentReads,
    /// Cache mode of types that `resources` does not name. Default: `onDemand`; secrets: `never`.
    #[serde(deserialize_with = "not_empty")]
    // `always` is for single types.
    #[schemars(with = "CacheChoice", extend("enum" = ["onDemand", "metadata", "never", true, false]))]
    pub(super) cache: Option<Spanned<CacheChoice>>,
    /// Opens scopes for the namespaces and selectors that clients ask for, instead of one scope of
    /// everything, for all types.
    #[serde(deserialize_with = "not_empty")]
    #[schemars(with = "bool")]
    pub(super) selector_scopes: Option<bool>,
    /// Closes a scope that nobody has used for this long (seconds); 0 for never. Default: 600 for
    /// on-demand scopes, never for others.
    #[serde(deserialize_with = "not_empty")]
    #[schemars(with = "u64")]
    pub(super) idle_seconds: Option<u64>,
    /// Time for which a type is still served from memory after its upstream watch was lost
    /// (seconds), instead of `--max-staleness`; 0 for no limit.
    #[serde(deserialize_with = "not_empty")]
    #[schemars(with = "u64")]
    pub(super) max_staleness_seconds: Option<u64>,
    /// Derives the JSON of built-in types from protobuf, so that upstream has one list and watch for
    /// both, instead of `--derive-json`.
    #[serde(deserialize_with = "not_empty")]
    #[schemars(with = "bool")]
    pub(super) derive_json: Option<bool>,
    /// Treatment of `metadata.managedFields` of all types, custom ones included. Default: `keep`.
    #[serde(deserialize_with = "not_empty")]
    #[schemars(with = "ManagedFieldsChoice")]
    pub(super) managed_fields: Option<ManagedFieldsChoice>,
    /// Memory that the process may use, as Kubernetes writes quantities (`512Mi`), instead of
    /// `--memory-limit`; 0 for no limit.
    #[serde(deserialize_with = "quantity")]
    #[schemars(schema_with = "quantity_schema")]
    pub(super) memory_limit: Option<u64>,
    /// Settings of single types.
    #[schemars(with = "Vec<TypeSettings>")]
    pub(super) resources: Vec<Spanned<TypeSettings>>,
    /// Parts of types to cache, instead of all their objects.
    #[schemars(with = "Vec<ScopeSettings>")]
    pub(super) scopes: Vec<Spanned<ScopeSettings>>,
    /// Features of watches that are off for some clients. Of several entries that fit a watch, the
    /// first that sets a feature decides.
    #[schemars(with = "Vec<ClientSettings>")]
    pub(super) clients: Vec<Spanned<ClientSettings>>,
}

/// Features of watches for some clients.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ClientSettings {
    /// `User-Agent` of the clients: the whole header, or its beginning with `*` behind it. Unset for
    /// all clients.
    #[serde(default, deserialize_with = "agent")]
    #[schemars(with = "String")]
    pub(super) user_agent: Option<AgentPattern>,
    /// API group of the watched type; unset for the core group.
    #[serde(default, deserialize_with = "group")]
    #[schemars(regex(pattern = "^[a-z0-9.-]*$"))]
    pub(super) group: String,
    /// Plural name of the watched type, as in URLs; unset for all types.
    #[serde(default, deserialize_with = "optional_resource")]
    #[schemars(with = "String", regex(pattern = "^[a-z0-9-]+$"))]
    pub(super) resource: Option<String>,
    /// Compresses the watches that the API server compresses. Default: true.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "bool")]
    pub(super) watch_compression: Option<bool>,
    /// Accepts `sendInitialEvents`. With false such a watch gets 422, as from an API server without
    /// WatchList. Default: true.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "bool")]
    pub(super) watch_list: Option<bool>,
}

/// A part of a type that one list and watch at upstream covers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ScopeSettings {
    /// API group; unset for the core group.
    #[serde(default, deserialize_with = "group")]
    #[schemars(regex(pattern = "^[a-z0-9.-]*$"))]
    pub(super) group: String,
    /// Plural name, as in URLs.
    #[serde(deserialize_with = "resource")]
    #[schemars(regex(pattern = "^[a-z0-9-]+$"))]
    pub(super) resource: String,
    /// Namespaces, each with a scope of its own; unset for one scope of all namespaces.
    #[serde(default)]
    pub(super) namespaces: Vec<String>,
    /// Label selector, as in kubectl's `-l`.
    #[serde(default, deserialize_with = "labels")]
    #[schemars(with = "String")]
    pub(super) label_selector: LabelSelector,
    /// Field selector, such as `spec.nodeName=node-1`.
    #[serde(default, deserialize_with = "fields")]
    #[schemars(with = "String")]
    pub(super) field_selector: FieldSelector,
}

impl ScopeSettings {
    /// Returns the type's name, such as `deployments.apps`.
    pub(super) fn name(&self) -> String {
        qualified_name(&self.group, &self.resource)
    }
}

/// Settings of one type.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TypeSettings {
    /// API group; unset for the core group.
    #[serde(default, deserialize_with = "group")]
    #[schemars(regex(pattern = "^[a-z0-9.-]*$"))]
    pub(super) group: String,
    /// Plural name, as in URLs.
    #[serde(deserialize_with = "resource")]
    #[schemars(regex(pattern = "^[a-z0-9-]+$"))]
    pub(super) resource: String,
    /// Source of its lists and watches with `resourceVersion` unset.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "ConsistentReads")]
    pub(super) consistent_reads: Option<ConsistentReads>,
    /// Cache mode of the type.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "CacheChoice")]
    pub(super) cache: Option<CacheChoice>,
    /// Opens scopes for the namespaces and selectors that clients ask for, instead of one scope of
    /// everything.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "bool")]
    pub(super) selector_scopes: Option<bool>,
    /// Allows one scope of a namespace, or of everything, to replace many selector scopes. Default:
    /// true.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "bool")]
    pub(super) merge: Option<bool>,
    /// Maximum number of on-demand scopes, each with a watch at upstream, over all versions and
    /// representations. Default: 8.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "usize")]
    pub(super) max_upstream_watches: Option<usize>,
    /// Closes a scope that nobody has used for this long (seconds); 0 for never. Default: 600 for
    /// on-demand scopes, never for others.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "u64")]
    pub(super) idle_seconds: Option<u64>,
    /// Age up to which its events are kept (seconds), instead of `--window-seconds`. As there, the
    /// last 100 are kept however old they are.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "u64")]
    pub(super) window_seconds: Option<u64>,
    /// Size up to which events are kept in each of its scopes (MiB), instead of `--window-mib`.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "usize")]
    pub(super) window_mib: Option<usize>,
    /// Time for which the type is still served from memory after its upstream watch was lost
    /// (seconds), instead of `--max-staleness`; 0 for no limit.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "u64")]
    pub(super) max_staleness_seconds: Option<u64>,
    /// Derives the type's JSON from protobuf, so that upstream has one list and watch for both,
    /// instead of `--derive-json`.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "bool")]
    pub(super) derive_json: Option<bool>,
    /// Treatment of the objects' `metadata.managedFields`. Default: keep.
    #[serde(default, deserialize_with = "not_empty")]
    #[schemars(with = "ManagedFieldsChoice")]
    pub(super) managed_fields: Option<ManagedFieldsChoice>,
}

impl TypeSettings {
    /// Returns the type's name, such as `deployments.apps`.
    pub(super) fn name(&self) -> String {
        qualified_name(&self.group, &self.resource)
    }

    /// Returns the settings of the type's scopes.
    pub(super) fn scope_policy(&self) -> ScopePolicy {
        ScopePolicy {
            always_open: self.cache == Some(CacheChoice::Always),
            selector_scopes: self.selector_scopes,
            merge: self.merge,
            max_scopes: self.max_upstream_watches,
            idle: self.idle_seconds.map(seconds),
            window_age: self.window_seconds.map(seconds),
            window_bytes: self.window_mib.map(|mib| mib.saturating_mul(1 << 20)),
            max_staleness: self.max_staleness_seconds.map(seconds),
            derive_json: self.derive_json,
            managed_fields: self.managed_fields.map(ManagedFieldsChoice::treatment),
        }
    }
}

/// Treatment of `metadata.managedFields` as the file spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ManagedFields")]
pub(super) enum ManagedFieldsChoice {
    /// Held and answered as upstream sends them.
    Keep,
    /// Neither held nor answered from memory.
    Drop,
}

impl ManagedFieldsChoice {
    /// Returns the treatment.
    pub(super) fn treatment(self) -> ManagedFields {
        match self {
            Self::Keep => ManagedFields::Keep,
            Self::Drop => ManagedFields::Drop,
        }
    }
}

/// Cache mode of a type as the file spells it, with the time at which caching starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheChoice {
    /// Caches nothing.
    Never,
    /// Caches metadata, from the first request on.
    Metadata,
    /// Caches objects, from the first request on.
    OnDemand,
    /// Caches objects, from the start of the proxy.
    Always,
}

impl CacheChoice {
    /// Returns what the cache stores of each object.
    pub(super) fn mode(self) -> CacheMode {
        match self {
            Self::Never => CacheMode::Nothing,
            Self::Metadata => CacheMode::Metadata,
            Self::OnDemand | Self::Always => CacheMode::Objects,
        }
    }
}

impl<'de> Deserialize<'de> for CacheChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CacheChoiceVisitor;

        impl Visitor<'_> for CacheChoiceVisitor {
            type Value = CacheChoice;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("onDemand (or true), always, metadata or never (or false)")
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<CacheChoice, E> {
                Ok(if value {
                    CacheChoice::OnDemand
                } else {
                    CacheChoice::Never
                })
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<CacheChoice, E> {
                match value {
                    "onDemand" => Ok(CacheChoice::OnDemand),
                    "demand" => Err(E::custom("`demand` is now `onDemand`")),
                    "always" => Ok(CacheChoice::Always),
                    "metadata" => Ok(CacheChoice::Metadata),
                    "never" => Ok(CacheChoice::Never),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }
        }

        deserializer.deserialize_any(CacheChoiceVisitor)
    }
}

impl JsonSchema for CacheChoice {
    fn schema_name() -> Cow<'static, str> {
        "Cache".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": concat!(
                "onDemand (or true): objects, from the first request on; ",
                "always: objects, from the start; ",
                "metadata: only PartialObjectMetadata; never (or false): nothing.",
            ),
            "enum": ["onDemand", "always", "metadata", "never", true, false],
        })
    }
}

fn qualified_name(group: &str, resource: &str) -> String {
    if group.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}.{group}")
    }
}

/// Reads a key that may be absent, but not empty.
fn not_empty<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Reads a quantity of bytes.
fn quantity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_quantity(&text).map(Some).map_err(D::Error::custom)
}

/// Describes a quantity of bytes. YAML takes one without a unit for a number.
fn quantity_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["string", "integer"], "minimum": 0 })
}

/// Reads the name of an API group. A misspelt name would configure nothing, silently.
fn group<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let fits = text
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b));
    if fits {
        Ok(text)
    } else {
        Err(D::Error::custom(format!(
            "{text:?} is not the name of an API group"
        )))
    }
}

/// Reads the plural name of a resource.
fn resource<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    let plain = text
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if plain && !text.is_empty() {
        Ok(text)
    } else {
        Err(D::Error::custom(format!(
            "{text:?} is not the name of a resource: use its lower-case plural, such as pods"
        )))
    }
}

/// Reads the plural name of a resource that may be absent, but not empty.
fn optional_resource<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    resource(deserializer).map(Some)
}

/// Reads a pattern of `User-Agent` headers.
fn agent<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<AgentPattern>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let (start, pattern) = match text.strip_suffix('*') {
        Some(start) => (start, AgentPattern::BeginsWith(start.to_owned())),
        None => (&*text, AgentPattern::Exactly(text.clone())),
    };
    if start.contains('*') {
        return Err(D::Error::custom(format!(
            "{text:?} is no pattern: write the whole User-Agent, or its beginning with * behind it"
        )));
    }
    Ok(Some(pattern))
}

fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LabelSelector, D::Error> {
    let text = String::deserialize(deserializer)?;
    LabelSelector::parse(&text).map_err(|error| D::Error::custom(format!("{text:?}: {error}")))
}

fn fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FieldSelector, D::Error> {
    let text = String::deserialize(deserializer)?;
    FieldSelector::parse(&text).map_err(|error| D::Error::custom(format!("{text:?}: {error}")))
}

/// Returns the JSON schema of the file.
pub(in crate::cli) fn schema() -> Schema {
    SchemaGenerator::default().into_root_schema_for::<ConfigFile>()
}

/// Returns the text of docs/config.schema.json.
pub fn config_schema() -> String {
    let mut schema = schema();
    schema.insert(
        "title".to_owned(),
        "Configuration of watershed (--config)".into(),
    );
    format!("{:#}\n", schema.to_value())
}
