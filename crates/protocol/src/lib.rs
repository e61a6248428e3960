//! The Kubernetes API as it is on the wire: names, parameters, selectors and encodings.
//!
//! The crate does no IO, takes no locks and needs no async runtime. It follows kube-apiserver: each
//! module names the sources of the rules it repeats. Requests that upstream refuses, or whose
//! meaning is not certain, come out as an error, `None` or an `Invalid` variant. A proxy forwards
//! them, and upstream answers in its own words.
//!
//! # Map
//!
//! | module | content |
//! |---|---|
//! | `request_info`, `resource` | a URL's verb, type, namespace and name: [`RequestInfo`] |
//! | `query` | the parameters of a URL: [`Query`] |
//! | `list_options`, `continue_token`, `version` | the state a read asks for: [`ListOptions`] |
//! | `label_selector`, `field_selector`, `selection` | the selected objects: [`Selection`] |
//! | `shard_selector` | the objects whose hash is in a range: [`ShardSelector`] |
//! | `object_key` | keys of objects: [`object_key()`] |
//! | `fields`, `attributes` | the values that selectors need of an object: [`FieldTable`] |
//! | `media`, `gzip`, `gunzip` | content negotiation and compression: [`acceptable`], [`deflate`] |
//! | `indent` | JSON for people: [`JsonIndenter`] |
//! | `encoding` | objects, lists and watch events as bytes: [`scan`], [`WireFormat`] |
//! | `table` | objects as rows for people: [`TableForm`] |
//! | `status`, `go_text` | failures in upstream's words: [`Status`] |
//!
//! # Example
//!
//! ```
//! use http::Method;
//! use watershed_protocol::{Freshness, ListOptions, RequestInfo, Verb};
//!
//! let query = Some("labelSelector=app%3Dweb&resourceVersion=0");
//! let info = RequestInfo::parse(&Method::GET, "/api/v1/namespaces/shop/pods", query);
//! assert_eq!(info.verb, Verb::List);
//! let resource = info.resource.expect("the path names a resource");
//! assert_eq!(resource.gvr.to_string(), "pods.v1");
//! assert_eq!(resource.namespace.as_deref(), Some("shop"));
//!
//! let options = ListOptions::parse(query)?;
//! assert_eq!(options.list_start()?.freshness, Freshness::Any);
//! let selectors = options.selectors()?;
//! assert!(selectors.labels.matches(|key| (key == "app").then_some("web")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
mod attributes;
mod continue_token;
mod encoding;
mod field_selector;
mod fields;
mod go_text;
mod gunzip;
mod gzip;
mod indent;
mod label_selector;
mod list_options;
mod media;
mod nullable_text;
mod object_key;
mod query;
mod request_info;
mod resource;
mod selection;
mod shard_selector;
mod status;
mod table;
mod version;

pub use attributes::ObjectAttributes;
pub use continue_token::ContinueToken;
pub use encoding::{
    Bookmark, BookmarkFormat, ErrorStatus, EventKind, FormatRecord, Frame, FrameDecoder, ItemBytes,
    ItemRun, ListMetadata, ListPage, ListParts, Malformed, ManagedFields, ObjectIdentity,
    PartialFormat, ReadDefaults, Scanned, VersionList, VersionListReader, WireFormat,
    read_bookmark, read_error, read_identity, scan,
};
pub use field_selector::{FieldOperator, FieldRequirement, FieldSelector};
pub use fields::FieldTable;
pub use go_text::escape_json;
pub use gunzip::{GunzipError, GzipReader, gunzip};
pub use gzip::{Deflated, GzipMember, GzipWriter, accepts_gzip, deflate, gzip_member};
pub use indent::{JsonIndenter, indent};
pub use label_selector::{InvalidSelector, LabelOperator, LabelRequirement, LabelSelector};
pub use list_options::{
    Freshness, InvalidOptions, ListOptions, ListStart, VersionMatch, VersionParam, WatchStart,
    get_freshness, request_timeout,
};
pub use media::{
    AcceptClause, Encoding, Representation, acceptable, acceptable_ignoring, wants_pretty,
};
pub use nullable_text::nullable_text;
pub use object_key::{is_key_part, object_key};
pub use query::Query;
pub use request_info::{AnswerEnd, RequestInfo, ResourceRequest, Verb};
pub use resource::{GroupVersionResource, is_built_in_group};
pub use selection::{Selection, Selectors};
pub use shard_selector::ShardSelector;
pub use status::{Status, StatusCause, StatusDetails};
pub use table::{
    IncludedObject, PrinterColumn, RowTable, TableForm, TablePrinter, TableRequest, TableRow,
    TableVersion,
};
pub use version::ResourceVersion;

/// Tests the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
