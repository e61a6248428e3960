//! The names of types in labels.
use std::collections::HashSet;
use std::sync::LazyLock;

use metrics::SharedString;
use parking_lot::RwLock;
use watershed_protocol::GroupVersionResource;

/// Limit of types that labels name, which is more than large clusters have. The registry keeps each
/// series until the process ends, and custom types come and go.
const MAX_TYPES: usize = 5_000;
/// The name of all further types, and of their groups and versions.
const OTHER: &str = "other";

static TYPES: LazyLock<LabelledTypes> = LazyLock::new(|| LabelledTypes::new(MAX_TYPES));

/// Returns the label values of a type: its group and its name, as [`labelled`] gives them.
pub fn type_labels(gvr: &GroupVersionResource) -> [SharedString; 2] {
    let GroupVersionResource {
        group, resource, ..
    } = labelled(gvr);
    [group.into(), resource.into()]
}

/// Returns a type as labels name it. The first types of the process have names of their own, and
/// all further ones share `other`.
pub fn labelled(gvr: &GroupVersionResource) -> GroupVersionResource {
    TYPES.labelled(gvr)
}

/// The types that labels name.
struct LabelledTypes {
    max: usize,
    named: RwLock<HashSet<GroupVersionResource>>,
    other: GroupVersionResource,
}

impl LabelledTypes {
    fn new(max: usize) -> Self {
        Self {
            max,
            named: RwLock::default(),
            other: GroupVersionResource::new(OTHER, OTHER, OTHER),
        }
    }

    fn labelled(&self, gvr: &GroupVersionResource) -> GroupVersionResource {
        let named = self.named.read();
        if named.contains(gvr) {
            return gvr.clone();
        }
        let is_full = named.len() >= self.max;
        drop(named);
        if is_full {
            return self.other.clone();
        }
        // Threads that come here together may exceed the limit by their number.
        self.named.write().insert(gvr.clone());
        gvr.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_come_and_go_do_not_add_series_forever() {
        let names = LabelledTypes::new(2);
        let gvr = |name| GroupVersionResource::new("example.org", "v1", name);
        let labels = ["a", "b", "c", "b", "d"].map(|name| names.labelled(&gvr(name)));
        let labels = labels.map(|label| label.to_string());
        let other = "other.other.other";
        let (a, b) = ("a.v1.example.org", "b.v1.example.org");
        assert_eq!(labels, [a, b, other, b, other]);
    }
}
