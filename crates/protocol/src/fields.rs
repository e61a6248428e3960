//! Which field labels a type can be selected by, and where their values stand in its objects.
mod builtin;

use std::borrow::Cow;

use super::GroupVersionResource;

/// The field labels a type supports, in fixed order, and where their values are found in JSON and
/// in protobuf.
///
/// Position 0 is always `metadata.name` and position 1 `metadata.namespace`, whether the type lets
/// itself be selected by the namespace or not. A label that is not in the table is upstream's to
/// refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTable {
    namespaced: bool,
    /// Supported labels and aliases with their positions.
    labels: Vec<(Cow<'static, str>, usize)>,
    /// Where values stand, as a tree from the object's top; several labels can share its branches.
    steps: Vec<Step>,
    /// What a place holds when the object says nothing about it.
    absent: Vec<&'static str>,
    /// For each position from 2 on: the places to look at; the first that is not empty is the
    /// value.
    values: Vec<Vec<usize>>,
}

/// One member of an object or message on the way to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// JSON key.
    pub(super) key: Box<str>,
    /// Protobuf field number; 0 where the type has no protobuf form.
    pub(super) number: u32,
    /// The member is a list and only its first element counts.
    pub(super) first: bool,
    pub(super) next: Next,
}

/// What a [`Step`] leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Members of interest.
    Members(Vec<Step>),
    /// A place for a value, by number.
    Place(usize, Shape),
}

/// The form of a value, which protobuf does not tell by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Text,
    Flag,
    Number,
}

impl Shape {
    /// The text upstream formats the zero value as.
    fn zero(self) -> &'static str {
        match self {
            Self::Text => "",
            Self::Flag => "false",
            Self::Number => "0",
        }
    }
}

impl FieldTable {
    /// The table of a type that upstream serves by itself. Types of other groups get the default
    /// labels.
    ///
    /// `None` when a type is known to have labels of its own, but not in this version.
    /// Source: `kubernetes/pkg/apis/*/v*/conversion.go`.
    pub fn builtin(gvr: &GroupVersionResource, namespaced: bool) -> Option<FieldTable> {
        builtin::table(gvr, namespaced)
    }

    /// The table of a custom resource with its version's `selectableFields[].jsonPath`.
    ///
    /// Paths that are more than plain members get no label here, so that their requests are
    /// forwarded.
    /// Source: `apiextensions-apiserver/pkg/registry/customresource/strategy.go:102-124,341-378`,
    /// `apiserver/conversion/converter.go:126-141`.
    pub fn custom(namespaced: bool, selectable_json_paths: &[String]) -> FieldTable {
        let mut table = Self::bare(namespaced, namespaced);
        for path in selectable_json_paths {
            let Some(label) = path.strip_prefix('.') else {
                continue;
            };
            let plain = |key: &str| {
                !key.is_empty()
                    && key
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
            };
            let keys: Vec<(&str, u32)> = label.split('.').map(|key| (key, 0)).collect();
            let reserved = matches!(keys[0].0, "metadata" | "kind" | "apiVersion");
            if reserved
                || !keys.iter().all(|(key, _)| plain(key))
                || table.position(label).is_some()
            {
                continue;
            }
            if let Some(place) = table.place(&keys, Shape::Text) {
                table.add(label.to_owned().into(), vec![place]);
            }
        }
        table
    }

    /// `metadata.name` and `metadata.namespace`: what every type without labels of its own
    /// supports.
    ///
    /// Cluster-scoped types accept the namespace too; its value is empty.
    /// Source: `DefaultMetaV1FieldSelectorConversion` in `apimachinery/pkg/runtime/conversion.go`.
    pub fn metadata_only(namespaced: bool) -> FieldTable {
        Self::bare(namespaced, true)
    }

    /// Where [`ObjectAttributes::field`](super::ObjectAttributes::field) finds the value of a label.
    pub fn position(&self, label: &str) -> Option<usize> {
        self.labels
            .iter()
            .find(|(known, _)| known == label)
            .map(|(_, position)| *position)
    }

