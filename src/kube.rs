//! The words everybody speaks: Kubernetes' names, parameters and wire forms. No IO, no locks.
mod resource;
mod version;

pub use resource::GroupVersionResource;
pub use version::ResourceVersion;
