//! The resource types of upstream, from discovery and from the CustomResourceDefinitions.
//!
//! The CRDs are themselves followed through a scope, so that a new type is known as soon as
//! upstream has established it, and a changed schema makes the type's scopes list again. So are the
//! APIServices, which say what server answers for a group.
mod custom;
mod discovery;
mod discovery_error;
mod fetch;
mod follower;
pub mod metrics;
mod object_feed;
mod origin;
mod parsed_objects;
mod reading;
mod types;
mod well_known;

pub use discovery_error::DiscoveryError;
pub use follower::CatalogFollower;
pub use reading::NeededTypes;
pub use types::{Catalog, ResourceType};
pub use well_known::is_well_known;