    /// Whether the label's value stands in an object's metadata, and nowhere else.
    pub fn is_of_metadata(&self, label: &str) -> bool {
        self.position(label).is_some_and(|position| position < 2)
    }

    /// The position that objects are worth being found by: upstream has an index of the same.
    /// Source: `kubernetes/pkg/registry/core/pod/strategy.go` (Indexers).
    pub fn indexed(&self) -> Option<usize> {
        self.position("spec.nodeName")
    }

    /// Whether its objects live in namespaces.
    pub fn namespaced(&self) -> bool {
        self.namespaced
    }

    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Number of places a scan fills.
    pub(super) fn places(&self) -> usize {
        self.absent.len()
    }

    /// The field values from position 2 on, given what a scan found at each place.
    pub(super) fn values<'a>(
        &'a self,
        found: &'a [Option<Cow<'_, str>>],
    ) -> impl Iterator<Item = &'a str> + Clone {
        let at = |place: &usize| {
            found
                .get(*place)
                .and_then(Option::as_deref)
                .unwrap_or(self.absent[*place])
        };
        self.values.iter().map(move |places| {
            places
                .iter()
                .map(at)
                .find(|v| !v.is_empty())
                .unwrap_or_default()
        })
    }

    fn bare(namespaced: bool, namespace_label: bool) -> Self {
        let mut labels = vec![("metadata.name".into(), 0)];
        if namespace_label {
            labels.push(("metadata.namespace".into(), 1));
        }
        Self {
            namespaced,
            labels,
            steps: Vec::new(),
            absent: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Adds a label with the places its value comes from.
    fn add(&mut self, label: Cow<'static, str>, places: Vec<usize>) {
        self.values.push(places);
        self.labels.push((label, self.values.len() + 1));
    }

    /// The place at the end of a path, new or known. `None` if the path runs through another place.
    ///
    /// A key that ends in `[0]` names a list whose first element the path goes on with.
    fn place(&mut self, path: &[(&str, u32)], shape: Shape) -> Option<usize> {
        let new = self.absent.len();
        let place = insert(&mut self.steps, path, new, shape)?;
        if place == new {
            self.absent.push(shape.zero());
        }
        Some(place)
    }
}

fn insert(steps: &mut Vec<Step>, path: &[(&str, u32)], new: usize, shape: Shape) -> Option<usize> {
    let ((name, number), rest) = path.split_first()?;
    let (key, first) = name
        .strip_suffix("[0]")
        .map_or((*name, false), |key| (key, true));
    let index = steps
        .iter()
        .position(|step| &*step.key == key)
        .unwrap_or_else(|| {
            let next = if rest.is_empty() {
                Next::Place(new, shape)
            } else {
                Next::Members(Vec::new())
            };
            steps.push(Step {
                key: key.into(),
                number: *number,
                first,
                next,
            });
            steps.len() - 1
        });
    match &mut steps[index].next {
        Next::Place(place, _) if rest.is_empty() => Some(*place),
        Next::Members(members) if !rest.is_empty() => insert(members, rest, new, shape),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_labels_are_paths_without_the_dot() {
        let paths = [
            ".spec.color",
            ".spec.size.width",
            ".spec['x']",
            ".spec",
            ".metadata.name",
            ".spec.color",
        ];
        let table = FieldTable::custom(true, &paths.map(str::to_owned));
        assert_eq!(table.position("metadata.name"), Some(0));
        assert_eq!(table.position("metadata.namespace"), Some(1));
        assert_eq!(table.position("spec.color"), Some(2));
        assert_eq!(table.position("spec.size.width"), Some(3));
        assert_eq!(table.position("spec['x']"), None);
        assert_eq!(
            table.position("spec"),
            None,
            "a place inside another's path is left to upstream"
        );
        assert_eq!(
            FieldTable::custom(false, &[]).position("metadata.namespace"),
            None
        );
        assert_eq!(
            FieldTable::metadata_only(false).position("metadata.namespace"),
            Some(1)
        );
    }
}
