//! The field labels of a type and the paths of their values.
use std::borrow::Cow;

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
    /// The paths of values, as a tree from the object's top. Several labels can share its branches.
    steps: Vec<PathStep>,
    /// The value of each place if the object lacks the member.
    absent: Vec<&'static str>,
    /// For each position from 2 on: the places to look at; the first that is not empty is the
    /// value.
    values: Vec<Vec<usize>>,
}

/// One member of an object or message on the way to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathStep {
    /// JSON key.
    pub(crate) key: Box<str>,
    /// Protobuf field number; 0 where the type has no protobuf form.
    pub(crate) number: u32,
    /// The member is a list and only its first element counts.
    pub(crate) first: bool,
    pub(crate) next: StepTarget,
}

/// The end of a [`PathStep`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StepTarget {
    /// Members of interest.
    Members(Vec<PathStep>),
    /// A place for a value, by number.
    Place(usize, ValueShape),
}

/// The type of a value, which protobuf does not encode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueShape {
    Text,
    Flag,
    Number,
}

impl ValueShape {
    /// Returns the text as which upstream formats the zero value.
    fn zero(self) -> &'static str {
        match self {
            Self::Text => "",
            Self::Flag => "false",
            Self::Number => "0",
        }
    }
}

impl FieldTable {
    /// The position of `metadata.name`.
    pub const NAME: usize = 0;

    /// Creates the table of a custom resource with its version's `selectableFields[].jsonPath`.
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
            if let Some(place) = table.place(&keys, ValueShape::Text) {
                table.add(label.to_owned().into(), vec![place]);
            }
        }
        table
    }

    /// Creates the table of a type without labels of its own: `metadata.name` and `metadata.namespace`.
    ///
    /// Cluster-scoped types accept the namespace too; its value is empty.
    /// Source: `DefaultMetaV1FieldSelectorConversion` in `apimachinery/pkg/runtime/conversion.go`.
    pub fn metadata_only(namespaced: bool) -> FieldTable {
        Self::bare(namespaced, true)
    }

    /// Returns the position of a label's value, for
    /// [`ObjectAttributes::field`](crate::ObjectAttributes::field).
    pub fn position(&self, label: &str) -> Option<usize> {
        self.labels
            .iter()
            .find(|(known, _)| known == label)
            .map(|(_, position)| *position)
    }

    /// Returns `true` if the label's value is a name or namespace of the object's metadata.
    pub fn is_metadata_label(&self, label: &str) -> bool {
        self.position(label).is_some_and(|position| position < 2)
    }

    /// Returns the position that is worth an index. Upstream has one of the same.
    /// Source: `kubernetes/pkg/registry/core/pod/strategy.go` (Indexers).
    pub fn indexed(&self) -> Option<usize> {
        self.position("spec.nodeName")
    }

    /// Returns `true` if the type's objects are in namespaces.
    pub fn namespaced(&self) -> bool {
        self.namespaced
    }

    pub(crate) fn steps(&self) -> &[PathStep] {
        &self.steps
    }

    /// Returns the number of places that a scan fills.
    pub(crate) fn places(&self) -> usize {
        self.absent.len()
    }

    /// Returns the field values from position 2 on, given the values that a scan found at the places.
    pub(crate) fn values<'a>(
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

    pub(super) fn bare(namespaced: bool, namespace_label: bool) -> Self {
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
    pub(super) fn add(&mut self, label: Cow<'static, str>, places: Vec<usize>) {
        self.values.push(places);
        self.labels.push((label, self.values.len() + 1));
    }

    /// Adds another name of a label. `None` if the label is unknown.
    pub(super) fn add_alias(&mut self, alias: &'static str, label: &str) -> Option<()> {
        let position = self.position(label)?;
        self.labels.push((alias.into(), position));
        Some(())
    }

    /// Returns the place at the end of a path, new or known. `None` if the path runs through another place.
    ///
    /// A key that ends in `[0]` names a list whose first element the path goes on with.
    pub(super) fn place(&mut self, path: &[(&str, u32)], shape: ValueShape) -> Option<usize> {
        let new = self.absent.len();
        let place = insert(&mut self.steps, path, new, shape)?;
        if place == new {
            self.absent.push(shape.zero());
        }
        Some(place)
    }
}

fn insert(
    steps: &mut Vec<PathStep>,
    path: &[(&str, u32)],
    new: usize,
    shape: ValueShape,
) -> Option<usize> {
    let ((name, number), rest) = path.split_first()?;
    let (key, first) = name
        .strip_suffix("[0]")
        .map_or((*name, false), |key| (key, true));
    let index = steps
        .iter()
        .position(|step| &*step.key == key)
        .unwrap_or_else(|| {
            let next = if rest.is_empty() {
                StepTarget::Place(new, shape)
            } else {
                StepTarget::Members(Vec::new())
            };
            steps.push(PathStep {
                key: key.into(),
                number: *number,
                first,
                next,
            });
            steps.len() - 1
        });
    match &mut steps[index].next {
        StepTarget::Place(place, _) if rest.is_empty() => Some(*place),
        StepTarget::Members(members) if !rest.is_empty() => insert(members, rest, new, shape),
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
