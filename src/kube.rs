//! The words everybody speaks: Kubernetes' names, parameters and wire forms. No IO, no locks.
mod attributes;
mod encoding;
mod fields;
mod media;
mod resource;
mod version;

pub use attributes::Attributes;
pub use encoding::{
    Bookmark, BookmarkForm, ErrorStatus, EventKind, Frame, FrameDecoder, ListPage, ListParts, Malformed,
    Scanned, TypeForm, read_bookmark, read_error, scan,
};
pub use fields::FieldTable;
pub use media::Encoding;
pub use resource::GroupVersionResource;
pub use version::ResourceVersion;
