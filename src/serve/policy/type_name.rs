//! Names of types, under one group where several have the same objects.
use std::fmt;

/// Types that are the same objects as another group's, and the group that stands for both.
/// Source: `kubernetes/pkg/registry/events/rest/storage_events.go`, which has the core group's
/// storage.
const SAME: &[(&str, &str, &str)] = &[("events.k8s.io", "events", "")];

/// The name of a type in all its versions, under the group that stands for all with the same
/// objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeName {
    group: String,
    resource: String,
}

impl TypeName {
    /// Creates the name of a type from any of its groups (empty for the core group) and its plural
    /// name.
    pub fn new(group: &str, resource: &str) -> Self {
        Self {
            group: stored_in(group, resource).to_owned(),
            resource: resource.to_owned(),
        }
    }

    /// Returns the API group; empty for the core group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Returns the plural name.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    pub(in crate::serve) fn parts(&self) -> (&str, &str) {
        (&self.group, &self.resource)
    }
}

/// Writes `resource.group`, or the bare resource in the core group.
impl fmt::Display for TypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        Ok(())
    }
}

/// Returns the group that stands for all in which upstream serves the same objects.
pub(in crate::serve) fn stored_in<'a>(group: &'a str, resource: &str) -> &'a str {
    let same = SAME
        .iter()
        .find(|(other, of, _)| *other == group && *of == resource);
    same.map_or(group, |(_, _, group)| *group)
}
