//! A part of a type's objects, cut out by namespaces and selectors. One part can cover another.
use std::fmt;

use super::{
    FieldOperator, FieldRequirement, FieldSelector, GroupVersionResource, LabelOperator,
    LabelRequirement, LabelSelector,
};

/// The objects of a type that are in a namespace, or in any, and match all selectors.
///
/// ```
/// use watershed_protocol::{FieldSelector, LabelSelector, Selection};
///
/// let in_shop = Selection { namespace: Some("shop".to_owned()), ..Selection::default() };
/// let web_in_shop = Selection {
///     labels: LabelSelector::parse("app=web")?,
///     ..in_shop.clone()
/// };
/// assert!(in_shop.covers(&web_in_shop));
/// assert!(!web_in_shop.covers(&in_shop));
/// assert_eq!(web_in_shop.parameters(), "&labelSelector=app%3Dweb");
/// # Ok::<(), watershed_protocol::InvalidSelector>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// The namespace, `None` for all.
    pub namespace: Option<String>,
    /// Requirements on labels.
    pub labels: LabelSelector,
    /// Requirements on fields.
    pub fields: FieldSelector,
}

impl Selection {
    /// Returns `true` if all objects of the type are selected.
    pub fn is_everything(&self) -> bool {
        self.namespace.is_none() && self.labels.is_everything() && self.fields.is_everything()
    }

    /// Returns `true` if every object of `other` is certainly in this selection.
    ///
    /// Requirements are compared one by one: each of this selection must follow from one of the
    /// other. A `true` is always right. A `false` may be wrong, as when the other selection
    /// contradicts itself and selects nothing.
    pub fn covers(&self, other: &Self) -> bool {
        let namespace = self
            .namespace
            .as_deref()
            .is_none_or(|namespace| other.is_within(namespace));
        namespace
            && self
                .fields
                .requirements()
                .iter()
                .all(|wanted| other.implies_field(wanted))
            && self.labels.requirements().iter().all(|wanted| {
                other
                    .labels
                    .requirements()
                    .iter()
                    .any(|given| implies_label(given, wanted))
            })
    }

    /// Returns the path of its collection.
    pub fn path(&self, gvr: &GroupVersionResource) -> String {
        gvr.collection_path_in(self.namespace.as_deref())
    }

    /// Returns the selectors as parameters of a URL, each with an ampersand before it.
    ///
    /// The text is empty if there are no selectors.
    pub fn parameters(&self) -> String {
        let mut out = String::new();
        for (name, text) in [
            ("labelSelector", self.labels.to_string()),
            ("fieldSelector", self.fields.to_string()),
        ] {
            if !text.is_empty() {
                out.extend(["&", name, "="]);
                out.extend(form_urlencoded::byte_serialize(text.as_bytes()));
            }
        }
        out
    }

    /// Returns the URL of a request with this query that matches none of the objects. It costs
    /// upstream the same for any number of them.
    pub fn url_of_nothing(
        &self,
        gvr: &GroupVersionResource,
        is_namespaced: bool,
        query: &str,
    ) -> String {
        let nothing = self.selecting_nothing(is_namespaced);
        format!("{}?{query}{}", nothing.path(gvr), nothing.parameters())
    }

    /// Returns a part of it that selects nothing, at the same cost for any number of objects.
    ///
    /// Upstream looks up one key where a selector has an exact name: the first one in the order of
    /// the text, if that can be a part of a key. No object has that name and another one, and none
    /// is called `..`, which is no part of a key. Objects in namespaces have no key without theirs,
    /// so it is a part in one of them; not all types have the namespace as a field. A name that is
    /// selected already stays, as the caller may have rights to it alone.
    /// Source: `apimachinery/pkg/api/validation/path/name.go`, `apimachinery/pkg/fields/selector.go`
    /// (parseSelector), `apiserver/pkg/registry/generic/registry/store.go` (ListPredicate,
    /// WatchPredicate), `apiserver/pkg/endpoints/request/requestinfo.go`.
    #[must_use]
    fn selecting_nothing(&self, is_namespaced: bool) -> Self {
        let namespace = is_namespaced.then(|| "default".to_owned());
        let named = |name| FieldRequirement::equals(NAME, name);
        let fields = match self.fields.required_value(NAME) {
            Some(name) => self.fields.and(FieldRequirement::differs(NAME, name)),
            None => self.fields.and(named("-")).and(named("..")),
        };
        Self {
            namespace: self.namespace.clone().or(namespace),
            labels: self.labels.clone(),
            fields,
        }
    }

    /// Selects the object of this name, in this namespace if the type is namespaced.
    pub fn named(namespace: Option<&str>, name: &str) -> Self {
        let fields = FieldSelector::default().and(FieldRequirement::equals(NAME, name));
        Self {
            namespace: namespace.map(str::to_owned),
            fields,
            ..Self::default()
        }
    }

