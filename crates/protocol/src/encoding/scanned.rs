//! The result of scanning an object.
use std::borrow::Cow;

use super::malformed::Malformed;
use crate::shard_selector::hash;
use crate::{FieldTable, ObjectAttributes, ResourceVersion};

/// The version and the attributes of an object, as [`scan`](crate::scan) reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// `metadata.resourceVersion`.
    pub version: ResourceVersion,
    /// The values that selectors and lists need.
    pub attributes: ObjectAttributes,
}

/// Values collected by a scan, borrowed from the object where they have no escapes.
#[derive(Default)]
pub(super) struct ScanValues<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) namespace: Cow<'a, str>,
    pub(super) uid: Cow<'a, str>,
    pub(super) version: Cow<'a, str>,
    pub(super) labels: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// Field values by place number of the [`FieldTable`].
    pub(super) places: Vec<Option<Cow<'a, str>>>,
}

impl ScanValues<'_> {
    /// Returns an empty collection with room for the field values of a type.
    pub(super) fn new(fields: &FieldTable) -> Self {
        Self {
            places: vec![None; fields.places()],
            ..Self::default()
        }
    }

    /// Checks the values and packs them.
    pub(super) fn finish(mut self, fields: &FieldTable) -> Result<Scanned, Malformed> {
        let version = ResourceVersion::parse(&self.version)
            .ok_or(Malformed("object without a resourceVersion"))?;
        if !self.name.is_empty() && fields.namespaced() == self.namespace.is_empty() {
            return Err(Malformed("object's namespace does not fit its type"));
        }
        // Upstream prints maps sorted, other writers may not. Of equal keys the last one wins, as
        // in Go.
        self.labels.reverse();
        self.labels.sort_by(|a, b| a.0.cmp(&b.0));
        self.labels.dedup_by(|later, first| later.0 == first.0);
        let labels = self.labels.iter().map(|(key, value)| (&**key, &**value));
        let attributes = ObjectAttributes::pack(
            &self.namespace,
            &self.name,
            hash(&self.uid),
            fields.values(&self.places),
            labels,
        )
        .ok_or(Malformed("object with excessive attributes"))?;
        Ok(Scanned {
            version,
            attributes,
        })
    }
}
