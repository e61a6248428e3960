//! The words everybody speaks: Kubernetes' names, parameters and wire forms. No IO, no locks.
mod field_selector;
mod label_selector;
mod resource;
mod version;

pub use field_selector::{FieldOperator, FieldRequirement, FieldSelector};
pub use label_selector::{InvalidSelector, LabelOperator, LabelRequirement, LabelSelector};
pub use resource::GroupVersionResource;
pub use version::ResourceVersion;