    fn is_within(&self, namespace: &str) -> bool {
        self.namespace.as_deref() == Some(namespace)
            || self.fields.requirements().iter().any(|given| {
                given.field == NAMESPACE
                    && given.operator == FieldOperator::Equals
                    && given.value == namespace
            })
    }

    fn implies_field(&self, wanted: &FieldRequirement) -> bool {
        let implied = |given: &FieldRequirement| {
            given.field == wanted.field
                && match (given.operator, wanted.operator) {
                    (FieldOperator::Equals, FieldOperator::Equals)
                    | (FieldOperator::NotEquals, FieldOperator::NotEquals) => {
                        given.value == wanted.value
                    }
                    (FieldOperator::Equals, FieldOperator::NotEquals) => {
                        given.value != wanted.value
                    }
                    (FieldOperator::NotEquals, FieldOperator::Equals) => false,
                }
        };
        let by_namespace = self
            .namespace
            .as_ref()
            .is_some_and(|namespace| implied(&FieldRequirement::equals(NAMESPACE, namespace)));
        by_namespace || self.fields.requirements().iter().any(implied)
    }
}

const NAME: &str = "metadata.name";
const NAMESPACE: &str = "metadata.namespace";

/// Writes a text for people and for labels of metrics. It is empty if everything is selected.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = self.namespace.clone().unwrap_or_default();
        let parts = [
            ("namespace", namespace),
            ("labelSelector", self.labels.to_string()),
            ("fieldSelector", self.fields.to_string()),
        ];
        let mut between = "";
        for (name, text) in parts.iter().filter(|(_, text)| !text.is_empty()) {
            write!(f, "{between}{name}={text}")?;
            between = "; ";
        }
        Ok(())
    }
}

/// The selectors of a list or watch. One that the request does not have selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selectors {
    /// Requirements on labels.
    pub labels: LabelSelector,
    /// Requirements on fields.
    pub fields: FieldSelector,
}

impl Selectors {
    /// Returns the selected objects of a namespace, or of all with `None`.
    pub fn within(self, namespace: Option<String>) -> Selection {
        Selection {
            namespace,
            labels: self.labels,
            fields: self.fields,
        }
    }
}

