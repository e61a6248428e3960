//! The words everybody speaks: Kubernetes' names, parameters and wire forms. No IO, no locks.
mod attributes;
mod continue_token;
mod encoding;
mod field_selector;
mod fields;
mod gzip;
mod label_selector;
mod list_options;
mod media;
mod request_info;
mod resource;
mod selection;
mod status;
mod version;

pub use attributes::ObjectAttributes;
pub use continue_token::ContinueToken;
pub use encoding::{
    Bookmark, BookmarkFormat, ErrorStatus, EventKind, Frame, FrameDecoder, ItemBytes, ItemRun,
    ListPage, ListParts, Malformed, ObjectIdentity, PartialFormat, Scanned, WireFormat,
    read_bookmark, read_error, read_identity, scan,
};
pub use field_selector::{FieldOperator, FieldRequirement, FieldSelector};
pub use fields::FieldTable;
pub use gzip::{Deflated, GZIP_LEVEL, GzipMember, accepts_gzip, deflate, gzip_member};
pub use label_selector::{InvalidSelector, LabelOperator, LabelRequirement, LabelSelector};
pub use list_options::{
    GetRead, InvalidOptions, ListOptions, ListRead, VersionMatch, VersionParam, WatchStart,
    get_read,
};
pub use media::{AcceptClause, Encoding, Representation, acceptable, wants_pretty};
pub use request_info::{RequestInfo, ResourceRequest, Verb};
pub use resource::GroupVersionResource;
pub use selection::Selection;
pub use status::{Status, StatusDetails, escape_json};
pub use version::ResourceVersion;