/// Returns `true` if every label value, or lack of one, that satisfies `given` satisfies `wanted`.
fn implies_label(given: &LabelRequirement, wanted: &LabelRequirement) -> bool {
    use LabelOperator as Op;
    if given.key != wanted.key {
        return false;
    }
    match given.operator {
        // Few values, or none at all: each can be tried.
        Op::In | Op::Equals | Op::DoubleEquals => {
            given.values.iter().all(|value| wanted.matches(Some(value)))
        }
        Op::DoesNotExist => wanted.matches(None),
        Op::Exists => wanted.operator == Op::Exists,
        Op::NotIn | Op::NotEquals => {
            matches!(wanted.operator, Op::NotIn | Op::NotEquals)
                && wanted.values.iter().all(|value| given.lists(value))
        }
        Op::GreaterThan | Op::LessThan => match wanted.operator {
            Op::Exists => true,
            operator if operator != given.operator => false,
            Op::GreaterThan => given.bound() >= wanted.bound(),
            _ => given.bound() <= wanted.bound(),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn selection(namespace: Option<&str>, labels: &str, fields: &str) -> Selection {
        Selection {
            namespace: namespace.map(str::to_owned),
            labels: LabelSelector::parse(labels).unwrap(),
            fields: FieldSelector::parse(fields).unwrap(),
        }
    }

    #[test]
    fn nothing_is_looked_for_in_one_namespace_at_most() {
        let pods = GroupVersionResource::new("", "v1", "pods");
        let nodes = GroupVersionResource::new("", "v1", "nodes");
        let url = |gvr, selection: Selection, is_namespaced| {
            selection.url_of_nothing(gvr, is_namespaced, "limit=1")
        };
        assert_eq!(
            url(&pods, selection(None, "", "spec.nodeName=n"), true),
            "/api/v1/namespaces/default/pods?limit=1&fieldSelector=spec.nodeName%3Dn%2C\
             metadata.name%3D-%2Cmetadata.name%3D.."
        );
        assert_eq!(
            url(&pods, selection(Some("shop"), "", ""), true),
            "/api/v1/namespaces/shop/pods?limit=1&fieldSelector=metadata.name%3D-%2Cmetadata.name%3D.."
        );
        assert_eq!(
            url(&nodes, Selection::default(), false),
            "/api/v1/nodes?limit=1&fieldSelector=metadata.name%3D-%2Cmetadata.name%3D.."
        );
        assert_eq!(
            url(&nodes, Selection::named(None, "n"), false),
            "/api/v1/nodes?limit=1&fieldSelector=metadata.name%3Dn%2Cmetadata.name%21%3Dn"
        );
    }

    /// An object as selections see it.
    #[derive(Debug)]
    struct Object {
        namespace: &'static str,
        label: Option<&'static str>,
        other_label: Option<&'static str>,
        node: &'static str,
    }

    /// All objects that requirements of [`requirements`] can tell apart, and some more.
    fn objects() -> impl Iterator<Item = Object> {
        let labels = [
            None,
            Some(""),
            Some("a"),
            Some("b"),
            Some("c"),
            Some("1"),
            Some("2"),
            Some("3"),
            Some("02"),
        ];
        let spaces = ["x", "y", "z"].into_iter();
        spaces.flat_map(move |namespace| {
            labels.into_iter().flat_map(move |label| {
                [None, Some("a"), Some("b"), Some("z")]
                    .into_iter()
                    .flat_map(move |other_label| {
                        ["", "n1", "n2", "n3"].map(|node| Object {
                            namespace,
                            label,
                            other_label,
                            node,
                        })
                    })
            })
        })
    }

    fn holds(selection: &Selection, object: &Object) -> bool {
        selection
            .namespace
            .as_deref()
            .is_none_or(|namespace| namespace == object.namespace)
            && selection.labels.matches(|key| {
                if key == "k" {
                    object.label
                } else {
                    object.other_label
                }
            })
            && selection.fields.matches(|field| match field {
                "spec.nodeName" => object.node,
                "metadata.namespace" => object.namespace,
                other => panic!("{other}"),
            })
    }

    const LABELS: &[&str] = &[
        "k",
        "!k",
        "k=a",
        "k==b",
        "k!=a",
        "k in (a,b)",
        "k in (a)",
        "k notin (a,b)",
        "k notin (b)",
        "k>1",
        "k>2",
        "k<2",
        "k<3",
        "k in (1,2,02)",
        "k=",
        "k!=",
        "l",
        "l=a",
        "!l",
        "l!=b",
        "k in (,a)",
    ];
    const FIELDS: &[&str] = &[
        "spec.nodeName=n1",
        "spec.nodeName=n2",
        "spec.nodeName!=n1",
        "spec.nodeName=",
        "spec.nodeName!=",
        "metadata.namespace=x",
        "metadata.namespace=y",
        "metadata.namespace!=x",
    ];

    fn selections() -> impl Strategy<Value = Selection> {
        let some = |from: &'static [&'static str]| proptest::sample::subsequence(from, 0..3);
        let namespace = proptest::option::of(prop_oneof![Just("x"), Just("y")]);
        (namespace, some(LABELS), some(FIELDS)).prop_map(|(namespace, labels, fields)| {
            selection(namespace, &labels.join(","), &fields.join(","))
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn what_is_covered_is_held(wide in selections(), narrow in selections()) {
            let held = |object: &Object| !holds(&narrow, object) || holds(&wide, object);
            if wide.covers(&narrow) {
                prop_assert!(objects().all(|object| held(&object)), "{wide:?} {narrow:?}");
            }
        }

        #[test]
        fn what_is_written_is_read_again(one in selections()) {
            let (labels, fields) = (one.labels.to_string(), one.fields.to_string());
            let again = selection(one.namespace.as_deref(), &labels, &fields);
            prop_assert_eq!(again, one);
        }
    }

    /// Nothing is proven in vain: of single requirements, whatever follows is found to follow.
    #[test]
    fn all_that_follows_from_one_requirement_is_found() {
        let labels = LABELS.iter().map(|labels| selection(None, labels, ""));
        let all: Vec<_> = labels
            .chain(FIELDS.iter().map(|fields| selection(None, "", fields)))
            .collect();
        for wide in &all {
            for narrow in &all {
                let follows =
                    objects().all(|object| !holds(narrow, &object) || holds(wide, &object));
                let same = |one: &Selection| {
                    one.labels
                        .requirements()
                        .first()
                        .map(|label| label.key.clone())
                };
                // Numbers can be written in many ways, more than were tried.
                let numbers = [wide, narrow]
                    .iter()
                    .any(|one| one.labels.to_string().contains(['<', '>']));
                if same(wide) == same(narrow) && !numbers {
                    assert_eq!(wide.covers(narrow), follows, "{wide:?} {narrow:?}");
                } else if wide.covers(narrow) {
                    assert!(follows, "{wide:?} {narrow:?}");
                }
            }
        }
    }

    #[test]
    fn parameters_are_escaped() {
        let odd = selection(Some("x"), "k in (a,b),l", r"metadata.name=a\,b");
        assert_eq!(
            odd.parameters(),
            "&labelSelector=k+in+%28a%2Cb%29%2Cl&fieldSelector=metadata.name%3Da%5C%2Cb"
        );
        assert_eq!(
            odd.path(&GroupVersionResource::new("", "v1", "pods")),
            "/api/v1/namespaces/x/pods"
        );
        assert_eq!(Selection::default().parameters(), "");
        assert_eq!(
            Selection::default().path(&GroupVersionResource::new("apps", "v1", "x")),
            "/apis/apps/v1/x"
        );
    }
}
